"""The table of a reproduction as Markdown: ours beside the paper's."""

from __future__ import annotations

from spa.evaluate.bootstrap import Interval, percent
from spa.evaluate.verdict import ArmScore, verdict
from spa.reproduce.paper import paper_numbers
from spa.reproduce.results import ArmNumbers, Numbers
from spa.reproduce.scale import Scale
from spa.runs.progress import duration

_TOKENS = (
    ", tokens those written in an episode, a planner's included, actions played those that the world answered in self-play, "
    "practice and RL together"
)


def table(scale: Scale, numbers: Numbers) -> str:
    """One table a world: Pass@1, Pass@8 and the largest k, differences to other arms that it has, time, and the paper's numbers."""
    lines = [f"# Reproduction, scale {scale.name}", "", scale.about, ""]
    for world, arms in numbers.items():
        ks = sorted({k for found in arms.values() for k in found.passes})
        shown = [k for k in ks if k in (1, 8) or k == ks[-1]]
        header = ["arm", *(f"Pass@{k}" for k in shown)]
        compared = [other for other in scale.compared if other in arms]
        header += [f"Pass@{k} - {other}" for other in compared for k in shown if k in (1, 8)]
        paper = scale.paper(world)
        counted = any(found.tokens_by_seed for found in arms.values())
        header += [
            "by seed",
            "actions a turn",
            *(["tokens", "actions played"] if counted else []),
            "time",
            "CPU time",
            *([f"paper, {paper[1]}"] if paper else []),
        ]
        rows = [_row(arm, found, shown, paper, compared, counted) for arm, found in arms.items()]
        sentences = verdict({arm: ArmScore(found.by_seed, _first(found)) for arm, found in arms.items()})
        lines += [f"## {world}", "", *sentences, *([""] if sentences else []), *_markdown(header, rows), ""]
        if not arms:
            lines += ["Nothing is finished yet.", ""]
    any_tokens = any(found.tokens_by_seed for arms in numbers.values() for found in arms.values())
    lines.append(
        "Percent; 95% t intervals for other seeds and other worlds (for other worlds alone where there is one seed); differences "
        "are on the same seeds and worlds. "
        f"Actions a turn are those of each seed on the test worlds{_TOKENS if any_tokens else ''}. "
        "Time is that of the arm's own stages, self-play and SFT included, validation left out. "
        "The paper: Pass@1 / Pass@8 after 1,000 PPO steps of 256 episodes."
    )
    return "\n".join(lines) + "\n"


def _row(
    arm: str, found: ArmNumbers, shown: list[int], paper: tuple[str, str] | None, compared: list[str], counted: bool
) -> list[str]:
    cells = [arm, *(percent(found.passes.get(k)) for k in shown)]
    for other in compared:
        cells += [percent(found.differences.get(other, {}).get(k), sign=True) for k in shown if k in (1, 8)]
    cells.append(", ".join(f"{100 * value:.1f}" for _, value in sorted(found.by_seed.items())))
    cells.append(", ".join(f"{value:.1f}" for _, value in sorted(found.actions_by_seed.items())))
    if counted:
        tokens = list(found.tokens_by_seed.values())
        cells.append(f"{sum(tokens) / len(tokens):,.0f}" if tokens else "-")
        played = list(found.actions_played.values())
        cells.append(f"{sum(played) / len(played):,.0f}" if played else "-")
    cells += [_time(found.seconds), _time(found.cpu_seconds)]
    if paper:
        theirs = paper_numbers(paper[0], arm, paper[1])
        cells.append("-" if theirs is None else f"{theirs[0]:.1f} / {theirs[1]:.1f}")
    return cells


def _first(found: ArmNumbers) -> dict[str, Interval]:
    return {other: passes[1] for other, passes in found.differences.items()}


def _time(stages: dict[str, float]) -> str:
    total = sum(stages.values())
    return duration(total) if total else "-"


def _markdown(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(header), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)]
