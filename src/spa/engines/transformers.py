"""Sampling with any Hugging Face causal model: one batched key-value-cache loop, token-exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spa.engines.base import BrokenModel, Completion, check_sampling
from spa.runs.schema import SamplingConfig


class TransformersEngine:
    """Plays with the weights of ``model`` as they are at the time of the call (training updates are seen at once)."""

    def __init__(self, model: Any, pad_id: int) -> None:
        self.model = model
        self.pad_id = pad_id

    @torch.no_grad()
    def generate(
        self, contexts: Sequence[Sequence[int]], sampling: SamplingConfig, *, stop_ids: frozenset[int], seed: int
    ) -> list[Completion]:
        """One completion per context, in order.

        Raises:
            ValueError: an empty context, or sampling values out of range.
            BrokenModel: logits that are not finite.
        """
        check_sampling(sampling)
        if any(not context for context in contexts):
            raise ValueError("an empty context cannot be continued")
        was_training = self.model.training
        self.model.eval()
        generator = torch.Generator(self.model.device).manual_seed(seed)
        # Similar lengths share a batch: less padding.
        order = sorted(range(len(contexts)), key=lambda i: len(contexts[i]))
        out: dict[int, Completion] = {}
        for start in range(0, len(order), sampling.batch_size):
            chosen = order[start : start + sampling.batch_size]
            batch = self._batch([contexts[i] for i in chosen], sampling, stop_ids, generator)
            out.update(zip(chosen, batch, strict=True))
        self.model.train(was_training)
        if any(math.isnan(score) for completion in out.values() for score in completion.logprobs):
            raise BrokenModel("the model's logits are not finite: its weights are damaged or have diverged in training")
        return [out[i] for i in range(len(contexts))]

    def _batch(
        self,
        contexts: list[Sequence[int]],
        sampling: SamplingConfig,
        stop_ids: frozenset[int],
        generator: torch.Generator,
    ) -> list[Completion]:
        from transformers import DynamicCache

        device = self.model.device
        longest = max(len(context) for context in contexts)
        # Left padding: the newest token of every row stands in the last column.
        ids_BT = torch.tensor(
            [[self.pad_id] * (longest - len(context)) + list(context) for context in contexts], device=device
        )
        lengths_B = torch.tensor([len(context) for context in contexts], device=device)
        mask_BT = (torch.arange(longest, device=device) >= longest - lengths_B[:, None]).long()
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        stops = torch.tensor(sorted(stop_ids), device=device)
        cache = DynamicCache(config=self.model.config)
        rows = torch.arange(len(contexts), device=device)  # row of the batch -> context
        alive_B = torch.ones(len(contexts), dtype=torch.bool, device=device)
        tokens: list[Tensor] = []
        scores: list[Tensor] = []
        owners: list[Tensor] = []
        for step in range(sampling.max_tokens):
            output = self.model(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                position_ids=positions_BT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            token_B, score_B = sample(output.logits[:, -1], sampling, generator)
            tokens.append(token_B[alive_B])
            scores.append(score_B[alive_B])
            owners.append(rows[alive_B])
            alive_B = alive_B & ~torch.isin(token_B, stops)
            num_alive = int(alive_B.sum())
            if num_alive == 0 or step + 1 == sampling.max_tokens:
                break
            ids_BT, positions_BT = token_B[:, None], positions_BT[:, -1:] + 1
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(mask_BT), 1)], dim=1)
            if num_alive <= 0.75 * len(alive_B):
                keep = alive_B.nonzero().squeeze(-1)
                cache.batch_select_indices(keep)
                ids_BT, positions_BT, mask_BT = ids_BT[keep], positions_BT[keep], mask_BT[keep]
                rows, alive_B = rows[keep], alive_B[keep]
        return self._collect(len(contexts), tokens, scores, owners, stop_ids)

    @staticmethod
    def _collect(
        num: int, tokens: list[Tensor], scores: list[Tensor], owners: list[Tensor], stop_ids: frozenset[int]
    ) -> list[Completion]:
        ids: list[list[int]] = [[] for _ in range(num)]
        logprobs: list[list[float]] = [[] for _ in range(num)]
        triples = zip(torch.cat(owners).tolist(), torch.cat(tokens).tolist(), torch.cat(scores).tolist(), strict=True)
        for owner, token, score in triples:
            ids[owner].append(token)
            logprobs[owner].append(score)
        return [
            Completion(row, values, "stop" if row[-1] in stop_ids else "length")
            for row, values in zip(ids, logprobs, strict=True)
        ]


def sample(logits_BV: Tensor, sampling: SamplingConfig, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens (B,) and their log-probs (B,) at the temperature, before top-k and top-p; temperature 0 is greedy."""
    logits_BV = logits_BV.float()
    if sampling.temperature == 0:
        token_B = logits_BV.argmax(-1)
        logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    else:
        logprobs_BV = torch.log_softmax(logits_BV / sampling.temperature, dim=-1)
        # A row of logits that are not finite has no distribution (on CUDA drawing from it kills the process): any token will do.
        broken_B1 = logprobs_BV[:, :1].isnan()
        probs_BV = _truncate(logprobs_BV.exp().masked_fill(broken_B1, 1.0), sampling)
        token_B = torch.multinomial(probs_BV, 1, generator=generator).squeeze(-1)
    return token_B, logprobs_BV.gather(-1, token_B[:, None]).squeeze(-1)


def _truncate(probs_BV: Tensor, sampling: SamplingConfig) -> Tensor:
    """Zeroes what top-k and top-p leave out (``multinomial`` renormalises)."""
    if sampling.top_k:
        smallest = probs_BV.topk(min(sampling.top_k, probs_BV.shape[-1]), dim=-1).values[:, -1:]
        probs_BV = probs_BV.masked_fill(probs_BV < smallest, 0.0)
    if sampling.top_p < 1:
        ordered, index = probs_BV.sort(dim=-1, descending=True)
        ordered = ordered.masked_fill(
            ordered.cumsum(-1) - ordered >= sampling.top_p * ordered.sum(-1, keepdim=True), 0.0
        )
        probs_BV = torch.zeros_like(probs_BV).scatter(-1, index, ordered)
    return probs_BV
