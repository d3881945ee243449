"""transformers' continuous batching, turn by turn: see benchmarks/rollout.py."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from rollouts import THREADS, generation, measure
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from spa.agent.chat import Chat
from spa.config.schema import Config, SamplingConfig
from spa.engines.base import Completion, Engine
from spa.models.load import load_model, load_tokenizer


class Continuous(Engine):
    def __init__(self, model: Any, pad: int) -> None:
        self.model, self.pad = model, pad

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        # What was fastest of several; its own choice takes most of the memory and is thirty times slower on a CPU.
        size = max(map(len, contexts)) + sampling.max_tokens
        batching = ContinuousBatchingConfig(
            page_size=16,
            num_blocks=len(contexts) * (size // 16 + 2),
            max_batch_tokens=1024,
            use_async_batching=False,
            return_logprobs=True,
            seed=streams[0] % 2**31,
        )
        out = self.model.generate_batch(
            [list(c) for c in contexts],
            generation_config=generation(sampling, stop_ids, self.pad),
            continuous_batching_config=batching,
            warmup=False,
        )
        completions = []
        for found in sorted(out.values(), key=lambda o: int(str(o.request_id).rpartition("_")[2])):
            assert not found.error, found.error
            ids = list(found.generated_tokens)
            scores = list(found.logprobs)
            completions.append(Completion(ids, scores[: len(ids)], "stop" if ids[-1] in stop_ids else "length"))
        return completions


def make(cfg: Config) -> tuple[Any, Chat]:
    logging.disable(logging.WARNING)
    torch.set_num_threads(THREADS)
    tokenizer = load_tokenizer(cfg.model.path)
    return Continuous(load_model(cfg.model).eval(), tokenizer.pad_token_id), Chat(tokenizer)


if __name__ == "__main__":
    measure(make)
