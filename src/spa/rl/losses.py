"""PPO's per-token losses over flat vectors (N,). The caller weights and sums them (``token_weights``)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spa.common.names import choose
from spa.config.overrides import choices
from spa.config.schema import PPOConfig

MAX_LOG_RATIO = 20.0  # as in verl: exp() of more overflows float32


def token_weights(lengths: Sequence[int], aggregation: str, *, horizon: int = 1) -> list[float]:
    """The loss weight of a token in each sequence of a mini-batch; ``lengths`` are the numbers of trained tokens (all > 0).

    * ``token-mean``: 1 / all tokens; every token counts equally (the original's; DAPO);
    * ``seq-mean-token-mean``: 1 / sequences / its tokens; every sequence counts equally (GRPO);
    * ``seq-mean-token-sum``: 1 / sequences;
    * ``seq-mean-token-sum-norm``: 1 / sequences / ``horizon``, a constant (Dr. GRPO).

    A sequence is an episode with the whole history in context, or a turn with a history window.
    """
    choose("aggregation", aggregation, choices(PPOConfig, "loss_aggregation"))
    count = len(lengths)
    if aggregation == "token-mean":
        return [1 / sum(lengths)] * count
    if aggregation == "seq-mean-token-mean":
        return [1 / count / length for length in lengths]
    if aggregation == "seq-mean-token-sum":
        return [1 / count] * count
    return [1 / count / horizon] * count


def policy_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate loss (N,) (paper, stage 3 objective; dual clip as in Ye et al. 2020, Eq. 5).

    The ratio is clipped to [1 - clip_low, 1 + clip_high]; with ``dual_clip`` c > 0 the loss of a token with negative advantage
    is at most c * -advantage.

    Returns:
        the losses, and (N,) each: ``approx_kl`` ((r - 1) - log r), ``old_approx_kl`` (-log r; verl's ``ppo_kl``), ``clipfrac`` and
        ``clipfrac_lower`` (0 or 1).
    """
    log_ratio = (logprobs_N - old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = -advantages_N * ratio
    clipped = -advantages_N * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clipped)
    lower = torch.zeros_like(loss, dtype=torch.bool)
    if dual_clip:
        bound = -advantages_N * dual_clip
        lower = (advantages_N < 0) & (bound < loss)
        loss = torch.where(lower, bound, loss)
    with torch.no_grad():
        parts = {
            "approx_kl": (ratio - 1) - log_ratio,
            "old_approx_kl": -log_ratio,
            "clipfrac": (clipped > plain).float(),
            "clipfrac_lower": lower.float(),
        }
    return loss, parts


def silenced(old_logprobs_N: Tensor, advantages_N: Tensor, below: float) -> Tensor:
    """Which tokens (N,) have a positive advantage and a probability lower than ``below``: by accident in a good episode, they
    get far larger gradients than others (STAPO, arXiv 2602.15620, here without its bound on the entropy)."""
    return (advantages_N > 0) & (old_logprobs_N < math.log(below))


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Half the squared error (N,); with ``clip`` > 0 the maximum of it and that of the value clipped around the old one.

    Returns:
        the losses, and 1 where the clipped error was larger.
    """
    plain = (values_N - returns_N) ** 2
    if not clip:
        return 0.5 * plain, torch.zeros_like(plain)
    near = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    clipped = (near - returns_N) ** 2
    return 0.5 * torch.maximum(plain, clipped), (clipped > plain).float().detach()


def kl_penalty(logprobs_N: Tensor, reference_N: Tensor, estimator: str) -> Tensor:
    """Estimates (N,) of KL(policy | reference) from the policy's own samples (Schulman 2020, "Approximating KL divergence").

    With d the log-prob minus the reference's: ``k1`` d, ``k2`` d²/2, ``k3`` exp(-d) - 1 + d (clipped to [-10, 10] as in verl).
    In expectation k1 and k3 equal the KL; as a loss, k2 has the gradient of the KL, and k1 has expected gradient 0.
    """
    choose("KL estimator", estimator, choices(PPOConfig, "kl_reward_estimator"))
    difference = logprobs_N - reference_N
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return 0.5 * difference**2
    clamped = (-difference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (clamped.exp() - clamped - 1).clamp(-10.0, 10.0)
