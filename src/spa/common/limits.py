"""Time limits for code that we did not write. Imports no torch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class TimeLimit(BaseException):
    """The time is up. Not an ``Exception``: foreign code often catches those."""


def limited(do: Callable[[], T], seconds: float) -> T:
    """``do()``, for at most ``seconds`` (0: no limit).

    In the main thread a timer interrupts it (where the system has one); it must run Python code or wait, and is interrupted
    again each second. Elsewhere it runs in a thread of its own, which is abandoned when the time is up.

    Raises:
        TimeLimit: the time is up.
    """
    if seconds <= 0:
        return do()
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return _with_timer(do, seconds)
    return in_thread(do, seconds)


def _with_timer(do: Callable[[], T], seconds: float) -> T:
    def expire(*_: object) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, expire)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            return do()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # the alarm may come while the inner one is about to stop it
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_thread(do: Callable[[], T], seconds: float) -> T:
    """``do()`` in a thread of its own, which is abandoned after ``seconds``. Raises ``TimeLimit`` then, else what it raises."""
    results: list[Any] = []

    def work() -> None:
        try:
            results.append((do(), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not results:
        raise TimeLimit
    result, error = results[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
