"""Playing with a Hugging Face causal model in this process: token-exact, with the weights as they are at the time of the call."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spa.engines.base import Answer, BrokenModel, Completion, check_sampling, serve
from spa.engines.decoder import Chunk, Decoder, supports
from spa.engines.draws import uniforms
from spa.engines.stops import Stops
from spa.models.memory import free_memory
from spa.models.packing import common_length
from spa.runs.schema import SamplingConfig

_SHARE = 0.6  # of the free memory that keys and values may take
_SLACK = 64  # positions beyond the longest context


class TransformersEngine:
    """Continues many episodes at once.

    For Llama-like models (``decoder.supports``) the keys and values of an episode stay from turn to turn: of a next context only
    what is new is read. Episodes wait for a free row, rows that end are filled at once, and rows in different turns share a
    forward pass. Contexts that are equal are read once, a beginning that all share too. Other models play in rounds, with
    transformers' own forward pass.

    What is sampled depends on the seed, the session and the turn alone, not on how many play at once (but for the rounding of
    matrix products).
    """

    def __init__(self, model: Any, pad_id: int, tokenizer: Any = None) -> None:
        self.model = model
        self.pad_id = pad_id
        self.tokenizer = tokenizer
        self.decoder = Decoder(model) if supports(model) else None

    def generate(
        self, contexts: Sequence[Sequence[int]], sampling: SamplingConfig, *, stop_ids: frozenset[int], seed: int
    ) -> list[Completion]:
        """One completion per context, in order.

        Raises:
            ValueError: an empty context, sampling values out of range, or ``sampling.stop`` without a tokenizer.
            BrokenModel: logits that are not finite.
        """
        out: dict[int, Completion] = {}
        self.serve(contexts, sampling, stop_ids=stop_ids, seed=seed, answer=out.__setitem__)
        return [out[i] for i in range(len(contexts))]

    @torch.no_grad()
    def serve(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        seed: int,
        answer: Answer,
    ) -> None:
        """Continues sessions until none has a next context; see ``Engine``.

        Raises: as ``generate``.
        """
        check_sampling(sampling)
        stops = Stops(stop_ids, sampling.stop, self.tokenizer)
        was_training = self.model.training
        self.model.eval()
        try:
            if self.decoder is None:
                play = _Rounds(self.model, self.pad_id, stops)
                serve(play, contexts, sampling, stop_ids=stop_ids, seed=seed, answer=answer)
            else:
                self.decoder.refresh()
                _Serving(self.decoder, sampling, stops, seed, answer).run(contexts)
        finally:
            if self.decoder is not None:
                self.decoder.release()
            self.model.train(was_training)


@dataclass
class _Row:
    """A session in a slot. ``cached`` are the tokens whose keys and values are there, ``context`` what was asked last."""

    session: int
    context: list[int]
    draws: np.ndarray[Any, Any]
    turn: int = 0
    cached: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def wanted(self) -> list[int]:
        """What is to be in the cache before the next token."""
        return self.context + self.ids if self.ids else self.context


class _Serving:
    """One call of ``serve``: which session is in which slot, and what is read next."""

    def __init__(self, decoder: Decoder, sampling: SamplingConfig, stops: Stops, seed: int, answer: Answer) -> None:
        self.decoder, self.sampling, self.stops = decoder, sampling, stops
        self.seed, self.answer = seed, answer
        self.device = decoder.model.device
        self.rows: list[_Row] = []
        self.waiting: deque[_Row] = deque()
        self.slots = 0
        self.prefix: list[int] = []  # its keys and values are in the slot behind the last

    def run(self, contexts: Sequence[Sequence[int]]) -> None:
        for session, context in enumerate(contexts):
            self.waiting.append(self._asked(_Row(session, [], np.empty(0)), context))
        if not contexts:
            return
        self._open(min(self.sampling.batch_size, len(contexts)))
        self._read_prefix(contexts)
        while self.rows or self.waiting:
            self._fill()
            try:
                logits_nV = self._forward()
            except torch.OutOfMemoryError:
                if not self._shrink():
                    raise
                continue
            tokens, logprobs = sample(logits_nV, self.sampling, self._draws())
            self._take(tokens.tolist(), logprobs.tolist())

    def _asked(self, row: _Row, context: Sequence[int]) -> _Row:
        """The row with a new context to continue."""
        if not context:
            raise ValueError("an empty context cannot be continued")
        row.context, row.ids, row.logprobs = list(context), [], []
        row.draws = uniforms(self.sampling.max_tokens, self.seed, row.session, row.turn)
        return row

    def _open(self, slots: int) -> None:
        """Room for as many rows as memory allows."""
        capacity = max(len(row.context) for row in self.waiting) + _SLACK
        while slots > 1 and not self._room(slots, capacity):
            slots = (slots + 1) // 2
        self.slots = slots
        self.decoder.allocate(slots + 1, capacity)

    def _room(self, slots: int, capacity: int) -> bool:
        free = free_memory(self.device)
        size = (slots + 1) * capacity * self.decoder.bytes_per_token
        return free is None or size <= _SHARE * (free + self.decoder.held)

    def _read_prefix(self, contexts: Sequence[Sequence[int]]) -> None:
        """Reads what all first contexts begin with."""
        first, last = min(map(list, contexts)), max(map(list, contexts))
        length = common_length(first, last)
        if first != last and 1 < length < len(first):
            self.prefix = list(first[:length])
            self.decoder.forward([Chunk(0, 0, self.prefix)])
            self.decoder.copy(0, [self.slots], 0, length)

    def _fill(self) -> None:
        """Waiting sessions into free slots."""
        while self.waiting and len(self.rows) < self.slots:
            row = self.waiting.popleft()
            row.cached = []
            if self.prefix and row.context[: len(self.prefix)] == self.prefix:
                self.decoder.copy(self.slots, [len(self.rows)], 0, len(self.prefix))
                row.cached = list(self.prefix)
            self.rows.append(row)

    def _forward(self) -> Tensor:
        """Reads what each row has not read yet; logits (n, V) of the next tokens. Equal contexts are read once."""
        chunks: list[Chunk] = []
        leaders: dict[tuple[int, ...], int] = {}
        follows: dict[int, list[int]] = {}
        source = list(range(len(self.rows)))
        for slot, row in enumerate(self.rows):
            past = len(row.cached)
            if row.ids and past == len(row.context) + len(row.ids) - 1:  # goes on with what it sampled last
                chunks.append(Chunk(slot, past, row.ids[-1:]))
                continue
            wanted = row.wanted
            past = min(common_length(row.cached, wanted), len(wanted) - 1)
            leader = leaders.setdefault(tuple(wanted), slot)
            if leader != slot:
                follows.setdefault(leader, []).append(slot)
                source[slot] = leader
                row.cached = row.cached[:past]
                chunks.append(Chunk(slot, len(wanted) - 1, wanted[-1:]))
            else:
                chunks.append(Chunk(slot, past, wanted[past:]))
        longest = max(chunk.past + len(chunk.ids) for chunk in chunks)
        if longest > self.decoder.capacity:
            if len(self.rows) > 1 and not self._room(self.slots, longest):
                raise torch.OutOfMemoryError("no room for longer rows")
            self.decoder.reserve(longest)
        logits_nV = self.decoder.forward(chunks)
        for leader, slots in follows.items():
            start = min(len(self.rows[slot].cached) for slot in slots)
            self.decoder.copy(leader, slots, start, len(self.rows[leader].wanted))
        for row, chunk in zip(self.rows, chunks, strict=True):
            if len(row.cached) == chunk.past and len(chunk.ids) == 1:
                row.cached.append(chunk.ids[0])
            else:
                row.cached = list(row.wanted)
        return logits_nV[source] if follows else logits_nV

    def _draws(self) -> Tensor:
        """(n,) numbers in [0, 1), one for the next token of each row."""
        draws = [row.draws[len(row.ids)] for row in self.rows]
        return torch.tensor(np.array(draws), device=self.device)

    def _take(self, tokens: list[int], logprobs: list[float]) -> None:
        """Appends the sampled tokens; ended responses are answered, ended sessions give up their slot."""
        ended: list[int] = []
        for slot, (row, token, logprob) in enumerate(zip(self.rows, tokens, logprobs, strict=True)):
            _check_finite(logprob)
            row.ids.append(token)
            row.logprobs.append(logprob)
            stopped = self.stops.reached(row.ids)
            if not stopped and len(row.ids) < self.sampling.max_tokens:
                continue
            context = self.answer(row.session, Completion(row.ids, row.logprobs, "stop" if stopped else "length"))
            row.turn += 1
            if context is not None:
                self._asked(row, context)
            elif self.waiting:  # its slot may hold what the newcomer begins with
                newcomer = self.waiting.popleft()
                newcomer.cached = row.cached
                self.rows[slot] = newcomer
            else:
                ended.append(slot)
        for slot in reversed(ended):
            last = self.rows.pop()
            if slot < len(self.rows):
                self.decoder.copy(len(self.rows), [slot], 0, len(last.cached))
                self.rows[slot] = last

    def _shrink(self) -> bool:
        """Half as many rows at once; the others wait and are read again. False if there is one row only."""
        if self.slots == 1:
            return False
        self.slots = max(1, min(self.slots, len(self.rows)) // 2)
        self.waiting.extendleft(reversed(self.rows[self.slots :]))
        del self.rows[self.slots :]
        for row in self.rows:
            row.cached = []
        self.prefix = []
        self.decoder.free()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        longest = max(len(row.wanted) for row in (*self.rows, *self.waiting))
        self.decoder.allocate(self.slots + 1, longest + _SLACK)
        return True


class _Rounds:
    """transformers' own forward pass: all contexts of a round in batches, padded on the left."""

    def __init__(self, model: Any, pad_id: int, stops: Stops) -> None:
        self.model = model
        self.pad_id = pad_id
        self.stops = stops

    def generate(
        self, contexts: Sequence[Sequence[int]], sampling: SamplingConfig, *, stop_ids: frozenset[int], seed: int
    ) -> list[Completion]:
        if any(not context for context in contexts):
            raise ValueError("an empty context cannot be continued")
        # Similar lengths share a batch: less padding.
        order = sorted(range(len(contexts)), key=lambda i: len(contexts[i]))
        out: dict[int, Completion] = {}
        for start in range(0, len(order), sampling.batch_size):
            chosen = order[start : start + sampling.batch_size]
            draws = np.array([uniforms(sampling.max_tokens, seed, i) for i in chosen])
            batch = self._batch([contexts[i] for i in chosen], sampling, draws)
            out.update(zip(chosen, batch, strict=True))
        return [out[i] for i in range(len(contexts))]

    def _batch(
        self,
        contexts: list[Sequence[int]],
        sampling: SamplingConfig,
        draws: np.ndarray[Any, Any],
    ) -> list[Completion]:
        from transformers import DynamicCache

        device = self.model.device
        draws_BT = torch.tensor(draws, device=device)
        longest = max(len(context) for context in contexts)
        # Left padding: the newest token of every row stands in the last column.
        ids_BT = torch.tensor(
            [[self.pad_id] * (longest - len(context)) + list(context) for context in contexts], device=device
        )
        lengths_B = torch.tensor([len(context) for context in contexts], device=device)
        mask_BT = (torch.arange(longest, device=device) >= longest - lengths_B[:, None]).long()
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        rows = torch.arange(len(contexts), device=device)  # row of the batch -> context
        alive_B = torch.ones(len(contexts), dtype=torch.bool, device=device)
        out = [Completion([], [], "length") for _ in contexts]
        for step in range(sampling.max_tokens):
            output = self.model(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                position_ids=positions_BT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            token_B, score_B = sample(output.logits[:, -1], sampling, draws_BT[rows, step])
            going = alive_B.tolist()
            for place, (row, token, score) in enumerate(
                zip(rows.tolist(), token_B.tolist(), score_B.tolist(), strict=True)
            ):
                if going[place]:
                    _check_finite(score)
                    out[row].ids.append(token)
                    out[row].logprobs.append(score)
                    if self.stops.reached(out[row].ids):
                        out[row] = Completion(out[row].ids, out[row].logprobs, "stop")
                        going[place] = False
            alive_B = torch.tensor(going, device=device)
            num_alive = sum(going)
            if num_alive == 0 or step + 1 == sampling.max_tokens:
                break
            ids_BT, positions_BT = token_B[:, None], positions_BT[:, -1:] + 1
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(mask_BT), 1)], dim=1)
            if num_alive <= 0.75 * len(alive_B):
                keep = alive_B.nonzero().squeeze(-1)
                cache.batch_select_indices(keep)
                ids_BT, positions_BT, mask_BT = ids_BT[keep], positions_BT[keep], mask_BT[keep]
                rows, alive_B = rows[keep], alive_B[keep]
        return out


def _check_finite(logprob: float) -> None:
    if math.isnan(logprob):
        raise BrokenModel("the model's logits are not finite: its weights are damaged or have diverged in training")


def sample(logits_BV: Tensor, sampling: SamplingConfig, draws_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (B,) and their log-probs (B,) at the temperature, before top-k and top-p; temperature 0 is greedy.

    A token is where the cumulative distribution passes ``draws_B`` in [0, 1). Where logits are not finite the log-prob is nan.
    """
    logits_BV = logits_BV.float()
    if sampling.temperature not in (0, 1):
        logits_BV = logits_BV / sampling.temperature
    largest_B1 = logits_BV.amax(-1, keepdim=True)
    weights_BV = (logits_BV - largest_B1).exp_()
    total_B1 = weights_BV.sum(-1, keepdim=True)
    if sampling.temperature == 0:
        token_B1 = logits_BV.argmax(-1, keepdim=True)
    else:
        cumulative_BV = _truncate(weights_BV, sampling).cumsum(-1)
        total = cumulative_BV[:, -1:]
        # A product may round up to the sum itself, which no token's cumulative weight exceeds.
        wanted_B1 = torch.minimum(draws_B[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
        token_B1 = torch.searchsorted(cumulative_BV, wanted_B1, right=True)
        token_B1 = token_B1.clamp(max=logits_BV.shape[-1] - 1)  # what is not finite has no place
    logprob_B1 = logits_BV.gather(-1, token_B1) - largest_B1 - total_B1.log()
    return token_B1.squeeze(-1), logprob_B1.squeeze(-1)


def _truncate(weights_BV: Tensor, sampling: SamplingConfig) -> Tensor:
    """Zeroes what top-k and top-p leave out; the rest need not sum to 1."""
    if sampling.top_k:
        smallest = weights_BV.topk(min(sampling.top_k, weights_BV.shape[-1]), dim=-1).values[:, -1:]
        weights_BV = weights_BV.masked_fill(weights_BV < smallest, 0.0)
    if sampling.top_p < 1:
        ordered, index = weights_BV.sort(dim=-1, descending=True)
        ordered = ordered.masked_fill(
            ordered.cumsum(-1) - ordered >= sampling.top_p * ordered.sum(-1, keepdim=True), 0.0
        )
        weights_BV = torch.zeros_like(weights_BV).scatter(-1, index, ordered)
    return weights_BV
