"""The tables of a reproduction, next to the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spa.common.progress import duration
from spa.common.tables import markdown_table
from spa.evaluate.bootstrap import percent
from spa.evaluate.verdict import VariantScore, verdict
from spa.reproduce.paper import paper_numbers
from spa.reproduce.results import Numbers, VariantNumbers
from spa.reproduce.scale import Scale

_TOKENS = (
    ", tokens those written in an episode, a planner's included, actions played those that the world answered in self-play, "
    "practice and RL together"
)


@dataclass(frozen=True)
class WorldTable:
    """A world's variants: verdict sentences and rows of formatted text; ``header`` omits the variant-name column."""

    name: str
    sentences: list[str]
    header: list[str]
    rows: list[tuple[str, list[str]]]


def tables(scale: Scale, numbers: Numbers) -> list[WorldTable]:
    """One table per world: Pass@1, Pass@8 and the largest k, differences to other variants, time, and the paper's numbers."""
    worlds = []
    for world, variants in numbers.items():
        ks = sorted({k for variant in variants.values() for k in variant.passes})
        shown = [k for k in ks if k in (1, 8) or k == ks[-1]]
        compared = [other for other in scale.compared if other in variants]
        paper = scale.paper(world)
        counted = any(variant.tokens_by_seed for variant in variants.values())
        header = [
            *(f"Pass@1 - {other}" for other in compared),
            *(f"Pass@{k}" for k in shown),
            *(f"Pass@8 - {other}" for other in compared if 8 in shown),
            "by seed",
            "actions a turn",
            *(["tokens", "actions played"] if counted else []),
            "time",
            "CPU time",
            *([f"paper, {paper[1]}"] if paper else []),
        ]
        rows = [(name, _row(name, variant, shown, paper, compared, counted)) for name, variant in variants.items()]
        sentences = verdict(
            {
                name: VariantScore(
                    variant.by_seed,
                    {other: p[1] for other, p in variant.differences.items()},
                    variant.steps,
                    sum(variant.cpu_seconds.values()),
                    _mean(variant.tokens_by_seed),
                )
                for name, variant in variants.items()
            }
        )
        worlds.append(WorldTable(world, sentences if variants else ["Nothing is finished yet."], header, rows))
    return worlds


def note(numbers: Numbers) -> str:
    """Explains the figures in the tables."""
    any_tokens = any(entry.tokens_by_seed for variants in numbers.values() for entry in variants.values())
    return (
        "Percent; 95% t intervals for other seeds and other worlds (for other worlds alone where there is one seed); differences "
        "are on the same seeds and worlds. "
        f"Actions a turn are those of each seed on the test worlds{_TOKENS if any_tokens else ''}. "
        "Time is that of the variant's own stages, self-play and SFT included, validation left out. "
        "The paper: Pass@1 / Pass@8 after 1,000 PPO steps of 256 episodes."
    )


def markdown(scale: Scale, numbers: Numbers) -> str:
    """All tables as Markdown."""
    lines = [f"# {title(scale)}", "", scale.about, ""]
    for world in tables(scale, numbers):
        lines += [
            f"## {world.name}",
            "",
            *(f"- {sentence}" for sentence in world.sentences),
            *([""] if world.sentences else []),
        ]
        if world.rows:
            lines += [*markdown_table(["variant", *world.header], [[name, *cells] for name, cells in world.rows]), ""]
    return "\n".join([*lines, note(numbers)]) + "\n"


def title(scale: Scale) -> str:
    return f"Reproduction, scale {scale.name}"


def _row(
    variant: str,
    entry: VariantNumbers,
    shown: list[int],
    paper: tuple[str, str] | None,
    compared: list[str],
    counted: bool,
) -> list[str]:
    def apart(k: int) -> list[str]:
        return [percent(entry.differences.get(other, {}).get(k), sign=True) for other in compared]

    cells = [*apart(1), *(percent(entry.passes.get(k)) for k in shown), *(apart(8) if 8 in shown else [])]
    cells.append(", ".join(f"{100 * value:.1f}" for _, value in sorted(entry.by_seed.items())))
    cells.append(", ".join(f"{value:.1f}" for _, value in sorted(entry.actions_by_seed.items())))
    if counted:
        cells.append(f"{_mean(entry.tokens_by_seed):,.0f}" if entry.tokens_by_seed else "-")
        cells.append(f"{sum(entry.actions.values()):,.0f}" if entry.actions else "-")
    cells += [_time(entry.seconds), _time(entry.cpu_seconds)]
    if paper:
        theirs = paper_numbers(paper[0], variant, paper[1])
        cells.append("-" if theirs is None else f"{theirs[0]:.1f} / {theirs[1]:.1f}")
    return cells


def _mean(by_seed: Mapping[int, float]) -> float:
    return sum(by_seed.values()) / len(by_seed) if by_seed else 0.0


def _time(stages: dict[str, float]) -> str:
    total = sum(stages.values())
    return duration(total) if total else "-"
