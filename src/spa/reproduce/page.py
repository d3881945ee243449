"""The figures of a reproduction: in one offline HTML file, and each in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spa.common.files import atomic_write
from spa.evaluate.roles import PLANNED
from spa.report.charts import Chart, chart, standalone, variant_colors
from spa.report.html import render, write_page
from spa.report.svg import Axes, Line
from spa.reproduce.results import Curve, Numbers, VariantNumbers
from spa.reproduce.scale import Scale
from spa.reproduce.table import note, tables, title


@dataclass(frozen=True)
class _Figure:
    """Curves by variant, each with those of its seeds; a variant without points is left out."""

    name: str
    title: str
    axes: Axes
    curves: Mapping[str, tuple[Curve, list[Curve]]]
    note: str = ""


def charts(numbers: Numbers) -> dict[str, dict[str, Chart]]:
    """For each world, by name: learning curves by step, time and actions, Pass@k, and world-model accuracy during RL."""
    out: dict[str, dict[str, Chart]] = {}
    colors = _colors(numbers)
    for world, variants in numbers.items():
        of_world = out.setdefault(world, {})
        for figure in _figures(variants):
            lines = [Line(name, mean, colors[name], seeds=seeds) for name, (mean, seeds) in figure.curves.items()]
            thin = "Thin lines: single seeds." if any(line.seeds for line in lines) else ""
            text = " ".join(filter(None, (thin, figure.note)))
            for drawn in chart(figure.title, text, lines, figure.axes):
                of_world[figure.name] = drawn
    return out


def _colors(numbers: Numbers) -> dict[str, str]:
    """One color per variant, the same in all worlds."""
    return variant_colors(list(dict.fromkeys(variant for variants in numbers.values() for variant in variants)))


def _figures(variants: Mapping[str, VariantNumbers]) -> Iterator[_Figure]:
    # A planner plays with weights whose training is drawn already.
    trained = {name: entry for name, entry in variants.items() if PLANNED not in name}

    def of(metric: str) -> dict[str, tuple[Curve, list[Curve]]]:
        return {name: (e.curves.get(metric, []), e.curves_by_seed.get(metric, [])) for name, e in trained.items()}

    val = of("val/pass@1")
    yield _Figure("steps", "validation Pass@1 along PPO", Axes("PPO step", "Pass@1"), val)
    for name, what, unit, costs in (
        ("wall_time", "wall time, all stages", "seconds", {name: entry.seconds for name, entry in trained.items()}),
        ("cpu_time", "processor time, all stages", "seconds", {name: e.cpu_seconds for name, e in trained.items()}),
        (
            "actions",
            "actions that the world played",
            "actions",
            {name: entry.actions for name, entry in trained.items()},
        ),
    ):
        spent = {
            variant: (_along(costs[variant], curve), [_along(costs[variant], seed) for seed in seeds])
            for variant, (curve, seeds) in val.items()
        }
        evenly = "PPO's cost is spread evenly over its steps."
        yield _Figure(name, f"validation Pass@1 by {what}", Axes(unit, "Pass@1"), spent, evenly)
    passes = {name: [(float(k), p.mean) for k, p in sorted(entry.passes.items())] for name, entry in variants.items()}
    several: dict[str, tuple[Curve, list[Curve]]] = {name: (p, []) for name, p in passes.items() if len(p) > 1}
    yield _Figure("pass_at_k", "Pass@k on the test worlds", Axes("k", "Pass@k", log=True), several)
    turns, predictions = Axes("PPO step", "share of turns"), Axes("PPO step", "share of predictions")
    yield _Figure("truth_likeliest", "truth likeliest, along PPO", turns, of("calibration/top1"))
    yield _Figure("prediction_exact", "prediction exact, along PPO", predictions, of("world_model/prediction_em"))


def _along(costs: Mapping[str, float], curve: Curve) -> Curve:
    """The curve by what was spent since the start of stage 1 instead of by step. Costs are the means of all seeds."""
    last = curve[-1][0] if curve else 0
    if not last or "PPO" not in costs:
        return []
    before = sum(cost for stage, cost in costs.items() if stage != "PPO")
    return [(before + costs["PPO"] * step / last, value) for step, value in curve]


def figure_files(numbers: Numbers) -> dict[str, str]:
    """Each chart as the text of an SVG file, by file name: ``WORLD-NAME.svg``."""
    return {
        f"{world}-{name}.svg": standalone(replace(figure, title=f"{world}: {figure.title}"))
        for world, figures in charts(numbers).items()
        for name, figure in figures.items()
    }


def write_reproduction(scale: Scale, numbers: Numbers, path: str | os.PathLike[str]) -> Path:
    """Writes tables and figures as one HTML file, and each figure to ``figures`` beside it; returns the HTML file's path.

    Figures of an earlier table that this one does not have are removed.
    """
    shown = [replace(world, sentences=[*world.sentences, *world.failures]) for world in tables(scale, numbers)]
    page = render(
        "reproduction.html.jinja",
        title(scale),
        about=scale.about,
        worlds=shown,
        charts=charts(numbers),
        colors=_colors(numbers),
        note=note(numbers),
    )
    folder, files = Path(path).parent / "figures", figure_files(numbers)
    for name, text in files.items():
        atomic_write(folder / name, text)
    ours = {figure.name for figure in _figures({})}
    for earlier in folder.glob("*.svg"):
        if earlier.name not in files and earlier.stem.rpartition("-")[2] in ours:
            earlier.unlink()
    return write_page(page, path)
