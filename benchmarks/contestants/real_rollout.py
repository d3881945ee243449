"""One contestant on recorded contexts: see benchmarks/real_rollout.py."""

from __future__ import annotations

import json
import os
import resource
import time
from dataclasses import replace
from typing import Any

import torch
from rollouts import PEER, SAMPLES, THREADS, WORLDS, config

from spa.agent.chat import Chat
from spa.agent.policy import make_task
from spa.agent.random_engine import RandomEngine, random_responder
from spa.agent.rollout import rollout
from spa.agent.worlds import WorldSource
from spa.config.schema import Config
from spa.engines.base import Completion
from spa.engines.transformers import TransformersEngine
from spa.models.load import load_model, load_tokenizer


def contexts(cfg: Config, tokenizer: Any, worlds: int) -> list[list[list[int]]]:
    """What the model is asked in each turn of each episode of random play."""
    chat, task = Chat(tokenizer), make_task(cfg, state_format="coordinates", prompt="world_model")
    chosen = WorldSource(task, "train", cfg.seeds.train).take(worlds)
    engine = RandomEngine(chat, random_responder(task))
    episodes = rollout(engine, chat, task, chosen, cfg.sampling, seed=0, group_size=SAMPLES)
    return [[s.ids[: s.mask.index(1)] for s in episode.sequences] for episode in episodes]


def make(cfg: Config, tokenizer: Any) -> Any:
    if PEER == "vllm":
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process, whose time is measured
        from rollout_vllm import make as make_vllm

        return make_vllm(cfg)[0]
    if PEER == "generate":
        from rollout_generate import Generate

        return Generate(load_model(cfg.model).eval(), tokenizer.pad_token_id)
    model = load_model(cfg.model, dtype=torch.bfloat16 if PEER == "spa-bf16" else None).eval()
    if PEER == "spa-int8":
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    return TransformersEngine(model, tokenizer.pad_token_id, tokenizer)


def play(engine: Any, asked: list[list[list[int]]], cfg: Config) -> None:
    """Without a token to stop at: all write the same number of tokens."""

    def following(session: int, completion: Completion) -> list[int] | None:
        assert len(completion.ids) == cfg.sampling.max_tokens
        turns[session] += 1
        return asked[session][turns[session]] if turns[session] < len(asked[session]) else None

    turns = [0] * len(asked)
    first = {session: texts[0] for session, texts in enumerate(asked)}
    engine.serve(first, cfg.sampling, stop_ids=frozenset(), seed=0, on_completion=following)


def warm_up(engine: Any, cfg: Config) -> None:
    """Weights read from the disk and first calls are not counted: eight contexts that no episode has, a token each."""
    sampling = replace(cfg.sampling, max_tokens=1)
    contexts = {session: [session + 1] * 8 for session in range(8)}
    engine.serve(contexts, sampling, stop_ids=frozenset(), seed=0, on_completion=lambda *completed: None)


def main() -> None:
    cfg = config()
    torch.set_num_threads(THREADS)
    tokenizer = load_tokenizer(cfg.model.path)
    asked = contexts(cfg, tokenizer, WORLDS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    engine = make(cfg, tokenizer)
    warm_up(engine, cfg)
    wall, processor = time.perf_counter(), time.process_time()
    play(engine, asked, cfg)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    tokens = cfg.sampling.max_tokens * sum(map(len, asked))
    result = {
        "per_second": tokens / processor,
        "per_wall_second": tokens / wall,
        "sampled": tokens,
        "context": sum(len(ids) for texts in asked for ids in texts),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "before_mib": before / 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
