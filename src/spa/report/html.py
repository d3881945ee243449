"""One self-contained HTML file: opens offline, loads nothing, and escapes everything that a model wrote."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from spa.common.files import atomic_write
from spa.common.progress import duration
from spa.evaluate.roles import BASE
from spa.evaluate.summary import ComparisonRow, comparison_cells, comparison_table, scores
from spa.evaluate.verdict import verdict
from spa.report.boards import alphabet
from spa.report.charts import comparison_chart, diagnostic_charts, learning_charts, number, variant_colors
from spa.report.data import MetricsRow, ReportData
from spa.report.predictions import examples, kept, pairs
from spa.report.theatre import BUDGET, TRAINING, Scene, choose_scenes, data_block
from spa.report.turns import cut, view

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


def _facts(config: Mapping[str, str], rl: bool) -> list[tuple[str, str]]:
    """Settings of the run, those of PPO only where it trains by RL."""
    values = {
        label: [config[key] for key in keys if key in config and (rl or not key.startswith("ppo."))]
        for label, keys in _FACTS
    }
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
    shown = [[line[i] for i in order] for line in cells]
    return Table([header[i] for i in order], [(row.variant, line) for row, line in zip(rows, shown, strict=True)])


def _minus(text: str) -> str:
    """With minus signs, and a dash for nothing; hyphens of names stay."""
    return "–" if text == "-" else re.sub(r"(?<![\w-])-(?=\d)|(?<= )-(?= )", "−", text)


def _world_model_rows(data: ReportData) -> dict[str, Mapping[str, Any]]:
    """The last measurement of each evaluation and SFT: the base, then after SFT, then the others."""
    measured = {variant: r.result.world_model for variant, r in data.variants.items() if r.result is not None}
    rows: dict[str, Mapping[str, Any]] = {}
    if BASE in measured:
        rows[BASE] = measured[BASE]
    for variant, stage in _stages_2(data).items():
        for row in stage:
            if any(str(key).startswith("world_model/") for key in row):
                rows[f"after SFT, {variant}" if variant else "after SFT"] = row
    return rows | measured


def _stages_2(data: ReportData) -> dict[str, Sequence[MetricsRow]]:
    return {"": data.sft, **data.sft_of_variants}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("spa.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cut": cut, "minus": _minus}
    return environment


def render(template: str, title: str, **values: Any) -> str:
    """A page from one of the templates. Its content security policy allows its own style sheet and script by their hashes,
    and drawings that the script makes, nothing else."""
    environment = _environment()
    loader = environment.loader
    assert loader is not None
    names = ("report.css", "theatre.js", "save.js", "curves.js")
    css, *scripts = (loader.get_source(environment, name)[0] for name in names)
    script = "\n".join(scripts)
    return environment.get_template(template).render(
        title=title,
        css=Markup(css),
        script=Markup(script),
        css_hash=_digest(css),
        script_hash=_digest(script),
        **values,
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_SEAL = "<!-- sha256 {} -->\n"


def sealed(page: str) -> str:
    """The page with its digest at the end, which tells an older page from a changed one. For lone surrogates, which a model can
    write and UTF-8 cannot encode, it has question marks."""
    text = page.encode("utf-8", "replace").decode("utf-8")
    return text + _SEAL.format(hashlib.sha256(text.encode()).hexdigest())


def is_sealed(page: str) -> bool:
    """Whether a page is as ``sealed`` made it."""
    text = page[: page.rfind("<!-- sha256 ")]
    return page == text + _SEAL.format(hashlib.sha256(text.encode()).hexdigest())


def write_page(text: str, path: str | os.PathLike[str]) -> Path:
    """Writes a page atomically and returns its path."""
    # A model can write lone surrogates, which UTF-8 cannot encode.
    atomic_write(path, text.encode("utf-8", "replace").decode("utf-8"))
    return Path(path)


def render_report(data: ReportData) -> str:
    """The report as an HTML document.

    It holds everything it needs; its content security policy forbids loading or running anything else. Parts without data are left
    out, and without JavaScript all but the theatre is there.
    """
    colors = variant_colors(list(data.variants))
    results = {variant: report.result for variant, report in data.variants.items() if report.result is not None}
    rows = comparison_table(results, trained=data.trained)
    config = flatten(data.config)
    env = data.config.get("env")
    settings = env.get("settings") if isinstance(env, Mapping) else None
    timings = {stage: seconds for stage, value in data.timings.items() if (seconds := number(value)) is not None}
    letters = alphabet(config.get("env.id", ""), settings if isinstance(settings, Mapping) else {})
    chosen = choose_scenes(data.variants, data.episodes_per_variant)
    budget = 10**9 if data.all_episodes else BUDGET
    block, scenes = data_block(chosen, letters, colors, data.decode, budget)
    return render(
        "report.html.jinja",
        f"{data.name} – SPA report",
        data=data,
        colors=colors,
        verdict=verdict(scores(rows)),
        unevaluated=[name for name in data.planned if name not in results],
        facts=_facts(config, data.rl),
        config=config,
        comparison=_comparison(rows),
        play=_table({variant: result.metrics for variant, result in results.items()}, _PLAY),
        stages_1=[(stage.title, kept(stage), pairs(stage)) for stage in data.selfplay],
        world_model=_table(_world_model_rows(data), _WORLD_MODEL),
        examples=examples(data.variants, letters),
        skipped={variant: result.skipped_ks for variant, result in results.items() if result.skipped_ks},
        comparison_chart=comparison_chart(rows, colors),
        learning=learning_charts(data.variants, _stages_2(data), colors),
        diagnostics=diagnostic_charts(data.variants, colors),
        theatre=block if scenes else "",
        scenes=[(scene, view(scene.episode)) for scene in scenes],
        left_out=_left_out(data, scenes),
        timings=[(stage, duration(s), 100 * s / max(timings.values()) if s > 0 else 0) for stage, s in timings.items()],
        total=duration(sum(timings.values())),
        provenance=_provenance(data.info),
    )


def _left_out(data: ReportData, scenes: Sequence[Scene]) -> list[str]:
    """What the theatre does not show, as sentences."""
    shown = [scene for scene in scenes if scene.split != TRAINING]
    total = sum(len(report.episodes) for report in data.variants.values())
    most = max((len(report.episodes) for report in data.variants.values()), default=0)
    lines = []
    if len(shown) < total:
        lines.append(f"{len(shown)} of {total} test episodes; spa report RUN_DIR --episodes {most} shows all.")
    if steps := sorted({scene.step for scene in scenes if scene.step is not None}):
        lines.append(f"{len(scenes) - len(shown)} training episodes, of steps {', '.join(map(str, steps))}.")
    return lines


def _provenance(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """``run.json`` as it is, with the last of its commands."""
    entries = info.get("commands", [])
    whole = {key: value for key, value in info.items() if key not in ("commands", "variants")} | dict(
        entries[-1] if entries else {}
    )
    whole |= {"commands": "; ".join(str(e.get("command", "")) for e in entries)} if len(entries) > 1 else {}
    argv = whole.get("argv")
    if isinstance(argv, list):
        whole["argv"] = shlex.join(map(str, argv))
    return list(flatten(whole).items())
