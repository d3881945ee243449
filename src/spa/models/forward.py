"""The training forward pass that SFT and PPO share: right-padded batches, log-probs of chosen tokens only.

Right padding needs no attention mask: with causal attention no real token sees a pad. Logits are computed only at
requested positions, in chunks, since a 150k-token vocabulary makes them the largest tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from spa.models.families import logit_scale

CHUNK_LOGITS = {"cpu": 2**23, "cuda": 2**26}
"""Maximum number of logits in memory, by device. On a CPU smaller chunks are slower because the head's gradient is accumulated
once per chunk, larger ones because of page faults; a GPU needs larger matrix products."""


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout; afterwards in the mode, training or evaluation, that the model was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def pad_right(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Tensor:
    """(B, T) int64, where T is the longest row."""
    length = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in rows], dtype=torch.long, device=device)


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices grouped by similar length so that rows x longest row <= ``max_tokens`` (a longer row is a batch of its own)."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    groups: list[list[int]] = []
    for index in order:
        # Ascending lengths: the new row is the longest of its group.
        if groups and (len(groups[-1]) + 1) * lengths[index] <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def probe_ids(model: Any, count: int) -> list[int]:
    """Different ids from the whole vocabulary, to try a model out; the first ones are often special tokens."""
    vocabulary = len(model.get_input_embeddings().weight)
    return [vocabulary * (i + 1) // (count + 1) for i in range(count)]


def hidden_states(model: Any, ids_BT: Tensor) -> Tensor:
    """(B, T, D) last hidden states of right-padded ids."""
    hidden_BTD: Tensor = trunk(model)(input_ids=ids_BT, use_cache=False).last_hidden_state
    return hidden_BTD


def trunk(model: Any) -> Any:
    """The model without its head, to be called; of a sharded one what ``scale.fsdp`` gave it."""
    return getattr(model, "sharded_trunk", model.base_model)


class _Scores(torch.autograd.Function):
    """Log-probs of chosen tokens and entropies, (N,) each, from hidden states (N, D) and a linear head (V, D).

    Needs only two buffers of ``rows`` x V: logits are computed chunk by chunk and, if there is more than one chunk,
    recomputed in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
        entropy: bool,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        count = len(targets_N)
        logits_RV, probs_RV = _buffers(min(rows, count), weight_VD)
        logprobs_N, normaliser_N, entropy_N = torch.zeros(3, count, device=hidden_ND.device)
        for start in range(0, count, rows):
            here = slice(start, start + rows)
            logits = _logits(hidden_ND[here], weight_VD, bias_V, temperature, logits_RV)
            largest = logits.amax(-1)
            probs = torch.sub(logits, largest[:, None], out=probs_RV[: len(logits)]).exp_()
            total = probs.sum(-1)
            normaliser_N[here] = total.log() + largest
            logprobs_N[here] = logits.gather(-1, targets_N[here, None]).squeeze(-1) - normaliser_N[here]
            if entropy:
                entropy_N[here] = normaliser_N[here] - probs.mul_(logits).sum(-1) / total
        saved_RV = logits_RV if count <= rows else None
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, normaliser_N, entropy_N, saved_RV)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, normaliser_N, entropy_N, saved_RV = ctx.saved_tensors
        grad_logprobs_N, grad_entropy_N = grads
        if grad_logprobs_N is None and grad_entropy_N is None:
            return (None,) * 7
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(grad_entropy_N)
        for_hidden, for_weight, for_bias = ctx.needs_input_grad[:3]
        grad_hidden_ND = torch.zeros_like(hidden_ND) if for_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if for_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if for_bias else None
        scaled_RV, probs_RV = _buffers(min(ctx.rows, len(targets_N)), weight_VD)
        for start in range(0, len(targets_N), ctx.rows):
            here = slice(start, start + ctx.rows)
            hidden, targets, factor = hidden_ND[here], targets_N[here, None], grad_logprobs_N[here, None]
            if saved_RV is None:
                logits = _logits(hidden, weight_VD, bias_V, ctx.temperature, scaled_RV)
            else:
                logits = saved_RV
            scaled = torch.sub(logits, normaliser_N[here, None], out=scaled_RV[: len(logits)])
            grad = torch.exp(scaled, out=probs_RV[: len(logits)])
            if grad_entropy_N is None:
                grad.mul_(-factor)
            else:  # d log p_t / dz = 1[t] - p,  dH / dz = -p (log p + H)
                grad.mul_(scaled.add_(entropy_N[here, None]).mul_(-grad_entropy_N[here, None]).sub_(factor))
            grad.scatter_add_(-1, targets, factor)
            if ctx.temperature != 1:
                grad /= ctx.temperature
            if grad_bias_V is not None:
                grad_bias_V += grad.sum(0)
            grad = grad.to(hidden.dtype)
            if grad_hidden_ND is not None:
                grad_hidden_ND[here] = grad @ weight_VD
            if grad_weight_VD is not None and grad.dtype == torch.float32:
                grad_weight_VD.addmm_(grad.T, hidden)
            elif grad_weight_VD is not None:
                grad_weight_VD += grad.T @ hidden
        if grad_weight_VD is not None:
            grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
        if grad_bias_V is not None:
            grad_bias_V = grad_bias_V.to(bias_V.dtype)
        return grad_hidden_ND, grad_weight_VD, grad_bias_V, None, None, None, None


def _buffers(rows: int, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.empty(rows, len(weight_VD), dtype=torch.float32, device=weight_VD.device)
    return first, torch.empty_like(first)


def _logits(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, temperature: float, buffer: Tensor) -> Tensor:
    """(N, V) float32 in the first rows of ``buffer``."""
    out = buffer[: len(hidden_ND)]
    if hidden_ND.dtype == torch.float32:
        torch.mm(hidden_ND, weight_VD.T, out=out)
    else:
        out.copy_(hidden_ND @ weight_VD.T)
    if bias_V is not None:
        out += bias_V
    if temperature != 1:
        out /= temperature
    return out


def token_logprobs(
    model: Any, hidden_ND: Tensor, targets_N: Tensor, *, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (N,) of ``targets_N`` given the hidden states that predict them, and entropies (N,) if requested.

    ``hidden_ND[i]`` must be the state at the position *before* target i. Results are float32.

    Raises:
        ValueError: the model caps its logits.
    """
    head = model.get_output_embeddings()
    temperature /= logit_scale(model.config)
    rows = max(1, CHUNK_LOGITS.get(hidden_ND.device.type, CHUNK_LOGITS["cuda"]) // head.weight.shape[0])
    if not len(targets_N):
        logprobs_N = entropy_N = hidden_ND.new_zeros(0, dtype=torch.float32)
    elif type(head) is torch.nn.Linear:
        weight_VD, bias_V = head.weight, head.bias
        if torch.is_autocast_enabled(hidden_ND.device.type):
            dtype = torch.get_autocast_dtype(hidden_ND.device.type)
            hidden_ND, weight_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
        logprobs_N, entropy_N = _Scores.apply(hidden_ND, weight_VD, bias_V, targets_N, temperature, entropy, rows)
    else:  # a head with adapters or quantized weights
        pieces = [
            checkpoint(_plain_scores, head, hidden, targets, temperature, use_reentrant=False)
            for hidden, targets in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True)
        ]
        logprobs_N, entropy_N = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return logprobs_N, entropy_N if entropy else None


def _plain_scores(head: Any, hidden_ND: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs_NV = (head(hidden_ND).float() / temperature).log_softmax(-1)
    return logprobs_NV.gather(-1, targets_N[:, None]).squeeze(-1), -(logprobs_NV.exp() * logprobs_NV).sum(-1)
