"""PPO's two losses over flat vectors of tokens. Sums, not means: the caller divides by the tokens of the mini-batch."""

from __future__ import annotations

import torch
from torch import Tensor


def policy_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Summed clipped surrogate loss (paper, stage 3 objective; dual clip as in Ye et al. 2020, Eq. 5).

    The ratio is clipped to [1 - clip_low, 1 + clip_high]; with ``dual_clip`` c > 0 the loss of a token with
    negative advantage is at most c * -advantage.

    Returns:
        the sum, and sums over tokens of ``approx_kl`` ((r - 1) - log r), ``clipfrac`` and ``clipfrac_lower``.
    """
    log_ratio = logprobs_N - old_logprobs_N
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
        sums = {
            "approx_kl": ((ratio - 1) - log_ratio).sum(),
            "clipfrac": (clipped > plain).float().sum(),
            "clipfrac_lower": lower.float().sum(),
        }
    return loss.sum(), sums


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Summed squared error, halved; with ``clip`` > 0 the larger of it and that of the value clipped around the old one.

    Returns:
        the sum and the number of tokens at which the clipped error was the larger.
    """
    plain = (values_N - returns_N) ** 2
    if not clip:
        return 0.5 * plain.sum(), torch.zeros((), device=plain.device)
    near = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    clipped = (near - returns_N) ** 2
    return 0.5 * torch.maximum(plain, clipped).sum(), (clipped > plain).float().sum().detach()
