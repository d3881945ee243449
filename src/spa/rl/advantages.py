"""Advantages over the trainable tokens of an episode. Observation tokens do not exist here: they carry no step of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def gae(rewards: Array, values: Array, gamma: float, lam: float) -> tuple[Array, Array]:
    """Generalised advantage estimation over one finished episode (Schulman et al. 2016, Eq. 16).

    Args:
        rewards: (T,) reward that follows each trainable token.
        values: (T,) value of the context before each trainable token.

    Returns:
        advantages (T,) and returns (T,) = advantages + values. The value after the last token is 0.
    """
    assert rewards.shape == values.shape and rewards.ndim == 1
    advantages = np.zeros_like(values)
    running = next_value = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + gamma * next_value - values[t]
        running = delta + gamma * lam * running
        advantages[t] = running
        next_value = values[t]
    return advantages, advantages + values


def whiten(arrays: Sequence[Array]) -> list[Array]:
    """Shifts and scales all entries together to mean 0 and standard deviation 1 (population, as verl's masked whitening).

    All equal gives zeros.
    """
    if not arrays:
        return []
    flat = np.concatenate(arrays)
    scale = 1.0 / np.sqrt(flat.var() + 1e-8)
    return [(array - flat.mean()) * scale for array in arrays]
