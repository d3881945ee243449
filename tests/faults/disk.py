"""A full disk and a read-only folder, for a forked command."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from typing import Any


def fill(limit: int = 0) -> None:
    """No file of this process may grow beyond ``limit`` bytes from now on: any library's writes fail as on a full disk, except that
    the error is EFBIG in place of ENOSPC."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def full_from(name: str, limit: int = 0) -> None:
    """``fill`` as soon as a path with ``name`` in it is to be written or made."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if (writes or event == "os.mkdir") and name in os.fsdecode(arguments[0] if arguments else ""):
            fill(limit)

    sys.addaudithook(hook)


def obey_permissions() -> None:
    """Makes a process of root obey the permissions of files, as everybody else's does (drops CAP_DAC_OVERRIDE)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # version 3; effective, permitted, ...
    if libc.capget(header, data) or libc.capset(header, (ctypes.c_uint32 * 6)(data[0] & ~0b110, *data[1:])):
        raise OSError(ctypes.get_errno(), "capset")
