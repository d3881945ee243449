"""From episodes to training rows: which tokens are trained and what is known of each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spa.agent.chat import Chat
from spa.agent.episode import Episode, TokenSequence, Turn
from spa.agent.response import parse_response
from spa.models.rows import TokenRows, forward_groups
from spa.rl.advantages import Array


def _none() -> Array:
    return np.zeros(0)


@dataclass
class Row:
    """One token sequence of an episode. The arrays have one entry per *trainable* token, in order.

    ``positions`` are indices into ``ids`` (at least 1: the first token has no context), ``turns`` their turn
    indices (-1 for context tokens, trained only with ``loss_mask="all"``). ``weight`` is that of each of its tokens in the
    loss of the mini-batch it is in.
    """

    ids: list[int]
    positions: list[int]
    turns: list[int]
    old_logprobs: Array
    values: Array = field(default_factory=_none)
    advantages: Array = field(default_factory=_none)
    returns: Array = field(default_factory=_none)
    reference: Array = field(default_factory=_none)  # log-probs of the reference model; empty without one
    weight: float = 1.0


@dataclass(frozen=True)
class MicroBatch:
    """The rows of a forward pass and flat vectors over their N trainable tokens, row by row (empty where nothing is known yet)."""

    tokens: TokenRows
    old_logprobs_N: Tensor
    values_N: Tensor
    advantages_N: Tensor
    returns_N: Tensor
    reference_N: Tensor
    weights_N: Tensor


def build_rows(episodes: Sequence[Episode], chat: Chat, loss_mask: str = "sampled") -> list[list[Row]]:
    """Rows of each episode, in the order of its turns. Rows without a trainable token are left out.

    Raises:
        ValueError: no trainable token in any episode.
    """
    result = []
    for episode in episodes:
        rows = [_row(episode, sequence, chat, loss_mask) for sequence in episode.sequences]
        result.append([row for row in rows if row.positions])
    if not any(result):
        raise ValueError("no token to train in any episode: the loss mask is zero everywhere")
    return result


def _row(episode: Episode, sequence: TokenSequence, chat: Chat, loss_mask: str) -> Row:
    if loss_mask == "all":
        positions = list(range(1, len(sequence)))
    else:
        positions = [i for i in range(1, len(sequence)) if sequence.mask[i]]
    if loss_mask == "answer":
        inside: set[int] = set()
        for turn in episode.turns:
            sampled = [i for i in positions if sequence.turns[i] == turn.index]
            if sampled:
                inside.update(_answer_tokens(turn, sampled, sequence, chat))
        positions = [i for i in positions if i in inside]
    return Row(
        ids=sequence.ids,
        positions=positions,
        turns=[sequence.turns[i] if sequence.mask[i] else -1 for i in positions],
        old_logprobs=np.array([sequence.logprobs[i] for i in positions]),
    )


def _answer_tokens(turn: Turn, sampled: list[int], sequence: TokenSequence, chat: Chat) -> list[int]:
    """The sampled tokens that overlap the answer span of their response; all of them where there is no such span."""
    span = parse_response(turn.response).spans.get("answer")
    if span is None:
        return sampled
    ids = [sequence.ids[i] for i in sampled]

    def tokens_within(characters: int) -> int:
        """How many leading tokens lie wholly within the first ``characters`` of the response (bisection)."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high + 1) // 2
            if len(chat.forced) + len(chat.decode(ids[:middle])) <= characters:
                low = middle
            else:
                high = middle - 1
        return low

    first = tokens_within(span[0])
    last = tokens_within(span[1] - 1)
    return sampled[first : last + 1]


def to_micro_batches(
    rows: Sequence[Row], max_tokens: int, device: torch.device | str, *, packing: bool = False
) -> list[tuple[list[int], MicroBatch]]:
    """Micro-batches, one a forward pass, with the indices of their rows."""
    out = []
    for group in forward_groups([row.ids for row in rows], max_tokens, packing=packing):
        chosen = [rows[i] for i in group]
        tokens = TokenRows.of([(row.ids, row.positions) for row in chosen], device, packing=packing)

        def flat(get: Callable[[Row], Array], rows: list[Row] = chosen) -> Tensor:
            values = np.concatenate([get(row) for row in rows])
            return torch.tensor(values, dtype=torch.float32, device=device)

        batch = MicroBatch(
            tokens,
            old_logprobs_N=flat(lambda row: row.old_logprobs),
            values_N=flat(lambda row: row.values),
            advantages_N=flat(lambda row: row.advantages),
            returns_N=flat(lambda row: row.returns),
            reference_N=flat(lambda row: row.reference),
            weights_N=flat(lambda row: np.full(len(row.positions), row.weight)),
        )
        out.append((group, batch))
    return out
