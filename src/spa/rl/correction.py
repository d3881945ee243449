"""Truncated importance weights where the engine that samples and the network that is trained differ numerically."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spa.config.schema import PPOConfig
from spa.rl.batch import TrainSequence
from spa.rl.losses import MAX_LOG_RATIO


def correct(sequences: Sequence[TrainSequence], config: PPOConfig) -> dict[str, float]:
    """Multiplies the advantages of trained sampled tokens by w = min(p / q, ``ppo.rollout_is_threshold``), without gradient.

    p is the probability under the trainer's forward before the update (the old policy of the ratio), q that under the engine's
    (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; verl's ``rollout_is``, TRL's
    ``token_truncate`` and ``sequence_truncate``). With ``sequence``, p and q are products over these tokens of a sequence.
    As w > 0, a weight on the advantage is one on the clipped policy loss; the critic, entropy and KL terms have none.

    Returns:
        metrics under verl's names: mean and maximum of p / q, and the share of tokens whose weight was truncated.
    """
    if config.rollout_is == "none":
        return {}
    ratios = [np.ones(0)]
    for sequence in sequences:
        sampled = sequence.turns >= 0
        log_ratio = (sequence.logprobs - sequence.sampler)[sampled & sequence.mask]
        if config.rollout_is == "sequence":
            log_ratio = np.full_like(log_ratio, log_ratio.sum())
        ratio = np.exp(np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
        sequence.advantages[sampled & sequence.mask] *= np.minimum(ratio, config.rollout_is_threshold)
        ratios.append(ratio)
    every = np.concatenate(ratios)
    if not len(every):
        return {}
    return {
        "rollout_corr/rollout_is_mean": float(every.mean()),
        "rollout_corr/rollout_is_max": float(every.max()),
        "rollout_corr/rollout_is_ratio_fraction_high": float((every > config.rollout_is_threshold).mean()),
    }
