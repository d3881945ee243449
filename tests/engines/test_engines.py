"""Engines: token-exact, and the same numbers as the training forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import spa.models.forward as forward
from spa.agent.random_engine import RandomEngine, random_responder
from spa.agent.task import Task
from spa.common.manifest import write_manifest
from spa.config.schema import AgentConfig, EnvConfig, ModelConfig, SamplingConfig
from spa.engines.transformers import TransformersEngine, sample
from spa.models.folders import resolve_path
from spa.models.forward import hidden_states, micro_batches, pad_right, token_logprobs
from spa.models.load import check_model, load_model, load_state, load_tokenizer, save_model
from spa.models.optim import adamw, lr_factor
from spa.pretrain.network import TinySize, build_model
from tests.scripted import CHAT, TOKENIZER, lake_task, tiny_policy


def make(seed: int = 0):
    size = TinySize(hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=32, init_std=0.3)
    return build_model(64, size, seed, eos_id=2, pad_id=0)


def contexts(count: int = 9) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(3, 64, size=int(n)).tolist() for n in rng.integers(1, 30, size=count)]


def generate(model, rows, *, stop=frozenset({2, 3, 4, 5}), seed=7, **sampling):
    return TransformersEngine(model, 0).generate(
        rows, SamplingConfig(**{"max_tokens": 25, **sampling}), stop_ids=frozenset(stop), seed=seed
    )


def scored(model, rows, outs, temperature=1.0) -> list[list[float]]:
    ids = pad_right([[*row, *out.ids] for row, out in zip(rows, outs, strict=True)])
    hidden = hidden_states(model, ids)
    result = []
    for i, (row, out) in enumerate(zip(rows, outs, strict=True)):
        states = hidden[i, len(row) - 1 : len(row) + len(out.ids) - 1]
        values, _ = token_logprobs(model, states, torch.tensor(out.ids), temperature=temperature)
        result.append(values.tolist())
    return result


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("batch_size", [2, 64])
def test_sampled_log_probs_equal_the_training_forward(temperature: float, batch_size: int) -> None:
    model, rows = make(), contexts(12)
    outs = generate(model, rows, temperature=temperature, batch_size=batch_size)
    assert len({len(out.ids) for out in outs}) > 3  # rows ended at different times
    with torch.no_grad():
        for out, expected in zip(outs, scored(model, rows, outs, temperature), strict=True):
            assert np.abs(np.array(out.logprobs) - np.array(expected)).max() < 1e-4


def test_rollout_log_probs_of_the_built_in_model_equal_the_training_forward() -> None:
    from spa.agent.worlds import World

    policy = tiny_policy()
    for window in (0, 1):
        episodes = policy.play(lake_task(window), [World(s, str(s)) for s in range(4)], samples=2, seed=1)
        worst = 0.0
        for sequence in (s for e in episodes for s in e.sequences):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([sequence.ids])).logits[0]
            expected = torch.log_softmax(logits, -1)[:-1].gather(-1, torch.tensor(sequence.ids)[1:, None]).squeeze(-1)
            for i, sampled in enumerate(sequence.mask):
                if sampled:
                    worst = max(worst, abs(sequence.logprobs[i] - float(expected[i - 1])))
        assert worst < 1e-4


def test_greedy_equals_hugging_face_generate() -> None:
    model, rows = make(), contexts()
    outs = generate(model, rows, temperature=0, stop={2})
    for row, out in zip(rows, outs, strict=True):
        expected = model.generate(
            torch.tensor([row]),
            attention_mask=torch.ones(1, len(row)),
            do_sample=False,
            max_new_tokens=25,
            eos_token_id=2,
        )
        assert out.ids == expected[0, len(row) :].tolist()


def test_stopping() -> None:
    outs = generate(make(), contexts(30))
    assert {out.finish_reason for out in outs} == {"stop", "length"}
    for out in outs:
        assert (out.ids[-1] in {2, 3, 4, 5}) == (out.finish_reason == "stop")
        assert not {2, 3, 4, 5} & set(out.ids[:-1])
        assert len(out.ids) <= 25
        assert len(out.ids) == len(out.logprobs)


def test_seeds_and_weights_decide() -> None:
    model, rows = make(), contexts()
    first = generate(model, rows)
    assert first == generate(model, rows)
    assert first != generate(model, rows, seed=8)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(-1)
    assert first != generate(model, rows)


@pytest.mark.parametrize(
    ("settings", "kept"), [({"top_k": 2}, 2), ({"top_p": 0.65}, 2), ({"top_p": 0.75}, 3), ({"top_p": 0.35}, 1)]
)
def test_top_k_and_top_p_cut_the_tail_and_leave_the_rest_in_proportion(settings: dict[str, float], kept: int) -> None:
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1])
    tokens, _ = sample(probs.log().expand(2000, 4), SamplingConfig(**settings), torch.arange(2000) / 2000)
    rest = torch.where(torch.arange(4) < kept, probs, 0.0)
    torch.testing.assert_close(tokens.bincount(minlength=4) / 2000, rest / rest.sum(), atol=2e-3, rtol=0)


def test_top_k_of_one_and_a_top_p_of_almost_nothing_are_greedy() -> None:
    model, rows = make(), contexts()
    greedy = [out.ids for out in generate(model, rows, temperature=0)]
    assert [out.ids for out in generate(model, rows, top_k=1)] == greedy
    assert [out.ids for out in generate(model, rows, top_p=1e-6)] == greedy


def test_an_empty_context_is_refused() -> None:
    with pytest.raises(ValueError, match="empty context"):
        generate(make(), [[]])


@pytest.mark.parametrize("world", ["sokoban", "frozen_lake"])
@pytest.mark.parametrize("prompt", ["base", "world_model"])
def test_the_random_engine_writes_valid_answers(world: str, prompt: str) -> None:
    from spa.agent.rollout import rollout
    from spa.agent.worlds import World

    task = Task(EnvConfig(id=world, tag="T"), AgentConfig(style="terse", prompt=prompt, window=1))
    engine = RandomEngine(CHAT, random_responder(task))
    limit = SamplingConfig(max_tokens=3)  # of a model, not of random play
    episodes = rollout(engine, CHAT, task, [World(1, "a"), World(2, "b")], limit, seed=3)
    turns = [turn for episode in episodes for turn in episode.turns]
    assert all(turn.format_ok and turn.penalty == 0 for turn in turns)
    assert {action for turn in turns for action in turn.actions} <= {"Up", "Down", "Left", "Right"}
    thought = "I will push the box to the target." if world == "sokoban" else "I will try these actions."
    assert all(thought in turn.response for turn in turns)


def test_sudoku_has_random_actions_too() -> None:
    task = Task(EnvConfig(id="sudoku", tag="T"), AgentConfig(style="terse", window=1))
    text = random_responder(task)(np.random.default_rng(0))
    assert text.startswith("<think>")


def test_chunked_log_probs_equal_whole_ones_with_gradients(monkeypatch) -> None:
    model, ids = make(), torch.randint(3, 64, (3, 20), generator=torch.Generator().manual_seed(0))
    targets = ids[:, 1:].flatten()
    grads, values = [], []
    for chunk in (2**25, 64 * 5):
        monkeypatch.setitem(forward.CHUNK_LOGITS, "cpu", chunk)
        model.zero_grad()
        hidden = hidden_states(model, ids)[:, :-1].flatten(0, 1)
        logprobs, entropy = token_logprobs(model, hidden, targets, entropy=True)
        (logprobs.sum() + entropy.sum()).backward()
        values.append((logprobs.detach(), entropy.detach()))
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)
    full = torch.log_softmax(model(input_ids=ids).logits[:, :-1].flatten(0, 1), -1).detach()
    torch.testing.assert_close(values[0][0], full.gather(-1, targets[:, None]).squeeze(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(values[0][1], -(full.exp() * full).sum(-1), rtol=1e-4, atol=1e-4)


def test_no_tokens_no_log_probs() -> None:
    model = make()
    assert token_logprobs(model, torch.zeros(0, 32), torch.zeros(0, dtype=torch.long))[0].shape == (0,)


def test_micro_batches_cover_all_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, size=100).tolist()
    groups = micro_batches(lengths, 120)
    assert sorted(i for group in groups for i in group) == list(range(100))
    assert all(len(group) * max(lengths[i] for i in group) <= 120 for group in groups)
    assert micro_batches([500], 120) == [[0]]


def test_learning_rate() -> None:
    assert [lr_factor(s, warmup=4, total=0) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert lr_factor(10, warmup=0, total=20, schedule="cosine") == pytest.approx(0.5)
    assert lr_factor(20, warmup=0, total=20, schedule="cosine") == pytest.approx(0.0)


def test_only_matrices_decay() -> None:
    model = make()
    groups = adamw([(model.parameters(), 1.0)], betas=(0.9, 0.95), weight_decay=0.1).param_groups
    assert {p.ndim for g in groups if g["weight_decay"] for p in g["params"]} == {2}
    assert {p.ndim for g in groups if not g["weight_decay"] for p in g["params"]} == {1}


def test_save_and_load(tmp_path) -> None:
    model = make()
    save_model(model, TOKENIZER, tmp_path / "m", {"step": 3, "x": torch.ones(2)})
    again = load_model(ModelConfig(path=str(tmp_path / "m"), device="cpu"))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert load_state(tmp_path / "m")["step"] == 3
    with pytest.raises(ValueError, match="has no 'stale', so another version of spa saved it: resume with that one"):
        load_state(tmp_path / "m")["stale"]
    assert {path.suffix for path in (tmp_path / "m").iterdir()} <= {".json", ".safetensors", ".pt", ".jinja"}
    (tmp_path / "m" / "trainer_state.pt").write_bytes(b"torn")
    with pytest.raises(ValueError, match="damaged"):
        load_state(tmp_path / "m")


def test_models_that_are_none(tmp_path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'tiny'"):
        check_model(ModelConfig(path="builtin:tinny"))
    with pytest.raises(ValueError, match="no model folder"):
        check_model(ModelConfig(path=str(tmp_path / "none")))
    with pytest.raises(ValueError, match=r"no config\.json"):
        check_model(ModelConfig(path=str(tmp_path)))
    checkpoint = tmp_path / "sft" / "checkpoints" / "global_step_3"
    make().save_pretrained(checkpoint)
    write_manifest(checkpoint)
    with pytest.raises(ValueError, match=f"its last checkpoint, {checkpoint}$"):
        check_model(ModelConfig(path=str(tmp_path / "sft")))
    make().save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path / "bare"))


def test_a_folder_named_as_the_owner_hides_a_hub_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_path("Qwen/Qwen2.5-1.5B-Instruct") == "Qwen/Qwen2.5-1.5B-Instruct"
    (tmp_path / "Qwen").mkdir()
    with pytest.raises(
        ValueError,
        match=r"no model folder Qwen/Qwen2.* \(the folder Qwen exists, so this is not taken for a hub name\)",
    ):
        resolve_path("Qwen/Qwen2.5-1.5B-Instruct")
    for path in ("./none", "none.gguf", "~/none"):
        with pytest.raises(ValueError, match=f"no model folder {path}$"):
            resolve_path(path)


def damaged(data: bytes) -> dict[str, bytes]:
    """Ways in which a file of weights breaks."""

    def flipped(place: int, bit: int) -> bytes:
        return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]

    return {
        "empty": b"",
        "cut in the header": data[:50],
        "cut in the middle": data[: len(data) // 2],
        "cut at the end": data[:-1],
        "another length of the header": flipped(6, 0x80),
        "header is no text": flipped(9, 0x80),
        "another type": flipped(data.index(b'"F32"') + 1, 1),
    }


def test_damaged_weights_are_one_line_with_the_file(tmp_path) -> None:
    folder = tmp_path / "m"
    save_model(make(), TOKENIZER, folder)
    file = folder / "model.safetensors"
    good = file.read_bytes()
    for how, data in damaged(good).items():
        file.write_bytes(data)
        for load in (
            lambda: load_model(ModelConfig(path=str(folder))),
            lambda: check_model(ModelConfig(path=str(folder))),
        ):
            with pytest.raises(ValueError, match="is damaged") as error:
                load()
            assert str(error.value).startswith(str(file)) and "\n" not in str(error.value), how
    file.unlink()
    with pytest.raises(ValueError, match="m has no weights"):
        check_model(ModelConfig(path=str(folder)))


def test_weights_under_another_name_are_not_replaced_by_random_ones(tmp_path) -> None:
    folder = tmp_path / "m"
    save_model(make(), TOKENIZER, folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"embed_tokens", b"dmbed_tokens", 1))
    with pytest.raises(ValueError, match=r"m lack .*model\.embed_tokens\.weight: they are damaged"):
        load_model(ModelConfig(path=str(folder)))
