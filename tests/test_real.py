"""The recipe on a pretrained model, in small (``make test-real``): minutes on two cores, so ``make test`` leaves it out."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from spa.cli import main
from spa.common.cache import cache_folder
from spa.config.load import load_config
from spa.config.schema import ModelConfig
from spa.models.load import load_model
from spa.runs.metrics import read_metrics
from spa.runs.record import read_done
from tests.scripted import logprob_differences

pytestmark = pytest.mark.real

SETTINGS = [
    "env.max_turns=1",
    "sampling.max_tokens=32",
    "selfplay.policy=random",
    "selfplay.groups=4",
    "selfplay.group_size=1",
    "sft.epochs=1",
    "sft.batch_size=1",
    "sft.eval_worlds=0",
    "sft.log_every=1",
    "ppo.steps=1",
    "ppo.groups=1",
    "ppo.group_size=2",
    "ppo.filter=off",
    "ppo.val_every=0",
    "ppo.val_before_train=false",
    "eval.worlds=2",
    "eval.samples=1",
    "eval.ks=[1]",
    "eval.world_model_worlds=0",
    "variants=[spa]",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The model: ``$SPA_REAL_MODEL``, else what ``spa model get smollm2-135m`` made."""
    path = Path(os.environ.get("SPA_REAL_MODEL") or cache_folder("smollm2-135m"))
    if not (path / "config.json").is_file():
        pytest.skip("no pretrained model: run `spa model get smollm2-135m` or set SPA_REAL_MODEL to a folder")
    return path


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("real") / "lake"
    words = ["frozen_lake", "model=smollm2-135m", f"model.path={folder}", *SETTINGS]
    assert main(["run", *words, "--out", str(out)]) == 0
    return out


def test_the_recipe_runs(run) -> None:
    base, spa = (read_done(run / "variants" / name / "eval") for name in ("base", "spa"))
    assert base is not None and spa is not None and "pass@1" in base and "pass@1" in spa
    losses = [row["train/loss"] for row in read_metrics(run / "sft" / "metrics.jsonl") if "train/loss" in row]
    assert losses[-1] < losses[0], losses
    assert np.isfinite(
        [row["actor/grad_norm"] for row in read_metrics(run / "variants" / "spa" / "ppo" / "metrics.jsonl")]
    ).all()


def test_the_export_is_plain_and_its_snippet_runs(run, tmp_path, capsys, monkeypatch) -> None:
    to = tmp_path / "model"
    assert main(["export", str(run), "--variant", "spa", "--to", str(to)]) == 0
    ids = torch.arange(1000, 1064)[None]
    plain = AutoModelForCausalLM.from_pretrained(to)
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, load_model(ModelConfig(path=str(to)))(ids).logits)
    card = (to / "README.md").read_text(encoding="utf-8")
    capsys.readouterr()
    monkeypatch.chdir(to)
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], {})
    assert capsys.readouterr().out.startswith("<think>")


def test_the_model_itself_fills_stage_1(folder, tmp_path) -> None:
    """Without the preset's grammar it keeps nothing."""
    words = ["frozen_lake", "model=smollm2-135m", f"model.path={folder}", "env.max_turns=1", "sampling.max_tokens=192"]
    more = ["selfplay.groups=4", "sampling.temperature=0.5", "selfplay.val_fraction=0.0"]
    assert main(["generate", *words, *more, "--out", str(tmp_path / "run")]) == 0
    done = read_done(tmp_path / "run" / "selfplay")
    assert done is not None and done["rows_train"] == 4


@pytest.mark.parametrize("window", [0, 1])
def test_sampler_and_trainer_agree_on_log_probs(folder, window) -> None:
    """Two turns, cached and packed: within 1e-4 nats."""
    settings = [f"model.path={folder}", f"agent.window={window}", "env.max_turns=2", "sampling.max_tokens=16"]
    cfg = load_config("frozen_lake", ["model=smollm2-135m", *settings])
    assert logprob_differences(cfg, worlds=2, samples=1).max() < 1e-4
