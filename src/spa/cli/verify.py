"""``spa verify``: is a run folder what it says? Imports no torch at import time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]) -> None:
    """Replay a run's episodes, recompute its tables, check its files; exit code 1 if something is wrong."""
    from spa.config.load import load_variant
    from spa.dry_run import imports
    from spa.runs.folder import RunFolder
    from spa.verify import verify as look

    try:
        cfg = RunFolder(run).config()
        for line in imports(cfg, [load_variant(name) for name in cfg.variants]):
            print(line, flush=True)  # foreign worlds, said before their code is run
    except ValueError:
        pass  # a check below says so
    wrong = 0
    for check in look(run):
        print(check, flush=True)
        wrong += not check.ok
    if wrong:
        print(f"{wrong} check{'s' if wrong > 1 else ''} failed")
        raise typer.Exit(1)
