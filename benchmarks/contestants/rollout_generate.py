"""The original's way, turn by turn with transformers' generate: see benchmarks/rollout.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rollouts import THREADS, generation, measure

from spa.agent.chat import Chat
from spa.config.schema import Config, SamplingConfig
from spa.engines.base import Completion, Engine
from spa.models.load import load_model, load_tokenizer


class Generate(Engine):
    def __init__(self, model: Any, pad: int) -> None:
        self.model, self.pad = model, pad

    @torch.no_grad()
    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        torch.manual_seed(streams[0] >> 1)
        longest, device = max(map(len, contexts)), self.model.device
        ids = torch.tensor([[self.pad] * (longest - len(c)) + list(c) for c in contexts], device=device)
        mask = torch.tensor([[0] * (longest - len(c)) + [1] * len(c) for c in contexts], device=device)
        out = self.model.generate(
            ids,
            attention_mask=mask,
            generation_config=generation(sampling, stop_ids, self.pad),
        )
        completions = []
        for row in out[:, longest:].tolist():
            end = next((i + 1 for i, token in enumerate(row) if token in stop_ids), len(row))
            completions.append(Completion(row[:end], [0.0] * end, "stop" if row[end - 1] in stop_ids else "length"))
        return completions


def make(cfg: Config) -> tuple[Any, Chat]:
    torch.set_num_threads(THREADS)
    tokenizer = load_tokenizer(cfg.model.path)
    return Generate(load_model(cfg.model).eval(), tokenizer.pad_token_id), Chat(tokenizer)


if __name__ == "__main__":
    measure(make)
