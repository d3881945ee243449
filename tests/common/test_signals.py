"""SIGTERM ends the work as Ctrl-C does, once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from spa.common.signals import Interrupted, Terminated, interruptible, terminated_as_interrupted


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)


def test_a_second_signal_does_not_end_the_cleaning_up() -> None:
    before, cleaned = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with terminated_as_interrupted():
            try:
                terminate()
            finally:
                terminate()
                cleaned.append(True)

    with pytest.raises(Terminated):
        work()
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_an_object_is_deleted_is_not_lost(number: int) -> None:
    class Slow:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    def work() -> None:
        slow = Slow()
        del slow
        time.sleep(10)

    before, begun = sys.unraisablehook, time.monotonic()
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(Interrupted), interruptible(lambda: "Go on."):
            work()
    finally:
        signal.signal(signal.SIGINT, usual)
    assert time.monotonic() - begun < 5
    assert sys.unraisablehook is before


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_the_code_says_which_it_was(error: type[KeyboardInterrupt], code: int) -> None:
    with pytest.raises(Interrupted) as caught, interruptible(lambda: "Go on."):
        raise error
    assert caught.value.code == code


def test_another_thread_leaves_signals_alone() -> None:
    found = []

    def work() -> None:
        with interruptible(lambda: "Go on."):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
