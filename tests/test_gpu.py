"""The recipe on a GPU, in an environment with a CUDA build of torch: ``python -m pytest -m gpu tests/test_gpu.py``.

``SPA_TEST_DEVICE=cpu`` tries the tests themselves on a machine without a GPU.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from spa.cli import main
from spa.config.load import load_config
from spa.rl import update as ppo
from spa.runs.metrics import read_metrics
from tests import scripted
from tests.rl.test_golden import VARIANTS, assert_golden
from tests.scripted import logprob_differences
from tests.test_accelerator import RECIPES, SMALL

DEVICE = os.environ.get("SPA_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch sees no GPU"),
]


@pytest.fixture(autouse=True)
def _memory_is_freed() -> Iterator[None]:
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_an_update_has_the_numbers_of_the_cpu(variant: str, monkeypatch) -> None:
    tiny_config = scripted.tiny_config

    def on_device(**settings: object):
        cfg = tiny_config(**settings)
        cfg.model.device = DEVICE
        return cfg

    monkeypatch.setattr(scripted, "tiny_config", on_device)
    monkeypatch.setattr(ppo, "needs_recompute", lambda learner: True)
    assert scripted.tiny_policy().model.device.type == torch.device(DEVICE).type
    assert_golden(variant)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.01)])
@pytest.mark.parametrize("window", [0, 1])
def test_sampler_and_trainer_agree_on_log_probs(dtype: str, tolerance: float, window: int) -> None:
    """Decoding with a cache against a packed forward pass: the mean difference in nats."""
    settings = [f"model.device={DEVICE}", f"model.dtype={dtype}", f"agent.window={window}", "env.max_turns=3"]
    cfg = load_config("frozen_lake", ["model=tiny", *settings])
    assert logprob_differences(cfg, worlds=8, samples=2).mean() < tolerance


@pytest.mark.parametrize("settings", RECIPES.values(), ids=RECIPES)
def test_the_recipe_runs_and_resumes(tmp_path: Path, settings: list[str]) -> None:
    if "sft.lora_rank=2" in settings:
        pytest.importorskip("peft")
    out = tmp_path / "run"
    words = ["run", "frozen_lake", "model=tiny", f"model.device={DEVICE}", *SMALL, *settings, "ppo.steps=2"]
    words += ["--out", str(out), "--quiet"]
    assert main(words) == 0
    logs = sorted(out.glob("variants/*/ppo/metrics.jsonl"))
    assert logs
    for log in logs:
        norms = [row["actor/grad_norm"] for row in read_metrics(log) if "actor/grad_norm" in row]
        assert norms
        assert np.isfinite(norms).all()
    for log in logs:  # as after a kill in the second step
        (log.parent / "done.json").unlink()
        shutil.rmtree(log.parent / "checkpoints" / "global_step_2")
        shutil.rmtree(log.parents[1] / "eval")
    assert main([*words, "--resume"]) == 0
    assert all((log.parent / "done.json").is_file() and read_metrics(log)[-1]["step"] == 2 for log in logs)
