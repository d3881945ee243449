"""vLLM in every rank: 64 episodes on two ranks are those of one, before and after an update of the weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spa.agent.policy import Policy
from spa.agent.worlds import World
from spa.config.schema import EngineConfig, ScaleConfig
from spa.scale import ranks
from tests.scripted import lake_task, tiny_config

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def play(out: str) -> None:
    """One rank: 16 worlds four times, twice; the main one writes tokens."""
    import torch

    engine = EngineConfig(kind="vllm", gpu_memory_utilization=0.05, max_model_len=1024, enforce_eager=True)
    found: list[Any] = []
    with ranks.joined(ScaleConfig(timeout=1800)):
        policy = Policy.load(tiny_config(), engine=engine, trained=True)
        generator = torch.Generator().manual_seed(1)
        for seed in (5, 6):
            with policy.playing():
                episodes = policy.play(lake_task(), [World(s, str(s)) for s in range(16)], samples=4, seed=seed)
            found.append([[each.group, each.member, [row.ids for row in each.sequences]] for each in episodes])
            with torch.no_grad():
                for weight in policy.model.parameters():
                    weight.add_(0.05 * weight.std() * torch.randn(weight.shape, generator=generator))
        if ranks.is_main():
            Path(out).write_text(json.dumps(found))
        policy.close()


def on_ranks(count: int, out: Path) -> Any:
    code = f"from tests.scale.test_vllm import play; play({str(out)!r})"
    (out.parent / "play.py").write_text(f"if __name__ == '__main__':\n    {code}\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(out.parent / "play.py")], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_64_episodes_on_two_ranks_are_those_of_one(tmp_path: Path) -> None:
    one, two = (on_ranks(count, tmp_path / f"{count}.json") for count in (1, 2))
    assert [len(each) for each in one] == [64, 64]
    assert two == one
