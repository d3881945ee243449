"""``spa export``: a trained model to take along. Imports no torch at import time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A run folder, a stage's folder or a checkpoint.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to write.")],
    variant: Annotated[
        str | None, typer.Option("--variant", help="Of a run: the variant. Default: its only one.", show_default=False)
    ] = None,
    sft: Annotated[bool, typer.Option("--sft", help="Of a run: the model of stage 2.")] = False,
    which: Annotated[
        str, typer.Option("--which", help="used (what the run evaluated), last or best (by validation).")
    ] = "used",
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="This step's checkpoint.", show_default=False)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="float32, bfloat16 or float16. Default: as it is.", show_default=False),
    ] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="The LoRA adapters alone, for peft.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace --to.")] = False,
    push: Annotated[
        str | None,
        typer.Option(
            "--push", metavar="REPO", help="Then upload it to this repository of the hub.", show_default=False
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
) -> None:
    """Write a trained model as a plain Hugging Face folder with a card, without the trainer's state."""
    from spa.common.progress import note
    from spa.models.export import export as write
    from spa.models.export import find_checkpoint
    from spa.models.hub import check_push, upload
    from spa.report.model_card import export_files
    from spa.runs.record import read_done

    if public and not push:
        raise ValueError("--public is of the upload: add --push REPO")
    if push:
        check_push(push)
    checkpoint = find_checkpoint(source, variant=variant, sft=sft, which=which, step=step)
    files = export_files(checkpoint, None if sft else variant, adapter=adapter)
    write(checkpoint, to, files=files, dtype=dtype, adapter=adapter, force=force)
    print(f"{checkpoint} -> {to}")
    stage = checkpoint.parent.parent
    if step is None and checkpoint != source and read_done(stage) is None:
        note(f"the training in {stage} has not ended: this is {checkpoint.name}")
    if push:
        print(f"{to} -> {upload(to, push, public=public)}")
