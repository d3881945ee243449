"""vLLM, turn by turn with its prefix cache: see benchmarks/rollout.py."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")

from rollouts import measure

from spa.agent.player import Player
from spa.runs.schema import Config, EngineConfig


def make(cfg: Config) -> tuple[Any, Any]:
    player = Player.load(cfg, engine=EngineConfig(kind="vllm", max_model_len=4096))
    return player.engine, player.chat


if __name__ == "__main__":
    measure(make)
