"""Help for a model that rarely keeps to the response format: worked examples and resampling. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

COOLING = 0.7  # factor on the temperature from one try to the next
_STREAM = 0x5407

Message = dict[str, str]


def _any(response: str) -> bool:
    return True


@dataclass(frozen=True)
class ColdStart:
    """How the model is helped; the default is not at all.

    Args:
        shots: number of ``examples`` that an episode shows as chat turns before its first one.
        examples: (user text, response) pairs to draw from; each episode draws its own, so that a model which copies
            them does not play the same moves everywhere.
        tries: how often a response is sampled until it is ``complete``; the last one is kept either way.
        complete: whether a response, with its forced first tag, is accepted.
    """

    shots: int = 0
    examples: tuple[tuple[str, str], ...] = ()
    tries: int = 1
    complete: Callable[[str], bool] = _any

    def messages(self, seed: int) -> list[Message]:
        """The messages of the examples shown in the episode with this noise seed."""
        if not self.shots:
            return []
        rng = np.random.default_rng(np.random.SeedSequence([seed, _STREAM]))
        chosen = [self.examples[int(i)] for i in rng.permutation(len(self.examples))[: self.shots]]
        return [
            {"role": role, "content": text}
            for pair in chosen
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
