"""Random numbers that depend on what they are for and on nothing else: not on the batch, the order or the machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WEYL = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele et al. 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def uniforms(count: int, *key: int) -> NDArray[np.float32]:
    """``count`` numbers in [0, 1) of the stream ``key``: splitmix64 from a state that the key's words were mixed into."""
    state = 0
    for word in key:
        state = _mix((state + word * _WEYL + _WEYL) & _MASK)
    with np.errstate(over="ignore"):
        x = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_WEYL)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return (x >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
