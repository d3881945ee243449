"""The recipe with its model on a device that is not the CPU (``tests.accelerator``): nothing is left on the wrong one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="needs a newer torch"
)
SMALL = [
    *(
        "selfplay.policy=random",
        "selfplay.groups=4",
        "selfplay.group_size=2",
        "sft.epochs=1",
        "sft.batch_size=8",
        "sft.eval_worlds=1",
    ),
    *("ppo.steps=1", "ppo.groups=2", "ppo.group_size=2", "ppo.val_worlds=1", "ppo.val_samples=1", "ppo.save_every=1"),
    *("eval.worlds=1", "eval.samples=1", "eval.ks=[1]", "eval.world_model_worlds=0", "sampling.processes=1"),
    *("report.episodes=0", "sft.memory_check=false", "ppo.memory_check=false", "ppo.on_collapse=continue"),
    *("env.max_actions_per_turn=1", "env.max_turns=3", "sampling.max_tokens=60", "sampling.max_tokens_base=12"),
]
RECIPES = {
    "world-model": ["variants=[spa_aux,vagen]", "eval.world_model_worlds=1"],
    "planning": ["variants=[plan,spa_dream]", "practice.worlds=3", "planner.depth=1", "curriculum.imagined_worlds=3"],
    "lora": ["variants=[spa]", "sft.lora_rank=2", "ppo.lora_rank=2", "algorithm=grpo"],
}


def run(out: Path, settings: Sequence[str]) -> dict[str, int]:
    """Where the host waited, and how often."""
    command = [sys.executable, "-m", "tests.accelerator", "frozen_lake", *SMALL, *settings, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    waits: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return waits


@pytest.mark.slow
def test_a_rollout_waits_for_sampled_tokens_alone(tmp_path: Path) -> None:
    waits = run(tmp_path / "run", ["variants=[vanilla]", "ppo.critic=model", "ppo.kl_loss_coef=0.01"])
    assert waits.keys() >= {"engines/transformers.py:run tolist"}
    assert not [line for line in waits if line.startswith(("engines/decoder", "models/packing", "rl/batch"))]


@pytest.mark.slow
@pytest.mark.parametrize("settings", RECIPES.values(), ids=RECIPES)
def test_the_recipe_on_another_device(tmp_path: Path, settings: list[str]) -> None:
    if "sft.lora_rank=2" in settings:
        pytest.importorskip("peft")
    run(tmp_path / "run", settings)
    assert (tmp_path / "run" / "report.html").is_file()
