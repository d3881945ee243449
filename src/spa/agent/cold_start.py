"""Help for a model that rarely keeps to the response format: worked examples and resampling. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from spa.engines.base import Message

COOLING = 0.7  # factor on the temperature from one try to the next
_STREAM = 0x5407


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

    def draw(self, seed: int) -> list[tuple[str, str]]:
        """The examples of the episode with this noise seed."""
        rng = np.random.default_rng(np.random.SeedSequence([seed, _STREAM]))
        return [self.examples[int(i)] for i in rng.permutation(len(self.examples))[: self.shots]]


def messages(examples: Sequence[tuple[str, str]], header: str) -> list[Message]:
    """Examples as chat messages; all but the first without ``header``, as in a conversation."""
    users = [user.removeprefix(header if number else "") for number, (user, _) in enumerate(examples)]
    return [
        {"role": role, "content": text}
        for user, (_, response) in zip(users, examples, strict=True)
        for role, text in (("user", user), ("assistant", response))
    ]
