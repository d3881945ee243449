"""Packed rows see themselves alone: logits and gradients are those of the rows one by one."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.models.load import enable_checkpointing
from spa.models.packing import Layout, enable_packing, packed_hidden_states
from tests.models.networks import network

FAMILIES = ["llama", "qwen2", "qwen3", "mistral"]


def rows_of(lengths: list[int], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 128, (length,), generator=generator) for length in lengths]


def packed(model, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    lengths = [len(row) for row in rows]
    return list(packed_hidden_states(model, torch.cat(rows), Layout.of(lengths)).split(lengths))


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_each_row_alone(family: str) -> None:
    model = network(family)
    rows = rows_of([5, 1, 17, 9])
    with torch.no_grad():
        alone = [model.base_model(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in rows]
        enable_packing(model)
        for got, expected in zip(packed(model, rows), alone, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 10))
def test_no_row_depends_on_its_neighbours(lengths: list[int], seed: int) -> None:
    model = network()
    enable_packing(model)
    rows = rows_of(lengths, seed)
    others = [torch.flip(row, [0]) + 1 for row in rows[1:]]
    with torch.no_grad():
        first = packed(model, rows)[0]
        again = packed(model, [rows[0], *[row % 128 for row in others]])[0]
    torch.testing.assert_close(first, again, rtol=0, atol=1e-6)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_the_sum_over_rows_with_and_without_checkpointing(checkpointing: bool) -> None:
    model = network("qwen2")
    other = copy.deepcopy(model)
    rows = rows_of([7, 3, 12])
    for row in rows:
        other.base_model(input_ids=row[None], use_cache=False).last_hidden_state[0].tanh().sum().backward()
    enable_packing(model)
    model.train()
    if checkpointing:
        enable_checkpointing(model)
    torch.cat(packed(model, rows)).tanh().sum().backward()
    for a, b in zip(model.base_model.parameters(), other.base_model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_everything_else_a_model_does_stays_as_it_was() -> None:
    model = network()
    ids = torch.tensor([[0, 0, 5, 6], [1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).logits[:, -1]
        text = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
        enable_packing(model)
        after = model(input_ids=ids, attention_mask=mask).logits[:, -1]
        again = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(before, after)
    assert torch.equal(text, again)


def test_a_model_that_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sliding-window.*sft\.packing=false"):
        enable_packing(network("mistral", sliding_window=4))
    with pytest.raises(ValueError, match=r"sft\.packing=false"):
        enable_packing(torch.nn.Linear(2, 2))


def test_layout_of_even_rows_moves_nothing() -> None:
    assert Layout.of([3, 3]).even
    layout = Layout.of([1, 3])
    assert not layout.even
    assert layout.positions_1T.tolist() == [[0, 0, 1, 2]]
    assert (layout.rows, layout.longest) == (2, 3)
    assert layout.flat_T.tolist() == [0, 3, 4, 5]
