"""``spa diagnose``: what the recipe can do in a world with a model, before hours are spent. Imports no torch at import time."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from spa.cli.arguments import Words, check_new_folder, check_output, config_of


def diagnose(
    words: Words = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="A checkpoint, a stage's folder or a hub name. Default: the config's.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="A new folder for the small stages. Default: none is kept.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--json", help="Also write the numbers to this file.", show_default=False)
    ] = None,
    worlds: Annotated[int, typer.Option(min=2, help="Validation worlds that are played.")] = 32,
    groups: Annotated[int, typer.Option(min=1, help="Worlds of the small self-play.")] = 200,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the small stage 2.")] = 240,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """What the recipe can do in your world with your model, in about a minute with the built-in one."""
    from spa.common.progress import set_quiet
    from spa.common.secrets import redact

    cfg = config_of(words, "spa diagnose frozen_lake", model)
    if out is not None:
        check_new_folder(out)
    check_output(output)
    set_quiet(quiet)

    from spa.common.files import atomic_write
    from spa.diagnose.advice import lines, verdict
    from spa.diagnose.measure import diagnose as measure

    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spa-diagnose-")))
        diagnosis = measure(cfg, folder, worlds=worlds, groups=groups, steps=steps)
    if output is not None:  # first: who reads what is printed may stop reading
        record = {**dataclasses.asdict(diagnosis), "verdict": verdict(diagnosis)}
        atomic_write(output, redact(json.dumps(record, indent=1)) + "\n")
    print(redact("\n".join(lines(diagnosis))))
