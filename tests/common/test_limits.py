"""Calls with a time limit, outside the main thread."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spa.common.limits import OneThread, TimeLimit, limited


def elsewhere(do: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()


def test_calls_run_in_the_same_thread_until_one_takes_too_long() -> None:
    thread = OneThread()
    first, second = [elsewhere(lambda: limited(threading.current_thread, 10, thread)) for _ in range(2)]
    assert first is second and first is not threading.main_thread()
    with pytest.raises(TimeLimit):
        elsewhere(lambda: limited(lambda: time.sleep(0.5), 0.05, thread))
    third = elsewhere(lambda: limited(threading.current_thread, 10, thread))
    assert third is not first
    first.join(10)
    assert not first.is_alive() and third.is_alive()


def test_its_errors_are_those_of_the_call() -> None:
    with pytest.raises(ZeroDivisionError):
        elsewhere(lambda: limited(lambda: 1 / 0, 10))


def test_the_thread_ends_with_its_owner_and_keeps_no_call_alive() -> None:
    class Owner:
        def __init__(self) -> None:
            self.thread = OneThread()

        def ask(self) -> threading.Thread:
            return threading.current_thread()

    owner = Owner()
    worker = owner.thread.run(owner.ask, 10)
    gone = weakref.ref(owner)
    del owner
    worker.join(10)
    assert not worker.is_alive() and gone() is None
