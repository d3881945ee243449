"""Log-probs that a model gives to chosen tokens of given texts (teacher forcing)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spa.models.forward import micro_batches, token_logprobs
from spa.models.rows import TokenRows


@dataclass(frozen=True)
class Scored:
    """Sum of the log-probs (nats) of ``count`` tokens."""

    logprob: float
    count: int


@torch.no_grad()
def score_rows(model: Any, rows: Sequence[tuple[Sequence[int], Sequence[int]]], max_tokens: int = 8192) -> list[Scored]:
    """For each row (token ids, positions) the log-prob of the tokens at these positions given all before them.

    The model is left in the mode it was in.

    Raises:
        ValueError: a position is 0 (nothing predicts the first token) or lies outside its row.
    """
    for ids, positions in rows:
        if any(not 0 < position < len(ids) for position in positions):
            raise ValueError("only tokens after the first can be scored")
    was_training = model.training
    model.eval()
    out: dict[int, Scored] = {}
    try:
        for group in micro_batches([len(ids) for ids, _ in rows], max_tokens):
            chosen = [rows[i] for i in group]
            sums = _sums(model, chosen)
            out.update((i, Scored(total, len(at))) for i, total, (_, at) in zip(group, sums, chosen, strict=True))
    finally:
        model.train(was_training)
    return [out[i] for i in range(len(rows))]


def _sums(model: Any, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float]:
    """One forward pass."""
    batch = TokenRows.of(rows, model.device, packing=False)
    row_N = torch.tensor([r for r, (_, at) in enumerate(rows) for _ in at], dtype=torch.long)
    logprobs_N, _ = token_logprobs(model, batch.hidden(model), batch.targets_N)
    sums_B = torch.zeros(len(rows), dtype=torch.float64).index_add_(0, row_N, logprobs_N.double().cpu())
    return sums_B.tolist()
