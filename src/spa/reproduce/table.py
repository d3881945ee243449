"""The tables of a reproduction, next to the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spa.common.progress import duration
from spa.common.tables import markdown_table
from spa.common.text import clean
from spa.evaluate.bootstrap import percent
from spa.evaluate.roles import PLANNED
from spa.evaluate.verdict import VariantScore, verdict
from spa.reproduce.paper import paper_numbers
from spa.reproduce.results import ByVariant, Numbers, evaluated
from spa.reproduce.scale import Scale

_TOKENS = ", tokens those written in an episode, a planner's included, actions played those in self-play, practice and RL together"


@dataclass(frozen=True)
class Table:
    """Formatted text, one row a variant; ``corner`` heads the column of their names."""

    corner: str
    header: list[str]
    rows: list[tuple[str, list[str]]]


@dataclass(frozen=True)
class WorldTables:
    """A world's variants: verdict sentences, then their scores, differences and costs; which seeds failed."""

    name: str
    sentences: list[str]
    tables: list[Table]
    failures: list[str]


def tables(scale: Scale, numbers: Numbers) -> list[WorldTables]:
    """Of each world: Pass@1, Pass@8 and the largest k beside the paper's, differences to other variants, and costs."""
    worlds = []
    for world, variants in numbers.items():
        ks = sorted({k for variant in variants.values() for k in variant.passes})
        shown = [k for k in ks if k in (1, 8) or k == ks[-1]]
        compared = [other for other in scale.compared if other in evaluated(variants)]
        trained = {name: variant for name, variant in variants.items() if PLANNED not in name}
        parts = [
            _table("variant", variants, _scores(variants, shown, scale.paper(world))),
            *(
                _table(f"Pass@{k} minus that of", variants, _differences(variants, k, compared))
                for k in shown
                if k in (1, 8)
            ),
            _table("cost of", trained, _costs(trained)),
        ]
        sentences = verdict(
            {
                name: VariantScore(
                    variant.by_seed,
                    {other: p[1] for other, p in variant.differences.items()},
                    variant.steps,
                    sum(variant.cpu_seconds.values()),
                    _mean(variant.tokens_by_seed),
                    bool(variant.failed),
                    _mean(variant.cut_off_by_seed),
                    _mean(variant.reward_by_seed) if variant.reward_by_seed else None,
                )
                for name, variant in evaluated(variants).items()
            }
        )
        sentences = sentences if variants else ["Nothing is finished yet."]
        worlds.append(WorldTables(world, sentences, [part for part in parts if part.rows], _failures(variants)))
    return worlds


def _failures(variants: ByVariant) -> list[str]:
    """One sentence for each variant and reason."""
    lines = []
    for name, entry in variants.items():
        for why in dict.fromkeys(entry.failed.values()):
            seeds = [str(seed) for seed in sorted(entry.failed) if entry.failed[seed] == why]
            lines.append(clean(f"{name} failed in seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}: {why}."))
    return lines


def note(numbers: Numbers) -> str:
    """Explains the figures in the tables."""
    any_tokens = any(entry.tokens_by_seed for variants in numbers.values() for entry in variants.values())
    return (
        "Percent; 95% t intervals for other seeds and other worlds (for other worlds alone where there is one seed); differences "
        "are on the same seeds and worlds. "
        f"Actions a turn are those of each seed on the test worlds, one figure where all agree{_TOKENS if any_tokens else ''}. "
        "Time is that of the variant's own stages, self-play and SFT included, validation left out. "
        "The paper: Pass@1 / Pass@8 after 1,000 PPO steps of 256 episodes in the original's worlds, whose lake is slippery."
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
        for number, table in enumerate(world.tables):
            lines += [*markdown_table([table.corner, *table.header], [[name, *row] for name, row in table.rows]), ""]
            if number == 0:
                lines += [line for failure in world.failures for line in (failure, "")]
    return "\n".join([*lines, note(numbers)]) + "\n"


def title(scale: Scale) -> str:
    return f"Reproduction, scale {scale.name}"


def _scores(variants: ByVariant, shown: list[int], paper: tuple[str, str] | None) -> dict[str, list[str]]:
    entries = variants.values()
    columns = {f"Pass@{k}": [percent(entry.passes.get(k)) for entry in entries] for k in shown}
    seeds = sorted({seed for entry in entries for seed in (*entry.by_seed, *entry.failed)})
    columns["by seed"] = [_by_seed(entry.by_seed, seeds, 100) for entry in entries]
    columns["actions a turn"] = [_collapsed(_by_seed(entry.actions_by_seed, seeds)) for entry in entries]
    if any(entry.tokens_by_seed for entry in entries):
        columns["tokens"] = [f"{_mean(e.tokens_by_seed):,.0f}" if e.tokens_by_seed else "-" for e in entries]
    if paper:
        theirs = [paper_numbers(paper[0], name, paper[1]) for name in variants]
        columns[f"paper, {paper[1]}"] = ["-" if pair is None else f"{pair[0]:.1f} / {pair[1]:.1f}" for pair in theirs]
    return columns


def _differences(variants: ByVariant, k: int, compared: list[str]) -> dict[str, list[str]]:
    return {
        other: [percent(entry.differences.get(other, {}).get(k), sign=True) for entry in variants.values()]
        for other in compared
    }


def _costs(variants: ByVariant) -> dict[str, list[str]]:
    entries = variants.values()
    return {
        "actions played": [f"{sum(entry.actions.values()):,.0f}" if entry.actions else "-" for entry in entries],
        "time": [_time(entry.seconds) for entry in entries],
        "CPU time": [_time(entry.cpu_seconds) for entry in entries],
    }


def _table(corner: str, names: Iterable[str], columns: dict[str, list[str]]) -> Table:
    """Without the rows that say nothing."""
    rows = [(name, [column[row] for column in columns.values()]) for row, name in enumerate(names)]
    return Table(corner, list(columns), [(name, cells) for name, cells in rows if set(cells) - {"-"}])


def _by_seed(values: Mapping[int, float], seeds: Sequence[int], scale: int = 1) -> str:
    return ", ".join(f"{scale * values[seed]:.1f}" if seed in values else "-" for seed in seeds)


def _collapsed(listed: str) -> str:
    """One figure where all seeds that have one agree."""
    figures = {*listed.split(", ")} - {"-"}
    return figures.pop() if len(figures) == 1 else listed


def _mean(by_seed: Mapping[int, float]) -> float:
    return sum(by_seed.values()) / len(by_seed) if by_seed else 0.0


def _time(stages: dict[str, float]) -> str:
    total = sum(stages.values())
    return duration(total) if total else "-"
