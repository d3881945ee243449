"""Atomic writes: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def atomic_write(path: str | os.PathLike[str], text: str) -> None:
    """Writes ``text`` (UTF-8) to ``path``."""
    with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary file that becomes ``path`` when the block ends well and vanishes when it does not.

    It stands in the folder of ``path``, which is made if missing.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary folder that becomes ``path`` when the block ends well and vanishes when it does not.

    An existing ``path`` is replaced.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        yield temporary
        temporary.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
