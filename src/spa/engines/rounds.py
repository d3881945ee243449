"""Batched generation with transformers' own forward pass, for models that ``decoder`` does not support."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from spa.common.progress import count_tokens
from spa.config.schema import SamplingConfig
from spa.engines.base import Completion, Engine, check_finite
from spa.engines.draws import uniforms
from spa.engines.stops import Stops
from spa.engines.transformers import sample
from spa.models.memory import UnknownSizes, cache_bytes, free_memory


class Rounds(Engine):
    """transformers' own forward pass: all contexts of a round in left-padded batches, of as many rows as ``share`` of the free
    memory has room for the keys and values of; smaller ones once a GPU's memory has run out."""

    def __init__(self, model: Any, pad_id: int, stops: Stops, grammar: Any, share: float) -> None:
        self.model, self.grammar = model, grammar
        self.pad_id = pad_id
        self.stops, self.share = stops, share
        self.most: int | None = None  # rows at once, once memory has run out

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        if any(not context for context in contexts):
            raise ValueError("an empty context cannot be continued")
        # Similar lengths share a batch: less padding.
        order = sorted(range(len(contexts)), key=lambda i: len(contexts[i]))
        out: dict[int, Completion] = {}
        while len(out) < len(order):
            chosen = order[len(out) :][: min(self.most or sampling.batch_size, sampling.batch_size)]
            chosen = chosen[: self._room(len(contexts[chosen[-1]]) + sampling.max_tokens)]
            draws = np.array([uniforms(sampling.max_tokens, streams[i]) for i in chosen])
            try:
                batch = self._batch([contexts[i] for i in chosen], sampling, draws)
            except torch.OutOfMemoryError:
                if len(chosen) == 1:
                    raise
                batch = []
            if batch:
                out.update(zip(chosen, batch, strict=True))
            else:  # outside of the handler, whose exception keeps the batch's tensors
                self.most = len(chosen) // 2
                if self.model.device.type == "cuda":
                    torch.cuda.empty_cache()
        return [out[i] for i in range(len(contexts))]

    def _room(self, tokens: int) -> int:
        """How many rows of this length fit, at least one. A CPU's memory must not run out: the kernel would end the process."""
        try:
            size = tokens * cache_bytes(self.model.config, self.model.dtype.itemsize)
        except UnknownSizes:
            return sys.maxsize
        free = free_memory(self.model.device)
        return sys.maxsize if free is None else max(1, int(self.share * free) // size)

    def _batch(
        self,
        contexts: list[Sequence[int]],
        sampling: SamplingConfig,
        draws: np.ndarray[Any, Any],
    ) -> list[Completion]:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        device = self.model.device
        draws_BT = torch.tensor(draws, device=device)
        longest = max(len(context) for context in contexts)
        # Left padding: the newest token of every row is in the last column.
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
            allowed = self.grammar and self.grammar.allowed((row, out[row].ids) for row in rows.tolist())
            token_B, score_B = sample(output.logits[:, -1], sampling, draws_BT[rows, step], allowed)
            going = alive_B.tolist()
            count_tokens(sum(going))
            for place, (row, token, score) in enumerate(
                zip(rows.tolist(), token_B.tolist(), score_B.tolist(), strict=True)
            ):
                if going[place]:
                    check_finite(score)
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
            # Recurrent states (of hybrid models) cannot be selected: their rows stay to the end.
            simple = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
            if simple and num_alive <= 0.75 * len(alive_B):
                keep = alive_B.nonzero().squeeze(-1)
                cache.batch_select_indices(keep)
                ids_BT, positions_BT, mask_BT = ids_BT[keep], positions_BT[keep], mask_BT[keep]
                rows, alive_B = rows[keep], alive_B[keep]
        return out
