"""The time a stage takes: by the wall, in processor time, and without what is only measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spent:
    """Seconds by the wall, and processor seconds of this process and of those of its children that have ended."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.cpu - other.cpu)

    def record(self) -> dict[str, float]:
        """As a stage's files hold it."""
        return {"seconds": self.wall, "cpu_seconds": self.cpu}

    @classmethod
    def of(cls, record: dict[str, Any]) -> Spent:
        return cls(float(record["seconds"]), float(record.get("cpu_seconds", 0.0)))


_apart = Spent()


def training_time() -> Spent:
    """A clock that stands still within ``measuring()``; differences of two readings are what counts."""
    return _now() - _apart


@contextmanager
def measuring() -> Iterator[None]:
    """What runs in here (validation, probes of the world model) is not part of any stage's time. Not to be nested."""
    global _apart
    begun = _now()
    try:
        yield
    finally:
        _apart = _apart + (_now() - begun)


def _now() -> Spent:
    used = os.times()
    cpu = used.user + used.system + used.children_user + used.children_system
    return Spent(time.perf_counter(), cpu)
