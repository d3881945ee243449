"""The training forward pass that SFT and PPO share: right-padded batches, log-probs of chosen tokens only.

Right padding needs no attention mask: with causal attention no real token sees a pad. Logits are made only at
positions that are asked for, in chunks, since a 150k-word vocabulary makes them the largest tensor of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 2**25
"""Logits held at once (number of entries)."""


def pad_right(rows: Sequence[Sequence[int]], pad: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """(B, T) int64, T the longest row."""
    length = max(len(row) for row in rows)
    return torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows], dtype=torch.long, device=device)


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices grouped by similar length so that rows x longest row <= ``max_tokens`` (a longer row stands alone)."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    groups: list[list[int]] = []
    for index in order:
        # Ascending lengths: the newcomer is the longest of its group.
        if groups and (len(groups[-1]) + 1) * lengths[index] <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def hidden_states(model: Any, ids_BT: Tensor) -> Tensor:
    """(B, T, D) last hidden states of right-padded ids."""
    hidden_BTD: Tensor = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
    return hidden_BTD


class _Scores(torch.autograd.Function):
    """Log-probs of chosen tokens and entropies from logits (N, V). Keeps the logits alone for its backward pass, where autograd
    would keep several tensors of their size."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, entropy: bool) -> tuple[Tensor, Tensor]:
        normaliser_N = torch.logsumexp(logits_NV, dim=-1)
        logprobs_N = logits_NV.gather(-1, targets_N[:, None]).squeeze(-1) - normaliser_N
        entropy_N = torch.zeros_like(logprobs_N)
        if entropy:
            probs_NV = (logits_NV - normaliser_N[:, None]).exp_()
            entropy_N = normaliser_N - probs_NV.mul_(logits_NV).sum(-1)
        ctx.save_for_backward(logits_NV, targets_N, normaliser_N, entropy_N)
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None, None]:
        logits_NV, targets_N, normaliser_N, entropy_N = ctx.saved_tensors
        grad_logprobs_N, grad_entropy_N = grads
        if grad_logprobs_N is None and grad_entropy_N is None:
            return None, None, None
        scaled_NV = logits_NV - normaliser_N[:, None]
        out_NV = scaled_NV.exp()
        factor_N1 = (grad_logprobs_N if grad_logprobs_N is not None else torch.zeros_like(entropy_N))[:, None]
        if grad_entropy_N is None:
            out_NV *= -factor_N1
        else:  # d log p_t / dz = 1[t] - p,  dH / dz = -p (log p + H)
            out_NV *= scaled_NV.add_(entropy_N[:, None]).mul_(-grad_entropy_N[:, None]).sub_(factor_N1)
        out_NV.scatter_add_(-1, targets_N[:, None], factor_N1)
        return out_NV, None, None


def token_logprobs(
    model: Any, hidden_ND: Tensor, targets_N: Tensor, *, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (N,) of ``targets_N`` given the hidden states that predict them, and entropies (N,) if asked for.

    ``hidden_ND[i]`` must be the state at the position *before* target i. Results are float32.
    """
    head = model.get_output_embeddings()
    rows = max(1, CHUNK_LOGITS // head.weight.shape[0])

    def chunk(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden).float()
        if temperature != 1:
            logits = logits / temperature
        logprobs, entropies = _Scores.apply(logits, targets, entropy)
        return logprobs, entropies

    pieces = []
    many = hidden_ND.shape[0] > rows
    for hidden, targets in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True):
        if many and torch.is_grad_enabled() and hidden.requires_grad:
            pieces.append(checkpoint(chunk, hidden, targets, use_reentrant=False))
        else:
            pieces.append(chunk(hidden, targets))
    if not pieces:
        empty = hidden_ND.new_zeros(0, dtype=torch.float32)
        return empty, empty if entropy else None
    logprobs = torch.cat([a for a, _ in pieces])
    return logprobs, torch.cat([b for _, b in pieces]) if entropy else None
