"""The claims that a comparison supports, as one text for the terminal, the report and ``spa reproduce``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spa.evaluate.bootstrap import Interval, percent
from spa.evaluate.two_way import two_groups

BASE, PLAIN_RL = "base", "vanilla"
# The full recipe; its version for states without coordinates; then extensions beyond the paper.
MAIN_VARIANTS = ("spa", "no_coordinates", "spa_plan", "plan")
PLANNED = "+"  # in the name of a variant played with a planner: VARIANT+PLANNER


@dataclass(frozen=True)
class VariantScore:
    """Pass@1 of a variant in [0, 1], by seed, and its differences to other variants (``variant - other``) by their names."""

    by_seed: Mapping[int, float]
    differences: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return sum(self.by_seed.values()) / len(self.by_seed)

    def seeds_with(self, other: VariantScore) -> int:
        """The number of shared seeds, over which the difference is taken."""
        return len(self.by_seed.keys() & other.by_seed.keys())


def main_variant(variants: Mapping[str, VariantScore]) -> str | None:
    """The variant that the verdict is about: the recipe's, else the last trained one."""
    trained = [name for name in variants if name not in (BASE, PLAIN_RL) and PLANNED not in name]
    return next((name for name in MAIN_VARIANTS if name in variants), trained[-1] if trained else None)


def verdict(variants: Mapping[str, VariantScore]) -> list[str]:
    """Sentences, the conclusion first; empty where there is nothing to compare.

    ``better`` is claimed only with at least two seeds and intervals above 0 against the untrained base *and* plain RL. One seed
    compares two trained models, not the recipe.
    """
    name = main_variant(variants)
    if name is None or not variants[name].differences:
        return []
    score = variants[name]
    compared = [other for other in score.differences if other in variants]
    facts = [_fact(name, other, variants) for other in compared]
    lines = [_conclusion(name, variants), *facts]
    plain = variants.get(PLAIN_RL)
    if plain is not None and BASE in variants and plain.mean < variants[BASE].mean:
        above = score.differences.get(BASE)
        lines.append(
            f"Plain RL ended below the base ({_percent(plain.mean)} against {_percent(variants[BASE].mean)})"
            + ("." if above is not None and above.low > 0 else ": being above plain RL is no achievement here.")
        )
    lines += [
        _groups(variant, groups)
        for variant in (PLAIN_RL, name)
        if variant in variants and (groups := two_groups(list(variants[variant].by_seed.values())))
    ]
    return lines


def _conclusion(name: str, variants: Mapping[str, VariantScore]) -> str:
    score = variants[name]
    seeds = len(score.by_seed)
    if seeds < 2:
        return "One training run of each variant: no claim about the recipe, only about these models."
    for other, what in ((BASE, "its untrained base"), (PLAIN_RL, "plain RL")):
        difference = score.differences.get(other)
        if difference is None or other not in variants:
            return f"No claim: {name} was not compared with {what}."
        if score.seeds_with(variants[other]) < 2:
            return f"No claim: {name} and {what} have fewer than two seeds in common."
        if difference.low <= 0:
            return f"No claim: over {seeds} seeds {name} is not shown to be above {what}."
    return f"{name} is better than its untrained base and than plain RL, over {seeds} seeds."


def _fact(name: str, other: str, variants: Mapping[str, VariantScore]) -> str:
    difference = variants[name].differences[other]
    if difference.low > 0:
        relation = "is above"
    elif difference.high < 0:
        relation = "is below"
    else:
        relation = "is not above" if difference.mean <= 0 else "is not clearly above"
    common, seeds = variants[name].seeds_with(variants[other]), len(variants[name].by_seed)
    fewer = f" on what both have, {common} of {seeds} seeds" if common < seeds else ""
    change = f"{percent(difference, sign=True)}{fewer}"
    return f"{name} {_percent(variants[name].mean)} {relation} {other} {_percent(variants[other].mean)}: {change}."


def _groups(variant: str, groups: tuple[list[float], list[float]]) -> str:
    low, high = (
        f"{len(group)} at {_percent(group[0])}" + (f" to {_percent(group[-1])}" if len(group) > 1 else "")
        for group in groups
    )
    return f"The seeds of {variant} look bimodal ({low}, {high}): its intervals cover less than 95%, and more seeds are needed."


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
