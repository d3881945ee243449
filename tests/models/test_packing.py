"""Packed rows see themselves alone: logits and gradients are those of the rows one by one."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.models.load import enable_checkpointing
from spa.models.packing import Layout, enable_packing, pack, pack_groups, packed_hidden_states
from spa.models.score import Chosen, TokenBatch, batches
from tests.models.networks import network, random_model, with_images

FAMILIES = ["llama", "qwen2", "qwen3", "mistral"]


def rows_of(lengths: list[int], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 128, (length,), generator=generator) for length in lengths]


def packed(model, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    ids, places = pack([row.tolist() for row in rows])
    states = packed_hidden_states(model, torch.tensor(ids), Layout.of(places))
    return [states[torch.from_numpy(row)] for row in places]


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_each_row_alone(family: str) -> None:
    model = network(family)
    rows = rows_of([5, 1, 17, 9])
    with torch.no_grad():
        alone = [model.base_model(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in rows]
        enable_packing(model)
        for got, expected in zip(packed(model, rows), alone, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 10))
def test_no_row_depends_on_its_neighbours(lengths: list[int], seed: int) -> None:
    model = network()
    enable_packing(model)
    rows = rows_of(lengths, seed)
    others = [torch.flip(row, [0]) + 1 for row in rows[1:]]
    with torch.no_grad():
        first = packed(model, rows)[0]
        again = packed(model, [rows[0], *[row % 128 for row in others]])[0]
    torch.testing.assert_close(first, again, rtol=0, atol=1e-5)  # values near 1 in float32


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


@pytest.mark.parametrize("family", ["stablelm", "nemotron"])
def test_a_model_that_takes_no_packed_mask_is_refused(family: str) -> None:
    with pytest.raises(ValueError, match=r"rows cannot be packed with .*; use ppo\.packing=false"):
        enable_packing(random_model(family), "ppo.packing")


def test_a_model_whose_packed_rows_see_each_other_is_refused() -> None:
    model = random_model("olmo2").train()
    state = torch.random.get_rng_state()
    enable_packing(model)
    assert model.training and torch.equal(state, torch.random.get_rng_state())

    def mix(module, inputs, output):  # like a convolution over tokens
        return output + output.roll(1, dims=1)

    model.model.layers[0].mlp.register_forward_hook(mix)
    with pytest.raises(ValueError, match=r"Olmo2ForCausalLM \(hidden states of packed rows are .* off"):
        enable_packing(model)


def test_a_window_of_the_language_model_of_several_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="sliding-window"):
        enable_packing(with_images())


def test_layout_of_even_rows_moves_nothing() -> None:
    ids, places = pack([[1, 2, 3], [4, 5, 6]])
    assert ids == [1, 2, 3, 4, 5, 6]
    layout = Layout.of(places)
    assert layout.even
    assert layout.batches == ((2, 3),)


def test_layout_of_rows_of_unequal_length() -> None:
    ids, places = pack([[5], [1, 2, 3, 4, 9], [4, 5, 6, 7]])
    assert ids == [1, 2, 3, 4, 9, 4, 5, 6, 7, 5]
    layout = Layout.of(places)
    assert not layout.even
    assert layout.positions_1T.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0]]
    assert layout.batches == ((2, 5), (1, 1))  # the short row is not padded to five
    assert layout.tokens_R.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9]
    assert layout.places_T.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert layout.all_places.tolist() == layout.places_T.tolist()


def test_a_common_beginning_stands_there_once() -> None:
    rows = [[1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 4], [7, 2]]
    ids, places = pack(rows)
    assert ids == [1, 2, 3, 4, 5, 7, 2]
    assert [[ids[p] for p in row] for row in places] == rows
    layout = Layout.of(places)
    assert not layout.even
    counts = layout.starts_T.diff(append=torch.tensor([len(layout.all_places)]))
    assert counts.tolist() == [3, 3, 2, 2, 1, 1, 1]


def test_passes_are_made_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    of = TokenBatch.of
    monkeypatch.setattr(TokenBatch, "of", lambda *args, **more: made.append(1) or of(*args, **more))
    passes = batches([Chosen([1, 2, 3], range(1, 3))] * 4, 3, "cpu", packing=False)
    for number, _ in enumerate(passes, 1):
        assert len(made) == number
    assert len(made) == 4


SMALL_ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


@given(SMALL_ROWS)
def test_packing_is_a_prefix_tree(rows: list[list[int]]) -> None:
    ids, places = pack(rows)
    assert [[ids[p] for p in row] for row in places] == rows
    assert len(ids) == len({tuple(row[: i + 1]) for row in rows for i in range(len(row))})
    layout = Layout.of(places)
    assert sum(a * b for a, b in layout.batches) == len(layout.tokens_R)
    assert layout.tokens_R[layout.places_T].tolist() == list(range(len(ids)))
    own = layout.all_places.tensor_split(layout.starts_T[1:])
    for token, where in enumerate(own):
        assert set(layout.tokens_R[where].tolist()) == {token}
        assert layout.places_T[token] in where
    assert len(set(layout.all_places.tolist())) == sum(map(len, rows))  # the rest are pads


@settings(max_examples=25)
@given(SMALL_ROWS, st.integers(0, 10))
def test_rows_with_common_beginnings_have_the_states_and_gradients_of_rows_alone(
    rows: list[list[int]], seed: int
) -> None:
    model = network("qwen2", seed)
    other = copy.deepcopy(model)
    tensors = [torch.tensor(row) for row in rows]
    enable_packing(model)
    got = packed(model, tensors)
    for number, row in enumerate(tensors):
        alone = other.base_model(input_ids=row[None], use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(got[number], alone, rtol=1e-4, atol=1e-5)
        ((number + 1) * alone.tanh()).sum().backward()
    sum((number + 1) * one.tanh().sum() for number, one in enumerate(got)).backward()
    for a, b in zip(model.base_model.parameters(), other.base_model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)


@given(SMALL_ROWS, st.integers(1, 30))
def test_passes_keep_to_their_size_and_relatives_together(rows: list[list[int]], most: int) -> None:
    groups = pack_groups(rows, most)
    assert sorted(i for group in groups for i in group) == list(range(len(rows)))
    for group in groups:
        chosen = [rows[i] for i in group]
        computed, all_of_them = len(pack(chosen)[0]), sum(map(len, chosen))
        assert len(group) == 1 or computed + 0.25 * (all_of_them - computed) <= most
    order = [tuple(rows[i]) for group in groups for i in group]
    assert order == sorted(order)
