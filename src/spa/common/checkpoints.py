"""Checkpoint folders ``checkpoints/global_step_N``: listing, rotation, and which of them are whole. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

from spa.common.files import remove_folder
from spa.common.manifest import damage, has_manifest, say

_NAME = re.compile(r"global_step_(\d+)")


def checkpoint_folder(root: Path, step: int) -> Path:
    return root / "checkpoints" / f"global_step_{step}"


def list_checkpoints(root: Path) -> list[tuple[int, Path]]:
    """(step, folder) in ascending order of steps.

    Folders appear and vanish atomically. Left out are those with a missing file or one of another size than their manifest says,
    and those without a manifest. ``latest_checkpoint`` also compares contents.
    """
    return [(step, folder) for step, folder, why in _looked_at(root, content=False) if not why]


def latest_checkpoint(root: Path) -> tuple[int, Path] | None:
    """The newest checkpoint that is whole, or None if there is no checkpoint; says which newer ones are damaged, and how.

    Raises:
        ValueError: there are checkpoints, and all are damaged.
    """
    first = ""
    for step, folder, why in reversed(_looked_at(root, content=True)):
        if not why:
            if first:
                say(f"{first}; going back to {folder}")
            return step, folder
        first = first or why
    if first:
        raise ValueError(f"{first}; no other checkpoint is there: delete {root} to train this stage again")
    return None


def remove_later(checkpoint: Path) -> None:
    """Removes the checkpoints of the same stage after this one, which may itself be missing."""
    for step, folder in _numbered(checkpoint.parent):
        if step > int(checkpoint.name.rpartition("_")[2]):
            remove_folder(folder)


def check_best(root: Path, step: int) -> Path:
    """The checkpoint of the best step. Raises ValueError if it is missing or damaged."""
    folder = checkpoint_folder(root, step)
    if lines := damage(folder) if folder.is_dir() else [f"{folder} is missing"]:
        raise ValueError(
            f"{lines[0]}, and it was the best: delete the checkpoints after step {step} in {folder.parent} and continue with "
            "--resume"
        )
    return folder


def damage_of_checkpoint(folder: Path, *, content: bool = True) -> list[str]:
    """As ``damage``; a checkpoint without a manifest is not whole."""
    return (
        damage(folder, content=content) if has_manifest(folder) else [f"{folder} has no manifest.json: it is not whole"]
    )


def _numbered(checkpoints: Path) -> list[tuple[int, Path]]:
    """Step and folder of what is called a checkpoint, in ascending order."""
    return sorted((int(m[1]), path) for path in checkpoints.glob("global_step_*") if (m := _NAME.fullmatch(path.name)))


def _looked_at(root: Path, *, content: bool) -> list[tuple[int, Path, str]]:
    """Step, folder and damage (empty if whole) of what is called a checkpoint. Stops looking at contents after the newest whole."""
    folders = _numbered(root / "checkpoints")
    checkpoints: list[tuple[int, Path, str]] = []
    for step, folder in reversed(folders):
        lines = damage_of_checkpoint(folder, content=content)
        content = content and bool(lines)
        checkpoints.append((step, folder, lines[0] if lines else ""))
    return checkpoints[::-1]


def prune_checkpoints(root: Path, keep: int, always: tuple[int, ...] = (), *, newest: int | None = None) -> None:
    """Removes all except the newest ``keep`` checkpoints (0 keeps all) and those of the steps in ``always``.

    Args:
        newest: the step that was resumed from: later ones are damaged and do not count.
    """
    counted = [each for each in list_checkpoints(root) if newest is None or each[0] <= newest]
    for step, folder in counted[: -keep or None] if keep else []:
        if step not in always:
            remove_folder(folder)
