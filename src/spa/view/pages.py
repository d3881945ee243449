"""The pages of ``spa view`` around the report's own. Their one script asks for changes; their policy allows it by hash."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from spa.common.secrets import redact
from spa.view.index import RUNNING, RunEntry

_WIDTH, _HEIGHT = 120, 28  # of a sparkline

_environment = Environment(loader=PackageLoader("spa.view"), autoescape=True, trim_blocks=True, lstrip_blocks=True)


def _source(package: str, name: str) -> str:
    return PackageLoader(package).get_source(_environment, name)[0]


_css = _source("spa.report", "report.css") + _source("spa.view", "view.css")
_script = _source("spa.view", "view.js")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = (
    f"default-src 'none'; style-src 'sha256-{_hash(_css)}'; script-src 'sha256-{_hash(_script)}'; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def home(entries: Sequence[RunEntry]) -> str:
    """The list of runs."""
    return _page("Runs", listing(entries), "/list")


def listing(entries: Sequence[RunEntry]) -> str:
    """The table of the list, which the script asks for again and again."""
    return _render("list.html.jinja", entries=entries, sparkline=sparkline, size=size, when=when, redact=redact)


def run(entry: RunEntry) -> str:
    """A run: its state above its report."""
    return _page(entry.title, status(entry), f"/run/{entry.key}/status", frame=f"/run/{entry.key}/report")


def status(entry: RunEntry) -> str:
    """The line above a report; it changes when the run's files do."""
    return _render("status.html.jinja", entry=entry, size=size, when=when, redact=redact)


def message(text: str) -> str:
    """A page that says one thing."""
    return _page("SPA", Markup('<p class="error">{}</p>').format(redact(text)), "")


def _page(title: str, live: str, url: str, frame: str = "") -> str:
    values = {"css": Markup(_css), "script": Markup(_script), "live": Markup(live)}
    return _render("page.html.jinja", title=redact(title), url=url, frame=frame, **values)


def _render(template: str, **values: object) -> str:
    return _environment.get_template(template).render(**values)


def sparkline(entry: RunEntry) -> Markup:
    """The run's curve without axes, from 0 to the larger of its peak and 10%; empty without points."""
    if len(entry.curve) < 2:
        return Markup("")
    first, last = entry.curve[0][0], entry.curve[-1][0]
    top = max(0.1, *(value for _, value in entry.curve))
    points = " ".join(
        f"{2 + (_WIDTH - 4) * (step - first) / (last - first):.1f},{_HEIGHT - 2 - (_HEIGHT - 4) * max(0.0, value) / top:.1f}"
        for step, value in entry.curve
    )
    label = f"{entry.curve_name} by step, from {entry.curve[0][1]:.1%} to {entry.curve[-1][1]:.1%}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title><polyline points="{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, label, label, points)


def size(count: int) -> str:
    """``12 kB``, ``3.4 MB``, ``1.2 GB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def when(entry: RunEntry) -> str:
    """The time of the last write."""
    return datetime.fromtimestamp(entry.changed).strftime(
        "%Y-%m-%d %H:%M:%S" if entry.state == RUNNING else "%Y-%m-%d %H:%M"
    )
