"""The decoder's logits are transformers' own, however rows and chunks are cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spa.config.schema import SFTConfig
from spa.engines import cascade, prepacked
from spa.engines import decoder as module
from spa.engines.decoder import Chunk, Decoder, supports
from spa.models.lora import add_lora
from tests.models.networks import network

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")


def opened(model, slots: int = 5, capacity: int = 16) -> Decoder:
    decoder = Decoder(model.eval())
    decoder.refresh()
    decoder.allocate(slots, capacity)
    return decoder


def read(decoder: Decoder, rows: list[list[int]], new: list[list[int]]) -> torch.Tensor:
    chunks = [Chunk(slot, len(row), ids[:-1]) for slot, (row, ids) in enumerate(zip(rows, new, strict=True)) if ids[1:]]
    for row, ids in zip(rows, new, strict=True):
        row += ids
    decoder.reserve(max(map(len, rows)))
    with torch.no_grad():
        return decoder.forward([row[-1] for row in rows], [len(row) - 1 for row in rows], chunks)


def whole(model, row: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([row])).logits[0, -1]


def random_chunks(rng: np.random.Generator, count: int) -> list[list[int]]:
    """A third goes on by one token, the others read up to 19."""
    sizes = [1 if rng.random() < 1 / 3 else int(rng.integers(2, 20)) for _ in range(count)]
    return [rng.integers(0, 128, size=size).tolist() for size in sizes]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scores", [2**24, 200])
def test_ragged_chunks_give_the_logits_of_whole_rows(monkeypatch, family: str, scores: int) -> None:
    monkeypatch.setattr(module, "_SCORES", scores)
    model = network(family)
    decoder, rng = opened(model), np.random.default_rng(0)
    rows: list[list[int]] = [[] for _ in range(5)]
    for _ in range(6):  # the cache grows on the way
        logits = read(decoder, rows, random_chunks(rng, 5))
        for slot, row in enumerate(rows):
            torch.testing.assert_close(logits[slot], whole(model, row), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 1e4,
            }
        },
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
    ],
)
def test_variants_of_the_architecture(changes) -> None:
    model = network("llama", **changes)
    assert supports(model)
    decoder, rng = opened(model), np.random.default_rng(1)
    rows: list[list[int]] = [[] for _ in range(3)]
    for _ in range(3):
        logits = read(decoder, rows, random_chunks(rng, 3))
    for slot, row in enumerate(rows):
        torch.testing.assert_close(logits[slot], whole(model, row), rtol=1e-4, atol=1e-4)


def test_adapters_and_weights_too_large_to_join() -> None:
    pytest.importorskip("peft")
    model = network("qwen2")
    add_lora(model, SFTConfig(lora_alpha=4, lora_dropout=0.5), 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    row = list(range(20))
    torch.testing.assert_close(read(opened(model), [[]], [row])[0], whole(model, row), rtol=1e-4, atol=1e-4)


def test_large_products_are_not_joined(monkeypatch) -> None:
    monkeypatch.setattr(prepacked, "_JOIN", 10)
    model, row = network("qwen3"), list(range(20))
    decoder = opened(model)
    assert all(layer.qkv is None and layer.gate_up is None for layer in decoder.layers)
    torch.testing.assert_close(read(decoder, [[]], [row])[0], whole(model, row), rtol=1e-4, atol=1e-4)


@pytest.fixture
def packs(monkeypatch) -> None:
    """Packs small weights, too."""
    monkeypatch.setattr(prepacked, "BLOCKED", 0)
    if not prepacked.can_prepack(network()):
        pytest.skip("no packed products on this machine")


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_weights_give_the_same_logits(packs, family: str) -> None:
    model, rng = network(family, attention_bias=family == "llama"), np.random.default_rng(3)
    decoder = opened(model)
    assert decoder.head is not model.lm_head
    rows: list[list[int]] = [[] for _ in range(5)]
    for _ in range(2):
        logits = read(decoder, rows, random_chunks(rng, 5))
    for slot, row in enumerate(rows):
        torch.testing.assert_close(logits[slot], whole(model, row), rtol=1e-4, atol=1e-4)
    decoder.release()
    assert decoder.head is model.lm_head


def test_weights_too_large_to_join_are_packed_apart(packs, monkeypatch) -> None:
    monkeypatch.setattr(prepacked, "_JOIN", 10)
    model, row = network("qwen2"), list(range(20))
    decoder, expected = opened(model), whole(model, row)
    monkeypatch.delattr(torch.nn.Linear, "forward")  # no plain product is left
    torch.testing.assert_close(read(decoder, [[]], [row])[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("most", [10, 2**22])
def test_each_weight_is_packed_once(packs, monkeypatch, most: int) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(prepacked, "_JOIN", most)
    monkeypatch.setattr(prepacked, "_blocked", lambda weight, bias: sizes.append(weight.numel()) or torch.nn.Identity())
    model = network()
    Decoder(model).refresh()
    assert sum(sizes) == sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))


def test_weights_are_packed_only_where_memory_allows(packs, monkeypatch) -> None:
    weights = sum(parameter.nbytes for parameter in network().parameters())
    monkeypatch.setattr(prepacked, "free_memory", lambda device: 4 * weights)
    assert not prepacked.can_prepack(network())
    monkeypatch.setattr(prepacked, "free_memory", lambda device: 5 * weights)
    assert prepacked.can_prepack(network())
    assert not prepacked.can_prepack(network().bfloat16())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_common_prefix_may_be_asked_at_once(monkeypatch, family: str) -> None:
    monkeypatch.setattr(cascade, "_SHARED", 1)
    monkeypatch.setattr(cascade, "_ROWS", 1)
    model, rng = network(family), np.random.default_rng(4)
    decoder, common = opened(model), rng.integers(0, 128, size=9).tolist()
    rows: list[list[int]] = [[] for _ in range(4)]
    read(decoder, rows, [common + more for more in random_chunks(rng, 4)])
    new = [3, 1, 4, 1]
    for row, token in zip(rows, new, strict=True):
        row.append(token)
    positions = [len(row) - 1 for row in rows]
    calls = []
    monkeypatch.setattr(cascade, "attend", lambda *given, attend=cascade.attend: calls.append(given) or attend(*given))
    decoder.reserve(max(positions) + 1)
    with torch.no_grad():
        logits = decoder.forward(new, positions, shared=len(common))
    assert len(calls) == model.config.num_hidden_layers
    for slot, row in enumerate(rows):
        torch.testing.assert_close(logits[slot], whole(model, row), rtol=1e-4, atol=1e-4)


def test_new_weights_are_seen_after_refresh(packs) -> None:
    model, row = network(), list(range(9))
    decoder = opened(model)
    read(decoder, [[]], [row])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    decoder.refresh()
    torch.testing.assert_close(read(decoder, [[]], [row])[0], whole(model, row), rtol=1e-4, atol=1e-4)


def test_a_copied_slot_goes_on_like_its_source() -> None:
    model = network()
    decoder = opened(model)
    rows = [[], [], []]
    read(decoder, rows, [[1, 2, 3, 4, 5], [9], [8, 7]])
    decoder.copy([(0, 1, 0, 5), (0, 2, 0, 5)])
    rows[1], rows[2] = list(rows[0]), list(rows[0])
    logits = read(decoder, rows, [[6], [6], [6]])
    torch.testing.assert_close(logits[1], logits[0])
    torch.testing.assert_close(logits[2], whole(model, rows[2]), rtol=1e-4, atol=1e-4)


def test_bfloat16_is_as_near_as_transformers_own() -> None:
    exact, row = network(), list(range(30))
    expected = whole(exact.eval(), row)
    model = network().to(torch.bfloat16)
    own = (whole(model.eval(), row).float() - expected).abs().max()
    ours = (read(opened(model), [[]], [row])[0].float() - expected).abs().max()
    assert ours <= 2 * own + 0.05


def test_which_models_are_taken() -> None:
    assert all(supports(network(family)) for family in FAMILIES)
    assert not supports(network("mistral", sliding_window=8))
    assert not supports(network("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0))
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert not supports(network("llama", rope_parameters=dynamic))
    from transformers import GPT2Config, GPT2LMHeadModel

    assert not supports(GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)))
