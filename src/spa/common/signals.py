"""Ends a command cleanly on Ctrl-C and on SIGTERM, which batch systems send. Imports no torch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM; handled by the same cleanup as Ctrl-C."""


class Interrupted(Exception):
    """A command was stopped by Ctrl-C (``code`` 130) or SIGTERM (143); the message says how to resume."""

    def __init__(self, how: str, cause: KeyboardInterrupt) -> None:
        terminated = isinstance(cause, Terminated)
        super().__init__(f"{'Terminated' if terminated else 'Interrupted'}. {how}")
        self.code = 143 if terminated else 130


@contextmanager
def interruptible(how: str) -> Iterator[None]:
    """Raises ``Interrupted`` for Ctrl-C and SIGTERM; ``how`` tells the user how to resume."""
    try:
        with terminated_as_interrupted():
            yield
    except KeyboardInterrupt as error:
        raise Interrupted(how, error) from None


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Raises ``Terminated`` on SIGTERM; does nothing outside the main thread, the only one that may set signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(*_: object) -> NoReturn:
        # `timeout` and batch systems send several; a second must not interrupt the cleanup.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
