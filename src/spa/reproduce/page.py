"""The figures of a reproduction in one HTML file that opens offline."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from spa.report.charts import Figure, axes, colors_of, line
from spa.report.html import embed_json
from spa.reproduce.results import ArmNumbers, Curve, Numbers
from spa.runs.files import atomic_write

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}
td,th{border-bottom:1px solid #ddd;padding:.3rem .6rem;text-align:left;white-space:nowrap}.chart{height:24rem}"""
_SCRIPT = """for (const [id, figure] of Object.entries(JSON.parse(document.getElementById('figures').textContent)))
Plotly.newPlot(id, figure.data, figure.layout, {responsive: true, displaylogo: false});"""


def figures(numbers: Numbers) -> dict[str, tuple[str, Figure]]:
    """id -> (title, figure): for each world learning curves by step and by time, Pass@k, and the world model along RL."""
    out: dict[str, tuple[str, Figure]] = {}
    for number, (world, arms) in enumerate(numbers.items()):
        colors = colors_of(list(arms))
        for key, (title, x, y, curves) in _curves(arms).items():
            data = [line(arm, list(points), colors[arm]) for arm, points in curves.items() if points]
            layout = axes(x, y, True)
            if x == "k":
                layout["xaxis"]["type"] = "log"
            if data:
                out[f"{key}-{number}"] = (f"{world}: {title}", {"data": data, "layout": layout})
    return out


def _curves(arms: Mapping[str, ArmNumbers]) -> dict[str, tuple[str, str, str, dict[str, Curve]]]:
    """key -> title, what x and y are, and a curve for each arm (empty where it has none)."""
    val = {arm: found.curves.get("val/pass@1", []) for arm, found in arms.items()}
    by_time = {arm: _by_time(arms[arm], curve) for arm, curve in val.items()}
    passes = {arm: [(float(k), p.mean) for k, p in sorted(found.passes.items())] for arm, found in arms.items()}
    top_1, exact = (
        {arm: found.curves.get(name, []) for arm, found in arms.items()}
        for name in ("calibration/top1", "world_model/prediction_em")
    )
    return {
        "steps": ("validation Pass@1 along PPO", "PPO step", "Pass@1", val),
        "time": ("validation Pass@1 by wall time, stages 1 and 2 included", "seconds", "Pass@1", by_time),
        "passk": ("Pass@k on the test worlds", "k", "Pass@k", {a: p for a, p in passes.items() if len(p) > 1}),
        "top1": ("truth likeliest, along PPO", "PPO step", "share of turns", top_1),
        "exact": ("prediction exact, along PPO", "PPO step", "share of predictions", exact),
    }


def _by_time(found: ArmNumbers, curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Steps as seconds since the start of stage 1: PPO's time spread evenly over its steps."""
    last = curve[-1][0] if curve else 0
    if not last or "PPO" not in found.seconds:
        return []
    before = sum(seconds for stage, seconds in found.seconds.items() if stage != "PPO")
    return [(before + found.seconds["PPO"] * step / last, value) for step, value in curve]


def write_page(title: str, markdown: str, numbers: Numbers, path: str | os.PathLike[str]) -> Path:
    """Writes the table and the figures; returns the path."""
    from plotly.offline import get_plotlyjs

    charts = figures(numbers)
    body = "".join(f"<h3>{escape(title)}</h3><div class=chart id={key}></div>" for key, (title, _) in charts.items())
    data = embed_json({key: figure for key, (_, figure) in charts.items()})
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"{_html(markdown)}{body}<script type='application/json' id=figures>{data}</script>"
        f"<script>{get_plotlyjs()}</script><script>{_SCRIPT}</script></html>"
    )
    atomic_write(path, page)
    return Path(path)


def _html(markdown: str) -> str:
    """Headings, paragraphs and tables, which is all that the table's Markdown has."""
    out: list[str] = []
    rows: list[list[str]] = []

    def close() -> None:
        if rows:
            cells: list[Any] = [[escape(cell) for cell in row] for row in rows]
            head = "".join(f"<th>{cell}</th>" for cell in cells[0])
            lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells[1:])
            out.append(f"<table><tr>{head}</tr>{lines}</table>")
            rows.clear()

    for text in markdown.splitlines():
        if text.startswith("|"):
            if not text.startswith("|-"):
                rows.append([cell.strip() for cell in text.strip("|").split("|")])
            continue
        close()
        level = len(text) - len(text.lstrip("#"))
        if level:
            out.append(f"<h{level}>{escape(text[level:].strip())}</h{level}>")
        elif text.strip():
            out.append(f"<p>{escape(text)}</p>")
    close()
    return "".join(out)
