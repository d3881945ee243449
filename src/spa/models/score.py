"""Log-probs, entropies and hidden states of chosen tokens: the only interface to the model in training.

It combines packing (``models.packing``), a last layer computed only for used tokens (``models.last_layer``), chunked
log-probs (``models.forward``) and compilation (``models.compiling``). ``batches`` divides sequences into forward passes,
``score`` runs one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from spa.common.errors import first_line
from spa.models.compiling import compile_blocks
from spa.models.families import is_llama_like
from spa.models.forward import evaluating, hidden_states, micro_batches, pad_right, probe_ids, token_logprobs
from spa.models.last_layer import Reads, states_read
from spa.models.packing import Layout, enable_packing, pack, pack_groups, packed_hidden_states
from spa.scale import ranks

_PROBE = 8  # tokens of the row of ``check_scores``


class Scorable(Protocol):
    """Token ids and the positions to score, each at least 1, since nothing predicts the first token."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def positions(self) -> Sequence[int]: ...


class Chosen(NamedTuple):
    """A minimal ``Scorable``."""

    ids: Sequence[int]
    positions: Sequence[int]


@dataclass(frozen=True)
class TokenBatch:
    """The sequences ``indices`` in one forward pass, with the N tokens to score, sequence by sequence.

    ``ids`` are (T,) packed, with their ``layout``, or (B, T) right-padded. ``before_N`` are the indices, in flattened
    ``ids``, of the tokens before the scored ones; ``reads`` is the same for a last layer computed only for used tokens. A pass
    that does not count only keeps ranks in step.
    """

    indices: list[int]
    ids: Tensor
    before_N: Tensor
    targets_N: Tensor
    layout: Layout | None = None
    reads: Reads | None = None
    counts: bool = True

    @classmethod
    def of(
        cls, sequences: Sequence[Scorable], indices: list[int], device: torch.device | str, *, packing: bool
    ) -> TokenBatch:
        """The batch of ``sequences[i]`` for i in ``indices``."""
        chosen = [sequences[i] for i in indices]
        layout = reads = None
        before = [np.asarray(sequence.positions, dtype=np.int64) - 1 for sequence in chosen]
        if packing:
            packed, places = pack([sequence.ids for sequence in chosen])
            layout = Layout.of(places, device)
            reads = Reads.of(places, before, layout)
            ids = torch.tensor(packed, device=device)
        else:
            ids = pad_right([sequence.ids for sequence in chosen], device=device)
            places = [np.arange(ids.shape[1]) + number * ids.shape[1] for number in range(len(chosen))]
        before_N = np.concatenate([places_of_row[at] for places_of_row, at in zip(places, before, strict=True)])
        targets = [sequence.ids[position] for sequence in chosen for position in sequence.positions]
        targets_N = torch.tensor(targets, dtype=torch.long, device=device)
        return cls(indices, ids, torch.from_numpy(before_N).to(device), targets_N, layout, reads)

    def hidden(self, model: Any) -> Tensor:
        """(N, D) last hidden states that predict the scored tokens. Packed sequences need ``prepare(packing=True)``."""
        if self.layout is None:
            return hidden_states(model, self.ids).flatten(0, 1)[self.before_N]
        if self.reads is None:
            return packed_hidden_states(model, self.ids, self.layout)[self.before_N]
        states = states_read(model, self.ids, self.layout, self.reads)
        return states[torch.searchsorted(self.reads.wanted_W, self.before_N)]


class Scores(NamedTuple):
    """For N scored tokens: float32 log-probs and entropies (N,) in nats."""

    logprobs_N: Tensor
    entropy_N: Tensor | None


def prepare(model: Any, stage: str, *, packing: bool, compile: bool) -> None:
    """Checks that the model can be scored, enables packing for it and compiles its blocks.

    Args:
        stage: ``sft`` or ``ppo``, for error messages.

    Raises:
        ValueError: not possible with this model or, for compilation, on this machine.
    """
    check_scores(model)
    if packing:
        enable_packing(model, f"{stage}.packing")
    if compile:
        compile_blocks(model, f"{stage}.compile")


@torch.no_grad()
def check_scores(model: Any) -> None:
    """Scores a short row and compares it with the model's own logits. Llama-like models, known to agree, are left out, and so are
    models that are divided among ranks already.

    Raises:
        ValueError: it cannot be scored, or log-probs differ by more than rounding, as where something else follows the output head.
    """
    if is_llama_like(model) or hasattr(model, "sharded_trunk"):
        return
    row = Chosen(probe_ids(model, _PROBE), range(1, _PROBE))
    try:
        with evaluating(model):
            batch = TokenBatch.of([row], [0], model.device, packing=False)
            logprobs_N = score(model, batch).logprobs_N
            logits_NV = model(input_ids=batch.ids, use_cache=False).logits[0, :-1].float()
    except Exception as error:  # models raise many types
        raise ValueError(f"{type(model).__name__} cannot be trained: {first_line(error)}") from error
    expected_N = logits_NV.log_softmax(-1).gather(-1, batch.targets_N[:, None]).squeeze(-1)
    difference = float((logprobs_N - expected_N).abs().max())
    rounding = 4 * torch.finfo(model.dtype).eps * float(logits_NV.abs().max())
    if difference > max(1e-3, rounding):
        raise ValueError(
            f"{type(model).__name__} cannot be trained: something else follows its output head, so that log-probs from its hidden "
            f"states differ from its own by {difference:.2g} nats"
        )


def batches(
    sequences: Sequence[Scorable], max_tokens: int, device: torch.device | str, *, packing: bool, divide: bool = False
) -> Iterator[TokenBatch]:
    """Divides sequences into passes of at most ``max_tokens`` tokens, padding included (a longer one gets its own pass).

    With ``divide`` these are the passes of this rank (``scale.ranks``). Each is made when it is asked for: the attention masks
    of all grow with the square of the length."""

    def group(rows: Sequence[Sequence[int]]) -> list[list[int]]:
        return pack_groups(rows, max_tokens) if packing else micro_batches([len(ids) for ids in rows], max_tokens)

    rows = [sequence.ids for sequence in sequences]
    passes = ranks.passes(rows, group) if divide else [(indices, True) for indices in group(rows)]
    for indices, counts in passes:
        yield dataclasses.replace(TokenBatch.of(sequences, indices, device, packing=packing), counts=counts)


def score(
    model: Any,
    batch: TokenBatch,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    precision: str = "float32",
    hidden_ND: Tensor | None = None,
) -> Scores:
    """Log-probs of a batch's tokens at a temperature, with entropies if requested.

    Args:
        precision: of the matrix products (``autocast``).
        hidden_ND: the batch's hidden states, if already computed.
    """
    with autocast(model, precision):
        if hidden_ND is None:
            hidden_ND = batch.hidden(model)
        logprobs_N, entropy_N = token_logprobs(
            model, hidden_ND, batch.targets_N, temperature=temperature, entropy=entropy
        )
    return Scores(logprobs_N, entropy_N)


@torch.no_grad()
def sum_logprobs(model: Any, sequences: Sequence[Scorable], max_tokens: int = 8192) -> list[float]:
    """For each sequence, the summed log-prob (nats) of its tokens at ``positions``, each given all preceding tokens.

    The model's train/eval mode is preserved.

    Raises:
        ValueError: a position is 0 (nothing predicts the first token) or lies outside its sequence.
    """
    if any(not 0 < position < len(each.ids) for each in sequences for position in each.positions):
        raise ValueError("only tokens after the first can be scored")
    sums = np.zeros(len(sequences))
    with evaluating(model):
        for batch in batches(sequences, max_tokens, model.device, packing=False):
            owners = np.repeat(batch.indices, [len(sequences[i].positions) for i in batch.indices])
            np.add.at(sums, owners, score(model, batch).logprobs_N.double().cpu().numpy())
    return [float(total) for total in sums]


def autocast(model: Any, precision: str) -> AbstractContextManager[Any]:
    """Runs matrix products in bfloat16 if ``precision`` says so; weights and sums keep their dtype."""
    return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
