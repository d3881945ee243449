"""Runs a function in several ranks: forks of the test's process, over gloo."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from spa.config.schema import ScaleConfig
from spa.engines.processes import can_fork
from spa.scale import ranks

SECONDS = 600


def in_ranks(work: Callable[[], Any], count: int, shards: int = 0) -> list[Any]:
    """What ``work`` returns in each of ``count`` ranks.

    Raises:
        AssertionError: a rank failed (with its traceback) or did not end.
    """
    if not can_fork():
        pytest.skip("ranks of a test are forks of its process")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    started = []
    for number in range(count):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(work, number, count, port, shards, sender), daemon=True)
        process.start()
        sender.close()
        started.append((process, receiver))
    results = []
    try:
        for number, (_, receiver) in enumerate(started):
            assert receiver.poll(SECONDS), f"rank {number} does not end"
            result, error = receiver.recv()
            assert error is None, f"rank {number}: {error}"
            results.append(result)
    finally:
        for process, receiver in started:
            receiver.close()
            process.kill()
            process.join()
    return results


def _run(work: Callable[[], Any], number: int, count: int, port: int, shards: int, sender: Connection) -> None:
    values = {
        "RANK": number,
        "LOCAL_RANK": number,
        "WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        with ranks.joined(ScaleConfig(shards=shards, timeout=60)):
            answer = work(), None
    except Exception:
        answer = None, traceback.format_exc()
    sender.send(answer)
