"""The figures of a reproduction in one offline HTML file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from spa.evaluate.roles import PLANNED
from spa.report.charts import Chart, chart, variant_colors
from spa.report.html import render, write_page
from spa.report.svg import Axes, Line
from spa.reproduce.results import Curve, Numbers, VariantNumbers
from spa.reproduce.scale import Scale
from spa.reproduce.table import note, tables, title

WithSeeds = tuple[Curve, list[Curve]]


def charts(numbers: Numbers) -> dict[str, list[Chart]]:
    """For each world, learning curves by step and by time, Pass@k, and world-model accuracy during RL."""
    out: dict[str, list[Chart]] = {}
    colors = _colors(numbers)
    for world, variants in numbers.items():
        of_world = out.setdefault(world, [])
        for heading, x, y, curves in _curves(variants):
            lines = [Line(name, mean, colors[name], seeds=seeds) for name, (mean, seeds) in curves.items()]
            note = "Thin: the seeds of a mean." if any(line.seeds for line in lines) else ""
            of_world += chart(heading, note, lines, Axes(x, y, log=x == "k"))
    return out


def _colors(numbers: Numbers) -> dict[str, str]:
    """One color per variant, the same in all worlds."""
    return variant_colors(list(dict.fromkeys(variant for variants in numbers.values() for variant in variants)))


def _curves(variants: Mapping[str, VariantNumbers]) -> list[tuple[str, str, str, dict[str, WithSeeds]]]:
    """Title, x and y labels, and for each variant its curve (empty if it has none) and those of its seeds."""
    val, top_1, exact = (
        {
            variant: (entry.curves.get(name, []), entry.curves_by_seed.get(name, []))
            for variant, entry in variants.items()
            if PLANNED not in variant  # a planner plays with weights whose training is drawn already
        }
        for name in ("val/pass@1", "calibration/top1", "world_model/prediction_em")
    )
    by_time = {
        variant: (_by_time(variants[variant], mean), [_by_time(variants[variant], curve) for curve in seeds])
        for variant, (mean, seeds) in val.items()
    }
    passes = {variant: [(float(k), p.mean) for k, p in sorted(e.passes.items())] for variant, e in variants.items()}
    return [
        ("validation Pass@1 along PPO", "PPO step", "Pass@1", val),
        ("validation Pass@1 by wall time, stages 1 and 2 included", "seconds", "Pass@1", by_time),
        ("Pass@k on the test worlds", "k", "Pass@k", {name: (p, []) for name, p in passes.items() if len(p) > 1}),
        ("truth likeliest, along PPO", "PPO step", "share of turns", top_1),
        ("prediction exact, along PPO", "PPO step", "share of predictions", exact),
    ]


def _by_time(entry: VariantNumbers, curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Steps as seconds since the start of stage 1: PPO's time, the mean of all seeds, spread evenly over its steps."""
    last = curve[-1][0] if curve else 0
    if not last or "PPO" not in entry.seconds:
        return []
    before = sum(seconds for stage, seconds in entry.seconds.items() if stage != "PPO")
    return [(before + entry.seconds["PPO"] * step / last, value) for step, value in curve]


def write_reproduction(scale: Scale, numbers: Numbers, path: str | os.PathLike[str]) -> Path:
    """Writes tables and figures as one HTML file; returns its path."""
    page = render(
        "reproduction.html.jinja",
        title(scale),
        about=scale.about,
        worlds=tables(scale, numbers),
        charts=charts(numbers),
        colors=_colors(numbers),
        note=note(numbers),
    )
    return write_page(page, path)
