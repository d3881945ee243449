"""Checkpoint folders ``checkpoints/global_step_N``: listing and rotation. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

from spa.common.files import remove_folder

_NAME = re.compile(r"global_step_(\d+)")


def checkpoint_folder(root: Path, step: int) -> Path:
    return root / "checkpoints" / f"global_step_{step}"


def list_checkpoints(root: Path) -> list[tuple[int, Path]]:
    """(step, folder) in ascending order of steps; only complete ones exist, since folders appear and vanish atomically."""
    folder = root / "checkpoints"
    return sorted((int(m[1]), path) for path in folder.glob("global_step_*") if (m := _NAME.fullmatch(path.name)))


def latest_checkpoint(root: Path) -> tuple[int, Path] | None:
    checkpoints = list_checkpoints(root)
    return checkpoints[-1] if checkpoints else None


def prune_checkpoints(root: Path, keep: int, always: tuple[int, ...] = ()) -> None:
    """Removes all except the newest ``keep`` checkpoints (0 keeps all) and those of the steps in ``always``."""
    for step, folder in list_checkpoints(root)[: -keep or None] if keep else []:
        if step not in always:
            remove_folder(folder)
