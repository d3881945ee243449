"""``spa view``: runs in the browser, while they train. Imports no torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer


def view(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="FOLDER", help="Folders of runs. Default: runs.", show_default=False)
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than 127.0.0.1 are public.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8765,
) -> None:
    """Show runs in the browser: a list with curves, each run's report as it grows, comparisons. Reads only."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise ValueError(f"spa view needs {package}: pip install 'spa-agent[view]'")
    from spa.view.server import serve

    serve(folders or [Path("runs")], host, port)
