"""vLLM in two ranks: one engine in each, pushed to in memory, plays what one process plays."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from spa.agent.episode import read_episodes
from tests.scale.breaking import ROOT, spa
from tests.scale.test_run import SETTINGS, assert_same_run

pytestmark = [
    pytest.mark.scale,
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]
ENGINE = ["engine=vllm", "engine.gpu_memory_utilization=0.1", "engine.max_model_len=1024", "engine.enforce_eager=true"]


def test_two_ranks_with_vllm_are_one_process(tmp_path: Path) -> None:
    settings = [*SETTINGS, *ENGINE, "selfplay.groups=16", "selfplay.group_size=4", "variants=[spa]", "--quiet", "--out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    one, two = tmp_path / "one", tmp_path / "two"
    for out, where in ((one, []), (two, ["launcher=torchrun", "nproc=2", "scale.restarts=0"])):
        code, messages, _ = spa(["run", "frozen_lake", *where, *settings, str(out)], environment)
        assert code == 0, messages
    assert len(list(read_episodes(two / "selfplay" / "episodes.jsonl"))) == 64
    # The log-probs of sampler and trainer differ by some 1e-6, by how much is noise; a margin is a difference of sums of log-probs.
    assert_same_run(two, one, ("time", "second", "logprob_diff", "probs_diff", "margin", "old_approx_kl"))
