"""The estimate against what autograd really keeps."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, OPTConfig, OPTForCausalLM

from spa.common.limits import installed_memory
from spa.config.schema import SFTConfig
from spa.models import memory
from spa.models.memory import (
    Sizes,
    UnknownSizes,
    _cgroup_free,
    blocked_bytes,
    cache_bytes,
    count_parameters,
    estimate_training,
    free_memory,
    size,
)
from spa.models.packing import Layout, enable_packing, packed_hidden_states
from tests.models.networks import network, with_images

LENGTHS = [60, 40, 100]


def kept_bytes(model, precision: str) -> int:
    """Bytes of all storages that a forward pass saves for its backward pass, parameters left out."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}
    alive = []  # so that no storage is freed and its address used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(sum(LENGTHS)) % 100
    layout = Layout.of(np.split(np.arange(sum(LENGTHS)), np.cumsum(LENGTHS)[:-1]))
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"),
    ):
        packed_hidden_states(model, ids, layout)
    return sum(seen.values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_activations_are_estimated_within_a_fifth(family: str, precision: str) -> None:
    model = network(family, hidden_size=128, head_dim=32, intermediate_size=384, num_hidden_layers=3)
    enable_packing(model)
    model.train()
    estimate = estimate_training(
        model.config,
        tokens=sum(LENGTHS),
        scored=0,
        weight_bytes=4,
        compute_bytes=4 if precision == "float32" else 2,
        checkpointing=False,
        lora_rank=0,
    )
    assert estimate.activations == pytest.approx(kept_bytes(model, precision), rel=0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_with_lora_are_estimated_within_a_tenth(dtype: torch.dtype) -> None:
    peft = pytest.importorskip("peft")
    model = network("llama", hidden_size=128, head_dim=32, intermediate_size=384, num_hidden_layers=3).to(dtype)
    enable_packing(model)
    peft.inject_adapter_in_model(peft.LoraConfig(r=4, target_modules="all-linear"), model)
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora_" in name)
        if "lora_" in name:
            weight.data = weight.data.float()
    model.train()
    kept = estimate_training(
        model.config,
        tokens=sum(LENGTHS),
        scored=0,
        weight_bytes=dtype.itemsize,
        compute_bytes=dtype.itemsize,
        checkpointing=False,
        lora_rank=4,
    ).activations
    assert kept == pytest.approx(kept_bytes(model, "float32"), rel=0.1)  # float32: no autocast


def estimate(config=None, **changes):
    settings = {"weight_bytes": 4, "compute_bytes": 4, "checkpointing": False, "lora_rank": 0, **changes}
    return estimate_training(config or network("qwen2").config, tokens=1000, scored=1000, **settings)


OPT = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
OTHERS = {  # a model, the width of its feed-forward part, its key heads
    "GPT-2": (lambda: GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4)), 128, 4),
    "OPT": (lambda: OPTForCausalLM(OPTConfig(vocab_size=128, **OPT)), 64, 4),
    "Gemma 3": (with_images, 48, 2),
}


@pytest.mark.parametrize("family", OTHERS)
def test_configs_with_other_names_and_of_several_parts(family: str) -> None:
    make, inner, keys = OTHERS[family]
    model = make()
    count, full = sum(p.numel() for p in model.parameters()), estimate(model.config)
    assert (full.weights, full.gradients, full.optimizer) == (4 * count, 4 * count, 8 * count)
    sizes = Sizes.of(model.config)
    assert (sizes.hidden, sizes.layers, sizes.inner, sizes.head, sizes.vocabulary) == (32, 2, inner, 8, 128)
    assert cache_bytes(model.config, 4) == 2 * 2 * keys * 8 * 4
    assert blocked_bytes(model.config) == 0


def test_sizes_that_a_config_does_not_have() -> None:
    with pytest.raises(UnknownSizes, match="mamba models has no num_attention_heads"):
        estimate(MambaConfig())


def test_weights_gradients_and_adam_are_counted_exactly() -> None:
    model = network("qwen2")
    count = sum(p.numel() for p in model.parameters())
    assert count_parameters(model.config) == count
    full = estimate()
    assert (full.weights, full.gradients, full.optimizer) == (4 * count, 4 * count, 8 * count)
    assert full.total == sum(dataclasses.astuple(full))
    assert full.process > 0
    assert all(f"{part} " in str(full) for part in ("weights", "gradients", "activations", "process"))


def test_ranks_count_a_checkpoints_whole_weights_where_they_need_more_than_a_step() -> None:
    count = sum(p.numel() for p in network("qwen2").parameters())
    one, two = estimate(), estimate(shards=2)
    assert one.saving == 0 and two.saving > 4 * count
    held = two.process + two.weights + two.optimizer
    assert two.total == held + max(two.gradients + two.activations + two.logits + two.gathered, two.saving)
    assert dataclasses.replace(two, gradients=0, activations=0, logits=0).total == held + two.saving


def test_each_saving_saves() -> None:
    full = estimate()
    assert estimate(checkpointing=True).activations < full.activations
    assert estimate(lora_rank=2).optimizer < full.optimizer / 5
    assert estimate(weight_bytes=2, compute_bytes=2).total - full.process < 0.75 * (full.total - full.process)


def test_lora_parameters_are_counted_exactly() -> None:
    pytest.importorskip("peft")
    from spa.models.lora import add_lora

    model = network("qwen2")
    add_lora(model, SFTConfig(), 2)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert estimate(lora_rank=2).gradients == 4 * trained


def test_memory_that_torch_keeps_for_later_tensors_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("mem_get_info", (10, 80)), ("memory_reserved", 50), ("memory_allocated", 20)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_memory(torch.device("cuda")) == 40


def test_free_memory_of_this_machine() -> None:
    free = free_memory(torch.device("cpu"))
    assert free is None or 10**6 < free < 10**15


def test_free_memory_where_the_system_does_not_say_is_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_meminfo", lambda name: None)
    monkeypatch.setattr(memory, "_cgroup_free", lambda: None)
    assert free_memory(torch.device("cpu")) == installed_memory()
    monkeypatch.setattr(memory, "installed_memory", lambda: None)
    assert free_memory(torch.device("cpu")) is None


def test_sizes_in_words() -> None:
    assert size(3 * 2**30) == "3.0 GiB"
    assert size(5 * 2**20) == "5 MiB"


_LENGTHS_OF_ALL_KINDS = """
import torch
from spa.config.schema import ModelConfig
from spa.models.load import load_model

load_model(ModelConfig(device="cpu"))
torch.set_num_threads(1)
layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 256))
for length in range(200, 360):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layers(torch.randn(length, 256)).float().sum().backward()
    if length in (239, 359):
        print(int(open("/proc/self/statm").read().split()[1]) * 4096 // 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_bfloat16_products_of_many_lengths_keep_no_more_than_of_few() -> None:
    command = [sys.executable, "-c", _LENGTHS_OF_ALL_KINDS]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back to the system: the rest is kept
    few, many = map(int, subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.split())
    assert many - few < 10, "MiB; 30 and more with oneDNN's own bounds"


def test_files_that_were_read_are_no_memory_in_use(tmp_path: Path) -> None:
    for name, text in {"max": "16000\n", "current": "15500\n", "stat": "anon 1000\ninactive_file 14000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert _cgroup_free(tmp_path) == 14500
    (tmp_path / "memory.max").write_text("max\n")
    assert _cgroup_free(tmp_path) is None
    assert _cgroup_free(tmp_path / "none") is None
