"""Checkpoints of several ranks resume on another number of ranks; those of one process on several."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from spa.common.checkpoints import checkpoint_folder
from spa.config.schema import ModelConfig, SFTConfig, VariantConfig
from spa.models.load import load_model, save_checkpoint
from spa.models.lora import adapter_weights, add_lora, merged_state
from spa.models.optim import adamw
from spa.rl.trainer import train_ppo
from spa.scale import ranks
from tests.models.networks import network
from tests.scale.tools import in_ranks
from tests.scripted import TOKENIZER, tiny_config

pytestmark = pytest.mark.scale
Rows = list[dict[str, float]]


def train(out: Path, steps: int, resume: bool = False, **ppo: Any) -> Rows:
    rows: Rows = []
    config = tiny_config(
        **{"steps": steps, "critic": "model", "save_every": 2, "val_every": 0, "actor_lr": 1e-4, **ppo}
    )
    log = lambda step, metrics: rows.append({"step": step, **metrics})  # noqa: E731
    train_ppo(config, VariantConfig(), config.model.path, out, resume=resume, log=log)
    return rows


def weights(out: Path) -> dict[str, Any]:
    return load_file(checkpoint_folder(out, 4) / "model.safetensors")


def assert_close(rows: Rows, expected: Rows, out: Path, whole: Path) -> None:
    for got, wanted in zip(rows, expected, strict=True):
        for name in wanted:
            if "time" not in name and "second" not in name:
                assert got[name] == pytest.approx(wanted[name], rel=1e-5, abs=5e-7), name
    other = weights(whole)
    assert max(float(np.abs(value - other[name]).max()) for name, value in weights(out).items()) <= 1e-5


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2, "critic_lora_rank": 2}], ids=["all weights", "LoRA"])
def test_a_checkpoint_resumes_on_other_ranks(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = tmp_path / "whole"
    (expected,) = in_ranks(lambda: train(whole, 4, **settings), 1)
    for before in (2, 1):
        half = tmp_path / f"half{before}"
        in_ranks(lambda half=half: train(half, 2, **settings), before)
        for after in (1, 2, 3) if before == 2 else (2,):
            out = tmp_path / f"{before}-{after}"
            shutil.copytree(half, out)
            rows = in_ranks(lambda out=out: train(out, 4, resume=True, **settings), after)[0]
            assert_close(rows, expected[2:], out, whole)


def test_equal_ranks_resume_bit_for_bit(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    in_ranks(lambda: train(whole, 4), 2)
    in_ranks(lambda: train(out, 2), 2)
    in_ranks(lambda: train(out, 4, resume=True), 2)
    assert (checkpoint_folder(out, 4) / "model.safetensors").read_bytes() == (
        checkpoint_folder(whole, 4) / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("targets", [["q_proj"], ["lm_head"]], ids=["shared", "parted by adapters"])
def test_a_tied_head_is_saved_where_it_is_not_the_embeddings(tmp_path: Path, targets: list[str]) -> None:
    pytest.importorskip("peft")
    model, ids = network("qwen2", tie_word_embeddings=True), torch.arange(5, 45)[None]
    add_lora(model, SFTConfig(lora_targets=targets), 4)
    with torch.no_grad():
        for _, parameter in adapter_weights(model):
            parameter.add_(0.1)
        expected = model(input_ids=ids).logits
    optimizer = adamw([(model.parameters(), 1e-4)], betas=(0.9, 0.99), weight_decay=0.0)
    folder = tmp_path / "checkpoint"
    in_ranks(lambda: save_checkpoint(model, TOKENIZER, folder, {"step": 1}, optimizer, {"adapters": model}), 2)
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) == (targets == ["lm_head"])
    with torch.no_grad():
        logits = load_model(ModelConfig(device="cpu"), str(folder)).eval()(input_ids=ids).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def changed_by_adapters() -> float:
    """The mean change of divided bfloat16 weights of which adapters change each by 0.0004."""
    model = load_model(ModelConfig(device="cpu", dtype="bfloat16"))
    key = "model.layers.0.self_attn.q_proj.weight"
    before = model.state_dict()[key].float().clone()
    add_lora(model, SFTConfig(lora_alpha=4, lora_targets=["q_proj"]), 4)
    with torch.no_grad():
        for _, parameter in adapter_weights(model):
            parameter.fill_(0.01)
    ranks.shard(model)
    merged: Any = merged_state(model)[key]
    return float((merged.full_tensor().float() - before).mean())


def test_merging_divided_bfloat16_weights_keeps_small_updates() -> None:
    pytest.importorskip("peft")
    assert in_ranks(changed_by_adapters, 2) == [pytest.approx(0.0004, rel=0.05)] * 2
