"""Masks token by token, the loss against a naive loop, exact resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.agent.chat import Chat
from spa.config.load import load_config
from spa.config.schema import Config, ModelConfig, SFTConfig
from spa.data.encode import Example, encode_row, encode_rows, loss_spans
from spa.data.ground_truth import Row
from spa.data.layouts import write_rows
from spa.engines.transformers import TransformersEngine
from spa.models.load import context_length, load_model, load_tokenizer, save_model
from spa.pretrain.network import TinySize, build_model
from spa.runs.folder import changed_settings
from spa.sft.stage2 import load_examples
from spa.sft.train import SFTDiverged, SFTTrainer, loss_sums, mean_loss
from tests.models.networks import random_model

TOKENIZER = load_tokenizer("builtin:tiny")
CHAT = Chat(TOKENIZER)
STATE = "P_√\n1 2"
RESPONSE = f"<think><observation>{STATE}</observation>Up || Left<prediction>#O√</prediction></think>\n<answer>Up || Left</answer>"


def row(response: str = RESPONSE, *turns: str) -> Row:
    prompt = [{"role": "user", "content": "first"}]
    for text in turns:
        prompt += [{"role": "assistant", "content": text}, {"role": "user", "content": "next"}]
    return Row("Tag", prompt, response)


def tiny(seed: int = 0):
    size = TinySize(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=32)
    return build_model(512, size, seed, eos_id=2, pad_id=0)


def examples(count: int = 14) -> list[Example]:
    rng = np.random.default_rng(0)
    responses = [f"<think>{'Up ' * int(rng.integers(1, 9))}</think><answer>Left</answer>" for _ in range(count)]
    return [encode_row(row(text), CHAT) for text in responses]


def naive_mask(response: str, loss: str) -> list[int]:
    """Which tokens of a response lie in the loss, character by character."""
    wanted = {i for start, end in loss_spans(response, loss) for i in range(start, end)}
    encoded = CHAT.encode_response(response)
    return [
        i for i, (low, high) in enumerate(encoded.offsets) if i >= encoded.num_forced and wanted & set(range(low, high))
    ]


@pytest.mark.parametrize("loss", ["think_answer", "state"])
@settings(max_examples=30)
@given(thought=st.text(alphabet="aU√ #1\n<", max_size=12), state=st.text(alphabet="P√_\n12.", max_size=12))
def test_mask_equals_a_character_level_oracle(loss: str, thought: str, state: str) -> None:
    text = f"<think><observation>{state}</observation>{thought}<prediction>{state}</prediction></think> <answer>Up</answer>!"
    example = encode_row(row(text), CHAT, loss=loss, train_end=False)
    start = len(CHAT.opening(None, "first"))
    assert example.positions == [start + i for i in naive_mask(text, loss)]


def test_forced_tag_and_prompt_are_not_trained_but_the_end_is() -> None:
    example = encode_row(row(), CHAT)
    start = len(CHAT.opening(None, "first"))
    assert example.ids[start : start + len(CHAT.forced_ids)] == CHAT.forced_ids
    assert example.positions[0] == start + len(CHAT.forced_ids)
    assert example.positions[-1] == len(example.ids) - 1
    assert example.ids[-1] == CHAT.closing_ids[0]
    assert len(encode_row(row(), CHAT, train_end=False).positions) == len(example.positions) - 1


def test_state_loss_trains_the_states_and_nothing_else() -> None:
    example = encode_row(row(), CHAT, loss="state")
    assert TOKENIZER.decode([example.ids[i] for i in example.positions]) == STATE + "#O√"


def test_masked_loss_replaces_states_everywhere_and_trains_no_placeholder() -> None:
    example = encode_row(row(RESPONSE, RESPONSE), CHAT, loss="masked", train_end=False)
    text = TOKENIZER.decode(example.ids)
    assert STATE not in text
    assert text.count("[MASKED]") == 4
    trained = TOKENIZER.decode([example.ids[i] for i in example.positions])
    assert "MASK" not in trained
    assert "<answer>Up || Left</answer>" in trained


def test_ids_are_those_of_a_rollout() -> None:
    example = encode_row(row(RESPONSE, RESPONSE), CHAT)
    answer = CHAT.forced_ids + CHAT.encode(RESPONSE[len("<think>") :])
    expected = CHAT.opening(None, "first") + answer + CHAT.closing_ids + CHAT.following("next") + answer
    assert example.ids == [*expected, CHAT.closing_ids[0]]


def test_unusable_rows_are_counted_and_an_empty_set_is_an_error() -> None:
    twice = Row("Tag", [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], RESPONSE)
    rows = [row(), row("nothing here"), row("<think>" + "Up " * 300 + "</think>"), twice]
    kept, skipped = encode_rows(rows, CHAT, SFTConfig(max_length=200))
    assert len(kept) == 1
    assert skipped == {
        "no token to train (no think or answer span)": 1,
        "longer than sft.max_length=200": 1,
        "roles do not alternate": 1,
    }
    with pytest.raises(ValueError, match=r"no row to train on.*no token to train.*: 1"):
        encode_rows([row("nothing")], CHAT, SFTConfig())
    with pytest.raises(ValueError, match="data set is empty"):
        encode_rows([], CHAT, SFTConfig())


@pytest.mark.parametrize(
    ("positions", "limit"), [(200, "the model's context of 200 tokens"), (900, "sft.max_length=300")]
)
def test_rows_that_the_model_cannot_read_are_skipped(capsys, tmp_path, positions: int, limit: str) -> None:
    long = row("<think>" + "Up " * 400 + "</think>")
    write_rows(tmp_path / "train.parquet", [row(), long])
    save_model(random_model("gpt2", vocab_size=512, max_position_embeddings=positions), TOKENIZER, tmp_path / "m")
    config = Config(model=ModelConfig(path=str(tmp_path / "m")), sft=SFTConfig(max_length=300))
    train, _ = load_examples(config, tmp_path, CHAT)
    assert len(train) == 1
    assert f"1 of 2 rows of train.parquet skipped: longer than {limit}" in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"no row to train on.*longer than {limit}: 1"):
        encode_rows([long], CHAT, config.sft, context=positions)


def test_validation_rows_that_are_all_skipped_are_said(capsys, tmp_path) -> None:
    write_rows(tmp_path / "train.parquet", [row()])
    write_rows(tmp_path / "val.parquet", [row("no tags")])
    train, val = load_examples(Config(), tmp_path, CHAT)
    assert (len(train), val) == (1, [])
    assert "SFT: 1 of 1 rows of val.parquet skipped: no token to train" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"sft\.use=best needs validation rows"):
        load_examples(Config(sft=SFTConfig(use="best")), tmp_path, CHAT)


@pytest.mark.parametrize(
    ("rope", "length"),
    [(None, 256), ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}, 1024)],
)
def test_a_stretched_context(rope: dict[str, Any] | None, length: int) -> None:
    model = random_model("llama", **({"rope_parameters": rope} if rope else {}))
    assert TransformersEngine(model, 0).context_length == context_length(model.config) == length


def test_loss_equals_a_naive_loop_whatever_the_micro_batches() -> None:
    model, rows = tiny(), examples()
    total = tokens = 0.0
    with torch.no_grad():
        for example in rows:
            logprobs = torch.log_softmax(model(input_ids=torch.tensor([example.ids])).logits[0], -1)
            for position in example.positions:
                total -= float(logprobs[position - 1, example.ids[position]])
                tokens += 1
    for budget in (1, 64, 10_000):
        assert mean_loss(model, rows, budget) == pytest.approx(total / tokens, abs=1e-5)


def test_gradients_do_not_depend_on_micro_batches() -> None:
    grads = []
    for budget in (1, 10_000):
        model = tiny()
        for part in loss_sums(model, examples(), budget):
            part.backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)


def run(out: Path, *, resume: bool = False, stop_at: int | None = None, seed: int = 0, **overrides):
    often = {"save_every": 3, "keep_checkpoints": 0, **overrides}
    config = SFTConfig(epochs=2, batch_size=4, lr=1e-2, log_every=1, **often)
    logged: list[tuple[int, dict[str, float]]] = []

    class Stopped(Exception):
        pass

    def log(step: int, metrics: dict[str, float]) -> None:
        logged.append((step, {k: v for k, v in metrics.items() if "second" not in k}))
        if step == stop_at:
            raise Stopped

    path = "builtin:tiny"
    if resume:
        path = str(sorted((out / "checkpoints").iterdir(), key=lambda p: int(p.name.split("_")[-1]))[-1])
    model = load_model(ModelConfig(path=path, device="cpu"))
    trainer = SFTTrainer(
        model, TOKENIZER, examples(), examples(3), config, out, seed=seed, log=log, measure=lambda _: {"noise": draw()}
    )
    try:
        trainer.train(resume=resume)
    except Stopped:
        return None, logged
    return model.state_dict(), logged


def draw() -> float:
    """A measurement that uses up torch's random numbers."""
    return float(torch.rand(()))


def equal(a, b) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def test_resume_mid_epoch_equals_an_uninterrupted_run_bit_for_bit(tmp_path) -> None:
    whole, log = run(tmp_path / "whole")
    run(tmp_path / "cut", stop_at=5)
    assert [p.name for p in (tmp_path / "cut" / "checkpoints").iterdir()] == ["global_step_3"]
    resumed, rest = run(tmp_path / "cut", resume=True)
    assert equal(whole, resumed)
    assert rest == log[3:]
    shutil.rmtree(tmp_path)


def test_a_resumed_run_may_measure_and_save_at_other_steps(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", eval_every=2)
    run(tmp_path / "cut", stop_at=5, eval_every=2)
    rarely = {"eval_every": 0, "save_every": 0, "keep_checkpoints": 1}
    resumed, rest = run(tmp_path / "cut", resume=True, **rarely)
    assert equal(whole, resumed)
    assert not any("noise" in metrics for _, metrics in rest)
    before, after = (load_config("sokoban", settings) for settings in ([], [f"sft.{k}={v}" for k, v in rarely.items()]))
    assert before != after and changed_settings(before, after) == []


def test_same_seed_same_run_other_seed_other_run(tmp_path) -> None:
    first, log = run(tmp_path / "a")
    second, again = run(tmp_path / "b")
    other, _ = run(tmp_path / "c", seed=1)
    assert equal(first, second)
    assert log == again
    assert not equal(first, other)


def test_the_loss_falls_and_validation_is_logged(tmp_path) -> None:
    _, log = run(tmp_path / "a")
    assert log[-1][1]["train/loss"] < 0.7 * log[0][1]["train/loss"]
    assert "val/loss" in log[-1][1]


def test_divergence_names_the_last_good_checkpoint(tmp_path) -> None:
    model = tiny()
    config = SFTConfig(epochs=3, batch_size=14, save_every=1)
    trainer = SFTTrainer(model, TOKENIZER, examples(), [], config, tmp_path, seed=0, log=lambda step, metrics: None)

    def poison(step: int, loss: float) -> None:
        if step == 2:
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))

    trainer.on_step = poison
    with pytest.raises(SFTDiverged, match=r"step 3.*global_step_2"):
        trainer.train()


@pytest.mark.slow
def test_blocks_are_compiled_if_asked(tmp_path: Path) -> None:
    model = tiny()
    settings = SFTConfig(compile=True)
    SFTTrainer(model, TOKENIZER, examples(), [], settings, tmp_path, seed=0, log=lambda step, metrics: None)
    assert all(layer.mlp._compiled_call_impl is not None for layer in model.model.layers)
