"""Wall and CPU time of a stage, excluding measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Elapsed:
    """Wall seconds, and CPU seconds of this process and its finished child processes."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Elapsed) -> Elapsed:
        return Elapsed(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Elapsed) -> Elapsed:
        return Elapsed(self.wall - other.wall, self.cpu - other.cpu)

    def record(self) -> dict[str, float]:
        """As written to a stage's files."""
        return {"seconds": self.wall, "cpu_seconds": self.cpu}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Elapsed:
        return cls(float(record["seconds"]), float(record.get("cpu_seconds", 0.0)))


_paused = Elapsed()


def training_time() -> Elapsed:
    """A clock that stops within ``measuring()``; only differences between readings are meaningful."""
    return _now() - _paused


@contextmanager
def measuring() -> Iterator[None]:
    """Excludes the block (validation, probes of the world model) from every stage's time. Must not be nested."""
    global _paused
    begun = _now()
    try:
        yield
    finally:
        _paused = _paused + (_now() - begun)


_store: Callable[[], None] | None = None


@contextmanager
def storing_time(store: Callable[[], None]) -> Iterator[None]:
    """In the block, ``work_stored`` calls ``store``, which writes down the time so far; of nested blocks the inner one counts."""
    global _store
    outer, _store = _store, store
    try:
        yield
    finally:
        _store = outer


def work_stored() -> None:
    """To be called wherever a stage has stored work that is not repeated when it is resumed, such as a checkpoint or an episode.

    The time up to here is then stored too. Later time is lost with the work done in it, so that a resumed stage counts none twice.
    """
    if _store is not None:
        _store()


def _now() -> Elapsed:
    return Elapsed(time.perf_counter(), sum(os.times()[:4]))  # user and system time, own and children's
