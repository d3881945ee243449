"""The memory plan: what does not fit is refused with settings that do fit."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import MambaConfig

from spa.config.load import load_config
from spa.config.overrides import apply_overrides
from spa.models import fit, memory
from spa.models.memory import GIB, estimate_training
from spa.rl import memory as ppo
from spa.sft import memory as sft
from tests.models.networks import BIG


@pytest.fixture
def big(tmp_path: Path) -> str:
    """The config of a model of 1.5 billion parameters."""
    BIG.save_pretrained(tmp_path)
    return str(tmp_path)


def config(path: str, *settings: str):
    return load_config("sokoban", ["model=qwen2.5-1.5b", f"model.path={path}", *settings])


@pytest.mark.parametrize(("stage", "check"), [("sft", sft.check_memory), ("ppo", ppo.check_memory)])
def test_settings_that_are_named_make_it_fit(big: str, stage: str, check) -> None:
    cfg = config(big, "model.device_memory=24", "model.gradient_checkpointing=false")
    with pytest.raises(ValueError, match=f"{stage.upper()} of .* needs about .* a GPU of 24 GB") as error:
        check(cfg)
    found = re.search(r"What makes it fit: (.*?);", str(error.value))
    assert found and "\n" not in str(error.value)
    check(apply_overrides(cfg, re.sub(r" \(.*?\)", "", found[1]).split()))
    check(apply_overrides(cfg, [f"{stage}.memory_check=false"]))


@pytest.mark.parametrize(("stage", "check"), [("sft", sft.check_memory), ("ppo", ppo.check_memory)])
def test_vllm_leaves_room_for_what_training_keeps(big: str, stage: str, check) -> None:
    """Weights and Adam's states stay while it plays; the share that is named is the largest that does."""
    cfg = config(big, "engine.kind=vllm", "model.device_memory=80", "ppo.critic=head")
    with pytest.raises(ValueError, match=f"{stage.upper()} of .* keeps .* engine.gpu_memory_utilization=0.9 ") as error:
        check(cfg)
    found = re.search(r"set it to ([\d.]+) or less;", str(error.value))
    assert found and "\n" not in str(error.value)
    states = 3 * 4 * memory.count_parameters(BIG)
    assert 0.94 * 80 * GIB - states < 80 * GIB * float(found[1]) < 0.97 * 80 * GIB - states
    check(apply_overrides(cfg, [f"engine.gpu_memory_utilization={found[1]}"]))
    with pytest.raises(ValueError, match="is too much"):
        check(apply_overrides(cfg, [f"engine.gpu_memory_utilization={float(found[1]) + 0.01}"]))
    check(apply_overrides(cfg, [f"{stage}.memory_check=false"]))
    check(apply_overrides(cfg, ["engine.kind=transformers"]))
    if stage == "sft":
        check(apply_overrides(cfg, ["sft.eval_worlds=0"]))


def under_torchrun(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", str(count)), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)


def test_gpus_that_share_the_weights(big: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config(big, "model.device_memory=40")
    with pytest.raises(ValueError, match="; or 2 GPUs, which share the weights"):
        ppo.check_memory(cfg)
    monkeypatch.setenv("WORLD_SIZE", "2")  # a scheduler's; without torchrun there is one process
    assert fit.shards_of(cfg) == 1
    under_torchrun(monkeypatch, 2)
    ppo.check_memory(cfg)
    assert fit.shards_of(cfg) == 2


def test_the_overview_names_the_fewest_gpus_of_each_size(big: str) -> None:
    text = fit.overview(config(big), partial(ppo.memory_estimate, local_only=True), ppo.saving_settings)
    assert re.fullmatch(r"\d of 24 GB \(1 with .*\), 2 of 40 GB \(1 with .*\), 1 of 80 GB", text), text


def test_shards_divide_states_and_gather_a_layer() -> None:
    one, eight = (
        estimate_training(
            BIG,
            tokens=1000,
            scored=1000,
            weight_bytes=4,
            compute_bytes=2,
            checkpointing=True,
            lora_rank=0,
            device="cuda",
            shards=shards,
        )
        for shards in (1, 8)
    )
    assert eight.weights == one.weights // 8 and eight.optimizer == one.optimizer // 8
    assert eight.activations == one.activations
    assert one.gathered == 0 < eight.gathered < 4 * GIB


def test_ranks_on_a_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_meminfo", lambda name: 8 * GIB)
    monkeypatch.setattr(memory, "_cgroup_free", lambda: None)
    cfg = load_config("sokoban", ["model.device=cpu"])
    assert fit.available(cfg) == 8 * GIB
    to_start = load_config("sokoban", ["model.device=cpu", "launcher=torchrun", "nproc=4", "scale.shards=1"])
    assert (fit.available(to_start), fit.shards_of(to_start)) == (2 * GIB, 1)
    under_torchrun(monkeypatch, 4)
    assert fit.available(cfg) == fit.available(to_start) == memory.free_memory(torch.device("cpu")) == 2 * GIB
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # on each of two machines
    assert fit.available(cfg) == 4 * GIB
    assert fit.shards_of(load_config("sokoban", ["launcher=torchrun", "nproc=8"])) == 4, "those that were started"


def test_the_engines_copy_of_the_weights(big: str) -> None:
    parameters = memory.count_parameters(BIG)
    assert ppo.play_estimate(config(big), device="cpu", episodes=64).copy == 4 * parameters
    assert ppo.play_estimate(config(big, "model.dtype=bfloat16"), device="cpu", episodes=64).copy == 0
    served = ppo.play_estimate(config(big, "engine=vllm", "model.dtype=bfloat16"), device="cuda", episodes=64)
    assert (served.weights, served.copy) == (0, 2 * parameters)
    assert ppo.play_estimate(load_config("sokoban", []), device="cpu", episodes=64).copy == 0
    few, many, more = (ppo.play_estimate(config(big), device="cpu", episodes=n).cache for n in (4, 64, 10**6))
    assert few < many <= more < 20 * many, "no more than sampling.batch_size at once"


def test_what_cannot_be_estimated_is_not_checked_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MambaConfig(num_hidden_layers=2).save_pretrained(tmp_path)
    cfg = config(str(tmp_path))
    for check, stage in ((sft.check_memory, "SFT"), (ppo.check_memory, "PPO")):
        check(cfg, local_only=True)
        expected = "memory is not checked (the config of mamba models has no num_attention_heads)"
        assert capsys.readouterr().err == f"{stage} of {tmp_path}: {expected}\n"


def test_on_a_gpu_that_is_planned_for_the_process_takes_room_too() -> None:
    need = SimpleNamespace(total=10, process=3, resident=5)
    here, planned = load_config("sokoban"), load_config("sokoban", ["model.device_memory=24"])
    assert [fit.fits(here, need, room) for room in (6, 7)] == [False, True], "it is there already"
    assert [fit.fits(planned, need, room) for room in (9, 10)] == [False, True]


def test_a_row_longer_than_a_micro_batch_has_a_pass_of_its_own() -> None:
    cfg = load_config("sokoban", ["sft.micro_batch_tokens=64"])
    short, long = (sft.memory_estimate(cfg, "cpu", 1, longest=longest) for longest in (64, 1024))
    assert long.activations > 4 * short.activations
