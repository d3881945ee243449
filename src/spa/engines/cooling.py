"""A temperature of its own for one request: a rejected response is sampled again, cooler. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Cooled(list[int]):
    """A context to be continued at ``factor`` times the call's temperature."""

    def __init__(self, ids: Iterable[int], factor: float) -> None:
        super().__init__(ids)
        self.factor = factor


def cooling(context: Sequence[int]) -> float:
    """The factor on the temperature of a context: 1.0 unless it is ``Cooled``."""
    return context.factor if isinstance(context, Cooled) else 1.0


def cooled(logits_nV: Any, factors: Sequence[float]) -> Any:
    """Logits (n, V) whose softmax at the call's temperature is the original's at ``factors[i]`` times it in row i."""
    if all(factor == 1.0 for factor in factors):
        return logits_nV
    logits_nV = logits_nV.float()
    return logits_nV / logits_nV.new_tensor(factors)[:, None]
