"""Whether an engine with its own copy of the weights plays as the model that is trained: stale weights fail silently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spa.config.schema import SamplingConfig
from spa.engines.base import Engine
from spa.models.forward import evaluating
from spa.models.score import Chosen, batches, score

_TOKENS = 16  # per context


class OutOfStep(ValueError):
    """The engine does not play with the weights it was given."""


@torch.no_grad()
def logprob_differences(
    engine: Engine, model: Any, contexts: Sequence[Sequence[int]], temperature: float
) -> NDArray[np.float64]:
    """Absolute differences (nats) between the engine's log-probs of tokens it samples after ``contexts`` and those of a forward
    pass of ``model`` without dropout, in the precision of its weights."""
    # A few short lines on purpose: neither a stop token nor top-p, whose log-probs would be of another distribution.
    sampling = SamplingConfig(temperature=temperature, max_tokens=_TOKENS)
    completions = engine.generate(contexts, sampling, stop_ids=frozenset(), seed=0)
    rows = [
        Chosen([*context, *completion.ids], range(len(context), len(context) + len(completion.ids)))
        for context, completion in zip(contexts, completions, strict=True)
    ]
    differences = [np.zeros(0)]
    with evaluating(model):
        for batch in batches(rows, 8192, model.device, packing=False):
            trained = score(model, batch, temperature=temperature or 1.0).logprobs_N.double().cpu().numpy()
            differences.append(np.abs(trained - np.concatenate([completions[i].logprobs for i in batch.indices])))
    return np.concatenate(differences)


def check(
    engine: Engine, model: Any, contexts: Sequence[Sequence[int]], temperature: float, limit: float
) -> dict[str, float]:
    """The differences' mean and largest, as metrics.

    Raises:
        OutOfStep: their mean is above ``limit``.
    """
    differences = logprob_differences(engine, model, contexts, temperature)
    mean, largest = float(differences.mean()), float(differences.max())
    if not mean <= limit:
        raise OutOfStep(
            f"after a push of the weights, the engine's log-probs differ from the trained model's by {mean:.2g} nats on average "
            f"(at most {largest:.2g}), more than engine.max_logprob_diff={limit:g}: it plays with other weights. Use "
            "engine=transformers, or raise the limit if this is rounding"
        )
    return {"rollout/logprob_diff_mean": mean, "rollout/logprob_diff_max": largest}
