"""What the contestants of benchmarks/rollout.py share: the episodes, the measurement, the line that is printed."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import WorldSource
from spa.config.load import load_config
from spa.config.schema import Config, SamplingConfig

PEER, THREADS, NAME, WORLDS, SAMPLES = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])


def config() -> Config:
    return load_config(NAME, [*sys.argv[6:], f"model.threads={THREADS}"])


def play(engine: Any, chat: Chat, cfg: Config, worlds: int, seed: int) -> tuple[list[Episode], float]:
    """Episodes, and the seconds that they took; making the worlds is not counted."""
    task = Task(cfg.env, cfg.agent, cfg.sampling.max_tokens)
    chosen = WorldSource(task, "train", cfg.seeds.train).take(worlds)
    started = time.perf_counter()
    episodes = rollout(engine, chat, task, chosen, cfg.sampling, seed=seed, group_size=SAMPLES)
    return episodes, time.perf_counter() - started


def generation(sampling: SamplingConfig, stop_ids: frozenset[int], pad: int) -> Any:
    """The sampling that all do, for transformers."""
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_p=1.0,
        top_k=0,
        max_new_tokens=sampling.max_tokens,
        eos_token_id=sorted(stop_ids),
        pad_token_id=pad,
    )


def sampled(episodes: list[Episode]) -> int:
    return sum(sum(sequence.mask) for episode in episodes for sequence in episode.sequences)


def report(episodes: list[Episode], seconds: float, before: int, more: dict[str, float] | None = None) -> None:
    turns = sum(len(episode.turns) for episode in episodes)
    tokens = sampled(episodes)
    # A fork has our memory too: what is more than we had is its own (with more than two threads, of the largest).
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(
        json.dumps(
            {
                "per_second": tokens / seconds,
                "episodes_per_second": len(episodes) / seconds,
                "tokens_per_turn": tokens / turns,
                "seconds": seconds,
                "peak_mib": (own + max(0, children - before)) / 1024,
                "before_mib": before / 1024,
                **(more or {}),
            }
        )
    )


def measure(make: Callable[[Config], tuple[Any, Chat]]) -> None:
    """Plays a few episodes to warm up, then all of them, and prints the result."""
    cfg = config()
    engine, chat = make(cfg)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    play(engine, chat, cfg, max(1, WORLDS // 8), 0)
    episodes, seconds = play(engine, chat, cfg, WORLDS, 1)
    report(episodes, seconds, before)
