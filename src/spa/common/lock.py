"""Lets only one process at a time write to a run folder. Imports no torch.

It is an operating-system lock on the file ``run.lock`` in the folder, released however the process ends. The file's content
(process, host, time) is for messages only; a process that ends normally removes the file.
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

from spa.common.files import naming, no_link
from spa.common.progress import note

NAME = "run.lock"
_held: set[int] = set()  # descriptors of this process


def check_free(folder: Path) -> None:
    """Raises ValueError as ``locked``, but writes nothing."""
    try:
        descriptor = no_link(str(folder / NAME), os.O_RDWR)
    except OSError:
        return
    try:
        _lock(descriptor, folder)
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to ``folder``.

    The lock is tried only if the process named in the file may be alive: trying it keeps a starting one out for a moment.
    """
    try:
        data = json.loads((folder / NAME).read_bytes())
        if sys.platform != "win32" and data["host"] == socket.gethostname():
            os.kill(int(data["pid"]), 0)
    except PermissionError:  # it is alive, and another user's
        return True
    except (OSError, OverflowError, ValueError, KeyError, TypeError):
        return False
    try:
        check_free(folder)
    except ValueError:
        return True
    return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Prevents other processes from writing to ``folder``, created if missing, during the block.

    Prints a note if an earlier process was killed, or if the file system has no locks.

    Raises:
        ValueError: another process is writing to it; the message says which, where and since when. Or the file is a link.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    while True:
        descriptor = no_link(str(path), os.O_RDWR | os.O_CREAT)
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
        with naming(path):
            _write(descriptor)
        yield
    finally:
        _held.discard(descriptor)
        if sys.platform == "win32":  # Windows cannot remove an open file
            os.ftruncate(descriptor, 0)
            os.close(descriptor)
        else:
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> bool:
    """Locks the file; False if locks are unsupported. Raises ValueError if another process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 2**30, os.SEEK_SET)  # beyond the text, so that others can read it
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
    """Whether ``path`` still names the open file."""
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
    """``"process 12 on host since 2026-01-31 12:00:00+00:00"`` from the file; empty if it has none."""
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
