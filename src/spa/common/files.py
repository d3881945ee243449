"""Atomic writes: a reader sees the old file or the new one, never half of one, also (on Linux) after a power failure.

Incomplete files are named ``.NAME.RANDOM.tmp``; a killed process leaves them behind, and ``sweep`` removes them. A full disk or a
missing permission is an ``OSError`` that names the file or folder to be written, whichever library was writing.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SUFFIX = ".tmp"
os.umask(_UMASK := os.umask(0o022))  # there is no other way to read it


def expanded(path: str | os.PathLike[str]) -> Path:
    """With the home folder for ``~``. That of an unknown user stays as it is: there is no such file then."""
    return Path(os.path.expanduser(path))


def atomic_write(path: str | os.PathLike[str], text: str) -> None:
    """Writes ``text`` (UTF-8) to ``path``."""
    with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary file that replaces ``path`` if the block succeeds and is removed otherwise.

    It is created in the folder of ``path``, which is created if missing.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with naming(target):
        handle, name = tempfile.mkstemp(_SUFFIX, f".{target.name}.", target.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_UMASK)
            _sync(temporary)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary folder that replaces ``path`` if the block succeeds and is removed otherwise."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with naming(target):
        temporary = Path(tempfile.mkdtemp(_SUFFIX, f".{target.name}.", target.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_UMASK)
            for path in [*temporary.rglob("*"), temporary]:
                if path.is_file() and not path.is_symlink():  # safetensors' are the owner's alone
                    path.chmod(0o666 & ~_UMASK)
                _sync(path)
            replaced = _put(temporary, target)
            _sync(target.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if replaced:
            shutil.rmtree(replaced)


def _put(new: Path, target: Path) -> Path | None:
    """Renames a folder to ``target``; returns where the one that was there has gone. If this fails, that one is back."""
    if not target.exists():
        new.rename(target)
        return None
    aside = Path(tempfile.mkdtemp(_SUFFIX, f".{target.name}.", target.parent)) / target.name
    target.rename(aside)
    try:
        new.rename(target)
    except BaseException:
        aside.rename(target)
        aside.parent.rmdir()
        raise
    return aside.parent


def append(path: str | os.PathLike[str], text: str) -> None:
    """Appends ``text`` (UTF-8) to ``path``, created with its folder if missing; the last line may be incomplete after a failure."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with naming(target), open(target, "a", encoding="utf-8", opener=no_link) as file:
        file.write(text)


def no_link(path: str, flags: int) -> int:
    """An ``opener`` for a run's files that are changed in place: a folder made by others must not have another file changed.

    Raises:
        ValueError: the file is a symbolic link.
    """
    if os.path.islink(path):
        raise ValueError(f"{path} is a symbolic link, through which nothing is written: put the file itself there")
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0), 0o666)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """The system's errors in the block name ``path``, unless they name a file that is not one of its temporary ones."""
    try:
        yield
    except Exception as error:
        cause = _system_error(error)
        if cause is None or cause.errno is None:
            raise
        if cause.filename and not any(_is_temporary(name, path) for name in (cause.filename, cause.filename2)):
            raise
        raise OSError(cause.errno, os.strerror(cause.errno), str(path)) from error


def _system_error(error: BaseException) -> OSError | None:
    """The system's error that made a library fail: torch raises another one after it, Rust's have its number in their text."""
    if isinstance(error, OSError):
        return error
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return error.__context__
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), "") if number else None


def _is_temporary(name: object, path: Path) -> bool:
    return str(path.parent / f".{path.name}.") in str(name)


def _sync(path: Path) -> None:
    """Waits until a file's or folder's content is on the disk, where the system can do that."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Atomically removes a folder if it exists: it is complete or gone, even if the process is killed meanwhile."""
    folder = Path(path)
    if not folder.exists():
        return
    half = Path(tempfile.mkdtemp(_SUFFIX, f".{folder.name}.", folder.parent))
    folder.rename(half / "removed")  # by another name than of what ``sweep`` puts back
    shutil.rmtree(half)


def sweep(folder: str | os.PathLike[str]) -> None:
    """Removes leftovers of killed writes and removals in and next to ``folder``; no other process may be writing there. A folder
    that was about to be replaced is put back."""
    root = Path(folder)
    random = "?" * 8  # tempfile's; a longer part is of a sibling whose name begins alike
    siblings = root.parent.glob(f".{glob.escape(root.name)}.{random}{_SUFFIX}")
    for path in [*siblings, *sorted(root.rglob(f".*{_SUFFIX}"))]:
        if path.is_dir():
            name = path.name[1 : -len(f".{random}{_SUFFIX}")]
            if (path / name).is_dir() and not (path.parent / name).exists():
                (path / name).rename(path.parent / name)
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
