"""The claims that a comparison supports, as one text for the terminal, the report and ``spa reproduce``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spa.common.progress import duration
from spa.evaluate.bootstrap import Interval, percent
from spa.evaluate.roles import (
    BASE,
    CONTROLS,
    COORDINATES,
    EQUAL_TIME,
    MAIN_VARIANTS,
    PLAIN_RL,
    PLANNED,
    UPPER_BOUND,
    WITHOUT_RL,
)
from spa.evaluate.two_way import two_groups


@dataclass(frozen=True)
class VariantScore:
    """Pass@1 of a variant in [0, 1], by seed, and what the verdict says beside it.

    Attributes:
        differences: to other variants (``variant - other``) by their names, with intervals.
        steps: of PPO; 0 without.
        seconds: processor time of the variant's own stages, a run; 0 if unknown.
        tokens: written an episode, a planner's included; 0 if unknown.
        failed: further seeds failed: those in ``by_seed`` are a selection.
        cut_off: share of the test turns that ended at the token limit; 0 if unknown.
        reward: mean of an episode; None if unknown.
    """

    by_seed: Mapping[int, float]
    differences: Mapping[str, Interval] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    tokens: float = 0.0
    failed: bool = False
    cut_off: float = 0.0
    reward: float | None = None

    @property
    def mean(self) -> float:
        return sum(self.by_seed.values()) / len(self.by_seed)

    def seeds_with(self, other: VariantScore) -> int:
        """The number of shared seeds, over which the difference is taken."""
        return len(self.by_seed.keys() & other.by_seed.keys())

    def mean_with(self, other: VariantScore) -> float:
        """The mean over the shared seeds; over all where none is shared."""
        seeds = self.by_seed.keys() & other.by_seed.keys() or self.by_seed.keys()
        return sum(self.by_seed[seed] for seed in seeds) / len(seeds)


def main_variant(variants: Iterable[str]) -> str | None:
    """The variant that the verdict is about: the recipe's, else the last trained one; a control, or plain RL, if there is no
    other."""
    names = list(variants)
    trained = [n for n in names if n not in (BASE, PLAIN_RL, EQUAL_TIME, UPPER_BOUND) and PLANNED not in n]
    trained = [name for name in trained if not _beside(name)] or trained
    return next((name for name in MAIN_VARIANTS if name in names), trained[-1] if trained else None)


def _beside(name: str) -> bool:
    """By its name a control or plain RL: what others are compared with."""
    return name in (COORDINATES, *CONTROLS) or name.endswith("_shuffled") or name.startswith(PLAIN_RL)


def counterparts(means: Mapping[str, float]) -> list[str]:
    """The variants that the main one is compared with, as far as they are there, from the Pass@1 of all.

    Base, plain RL, plain RL for equal time, RL with coordinates, and the best of the controls.
    """
    name = main_variant(means)
    controls = [other for other in CONTROLS if other in means and other != name]
    best = max(controls, key=lambda other: means[other], default=BASE)
    first = dict.fromkeys((BASE, PLAIN_RL, EQUAL_TIME, COORDINATES, best))
    return [other for other in first if other in means and other != name]


def verdict(variants: Mapping[str, VariantScore]) -> list[str]:
    """Sentences, the conclusion first; empty where there is nothing to compare.

    ``better`` is said only with at least two seeds and intervals above 0 against the untrained base *and* plain RL. One seed
    compares two trained models, not the recipe. Of variants whose other seeds failed it is not said either.
    """
    name = main_variant(variants)
    if name is None or not variants[name].differences:
        return _unwon(variants)
    score = variants[name]
    first = counterparts({other: entry.mean for other, entry in variants.items()})
    # A table may compare with more; of the controls the best stands for all.
    others = [*first, *(o for o in score.differences if o in variants and o not in (*first, *CONTROLS))]
    lines = [_conclusion(name, variants), *_unwon(variants)]
    lines += [_fact(name, other, variants) for other in others if other in score.differences]
    lines += [*_planned(name, variants), *_time(name, variants), *_reasons(name, variants)]
    lines += [
        _groups(variant, groups)
        for variant in (PLAIN_RL, name)
        if variant in variants and (groups := two_groups(list(variants[variant].by_seed.values())))
    ]
    lines += [
        f"{variants[variant].cut_off:.0%} of the test turns of {variant} were cut off (sampling.max_tokens, max_tokens_base)."
        for variant in (PLAIN_RL, name)
        if variant in variants and variants[variant].cut_off > _MANY
    ]
    return lines


def _unwon(variants: Mapping[str, VariantScore]) -> list[str]:
    """What to say where nobody won, but not everybody got as little."""
    rewards = {name: score.reward for name, score in variants.items() if score.reward is not None}
    if any(score.mean > 0 for score in variants.values()) or len({round(reward, 6) for reward in rewards.values()}) < 2:
        return []
    means = ", ".join(f"{name} {reward:.2f}" for name, reward in rewards.items())
    return [
        f"No episode was won; mean reward: {means}. Where a score counts, let the world call it a success from some value on."
    ]


_MANY = 0.2  # share of turns cut off that a score may be due to


def _conclusion(name: str, variants: Mapping[str, VariantScore]) -> str:
    """``"spa 50.4 is not above its base 51.6 and ...; plain RL fell below the base; one seed, 6 PPO steps: no claim."``"""
    score, relations = variants[name], []
    seeds = len(score.by_seed)
    said, better = _percent(score.mean), seeds > 1
    for other, what in ((BASE, "its base"), (PLAIN_RL, "plain RL")):
        difference = score.differences.get(other)
        if difference is None or other not in variants:
            relations.append(f"was not compared with {what}")
            better = False
            continue
        common, ours = score.seeds_with(variants[other]), _percent(score.mean_with(variants[other]))
        seldom = _COMMON.get(common, f"{common} of {seeds} seeds") + f", where {name} wins {ours}" * (ours != said)
        fewer = f" ({seldom})" if common < seeds else ""
        relations.append(f"{_relation(difference)} {what} {_percent(variants[other].mean_with(score))}{fewer}")
        better = better and common > 1 and difference.low > 0
    parts = [f"{name} {said} {' and '.join(relations)}"]
    fall = variants[PLAIN_RL].differences.get(BASE) if PLAIN_RL in variants and BASE in variants else None
    if fall is not None and fall.high < 0:
        parts.append("plain RL fell below the base")
    steps = f", {score.steps} PPO steps" if score.steps else ""
    parts.append(f"{'one seed' if seeds == 1 else f'{seeds} seeds'}{steps}")
    failed = [other for other in (name, BASE, PLAIN_RL) if other in variants and variants[other].failed]
    claim = "better than both" if better else "no claim"
    if failed:
        claim = f"no claim, since seeds of {' and '.join(failed)} failed"
    return f"{'; '.join(parts)}: {claim}."


_COMMON = {0: "no seed in common", 1: "one seed in common"}


def _relation(difference: Interval) -> str:
    if difference.low > 0:
        return "is above"
    if difference.high < 0:
        return "is below"
    return "is not above" if difference.mean <= 0 else "is not clearly above"


def _fact(name: str, other: str, variants: Mapping[str, VariantScore]) -> str:
    score, rival = variants[name], variants[other]
    difference = score.differences[other]
    common, seeds = score.seeds_with(rival), max(len(score.by_seed), len(rival.by_seed))
    fewer = f" on what both have, {common} of {seeds} seeds" if common else f" ({_COMMON[0]})"
    change = f"{percent(difference, sign=True)}{fewer if common < seeds else ''}"
    scores = f"{_percent(score.mean_with(rival))} {_relation(difference)} {other} {_percent(rival.mean_with(score))}"
    return f"{name} {scores}: {change}{_MEANING.get(other, '')}."


def _planned(name: str, variants: Mapping[str, VariantScore]) -> list[str]:
    """What a planner over the variant's model reaches, and its price."""
    planned = next((other for other in variants if other.startswith(f"{name}{PLANNED}")), None)
    if planned is None or BASE not in variants[planned].differences:
        return []
    written, plain = variants[planned].tokens, variants[name].tokens
    price = f", for {written:,.0f} instead of {plain:,.0f} tokens an episode" if written and plain else ""
    return [f"{_fact(planned, BASE, variants).removesuffix('.')} (with a planner{price})."]


_MEANING = {EQUAL_TIME: " (plain RL, trained longer)", COORDINATES: " (coordinates without SFT)"}
_MEANING |= dict.fromkeys(CONTROLS, " (the best control)")


def _time(name: str, variants: Mapping[str, VariantScore]) -> list[str]:
    """How much longer the recipe took than plain RL, and than the plain RL that is to take as long."""
    plain, longer = variants.get(PLAIN_RL), variants.get(EQUAL_TIME)
    seconds = variants[name].seconds
    rival = longer or plain
    if not seconds or not rival or not rival.seconds:
        return []
    times = f"Processor time: {duration(seconds)} for {name}, {duration(rival.seconds)} for {EQUAL_TIME if longer else PLAIN_RL}"
    if longer:
        if (count := len(variants[name].by_seed)) != len(longer.by_seed):
            times += f" ({count} and {len(longer.by_seed)} seeds)"
        equal = 0.9 * seconds <= rival.seconds <= 1.25 * seconds
        return [f"{times}{'' if equal else ', so this is no comparison at equal time'}."]
    return (
        [f"{times}; the difference at equal time was not measured ({EQUAL_TIME})."]
        if seconds > 1.1 * rival.seconds
        else []
    )


def _reasons(name: str, variants: Mapping[str, VariantScore]) -> list[str]:
    """What the comparison leaves open about why the recipe is above plain RL; empty where it is not.

    A control ``does without`` true states if the recipe is not clearly above it, and by at most half its lead over plain RL (the
    upper end of the interval). Of a wider interval only that is said.
    """
    score = variants[name]
    if len(score.by_seed) < 2 or PLAIN_RL not in score.differences or score.differences[PLAIN_RL].low <= 0:
        return []
    controls = [other for other in CONTROLS if other in variants and other != name]
    if not controls:
        return ["No control is compared (such as shuffled: SFT on shuffled states), so it is open why."]
    if unknown := [control for control in controls if control not in score.differences]:
        return [f"{name} was not compared with {' and '.join(unknown)}, so it is open why."]
    if level := [control for control in controls if score.differences[control].low <= 0]:
        lead = score.differences[PLAIN_RL].mean
        without = [control for control in level if score.differences[control].high <= lead / 2]
        unclear = [control for control in level if control not in without]
        does = f"{' and '.join(without)} {'does' if len(without) == 1 else 'do'} without them"
        open_ = f"{name} is not clearly above {' and '.join(unclear)}, and its seeds are too few to tell"
        said = "; ".join([does] * bool(without) + [open_] * bool(unclear))
        return [f"It is not shown that learning true states is the reason: {said}."]
    lines = [line for c in controls if score.steps and not variants[c].steps for line in _without_rl(c, variants)]
    # Of a recipe with RL, a control without it tests less.
    like = [control for control in controls if variants[control].steps or not score.steps] or controls
    alone = [control for control in like if score.seeds_with(variants[control]) < 2]
    if alone and len(alone) == len(like):
        lines.append(f"That learning true states is the reason is tested on one seed alone ({', '.join(alone)}).")
    return lines


def _without_rl(control: str, variants: Mapping[str, VariantScore]) -> list[str]:
    """What a control without RL says of a recipe that has it."""
    like, with_rl = WITHOUT_RL.get(control, ("", ""))
    if like in variants and control in variants[like].differences:
        return [
            f"{control} has no RL; of what has none, {_fact(like, control, variants).replace(_MEANING[control], '')}"
        ]
    return [] if with_rl in variants else [f"{control} has no RL, so it is open what RL would make of it."]


def _groups(variant: str, groups: tuple[list[float], list[float]]) -> str:
    low, high = (
        f"{len(group)} at {_percent(group[0])}" + (f" to {_percent(group[-1])}" if len(group) > 1 else "")
        for group in groups
    )
    return f"The seeds of {variant} look bimodal ({low}, {high}): its intervals cover less than 95%, and more seeds are needed."


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
