"""Runs work in several processes, forked where that is safe, so that inputs need not be pickled.

Python runs one thread at a time, so a rollout on a CPU gains little from a second core without a second process. A fork
inherits the model, the worlds and the tokenizer, and its changes stay private.
"""

from __future__ import annotations

import multiprocessing
import pickle  # only what this process and its own forks sent each other # nosec B403
import signal
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from spa.common.progress import leave_to_parent
from spa.common.signals import die_with_parent

T = TypeVar("T")

PATIENCE = 60.0  # seconds, plus twenty times our own share's time, until a process counts as stuck


def can_fork() -> bool:
    """Whether this process may be forked: on Linux, unless it may not have children (daemonic)."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def start_fork(process: multiprocessing.context.ForkProcess) -> None:
    """Starts a forked process without Python's warning about other threads: torch's are idle, and ours wait."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        process.start()


def in_processes(work: Callable[[int], T], count: int) -> list[T]:
    """``[work(0), ..., work(count - 1)]``: number 0 in this process, every other one in its own fork.

    Results are returned by pickle. A share whose process died, hung or had an unpicklable result is recomputed here.

    Raises: what ``work`` raises, here or in a fork.
    """
    if count == 1:
        return [work(0)]
    context = multiprocessing.get_context("fork")
    started: list[tuple[Any, Connection]] = []
    try:
        for number in range(1, count):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(work, number, sender), daemon=True)
            start_fork(process)
            sender.close()
            started.append((process, receiver))
        begun = time.perf_counter()
        results = [work(0)]
        patience = PATIENCE + 20 * (time.perf_counter() - begun)
        for number, (process, receiver) in enumerate(started, 1):
            answer = _receive(receiver, patience)
            if answer is None:
                process.kill()
                warnings.warn(
                    f"process {number} of {count} gave no result and its share is done again; "
                    "sampling.processes=1 does without processes",
                    RuntimeWarning,
                    stacklevel=2,
                )
                results.append(work(number))
                continue
            result, error = answer
            if error is not None:
                raise error
            results.append(result)
        return results
    finally:
        for process, receiver in started:
            receiver.close()
            process.kill()
            process.join()


def _run(work: Callable[[int], Any], number: int, sender: Connection) -> None:
    die_with_parent()
    leave_to_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the command's handler: a fork has nothing to clean up or report
    answer: tuple[Any, Exception | None]
    try:
        answer = work(number), None
    except KeyboardInterrupt:
        return
    except Exception as error:
        answer = None, error
    try:
        data = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
        if answer[1] is not None:
            pickle.loads(data)  # pickled above; some exceptions cannot be unpickled # nosec B301
    except Exception:
        return
    sender.send_bytes(data)


def _receive(receiver: Connection, patience: float) -> Any:
    """The data sent by a process, or None if it sent nothing."""
    try:
        if not receiver.poll(patience):
            return None
        return pickle.loads(receiver.recv_bytes())  # a pipe to a fork of this process # nosec B301
    except (EOFError, OSError):
        return None
