"""Turns episodes into training batches: the trained tokens and the per-token data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spa.agent.chat import Chat
from spa.agent.episode import Episode, TokenSequence, Turn
from spa.agent.response import parse_response
from spa.common.names import choose
from spa.config.overrides import choices
from spa.config.schema import PPOConfig
from spa.models.score import TokenBatch, batches

Array = NDArray[np.float64]
_ARRAYS = ("mask", "turns", "logprobs", "reference", "values", "rewards", "advantages", "returns")


@dataclass
class TrainSequence:
    """One token sequence of an episode. Every array has one entry per token, (L,) like ``ids``.

    Two turns with the whole history in one sequence; ``<`` is the forced tag, ``$`` the end of a response::

        ids          s  s  u  <  a  b  $  u  u  <  c  $
        mask         .  .  .  .  1  1  1  .  .  .  1  1    trained: by default what the model sampled (``ppo.loss_mask``)
        turns       -1 -1 -1 -1  0  0  0 -1 -1 -1  1  1    of sampled tokens
        logprobs     .  .  .  . -2 -1  0  .  .  . -1  0    of the policy that acted, nats
        reference    .  .  .  . -2 -2  0  .  .  . -1  0    of the reference model, where there is one
        values       .  .  .  . .4 .4 .5  .  .  . .6 .9    of the context before the token, with a critic
        rewards      .  .  .  .  .  .  .  .  .  .  .  1    that follow the token: the score at the end, or turn by turn
        advantages   .  .  .  . .6 .6 .5  .  .  . .4 .1    over the trained tokens only: other tokens are not time steps
        returns      .  .  .  .  1  1  1  .  .  .  1  1

    ``sampler`` keeps the log-probs of the engine that sampled, (L,), which ``logprobs`` may be recomputed from training's.

    A dot is 0. With a history window of k turns an episode has one sequence per turn, and time continues from one to the next.
    Episodes of one ``group`` share their world.
    """

    ids: list[int]
    mask: NDArray[np.bool_]
    turns: NDArray[np.int64]
    logprobs: Array
    reference: Array
    values: Array
    rewards: Array
    advantages: Array
    returns: Array
    group: int = 0
    sampler: Array = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, ids: Sequence[int], mask: Any, turns: Any, logprobs: Any, group: int = 0) -> TrainSequence:
        """A sequence with only the data recorded during rollout."""
        reference, values, rewards, advantages, returns = np.zeros((5, len(ids)))
        return cls(
            list(ids),
            np.asarray(mask, dtype=bool),
            np.asarray(turns, dtype=np.int64),
            np.array(logprobs, dtype=np.float64),
            reference,
            values,
            rewards,
            advantages,
            returns,
            group,
            sampler=np.array(logprobs, dtype=np.float64),
        )

    @property
    def positions(self) -> list[int]:
        """Indices of the trained tokens (at least 1: the first token has no context)."""
        positions: list[int] = np.flatnonzero(self.mask).tolist()
        return positions

    @property
    def score(self) -> float:
        return float(self.rewards.sum())


def train_sequences(episodes: Sequence[Episode], chat: Chat, loss_mask: str = "sampled") -> list[list[TrainSequence]]:
    """The sequences of each episode, in the order of its turns. Those without a trained token are left out.

    Args:
        loss_mask: ``sampled`` tokens, those of the ``answer`` alone, or ``all``, context included.

    Raises:
        ValueError: no token to train in any episode, episodes without token ids, or another ``loss_mask``.
    """
    choose("loss mask", loss_mask, choices(PPOConfig, "loss_mask"))
    result = []
    for episode in episodes:
        sequences = [_sequence(episode, sequence, chat, loss_mask) for sequence in episode.sequences]
        result.append([sequence for sequence in sequences if sequence.mask.any()])
    if not any(result):
        raise ValueError("no token to train in any episode: the loss mask is zero everywhere")
    return result


def _sequence(episode: Episode, sequence: TokenSequence, chat: Chat, loss_mask: str) -> TrainSequence:
    if len(sequence.ids) != len(sequence.mask):
        raise ValueError(
            "episodes of an evaluation are stored without token ids: take those of self-play, or play anew"
        )
    sampled = np.array(sequence.mask, dtype=bool)
    sampled[:1] = False
    turns = np.where(sampled, sequence.turns, -1)
    mask = sampled
    if loss_mask == "all":
        mask = np.arange(len(sequence)) > 0
    elif loss_mask == "answer":
        mask = np.zeros(len(sequence), dtype=bool)
        for turn in episode.turns:
            mask[_answer_tokens(turn, np.flatnonzero(turns == turn.index), sequence, chat)] = True
    return TrainSequence.of(sequence.ids, mask, turns, sequence.logprobs, episode.group)


def _answer_tokens(turn: Turn, sampled: NDArray[np.int64], sequence: TokenSequence, chat: Chat) -> NDArray[np.int64]:
    """The sampled tokens that overlap the answer span of their response; all of them if there is no such span."""
    span = parse_response(turn.response).spans.get("answer")
    if span is None or not len(sampled):
        return sampled
    ids = [sequence.ids[i] for i in sampled]

    def tokens_within(characters: int) -> int:
        """The number of leading tokens that lie fully within the first ``characters`` of the response (bisection)."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high + 1) // 2
            if len(chat.forced) + len(chat.decode(ids[:middle])) <= characters:
                low = middle
            else:
                high = middle - 1
        return low

    return sampled[tokens_within(span[0]) : tokens_within(span[1] - 1) + 1]


def trained_tokens(sequences: Sequence[TrainSequence]) -> TrainSequence:
    """The T trained tokens of an episode, concatenated into one sequence: the input of an advantage estimator."""
    ids = [sequence.ids[i] for sequence in sequences for i in sequence.positions]
    arrays = {name: np.concatenate([getattr(each, name)[each.mask] for each in sequences]) for name in _ARRAYS}
    return TrainSequence(ids, **arrays, group=sequences[0].group)


def parts(sequences: Sequence[TrainSequence], values_T: Array) -> Iterator[tuple[TrainSequence, Array]]:
    """Each sequence with its slice of ``values_T``: the inverse of ``trained_tokens``."""
    cuts = np.cumsum([int(sequence.mask.sum()) for sequence in sequences])
    yield from zip(sequences, np.split(values_T, cuts[:-1]), strict=True)


@dataclass(frozen=True)
class MicroBatch:
    """The sequences of a forward pass, and flat vectors over their N trained tokens; ``weights_N`` are loss weights."""

    tokens: TokenBatch
    logprobs_N: Tensor
    values_N: Tensor
    advantages_N: Tensor
    returns_N: Tensor
    reference_N: Tensor
    weights_N: Tensor


def micro_batches(
    sequences: Sequence[TrainSequence],
    weights: Sequence[float],
    max_tokens: int,
    device: torch.device | str,
    *,
    packing: bool = False,
) -> Iterator[MicroBatch]:
    """This rank's micro-batches, one per forward pass; ``weights`` has the token weight of each sequence."""
    for tokens in batches(sequences, max_tokens, device, packing=packing, divide=True):
        chosen = [sequences[i] for i in tokens.indices]

        def flat(arrays: Iterable[Array], chosen: Sequence[TrainSequence] = chosen) -> Tensor:
            values = np.concatenate([array[each.mask] for array, each in zip(arrays, chosen, strict=True)])
            return torch.tensor(values, dtype=torch.float32, device=device)

        yield MicroBatch(
            tokens,
            logprobs_N=flat(each.logprobs for each in chosen),
            values_N=flat(each.values for each in chosen),
            advantages_N=flat(each.advantages for each in chosen),
            returns_N=flat(each.returns for each in chosen),
            reference_N=flat(each.reference for each in chosen),
            weights_N=flat(np.full(len(sequences[i].ids), weights[i] * tokens.counts) for i in tokens.indices),
        )
