"""Counter-based random numbers that depend only on their key, not on the batch, the order or the machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WEYL = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele et al. 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def stream(*key: int) -> int:
    """The state of the stream ``key``: a hash of the key's words."""
    state = 0
    for word in key:
        state = _mix((state + word * _WEYL + _WEYL) & _MASK)
    return state


def uniforms(count: int, state: int) -> NDArray[np.float32]:
    """The first ``count`` numbers in [0, 1) of a stream."""
    return draws_at([state] * count, range(count))


def draws_at(streams: Sequence[int], places: Sequence[int]) -> NDArray[np.float32]:
    """Number ``places[i]`` (from 0) in [0, 1) of each stream: splitmix64 from its state."""
    with np.errstate(over="ignore"):
        x = np.array(streams, dtype=np.uint64) + (np.array(places, dtype=np.uint64) + np.uint64(1)) * np.uint64(_WEYL)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    draws: NDArray[np.float32] = (x >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return draws
