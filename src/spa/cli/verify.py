"""``spa verify``: is a run folder what it says? Imports no torch at import time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a folder of runs.")]) -> None:
    """Replay a run's episodes, recompute its tables, check its files; exit code 1 if something is wrong."""
    from spa.view.index import find_runs

    runs = list(find_runs(run)) or [run]
    wrong = 0
    for folder in runs:
        if len(runs) > 1:
            print(f"{folder.relative_to(run)}:", flush=True)
        wrong += _verify(folder)
    if wrong:
        print(f"{wrong} check{'s' if wrong > 1 else ''} failed")
        raise typer.Exit(1)


def _verify(run: Path) -> int:
    """Prints the checks of a run; returns how many failed."""
    from spa.dry_run import imports
    from spa.runs.folder import RunFolder
    from spa.verify import verify as look

    try:
        folder = RunFolder(run)
        for line in imports(folder.config(), folder.variants()):
            print(line, flush=True)  # foreign worlds, said before their code is run
    except ValueError:
        pass  # a check below says so
    wrong = 0
    for check in look(run):
        print(check, flush=True)
        wrong += not check.ok
    return wrong
