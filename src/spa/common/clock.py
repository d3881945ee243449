"""Wall and CPU time of a stage, excluding measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
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


def _now() -> Elapsed:
    return Elapsed(time.perf_counter(), sum(os.times()[:4]))  # user and system time, own and children's
