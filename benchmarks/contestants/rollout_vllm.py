"""vLLM, turn by turn with its prefix cache: see benchmarks/rollout.py."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")

from rollouts import THREADS, measure

from spa.agent.policy import Policy
from spa.config.schema import Config, EngineConfig
from spa.engines.vllm import VLLMEngine

os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{THREADS - 1}"


def make(cfg: Config) -> tuple[Any, Any]:
    policy = Policy.load(cfg, engine=EngineConfig(kind="vllm", max_model_len=4096))
    engine = policy.engine
    assert isinstance(engine, VLLMEngine)
    params = engine._params

    def unseeded(*arguments: Any) -> Any:
        """vLLM draws for seeded requests one by one; this is its own speed."""
        own = params(*arguments)
        own.seed = None
        return own

    engine._params = unseeded  # type: ignore[method-assign]
    return engine, policy.chat


if __name__ == "__main__":
    measure(make)
