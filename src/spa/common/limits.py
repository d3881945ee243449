"""Time limits for code that we did not write, and the memory of this machine. Imports no torch."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


def installed_memory() -> int | None:
    """Bytes of memory of this machine, used or not; None on a system that does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


class TimeLimit(BaseException):
    """The time is up. Not an ``Exception``: foreign code often catches those."""


def limited(do: Callable[[], T], seconds: float, thread: OneThread | None = None) -> T:
    """``do()``, for at most ``seconds`` (0: no limit).

    In the main thread a timer interrupts it (where the system has one); it must run Python code or wait, and is interrupted
    again each second. Elsewhere it runs in ``thread``, or one of its own, which is abandoned when the time is up.

    Raises:
        TimeLimit: the time is up.
    """
    if seconds <= 0:
        return do()
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return _with_timer(do, seconds)
    return (thread or OneThread()).run(do, seconds)


def _with_timer(do: Callable[[], T], seconds: float) -> T:
    def expire(*_: object) -> None:
        raise TimeLimit

    left, interval = signal.getitimer(signal.ITIMER_REAL)  # another's alarm, which waits meanwhile
    signal.setitimer(signal.ITIMER_REAL, 0)
    begun = time.monotonic()
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
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begun), 1e-3), interval)


class OneThread:
    """Calls, one after the other, in a thread of its own: SQLite's and Playwright's objects work only in the thread that made them.

    The thread is started by the first call, and ends with this object. After a ``TimeLimit`` it is abandoned for another.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Any] | None = None
        self._end: Callable[[], object] = lambda: None

    def run(self, do: Callable[[], T], seconds: float) -> T:
        """``do()``. Raises ``TimeLimit`` after ``seconds``, else what it raises."""
        if self._calls is None:
            self._calls = SimpleQueue()
            self._end = weakref.finalize(self, self._calls.put, None)
            threading.Thread(target=_answer_all, args=(self._calls,), daemon=True).start()
        answer: SimpleQueue[Any] = SimpleQueue()
        self._calls.put((do, answer))
        try:
            result, error = answer.get(timeout=seconds)
        except Empty:
            self._end()
            self._calls = None
            raise TimeLimit from None
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


def _answer_all(calls: SimpleQueue[Any]) -> None:
    while _answer(calls.get()):
        pass


def _answer(call: tuple[Callable[[], Any], SimpleQueue[Any]] | None) -> bool:
    """Whether there was a call. A function of its own, so that a waiting thread keeps nothing of the last call alive."""
    if call is None:
        return False
    do, answer = call
    try:
        answer.put((do(), None))
    except BaseException as error:
        answer.put((None, error))
    return True
