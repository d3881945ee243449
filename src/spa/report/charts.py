"""The charts of a run: learning curves, the comparison and the health of updates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from markupsafe import Markup

from spa.evaluate.roles import PLANNED
from spa.evaluate.summary import ComparisonRow
from spa.report.data import MetricsRow, VariantReport
from spa.report.svg import DASHES, HEIGHT, WIDTH, Axes, Line, Series, interval_chart, line_chart

Variants = Mapping[str, VariantReport]
Stages2 = Mapping[str, Sequence[MetricsRow]]
"""Logged rows of stage 2: the run's under an empty name, then those of variants with their own."""

_COLORS = {
    "base": "#8a8f98",
    "vanilla": "#3d7fc1",
    "se": "#2a9d8f",
    "vagen": "#c98a1b",
    "spa": "#d1495b",
    "spa_aux": "#7b61c9",
}
_MORE_COLORS = (
    *("#5b8c3e", "#c0508f", "#8c6d46", "#b5651d", "#5a6acf"),
    *("#a3a829", "#d98880", "#3f7f6c", "#9b59b6", "#4c9fb3"),
)


@dataclass(frozen=True)
class Chart:
    """A drawing with its heading, and its legend: name, colour and dash of each curve."""

    title: str
    note: str
    svg: Markup
    legend: Sequence[tuple[str, str, str]] = ()


def variant_colors(names: Sequence[str]) -> dict[str, str]:
    """Each variant's usual colour, or the next unused one; a planner has that of the variant it plays with."""
    spare = cycle(_MORE_COLORS)
    trained = dict.fromkeys(name.partition(PLANNED)[0] for name in names)
    colors = {name: _COLORS.get(name) or next(spare) for name in trained}
    return {name: colors[name.partition(PLANNED)[0]] for name in names}


def number(value: object) -> float | None:
    """``value`` as a float that can be drawn, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e15 else None


def series(rows: Iterable[MetricsRow], name: str) -> Series:
    """(step, value) of the rows that have the metric, sorted by step; the last of equal steps counts."""
    points = ((number(row.get("step")), number(row.get(name))) for row in rows)
    return sorted({step: value for step, value in points if step is not None and value is not None}.items())


def mean(curves: Iterable[Series]) -> Series:
    """The mean of several seeds' curves, at the steps that all of them have."""
    values = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*map(set, values))) if values else []
    return [(step, sum(value[step] for value in values) / len(values)) for step in steps]


def chart(title: str, note: str, lines: Iterable[Line], axes: Axes) -> list[Chart]:
    """The chart of the lines that have points; nothing if none has."""
    drawn = [line for line in lines if line.points]
    legend = [(line.name, line.color, line.dash) for line in drawn if line.named]
    return [Chart(title, note, line_chart(drawn, axes), legend)] if drawn else []


_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#646b75} .title{font-weight:600;fill:#1c1f23} "
    ".grid{stroke:#e3e4e2} .seed{opacity:.4}"
)


def standalone(drawn: Chart) -> Markup:
    """The chart with heading and legend as an SVG file of its own, readable on light and dark pages."""
    head = Markup('<text class="title" x="10" y="20">{}</text><text x="10" y="38">{}</text>').format(
        drawn.title, drawn.note
    )
    x, y = 10, 60
    for name, color, dash in drawn.legend:
        width = 36 + 7 * len(name)  # roughly
        if x > 10 and x + width > WIDTH:
            x, y = 10, y + 18
        stroke = Markup('x1="{}" x2="{}" y1="{}" y2="{}" stroke="{}" stroke-width="3"').format(
            x, x + 18, y - 4, y - 4, color
        )
        head += Markup('<line {} stroke-dasharray="{}"/><text x="{}" y="{}">{}</text>').format(
            stroke, DASHES[dash], x + 24, y, name
        )
        x += width
    inner = drawn.svg.replace("<svg ", Markup('<svg y="{}" width="{}" height="{}" ').format(y + 8, WIDTH, HEIGHT), 1)
    size = Markup('viewBox="0 0 {0} {1}" width="{0}" height="{1}"').format(WIDTH, y + 8 + HEIGHT)
    paper = Markup('<rect width="100%" height="100%" fill="#fff"/>')
    frame = '<svg xmlns="http://www.w3.org/2000/svg" {}><style>{}</style>{}{}{}</svg>\n'
    return Markup(frame).format(size, Markup(_STYLE), paper, head, inner)


def comparison_chart(rows: Sequence[ComparisonRow], colors: Mapping[str, str]) -> list[Chart]:
    """Pass@1 and Pass@k of each variant with 95% intervals; empty if nothing was played."""
    shown = {}
    for row in rows:
        passes = {f"Pass@{k}": p for k, p in ((1, row.pass_1), (row.k, row.pass_k)) if p is not None}
        if passes:
            shown[row.variant] = passes
    note = f"Pass@1 filled, Pass@{rows[0].k} hollow." if any(row.pass_k for row in rows) else "Pass@1."
    return [Chart("", note, interval_chart(shown, colors, "success on held-out worlds"))] if shown else []


def _by_variant(variants: Variants, colors: Mapping[str, str], name: str) -> Iterator[Line]:
    """A metric's curve for each variant, with a band if its interval was logged."""
    for variant, report in variants.items():
        points, low, high = (series(report.metrics, f"{name}{end}") for end in ("", "_low", "_high"))
        whole = [x for x, _ in low] == [x for x, _ in high]
        band = [(x, bottom, top) for (x, bottom), (_, top) in zip(low, high, strict=True)] if whole else []
        yield Line(variant, points, colors[variant], band=band)


_WORLD_MODEL = (
    ("observation_em", "observation, exact", "dot", "#2a6f97"),
    ("prediction_em", "prediction, exact", "solid", "#d1495b"),
    ("prediction_cell_acc", "prediction, cells", "dash", "#8a8f98"),
)


def _world_model(variants: Variants, colors: Mapping[str, str]) -> Iterator[Line]:
    for variant, report in variants.items():
        for metric, label, dash, _ in _WORLD_MODEL:
            points = series(report.metrics, f"world_model/{metric}")
            yield Line(f"{variant}: {label}", points, colors[variant], dash)


def _calibration(variants: Variants, colors: Mapping[str, str]) -> Iterator[Line]:
    for variant, report in variants.items():
        yield Line(variant, series(report.metrics, "calibration/top1"), colors[variant])
        chance = series(report.metrics, "calibration/chance")
        yield Line(f"{variant}, by guessing", chance, colors[variant], "dot", named=False)


def _sft(stages: Stages2, curves: Sequence[tuple[str, str, str]], fewest: int = 1) -> Iterator[Line]:
    """``curves`` are metric, label and colour; drawn from ``fewest`` points on."""
    for (variant, rows), dash in zip(stages.items(), cycle(("solid", "dash", "dot"))):
        for metric, label, color in curves:
            points = series(rows, metric)
            yield Line(
                f"{variant}: {label}" if variant else label, points if len(points) >= fewest else [], color, dash
            )


_SFT_LOSS = (("train/loss", "train", "#8a8f98"), ("val/loss", "validation", "#d1495b"))
_SFT_WORLD_MODEL = [(f"world_model/{metric}", label, color) for metric, label, _, color in _WORLD_MODEL]


def learning_charts(variants: Variants, sft: Stages2, colors: Mapping[str, str]) -> list[Chart]:
    """The curves that are always visible; those without data are left out."""
    names = {str(key) for variant in variants.values() for row in variant.metrics for key in row}
    k = max((int(match[1]) for name in names if (match := re.fullmatch(r"val/pass@(\d+)", name))), default=1)
    step = "PPO step"
    note = "Held-out worlds; band: 95% interval where logged."
    charts = chart("Validation Pass@1", note, _by_variant(variants, colors, "val/pass@1"), Axes(step, "Pass@1"))
    if k > 1:
        lines = _by_variant(variants, colors, f"val/pass@{k}")
        charts += chart(f"Validation Pass@{k}", "Held-out worlds.", lines, Axes(step, f"Pass@{k}"))
    for world in sorted(match[1] for name in names if (match := re.fullmatch(r"val/(.+)/pass@1", name))):
        lines = _by_variant(variants, colors, f"val/{world}/pass@1")
        charts += chart(f"Validation Pass@1, {world}", "Another world of the mixture.", lines, Axes(step, "Pass@1"))
    note = "Sampled training worlds of each step, before filtering."
    lines = _by_variant(variants, colors, "train/success")
    charts += chart("Training success", note, lines, Axes(step, "success"))
    for world in sorted(match[1] for name in names if (match := re.fullmatch(r"train/(.+)/success", name))):
        lines = _by_variant(variants, colors, f"train/{world}/success")
        charts += chart(f"Training success, {world}", note, lines, Axes(step, "success"))
    note = "Share of written observations and predictions that agree with the world."
    charts += chart("World model during PPO", note, _world_model(variants, colors), Axes(step, "accuracy"))
    note = "Share of recorded turns whose true next state is likelier than every alternative; dotted: by guessing."
    charts += chart("Truth likeliest during PPO", note, _calibration(variants, colors), Axes(step, "share"))
    loss = Axes("optimizer step", "loss (nats per token)", share=False)
    charts += chart("SFT loss", "Stage 2: trained tokens only.", _sft(sft, _SFT_LOSS), loss)
    # Measured every sft.eval_every steps; a single final measurement is not drawn.
    lines = _sft(sft, _SFT_WORLD_MODEL, fewest=2)
    return charts + chart("World model during SFT", "On held-out worlds.", lines, Axes("optimizer step", "accuracy"))


_DIAGNOSTICS = (  # metric, title, what it is, whether it is a share
    ("losses/entropy", "Entropy", "Of the sampling distribution, nats per token.", False),
    ("losses/approx_kl", "Approximate KL", "Policy before and after the update, nats per token.", False),
    ("losses/clipfrac", "Clip fraction", "Share of tokens whose ratio was clipped.", True),
    ("losses/explained_variance", "Explained variance", "Of the returns by the critic; 1 is perfect.", False),
    ("losses/policy_loss", "Policy loss", "", False),
    ("losses/value_loss", "Value loss", "", False),
    ("train/format_rate", "Format rate", "Share of training turns with the right format.", True),
    ("train/score", "Training score", "Rewards and format penalties, mean over episodes.", False),
    ("losses/world_model", "World-model loss", "Auxiliary loss on true states, nats per token.", False),
    ("losses/kl_loss", "KL to the reference", "As in the loss.", False),
    ("rollout/kept", "Groups kept", "Share of the groups that are trained on.", True),
    ("rollout/zero_std", "Groups without a difference", "Share of groups whose episodes all score alike.", True),
    ("curriculum/level", "Curriculum level", "0 is the easiest.", False),
    (
        "curriculum/success",
        "Success at the level",
        "Of the training worlds of that level: it decides on the next.",
        True,
    ),
    ("train/repetition", "Loops", "Share of the responses that end in a loop.", True),
)


def diagnostic_charts(variants: Variants, colors: Mapping[str, str]) -> list[Chart]:
    """The curves of the collapsible section: health of the PPO updates."""
    charts: list[Chart] = []
    for name, title, note, share in _DIAGNOSTICS:
        lines = _by_variant(variants, colors, name)
        charts += chart(title, note, lines, Axes("PPO step", "", share=share))
    return charts
