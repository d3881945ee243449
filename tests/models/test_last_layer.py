"""Where few states are read the last layer computes few: the same states, the same gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.config.schema import SFTConfig
from spa.models import last_layer
from spa.models.last_layer import Reads, states_read
from spa.models.load import enable_checkpointing
from spa.models.lora import add_lora
from spa.models.packing import Layout, enable_packing, pack, packed_hidden_states
from tests.models.networks import network

FAMILIES = ["llama", "qwen2", "qwen3", "mistral"]
PROMPT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


def naive(model: Any, rows: list[list[int]], asked: list[list[int]]) -> torch.Tensor:
    """The states asked for, row by row, each row alone and the whole of it computed."""
    states = [model.base_model(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state[0] for row in rows]
    return torch.cat([state[at] for state, at in zip(states, asked, strict=True)])


def read(model: Any, rows: list[list[int]], asked: list[list[int]]) -> torch.Tensor:
    ids, places = pack(rows)
    layout = Layout.of(places)
    reads = Reads.of(places, [np.array(at, dtype=np.int64) for at in asked], layout)
    wanted = torch.from_numpy(np.concatenate([row[at] for row, at in zip(places, asked, strict=True)]))
    if reads is None:
        return packed_hidden_states(model, torch.tensor(ids), layout)[wanted]
    states = states_read(model, torch.tensor(ids), layout, reads)
    assert len(states) == len(reads.wanted_W)
    return states[torch.searchsorted(reads.wanted_W, wanted)]


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def compare(model: Any, rows: list[list[int]], asked: list[list[int]]) -> None:
    other = copy.deepcopy(model)
    enable_packing(model)
    expected, got = naive(other, rows, asked), read(model, rows, asked)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, expected.numel()).view_as(expected)
    (expected * weights).sum().backward()
    (got * weights).sum().backward()
    theirs = gradients(other)
    for name, grad in gradients(model).items():
        assert (grad - theirs[name]).norm() <= 1e-5 * theirs[name].norm() + 1e-5, name
    assert gradients(model).keys() == theirs.keys()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens the own last layer was asked for, call by call."""
    seen: list[int] = []
    original = last_layer._forward

    def counted(*args: Any) -> torch.Tensor:
        out = original(*args)
        seen.append(out.shape[1])
        return out

    monkeypatch.setattr(last_layer, "_forward", counted)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_gradients_are_those_of_each_row_alone(family: str, calls: list[int]) -> None:
    rows = [[*PROMPT, 20, 21, 22], [*PROMPT, 20, 30], [3, 4, 5, 6, 7], [*PROMPT, 40, 41, 42, 43, 44, 45]]
    compare(network(family), rows, [[9, 10, 11], [9, 10], [4], [9, 12]])
    assert calls == [5]  # the end of the prompt is one token for three rows, the 20 after it one for two


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_any_rows_and_reads(rows: list[list[int]], random: Any) -> None:
    """Ids of three kinds only, so that beginnings are often shared; some rows are not read at all."""
    asked = [sorted(random.sample(range(len(row)), random.randint(0, len(row)))) for row in rows]
    asked[0] = asked[0] or [0]
    compare(network("qwen2"), rows, asked)


def test_adapters_of_the_last_layer_get_their_gradients(calls: list[int]) -> None:
    model = network("qwen2")
    add_lora(model, SFTConfig(lora_alpha=4), 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    compare(model, [[*PROMPT, 20, 21], [*PROMPT, 30]], [[10], [10]])
    assert calls


def test_what_is_computed_again_in_the_backward_pass_is_computed_whole(calls: list[int]) -> None:
    model = network("llama")
    enable_checkpointing(model)
    model.train()
    compare(model, [[*PROMPT, 20, 21], [*PROMPT, 30]], [[10], [10]])
    assert not calls
    with torch.no_grad():
        read(model.eval(), [[*PROMPT, 20, 21]], [[10]])
    assert calls == [1]


def test_other_layers_are_left_alone(calls: list[int]) -> None:
    """A family whose layers differ goes the whole way, and the layer is itself again after a pass and after a failure."""
    model = network("llama")
    enable_packing(model)
    read(model, [[*PROMPT, 20, 21]], [[10]])
    assert calls == [1] and "forward" not in vars(model.base_model.layers[-1])
    with pytest.raises(IndexError):
        read(model, [[*PROMPT, 500]], [[10]])
    assert "forward" not in vars(model.base_model.layers[-1])
    model.config.model_type = "olmo2"
    read(model, [[*PROMPT, 20, 21]], [[10]])
    assert calls == [1]


def test_nearly_all_states_are_read_from_the_whole_layer(calls: list[int]) -> None:
    compare(network("llama"), [[1, 2, 3, 4]], [[0, 1, 2, 3]])
    assert not calls


def test_a_pass_without_a_position_asked_for_is_a_whole_one() -> None:
    _, places = pack([PROMPT])
    assert Reads.of(places, [np.array([], dtype=np.int64)], Layout.of(places)) is None
