"""Charts as plain Plotly figures (``{"data": [...], "layout": {...}}``); colours of the page are set in the browser."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from spa.evaluate.summary import ComparisonRow
from spa.report.data import MetricsRow, VariantReport

Figure = dict[str, Any]
Series = list[tuple[float, float]]

_COLORS = {
    "base": "#8a8f98",
    "vanilla": "#3d7fc1",
    "se": "#2a9d8f",
    "vagen": "#c98a1b",
    "spa": "#d1495b",
    "spa_aux": "#7b61c9",
}
_MORE_COLORS = ("#5b8c3e", "#b5651d", "#c0508f", "#4c9fb3", "#8c6d46")


@dataclass(frozen=True)
class Chart:
    """A figure with the heading under which it stands."""

    key: str
    title: str
    note: str
    figure: Figure


def variant_colors(variants: Mapping[str, VariantReport]) -> dict[str, str]:
    """A colour for every variant: its own if it is ``#rrggbb``, else the usual one of that name, else the next free one."""
    own = {
        name: variant.color
        for name, variant in variants.items()
        if variant.color and re.fullmatch(r"#[0-9a-fA-F]{6}", variant.color)
    }
    others = colors_of([name for name in variants if name not in own])
    return {name: own.get(name) or others[name] for name in variants}


def colors_of(names: Sequence[str]) -> dict[str, str]:
    """The usual colour of each variant, else the next free one."""
    spare = iter(_MORE_COLORS * (len(names) // len(_MORE_COLORS) + 1))
    return {name: _COLORS.get(name) or next(spare) for name in names}


def number(value: object) -> float | None:
    """``value`` as a finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return float(value) if math.isfinite(value) else None


def series(rows: Iterable[MetricsRow], *names: str) -> Series:
    """(step, value) of the first of ``names`` that a row has; rows without one are skipped. Sorted by step, the last wins.

    The step is ``step`` or ``global_step``, else the row's position.
    """
    points: dict[float, float] = {}
    for position, row in enumerate(rows):
        step = next((s for key in ("step", "global_step") if (s := number(row.get(key))) is not None), float(position))
        value = next((v for name in names if (v := number(row.get(name))) is not None), None)
        if value is not None:
            points[step] = value
    return sorted(points.items())


def _label(name: str) -> str:
    """Plotly reads labels as a small HTML: variant names must not."""
    return html.escape(name)


def line(name: str, points: Series, color: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(points) <= 60 else "lines",
        "name": _label(name),
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": color, "width": 2, "dash": more.pop("dash", "solid")},
        "marker": {"size": 5, "color": color},
        **more,
    }


def _band(rows: Sequence[MetricsRow], name: str, color: str) -> list[dict[str, Any]]:
    low, high = series(rows, f"{name}_low"), series(rows, f"{name}_high")
    if not low or [x for x, _ in low] != [x for x, _ in high]:
        return []
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    outline = low + high[::-1]
    band = line("", outline, color, mode="lines", fill="toself", fillcolor=f"rgba({red},{green},{blue},0.14)")
    return [band | {"line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}]


def axes(x: str, y: str, share: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": y}, "rangemode": "tozero" if share else "normal"}
    if share:
        axis["tickformat"] = ".0%"
    return {"xaxis": {"title": {"text": x}}, "yaxis": axis}


def comparison_chart(rows: Sequence[ComparisonRow], colors: Mapping[str, str]) -> Figure | None:
    """Grouped bars with 95% intervals: Pass@1 and Pass@k by variant."""
    data = []
    for row in rows:
        passes = [(f"Pass@{k}", p) for k, p in ((1, row.pass_1), (row.k, row.pass_k)) if p is not None]
        if not passes:
            continue
        data.append(
            {
                "type": "bar",
                "name": _label(row.variant),
                "x": [name for name, _ in passes],
                "y": [p.mean for _, p in passes],
                "marker": {"color": colors[row.variant]},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [max(0.0, p.high - p.mean) for _, p in passes],
                    "arrayminus": [max(0.0, p.mean - p.low) for _, p in passes],
                    "color": "#888888",
                    "thickness": 1.5,
                    "width": 4,
                },
                "hovertemplate": "%{y:.1%}",
            }
        )
    if not data:
        return None
    return {"data": data, "layout": {"barmode": "group", "yaxis": {"tickformat": ".0%", "rangemode": "tozero"}}}


def _by_variant(
    variants: Mapping[str, VariantReport], colors: Mapping[str, str], names: Sequence[str], y: str, share: bool
) -> Figure | None:
    data: list[dict[str, Any]] = []
    for variant, report in variants.items():
        points = series(report.metrics, *names)
        if points:
            data += _band(report.metrics, names[0], colors[variant])
            data.append(line(variant, points, colors[variant], legendgroup=_label(variant)))
    return {"data": data, "layout": axes("PPO step", y, share)} if data else None


def _largest_k(variants: Mapping[str, VariantReport]) -> int:
    found = (
        re.fullmatch(r"val/pass@(\d+)", str(key))
        for variant in variants.values()
        for row in variant.metrics
        for key in row
    )
    return max((int(match[1]) for match in found if match), default=1)


_WORLD_MODEL = (
    ("observation_em", "observation, exact", "dot"),
    ("prediction_em", "prediction, exact", "solid"),
    ("prediction_cell_acc", "prediction, cells", "dash"),
)


def _world_model(variants: Mapping[str, VariantReport], colors: Mapping[str, str]) -> Figure | None:
    data = []
    for variant, report in variants.items():
        for metric, label, dash in _WORLD_MODEL:
            names = [f"{prefix}world_model/{metric}" for prefix in ("", "val/", "train/")]
            if points := series(report.metrics, *names):
                data.append(line(f"{variant}: {label}", points, colors[variant], dash=dash))
    return {"data": data, "layout": axes("PPO step", "accuracy", True)} if data else None


def _calibration(variants: Mapping[str, VariantReport], colors: Mapping[str, str]) -> Figure | None:
    data = []
    for variant, report in variants.items():
        if points := series(report.metrics, "calibration/top1"):
            data.append(line(variant, points, colors[variant], legendgroup=_label(variant)))
            chance = line(
                variant, series(report.metrics, "calibration/chance"), colors[variant], dash="dot", mode="lines"
            )
            data.append(chance | {"showlegend": False, "legendgroup": _label(variant)})
    return {"data": data, "layout": axes("PPO step", "share", True)} if data else None


Stages2 = Mapping[str, Sequence[MetricsRow]]
"""Logged rows of stage 2: the run's under an empty name, then those of variants with their own."""

_TRAIN, _VAL = "#8a8f98", "#d1495b"


def _sft(stages: Stages2) -> Figure | None:
    data = []
    for index, (variant, rows) in enumerate(stages.items()):
        dash = _DASHES[index % len(_DASHES)]
        for name, color, names in (
            ("train", _TRAIN, ("train/loss", "losses/loss")),
            ("validation", _VAL, ("val/loss",)),
        ):
            if points := series(rows, *names):
                data.append(line(f"{variant}: {name}" if variant else name, points, color, dash=dash))
    return {"data": data, "layout": axes("optimizer step", "loss (nats per token)", False)} if data else None


def _sft_world_model(stages: Stages2) -> Figure | None:
    """What was measured every ``sft.eval_every`` steps; nothing to draw where there is only the last measurement."""
    data = []
    for index, (variant, rows) in enumerate(stages.items()):
        for (metric, label, _), color in zip(_WORLD_MODEL, ("#2a6f97", "#d1495b", "#8a8f98"), strict=True):
            points = series(rows, f"world_model/{metric}")
            if len(points) > 1:
                title = f"{variant}: {label}" if variant else label
                data.append(line(title, points, color, dash=_DASHES[index % len(_DASHES)]))
    return {"data": data, "layout": axes("optimizer step", "accuracy", True)} if data else None


_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def _chart(key: str, title: str, note: str, figure: Figure | None) -> list[Chart]:
    return [Chart(key, title, note, figure)] if figure else []


def learning_charts(variants: Mapping[str, VariantReport], sft: Stages2, colors: Mapping[str, str]) -> list[Chart]:
    """The curves that are always in view; those without data are left out."""
    k = _largest_k(variants)
    pass_1 = _by_variant(variants, colors, ("val/pass@1", "val/success"), "Pass@1", True)
    charts = _chart("val-pass-1", "Validation Pass@1", "Held-out worlds; band: 95% interval where logged.", pass_1)
    if k > 1:
        figure = _by_variant(variants, colors, (f"val/pass@{k}",), f"Pass@{k}", True)
        charts += _chart("val-pass-k", f"Validation Pass@{k}", "Held-out worlds.", figure)
    train = _by_variant(variants, colors, ("train/success",), "success", True)
    charts += _chart(
        "train-success", "Training success", "Sampled training worlds of each step, before filtering.", train
    )
    note = "Share of written observations and predictions that agree with the world."
    charts += _chart("world-model", "World model during PPO", note, _world_model(variants, colors))
    note = "Share of recorded turns whose true next state is likelier than every alternative; dotted: by guessing."
    charts += _chart("calibration", "Truth likeliest during PPO", note, _calibration(variants, colors))
    charts += _chart("sft-loss", "SFT loss", "Stage 2: trained tokens only.", _sft(sft))
    return charts + _chart("sft-world-model", "World model during SFT", "On held-out worlds.", _sft_world_model(sft))


_DIAGNOSTICS = (
    ("losses/entropy", "Entropy", "Of the sampling distribution, nats per token."),
    ("losses/approx_kl", "Approximate KL", "Policy before and after the update, nats per token."),
    ("losses/clipfrac", "Clip fraction", "Share of tokens whose ratio was clipped."),
    ("losses/explained_variance", "Explained variance", "Of the returns by the critic; 1 is perfect."),
    ("losses/policy_loss", "Policy loss", ""),
    ("losses/value_loss", "Value loss", ""),
    ("train/format_rate", "Format rate", "Share of training turns with the right format."),
    ("train/score", "Training score", "Rewards and format penalties, mean over episodes."),
    ("losses/world_model", "World-model loss", "Auxiliary loss on true states, nats per token."),
    ("losses/kl_loss", "KL to the reference", "As in the loss."),
    ("rollout/kept", "Groups kept", "Share of the groups that are trained on."),
    ("rollout/zero_std", "Groups without a difference", "Share of groups whose episodes all score alike."),
    ("curriculum/level", "Curriculum level", "0 is the easiest."),
    ("train/repetition", "Loops", "Share of the responses that end in a loop."),
)


_SHARES = ("losses/clipfrac", "train/format_rate", "rollout/kept", "rollout/zero_std", "train/repetition")


def diagnostic_charts(variants: Mapping[str, VariantReport], colors: Mapping[str, str]) -> list[Chart]:
    """The curves of the fold-out: how healthy the PPO updates were."""
    charts: list[Chart] = []
    for name, title, note in _DIAGNOSTICS:
        share = name in _SHARES
        key = re.sub(r"\W+", "-", name)
        charts += _chart(key, title, note, _by_variant(variants, colors, (name,), "", share))
    return charts
