"""Inference with a Hugging Face causal model in this process: token-exact, with its current weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spa.common.progress import count_tokens
from spa.common.sequences import common_length
from spa.config.schema import SamplingConfig
from spa.engines.base import Completion, Engine, Later, OnCompletion, arrived, check_finite
from spa.engines.cooling import cooled, cooling
from spa.engines.decoder import Chunk, Decoder, supports
from spa.engines.draws import draws_at, stream
from spa.engines.processes import can_fork
from spa.engines.stops import Stops
from spa.models.forward import evaluating
from spa.models.load import context_length
from spa.models.memory import free_memory

_SHARE = 0.6  # share of the free memory available to the KV cache
_SMALL = 2**26  # bytes of weights up to which several processes are used
_ROWS = 16  # minimum number of episodes per process
_SLACK = 64  # positions beyond the longest context


class TransformersEngine(Engine):
    """Continues many episodes at once (continuous batching).

    For Llama-like models (``decoder.supports``) an episode's KV cache persists across turns: only the new tokens of the next
    context are processed. Episodes wait for a free row, finished rows are refilled immediately, and rows in different turns
    share a forward pass. Equal contexts and a prefix common to all are processed once. Other models run in rounds, with
    transformers' own forward pass.

    Samples depend only on the seed, the session and the turn, not on the batch size (except for rounding in matrix
    products).
    """

    def __init__(self, model: Any, pad_id: int, tokenizer: Any = None) -> None:
        self.model = model
        self.pad_id = pad_id
        self.tokenizer = tokenizer
        self.decoder = Decoder(model) if supports(model) else None
        self.processes = 1  # that share the memory
        self.constraint: Any = None  # a ``Constraint`` of stage 1

    @property
    def context_length(self) -> int | None:
        return context_length(self.model.config)

    def split(self, sampling: SamplingConfig, groups: int, group_size: int) -> int:
        """The fastest number of processes for a rollout of ``groups`` groups; see ``sampling.processes``.

        One per CPU thread if the weights fit each core's cache and every process has enough rows; a single one if most
        threads would otherwise be idle.
        """
        if sampling.processes == 1 or self.model.device.type != "cpu" or not can_fork():
            return 1
        if sampling.processes:
            return max(1, min(sampling.processes, groups))
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        if self.decoder is None or weights > _SMALL:
            return 1
        threads = torch.get_num_threads()
        count = min(threads, groups, groups * group_size // _ROWS)
        return count if 2 * count > threads else 1

    @contextmanager
    def alone(self, processes: int) -> Iterator[None]:
        """Limits one of several processes to its share of the memory and one thread (OpenMP cannot use more in a fork)."""
        threads = torch.get_num_threads()
        if processes > 1:
            torch.set_num_threads(1)
        self.processes = processes
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            self.processes = 1

    @torch.no_grad()
    def serve(
        self,
        contexts: Mapping[int, Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        seed: int,
        on_completion: OnCompletion,
    ) -> None:
        """As ``Engine.serve``.

        Raises:
            ValueError: an empty context, or ``sampling.stop`` without a tokenizer.
            BrokenModel: logits that are not finite.
        """
        stops = Stops(stop_ids, sampling.stop, self.tokenizer)
        share = _SHARE / self.processes
        with evaluating(self.model):
            if self.decoder is None:
                from spa.engines.rounds import Rounds

                play = Rounds(self.model, self.pad_id, stops, self.constraint, share)
                play.serve(contexts, sampling, stop_ids=stop_ids, seed=seed, on_completion=on_completion)
                return
            self.decoder.refresh()
            try:
                _Serving(self.decoder, sampling, stops, seed, on_completion, share, self.constraint).run(contexts)
            finally:
                self.decoder.release()


_READ = -1


@dataclass
class _Row:
    """A session in a slot: ``tokens`` are its context and, from ``start`` on, the tokens sampled after it.

    ``past`` is the number of tokens in the cache; ``_READ`` means all but the last, as while sampling a response.
    """

    session: int
    tokens: list[int] = field(default_factory=list)
    start: int = 0
    past: int = 0
    turn: int = 0
    stream: int = 0
    cooling: float = 1.0
    logprobs: list[float] = field(default_factory=list)
    slot: int = 0
    shared: int = 0  # first tokens that are also those of ``_Serving.shared``

    @property
    def read(self) -> int:
        return len(self.tokens) - 1 if self.past == _READ else self.past

    def inherit(self, before: _Row) -> None:
        """Takes over the slot of another session or of this session's previous turn."""
        self.past = min(common_length(before.tokens[: before.read], self.tokens), len(self.tokens) - 1)
        self.slot = before.slot


class _Serving:
    """One call of ``serve``: assigns sessions to slots and schedules their tokens."""

    def __init__(
        self,
        decoder: Decoder,
        sampling: SamplingConfig,
        stops: Stops,
        seed: int,
        on_completion: OnCompletion,
        share: float,
        grammar: Any = None,
    ) -> None:
        self.decoder, self.sampling, self.stops = decoder, sampling, stops
        self.seed, self.on_completion, self.share, self.grammar = seed, on_completion, share, grammar
        self.device = decoder.model.device
        self.rows: list[_Row] = []
        self.waiting: deque[_Row] = deque()
        self.later: list[tuple[_Row, Later]] = []  # sessions whose next contexts are not there yet
        self.slots = 0
        self.prefix: list[int] = []  # cached in the slot after the last
        self.shared: list[int] = []  # common to all first contexts

    def run(self, contexts: Mapping[int, Sequence[int]]) -> None:
        if not contexts:
            return
        first, last = min(map(list, contexts.values())), max(map(list, contexts.values()))
        self.shared = first[: common_length(first, last)]
        for session, context in contexts.items():
            self.waiting.append(self._asked(_Row(session), context))
        self._open(min(self.sampling.batch_size, len(contexts)))
        if 1 < len(self.shared) < len(first):
            self._read_prefix()
        while self.rows or self.waiting or self.later:
            self._collect()
            self._fill()
            if not self.rows:
                continue
            failure = ""
            try:
                logits_nV = cooled(self._forward(), [row.cooling for row in self.rows])
            except torch.OutOfMemoryError as error:
                failure = str(error) or "out of memory"
            if failure:  # outside of the handler, whose exception keeps the failed pass's tensors
                if not self._shrink():
                    raise torch.OutOfMemoryError(failure)
                continue
            allowed = self.grammar and self.grammar.allowed((row.session, row.tokens[row.start :]) for row in self.rows)
            tokens, logprobs = sample(logits_nV, self.sampling, self._draws(), allowed)
            self._take(tokens.tolist(), logprobs.tolist())

    def _asked(self, row: _Row, context: Sequence[int]) -> _Row:
        """The row with a new context, none of it processed yet."""
        if not context:
            raise ValueError("an empty context cannot be continued")
        row.tokens, row.start, row.past, row.logprobs = list(context), len(context), 0, []
        row.stream, row.cooling = stream(self.seed, row.session, row.turn), cooling(context)
        row.shared = common_length(self.shared, row.tokens)
        return row

    def _open(self, slots: int) -> None:
        """Allocates as many rows as memory allows."""
        capacity = max(len(row.tokens) for row in self.waiting) + _SLACK
        while slots > 1 and not self._room(slots, capacity):
            slots = (slots + 1) // 2
        self.slots = slots
        self.decoder.allocate(slots + 1, capacity)

    def _room(self, slots: int, capacity: int) -> bool:
        free = free_memory(self.device)
        size = (slots + 1) * capacity * self.decoder.bytes_per_token
        return free is None or size <= self.share * (free + self.decoder.held)

    def _read_prefix(self) -> None:
        """Processes the common prefix of all first contexts."""
        self.prefix, length = self.shared, len(self.shared)
        self.decoder.forward(self.prefix[-1:], [length - 1], [Chunk(0, 0, self.prefix[:-1])])
        self.decoder.copy([(0, self.slots, 0, length)])

    def _collect(self) -> None:
        """Moves sessions whose next contexts have come to those that wait; waits for one if there is nothing else to do."""
        for row, context in arrived(self.later, idle=not (self.rows or self.waiting)):
            self.waiting.append(self._asked(_Row(row.session, turn=row.turn + 1), context))

    def _fill(self) -> None:
        """Moves waiting sessions into free slots."""
        length = len(self.prefix)
        pieces = []
        while self.waiting and len(self.rows) < self.slots:
            row = self.waiting.popleft()
            row.past, row.slot = 0, len(self.rows)
            if length and row.tokens[:length] == self.prefix:
                pieces.append((self.slots, row.slot, 0, length))
                row.past = min(length, len(row.tokens) - 1)
            self.rows.append(row)
        self.decoder.copy(pieces)

    def _forward(self) -> Tensor:
        """Processes each row's new tokens, equal contexts once; returns next-token logits (n, V)."""
        rows = self.rows
        ids = [row.tokens[-1] for row in rows]
        positions = [len(row.tokens) - 1 for row in rows]
        fresh = [row for row in rows if row.past != _READ]
        chunks: list[Chunk] = []
        leaders: dict[tuple[int, ...], int] = {}
        follows: list[tuple[int, int, int, int]] = []
        for row in fresh:
            end = len(row.tokens) - 1
            if row.past == end:
                continue
            leader = leaders.setdefault(tuple(row.tokens), row.slot)
            if leader == row.slot:
                chunks.append(Chunk(row.slot, row.past, row.tokens[row.past : end]))
            else:
                follows.append((leader, row.slot, row.past, end + 1))
        longest = max(positions) + 1
        if longest > self.decoder.capacity:
            if len(rows) > 1 and not self._room(self.slots, longest):
                raise torch.OutOfMemoryError("no room for longer rows")
            self.decoder.reserve(longest)
        shared = min(min(positions), *(row.shared for row in rows))
        logits_nV = self.decoder.forward(ids, positions, chunks, shared)
        self.decoder.copy(follows)
        for row in fresh:
            row.past = _READ
        if not follows:
            return logits_nV
        source = list(range(len(rows)))
        for leader, slot, _, _ in follows:
            source[slot] = leader
        return logits_nV[source]

    def _draws(self) -> Tensor:
        """(n,) numbers in [0, 1), one for the next token of each row."""
        places = [len(row.tokens) - row.start for row in self.rows]
        return torch.from_numpy(draws_at([row.stream for row in self.rows], places)).to(self.device)

    def _take(self, tokens: list[int], logprobs: list[float]) -> None:
        """Appends the sampled tokens; passes on finished responses and frees the slots of finished sessions."""
        check_finite(sum(logprobs))
        count_tokens(len(tokens))
        stop_ids, limit = self.stops.ids, self.sampling.max_tokens
        strings = bool(self.stops.strings)
        ended: list[tuple[_Row, bool]] = []
        for row, token, logprob in zip(self.rows, tokens, logprobs, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            if token in stop_ids or (strings and self.stops.reached(row.tokens[row.start :])):
                ended.append((row, True))
            elif len(row.tokens) - row.start >= limit:
                ended.append((row, False))
        free: list[int] = []
        for row, stopped in ended:
            completion = Completion(row.tokens[row.start :], row.logprobs, "stop" if stopped else "length")
            context = self.on_completion(row.session, completion)
            if isinstance(context, Later):
                self.later.append((row, context))
                context = None
            if context is not None:
                following = self._asked(_Row(row.session, turn=row.turn + 1), context)
            elif self.waiting:  # the slot may hold a prefix of the new session
                following = self.waiting.popleft()
            else:
                free.append(row.slot)
                continue
            following.inherit(row)
            self.rows[row.slot] = following
        if free:
            self._close(free)

    def _close(self, slots: list[int]) -> None:
        """Moves the last rows into freed slots."""
        for slot in reversed(slots):
            last = self.rows.pop()
            if slot < len(self.rows):
                self.rows[slot] = last
        moved = [(slot, row) for slot, row in enumerate(self.rows) if row.slot != slot]
        self.decoder.copy([(row.slot, slot, 0, row.read) for slot, row in moved])
        for slot, row in moved:
            row.slot = slot

    def _shrink(self) -> bool:
        """Halves the number of rows; the rest wait and are processed again. False if there is only one row."""
        if self.slots == 1:
            return False
        self.slots = max(1, min(self.slots, len(self.rows)) // 2)
        self.waiting.extendleft(reversed(self.rows[self.slots :]))
        del self.rows[self.slots :]
        for row in self.rows:
            row.past = 0
        self.prefix = []
        self.decoder.free()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        longest = max(len(row.tokens) for row in (*self.rows, *self.waiting))
        self.decoder.allocate(self.slots + 1, longest + _SLACK)
        return True


def sample(
    logits_BV: Tensor, sampling: SamplingConfig, draws_B: Tensor, allowed_BV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens (B,) and their log-probs (B,) at the temperature, before the constraint, top-k and top-p; temperature 0 is greedy.

    Inverse-CDF sampling with ``draws_B`` in [0, 1). The log-prob is nan if logits are not finite.
    """
    logits_BV = logits_BV.float()
    if sampling.temperature not in (0, 1):
        logits_BV = logits_BV / sampling.temperature
    largest_B1 = logits_BV.amax(-1, keepdim=True)
    weights_BV = (logits_BV - largest_B1).exp_()
    total_B1 = weights_BV.sum(-1, keepdim=True)
    choice_BV = logits_BV
    if allowed_BV is not None:
        choice_BV = logits_BV.masked_fill(~allowed_BV.to(logits_BV.device), -torch.inf)
        weights_BV = (choice_BV - choice_BV.amax(-1, keepdim=True)).exp_()  # the allowed tokens may be very unlikely
    if sampling.temperature == 0:
        token_B1 = choice_BV.argmax(-1, keepdim=True)
    else:
        cumulative_BV = _truncate(weights_BV, sampling).cumsum_(-1)
        total = cumulative_BV[:, -1:]
        # The product may round up to the total, which no token's cumulative weight exceeds.
        wanted_B1 = torch.minimum(draws_B[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
        token_B1 = torch.searchsorted(cumulative_BV, wanted_B1, right=True)
        token_B1 = token_B1.clamp(max=logits_BV.shape[-1] - 1)  # non-finite weights give an index out of range
    logprob_B1 = logits_BV.gather(-1, token_B1) - largest_B1 - total_B1.log()
    return token_B1.squeeze(-1), logprob_B1.squeeze(-1)


def _truncate(weights_BV: Tensor, sampling: SamplingConfig) -> Tensor:
    """Zeroes weights excluded by top-k and top-p; the rest need not sum to 1."""
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
