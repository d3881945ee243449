"""``spa compare``: runs side by side, on the worlds that all of them played. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spa.cli.arguments import check_output


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run folders; the first is the reference.")],
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page.")] = None,
) -> None:
    """Compare runs: paired differences with intervals on the test worlds that all of them played."""
    from spa import api

    check_output(html, "html")
    comparison = api.compare(*runs)
    page = ""
    if html is not None:  # first: who reads what is printed may stop reading
        from spa.report.html import write_page

        page = f"\nPage: {write_page(comparison.html(), html)}"
    print(f"{comparison}{page}")
