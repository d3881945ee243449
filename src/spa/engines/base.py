"""The contract of an engine: it continues token sequences. Knows nothing of worlds, prompts or tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spa.runs.schema import SamplingConfig


@dataclass(frozen=True)
class Completion:
    """Sampled ids (the stop token included, if one was sampled), their log-probs and why sampling ended.

    ``logprobs[i]`` is log p(ids[i] | context, ids[:i]) under the model at the sampling temperature, before top-p and top-k.
    ``finish_reason`` is ``stop`` (a stop id was sampled) or ``length``.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: str


class Engine(Protocol):
    """Writes the text of an agent."""

    def generate(
        self, contexts: Sequence[Sequence[int]], sampling: SamplingConfig, *, stop_ids: frozenset[int], seed: int
    ) -> list[Completion]:
        """One completion per context, in order. The same arguments and weights give the same completions."""
        ...
