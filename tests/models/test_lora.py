"""Adapters start at nothing, alone are trained, and are merged without touching the model that trains."""

from __future__ import annotations

import json

import pytest
import torch

from spa.config.schema import ModelConfig, SFTConfig
from spa.models.load import load_model, load_state, load_tokenizer, save_model
from spa.models.lora import adapter_state, adapter_weights, add_lora, load_adapter_state, merged_state
from tests.models.networks import network, random_model

pytest.importorskip("peft")
IDS = torch.arange(5, 45)[None]
TINY = ModelConfig(device="cpu")


def adapted(seed: int = 0, rank: int = 4, **settings):
    model = load_model(TINY)
    add_lora(model, SFTConfig(lora_alpha=8, **settings), rank, seed)
    return model


def shaken(model):
    """The model after some training: adapters that do something."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(input_ids=IDS).logits


def test_adapters_start_at_nothing_and_alone_are_trained() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    model = adapted()
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(logits(model), logits(load_model(TINY)))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in trained} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }


def test_the_seed_decides_the_adapters() -> None:
    a, b, c = (adapter_state(adapted(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)


def test_a_checkpoint_is_a_plain_merged_model_with_the_adapters_beside_it(tmp_path) -> None:
    from peft import PeftModel

    model = shaken(adapted())
    expected = logits(model)
    assert not torch.allclose(expected, logits(load_model(TINY)), atol=0.1)
    save_model(model, load_tokenizer("builtin:tiny"), tmp_path / "x", {"step": 1})
    plain = load_model(TINY, str(tmp_path / "x"))
    assert not any("lora" in name for name in plain.state_dict())
    torch.testing.assert_close(logits(plain), expected, rtol=1e-4, atol=1e-4)
    peft = PeftModel.from_pretrained(load_model(TINY), str(tmp_path / "x" / "adapter"))
    torch.testing.assert_close(logits(peft), expected, rtol=0, atol=1e-6)
    assert load_state(tmp_path / "x") == {"step": 1}
    assert torch.equal(logits(model), expected)


def test_merging_leaves_the_model_alone_and_adds_the_product() -> None:
    model = shaken(adapted())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    merged = merged_state(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    name = "model.layers.0.self_attn.q_proj"
    product = before[f"{name}.lora_B.default.weight"] @ before[f"{name}.lora_A.default.weight"] * 8 / 4
    torch.testing.assert_close(merged[f"{name}.weight"], before[f"{name}.base_layer.weight"] + product)


def test_small_updates_of_bfloat16_weights_survive_the_merge_in_sum() -> None:
    model = load_model(ModelConfig(device="cpu", dtype="bfloat16"))
    add_lora(model, SFTConfig(lora_alpha=4, lora_targets=["q_proj"]), 4)
    unchanged = {name.replace(".base_layer.", "."): tensor for name, tensor in model.state_dict().items()}
    assert all(torch.equal(tensor, unchanged[name]) for name, tensor in merged_state(model).items())
    with torch.no_grad():
        for _, adapter in adapter_weights(model):
            adapter.fill_(0.01)  # each weight changes by 0.0004: 0.41 of the distance to the next from 0.125 to 0.25
    key = "model.layers.0.self_attn.q_proj.weight"
    merged, again = merged_state(model)[key], merged_state(model)[key]
    assert torch.equal(merged, again) and merged.dtype is torch.bfloat16
    change = merged.float() - unchanged[key].float()
    assert float(change.mean()) == pytest.approx(0.0004, rel=0.05)
    coarse = unchanged[key].float().abs() > 0.125
    assert float((change[coarse] != 0).float().mean()) == pytest.approx(0.41, abs=0.05)


def test_adapters_are_taken_over_and_others_refused() -> None:
    source, target = shaken(adapted()), adapted(1)
    load_adapter_state(target, adapter_state(source))
    assert torch.equal(logits(source), logits(target))
    with pytest.raises(ValueError, match="another rank"):
        load_adapter_state(adapted(rank=2), adapter_state(source))


def test_adapters_of_a_bfloat16_model_are_float32() -> None:
    model = load_model(ModelConfig(device="cpu", dtype="bfloat16"))
    add_lora(model, SFTConfig(lora_alpha=4), 2)
    model(input_ids=IDS).logits.float().sum().backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {p.grad.dtype for p in trained} == {torch.float32}
    assert {tensor.dtype for tensor in merged_state(model).values()} == {torch.bfloat16}


@pytest.mark.parametrize("targets", [["query"], ["q_proj", "query"]], ids=["alone", "among others"])
def test_unknown_layers_are_named(targets: list[str]) -> None:
    with pytest.raises(ValueError, match=r"lora_targets=\['query'\] names no layer.*q_proj"):
        adapted(lora_targets=targets)


def test_adapters_of_a_tied_head_part_it_from_the_embeddings(tmp_path) -> None:
    model = network(vocab_size=512, tie_word_embeddings=True)
    add_lora(model, SFTConfig(lora_alpha=8, lora_targets=["lm_head"]), 4)
    expected = logits(shaken(model))
    save_model(model, load_tokenizer("builtin:tiny"), tmp_path / "parted")
    assert not json.loads((tmp_path / "parted" / "config.json").read_text())["tie_word_embeddings"]
    assert torch.allclose(
        logits(load_model(ModelConfig(path=str(tmp_path / "parted"), device="cpu"))), expected, atol=1e-5
    )
    assert model.config.tie_word_embeddings


def test_a_mixture_of_experts_comes_back_from_its_checkpoint(tmp_path) -> None:
    model = random_model("qwen3_moe", num_experts=8, moe_intermediate_size=16)
    add_lora(model, SFTConfig(lora_alpha=8), 4)
    expected = logits(shaken(model))
    save_model(model, load_tokenizer("builtin:tiny"), tmp_path / "mixture")
    again = load_model(ModelConfig(path=str(tmp_path / "mixture"), device="cpu"))
    assert torch.allclose(logits(again), expected, atol=1e-5)
