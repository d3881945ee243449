"""One self-contained HTML file: opens offline, loads nothing, and escapes everything that a model wrote."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from spa.common.files import atomic_write
from spa.common.progress import duration
from spa.evaluate.summary import ComparisonRow, comparison_cells, comparison_table, scores
from spa.evaluate.verdict import verdict
from spa.report.charts import comparison_chart, diagnostic_charts, learning_charts, number, variant_colors
from spa.report.data import MetricsRow, ReportData
from spa.report.turns import choose_episodes, view

_FACTS = (
    ("world", ("env.id",)),
    ("model", ("model.path",)),
    ("self-play worlds", ("selfplay.groups",)),
    ("PPO steps", ("ppo.steps",)),
    ("groups × episodes", ("ppo.groups", "ppo.group_size")),
    ("evaluation worlds × samples", ("eval.worlds", "eval.samples")),
    ("temperature", ("sampling.temperature",)),
    ("seed", ("seeds.run",)),
)

_PLAY = (
    ("num_turns", "turns", "number"),
    ("num_actions", "actions", "number"),
    ("reward", "reward", "number"),
    ("format_rate", "format right", "share"),
    ("valid_actions", "valid actions", "share"),
    ("changed_turns", "turns that changed the state", "share"),
    ("response_chars", "characters a turn", "number"),
    ("response_tokens", "tokens a turn", "number"),
    ("cut_off", "cut off", "share"),
    ("errors", "errors", "count"),
)

_WORLD_MODEL = (
    ("world_model/observation_em", "observation exact", "share"),
    ("world_model/observation_cell_acc", "observation cells", "share"),
    ("world_model/prediction_em", "prediction exact", "share"),
    ("world_model/prediction_em_changed", "… where the state changed", "share"),
    ("world_model/prediction_cell_acc", "prediction cells", "share"),
    ("world_model/prediction_legal", "prediction legal", "share"),
    ("world_model/coverage", "turns with a prediction", "share"),
    ("world_model/predictions", "predictions", "count"),
    ("calibration/top1", "truth likeliest", "share"),
    ("calibration/chance", "… by chance", "share"),
    ("perplexity/grid", "perplexity, raw", "number"),
    ("perplexity/coordinates", "… with coordinates", "number"),
)


@dataclass(frozen=True)
class Table:
    """Rows of formatted text under a header; the first column is the variant."""

    header: list[str]
    rows: list[tuple[str, list[str]]]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested config as ``a.b.c`` -> text."""
    out: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return out


def _facts(config: Mapping[str, str]) -> list[tuple[str, str]]:
    values = {label: [config[key] for key in keys if key in config] for label, keys in _FACTS}
    if "env.tag" in config:
        values["world"] = [config["env.tag"]]
    return [(label, " × ".join(texts)) for label, texts in values.items() if texts]


def _format(value: float | None, kind: str) -> str:
    if value is None:
        return "–"
    if kind == "share":
        return f"{100 * value:.1f}"
    return f"{value:.0f}" if kind == "count" or abs(value) >= 100 else f"{value:.2f}"


def _table(metrics: Mapping[str, Mapping[str, float]], columns: Sequence[tuple[str, str, str]]) -> Table | None:
    """Variants × columns; columns without any value are left out."""
    used = [c for c in columns if any(number(values.get(c[0])) is not None for values in metrics.values())]
    used = [c for c in used if c[0] != "errors" or any(values.get("errors") for values in metrics.values())]
    if not used:
        return None
    header = [label + (" %" if kind == "share" else "") for _, label, kind in used]
    rows = [
        (variant, [_format(number(values.get(name)), kind) for name, _, kind in used])
        for variant, values in metrics.items()
        if any(number(values.get(name)) is not None for name, _, _ in used)
    ]
    return Table(header, rows)


def _comparison(rows: Sequence[ComparisonRow]) -> Table | None:
    if not rows:
        return None
    header, cells = comparison_cells(rows)
    order = sorted(range(len(header)), key=lambda i: " - " not in header[i])  # differences first: they are the claim
    shown = [[_minus(line[i]) if line[i] != "-" else "–" for i in order] for line in cells]
    names = [_minus(header[i]) for i in order]
    return Table(names, [(row.variant, line) for row, line in zip(rows, shown, strict=True)])


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _world_model_rows(data: ReportData) -> dict[str, Mapping[str, Any]]:
    """The last measurement of each SFT and of each evaluation."""
    rows: dict[str, Mapping[str, Any]] = {}
    for variant, stage in _stages_2(data).items():
        for row in stage:
            if any(str(key).startswith("world_model/") for key in row):
                rows[f"after SFT, {variant}" if variant else "after SFT"] = row
    return rows | {variant: r.result.world_model for variant, r in data.variants.items() if r.result is not None}


def _stages_2(data: ReportData) -> dict[str, Sequence[MetricsRow]]:
    return {"": data.sft, **data.sft_of_variants}


def render(template: str, title: str, **values: Any) -> str:
    """A page from one of the templates. Its content security policy allows its own style sheet, by hash, and nothing else."""
    environment = Environment(
        loader=PackageLoader("spa.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    css = environment.get_template("report.css").render()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return environment.get_template(template).render(title=title, css=Markup(css), css_hash=digest, **values)


def write_page(text: str, path: str | os.PathLike[str]) -> Path:
    """Writes a page atomically and returns its path."""
    # A model can write lone surrogates, which UTF-8 cannot encode.
    atomic_write(path, text.encode("utf-8", "replace").decode("utf-8"))
    return Path(path)


def render_report(data: ReportData) -> str:
    """The report as an HTML document."""
    colors = variant_colors(list(data.variants))
    results = {variant: report.result for variant, report in data.variants.items() if report.result is not None}
    rows = comparison_table(results, data.baseline, data.trained)
    config = flatten(data.config)
    timings = {stage: seconds for stage, value in data.timings.items() if (seconds := number(value)) is not None}
    return render(
        "report.html.jinja",
        f"{data.name} – SPA report",
        data=data,
        colors=colors,
        verdict=[_minus(line) for line in verdict(scores(rows))],
        facts=_facts(config),
        config=config,
        comparison=_comparison(rows),
        play=_table({variant: result.metrics for variant, result in results.items()}, _PLAY),
        world_model=_table(_world_model_rows(data), _WORLD_MODEL),
        skipped={variant: result.skipped_ks for variant, result in results.items() if result.skipped_ks},
        comparison_chart=comparison_chart(rows, colors),
        learning=learning_charts(data.variants, _stages_2(data), colors),
        diagnostics=diagnostic_charts(data.variants, colors),
        episodes=[
            (
                variant,
                [view(episode) for episode in choose_episodes(r.episodes, data.episodes_per_variant)],
                len(r.episodes),
            )
            for variant, r in data.variants.items()
            if r.episodes and data.episodes_per_variant > 0
        ],
        timings=[(stage, duration(s), 100 * s / max(timings.values()) if s > 0 else 0) for stage, s in timings.items()],
        total=duration(sum(timings.values())),
    )


def write_report(data: ReportData, path: str | os.PathLike[str]) -> Path:
    """Writes the report as one HTML file, atomically, and returns its path.

    The file holds everything it needs and no script; its content security policy forbids loading anything else. Parts without
    data are left out.
    """
    return write_page(render_report(data), path)
