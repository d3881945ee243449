"""One process at a time writes a run folder. Imports no torch.

The lock is the operating system's, on the file ``run.lock`` in the folder: it ends with the process, however that ends. What the
file says (process, host, time) is for messages only; a process that ends well removes it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from spa.common.progress import note

NAME = "run.lock"
_held: set[int] = set()  # descriptors of this process


def check_free(folder: Path) -> None:
    """Raises ValueError as ``locked``, and writes nothing."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return
    try:
        _lock(descriptor, folder)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing ``folder``, which is made if missing; ends with the block.

    A note says if an earlier process was killed. Where the file system has no locks, a note says that too.

    Raises:
        ValueError: another process is writing it; the message says which, where and since when.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            acquired = _lock(descriptor, folder)
        except BaseException:
            os.close(descriptor)
            raise
        if not acquired or _is_at(descriptor, path):
            break
        os.close(descriptor)  # its holder has just removed the file
    if not acquired:
        note(f"{folder}: this file system has no locks; take care that no other process writes there")
    elif previous := _holder(descriptor):
        note(f"{folder}: {previous} ended without finishing; continuing from what it left")
    _held.add(descriptor)
    try:
        _write(descriptor)
        yield
    finally:
        _held.discard(descriptor)
        if sys.platform == "win32":  # an open file cannot be removed there
            os.ftruncate(descriptor, 0)
            os.close(descriptor)
        else:
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> bool:
    """Locks the file; False where there are no locks. ValueError if another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 2**30, os.SEEK_SET)  # beyond the text, which others may then read
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        who = _holder(descriptor) or "another process"
        raise ValueError(f"{folder} is being written by {who}; wait or give another --out") from error
    except OSError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write(descriptor: int) -> None:
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    data = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode()
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, data)


def _holder(descriptor: int) -> str:
    """``"process 12 on host since 2026-01-31 12:00:00+00:00"`` as the file says; empty if it says nothing."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        data = json.loads(os.read(descriptor, 4096))
        return f"process {data['pid']} on {data['host']} since {data['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _forget() -> None:
    """A fork that outlives its killed parent must not hold the lock; closing its copy leaves the parent's."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
