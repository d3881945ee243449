"""Ends a command cleanly on Ctrl-C and on SIGTERM, which batch systems send. Imports no torch."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM; handled by the same cleanup as Ctrl-C."""


class Interrupted(Exception):
    """A command was stopped by Ctrl-C (``code`` 130) or SIGTERM (143); the message says how to resume."""

    def __init__(self, how: str, cause: BaseException) -> None:
        terminated = isinstance(cause, Terminated)
        super().__init__(f"{'Terminated' if terminated else 'Interrupted'}. {how}".rstrip())
        self.code = 143 if terminated else 130


@contextmanager
def interruptible(how: Callable[[], str]) -> Iterator[None]:
    """Raises ``Interrupted`` for Ctrl-C and SIGTERM; ``how`` tells the user how to resume, and is asked then."""
    try:
        with terminated_as_interrupted():
            yield
    except KeyboardInterrupt as error:
        raise Interrupted(how(), error) from None


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Raises ``Terminated`` on SIGTERM; does nothing inside another such block, nor outside the main thread, the only one that may
    set signal handlers."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is _terminate:
        yield
        return
    hook = sys.unraisablehook
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = partial(_send_again, hook)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


def _send_again(hook: Callable[[Any], None], lost: Any) -> None:
    """Repeats a signal whose exception nobody could catch, since it came while an object was deleted; passes on all else."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        hook(lost)
        return
    number = signal.SIGINT
    if isinstance(lost.exc_value, Terminated):
        signal.signal(signal.SIGTERM, _terminate)
        number = signal.SIGTERM
    # Later: at once it would be raised, and lost, in here.
    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()


def _terminate(*_: object) -> NoReturn:
    # `timeout` and batch systems send several; a second must not interrupt the cleanup.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def die_with_parent() -> None:
    """For a process that works for its parent: Linux ends it with the parent, also with a killed one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if (parent := multiprocessing.parent_process()) and parent.pid != os.getppid():
        os._exit(1)
