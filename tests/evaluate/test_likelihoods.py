"""Calibration and perplexity: scores against a naive loop, corruptions that are false but plausible, known answers."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.agent.episode import Episode, Turn
from spa.agent.player import Player, make_task
from spa.agent.worlds import WorldSource
from spa.cli import main
from spa.envs import TextEnv, make_env
from spa.evaluate import calibration
from spa.evaluate.calibration import calibration_metrics, cases, corruptions, one_change
from spa.evaluate.perplexity import random_guess, sample_states, state_perplexity
from spa.evaluate.probe import probe_world_model
from spa.evaluate.world_model import exact, world_model_metrics
from spa.models.scoring import Scored, score_rows
from spa.runs.config import load_config
from tests.models.networks import network

WORLDS = ["sokoban", "frozen_lake", "sudoku"]


@pytest.fixture(scope="module")
def players() -> dict[str, tuple]:
    """Config, player and one short probe of each world."""
    out = {}
    for name in WORLDS:
        cfg = load_config(name, ["model.threads=1"])
        player = Player.load(cfg)
        metrics, episodes = probe_world_model(cfg, player, state_format="coordinates", worlds=4, seed=3)
        out[name] = (cfg, player, metrics, episodes)
    return out


def test_scores_equal_a_naive_loop() -> None:
    model = network()
    rows = [([3, 1, 4, 1, 5, 9, 2, 6], [1, 4, 7]), ([2, 7, 1], [2]), ([8, 2, 8, 1, 8], [])]
    model.train()
    for budget in (4, 8192):
        scored = score_rows(model, rows, budget)
        for (ids, positions), score in zip(rows, scored, strict=True):
            with torch.no_grad():
                logprobs = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], -1)
            expected = sum(float(logprobs[p - 1, ids[p]]) for p in positions)
            assert score.logprob == pytest.approx(expected, abs=1e-5)
            assert score.count == len(positions)
    assert model.training
    for positions in ([0], [3]):
        with pytest.raises(ValueError, match="after the first"):
            score_rows(model, [([1, 2, 3], positions)])


def turn_of(name: str, seed: int) -> tuple[TextEnv, Turn] | None:
    """A random turn that changed the state, in the format with coordinates."""
    env = make_env(name, state_format="coordinates")
    rng = np.random.default_rng(seed)
    before, _ = env.reset(seed=seed)
    for _ in range(10):
        action = env.sample_action(rng)
        after, _, terminated, truncated, info = env.step(action)
        if info["effective"]:
            return make_env(name, state_format="coordinates"), Turn(0, before, "", "", after, executed=[action])
        if terminated or truncated:
            return None
    return None


@pytest.mark.parametrize("name", WORLDS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**5))
def test_corruptions_are_false_different_and_consistent(name: str, seed: int) -> None:
    found = turn_of(name, seed)
    if found is None:
        return
    env, turn = found
    others = corruptions(env, turn, np.random.default_rng(seed))
    states = [state for _, state in others]
    assert ("stay", turn.state) in others
    assert len({state.strip() for state in states}) == len(states)
    assert not any(exact(state, turn.next_state) for state in states)
    # Legal at sight, and with coordinates that agree with the grid.
    assert all(env.legal(state, turn.state) for state in states)
    assert all("\n" in state.strip() for state in states)
    assert others == corruptions(env, turn, np.random.default_rng(seed))


def test_free_text_swaps_words_and_a_world_without_states_has_no_other_move() -> None:
    class Words(TextEnv):
        actions = ("go",)

        def render(self) -> str:
            return ""

        def reset(self, *, seed=None, options=None):
            raise ValueError("takes no state")

    rng = np.random.default_rng(0)
    changed = one_change(Words(), "a red door", "a wall", rng)
    assert changed != "a red door"
    assert sorted(str(changed).split()) == ["a", "door", "red"]
    assert one_change(Words(), "door", "a wall", rng) is None
    turn = Turn(0, "a wall", "", "", "a red door", executed=["go"])
    assert {kind for kind, _ in corruptions(Words(), turn, rng)} == {"stay", "swap"}


def test_cases_put_the_truth_into_the_models_own_turn(players) -> None:
    cfg, player, _, episodes = players["sokoban"]
    task = make_task(cfg, state_format="coordinates", prompt="world_model")
    found = cases(player.chat, task.make_env, episodes, 0)
    changed = [t for e in episodes for t in e.turns if t.prediction is not None and not exact(t.next_state, t.state)]
    assert len(found) == len(changed) > 0
    for case, turn in zip(found, changed, strict=True):
        assert dict(case.candidates[:1]) == {"truth": turn.next_state}
        assert f"<observation>{turn.state}</observation>" in case.prefix
        assert case.prefix.endswith("<prediction>")
        assert turn.user in player.tokenizer.decode(case.context)
        ids, positions = calibration._tokens(player.chat, case, turn.next_state)
        assert player.tokenizer.decode([ids[p] for p in positions]) == turn.next_state + "</prediction>"


@pytest.mark.parametrize("favour, top1", [("truth", 1.0), ("stay", 0.0)])
def test_a_model_that_knows_and_one_that_copies(players, monkeypatch, favour: str, top1: float) -> None:
    cfg, player, _, episodes = players["sokoban"]
    task = make_task(cfg, state_format="coordinates", prompt="world_model")
    found = cases(player.chat, task.make_env, episodes, 0)
    good = [list(calibration._tokens(player.chat, case, dict(case.candidates)[favour])) for case in found]

    def score(model, rows):
        return [Scored(-1.0 if list(row) in good else -9.0, 4) for row in rows]

    monkeypatch.setattr("spa.models.scoring.score_rows", score)
    metrics = calibration_metrics(None, player.chat, task.make_env, episodes, seed=0)
    assert metrics["calibration/beats_stay"] == (1.0 if favour == "truth" else 0.0)
    assert metrics["calibration/top1"] == top1
    if favour == "truth":
        assert metrics["calibration/margin"] == 8.0
        assert metrics["calibration/rank"] == 1.0
        assert metrics["calibration/nll_per_token"] == 0.25
        assert 0 < metrics["calibration/chance"] < 0.6


def test_no_case_is_no_division(players) -> None:
    _, player, _, _ = players["sokoban"]
    failed = Episode("Tag", 0, 0, status="error")
    unchanged = Episode("Tag", 0, 0, turns=[Turn(0, "a b", "", "<think>", "a b", prediction="a b")])
    metrics = calibration_metrics(player.model, player.chat, lambda: make_env("sokoban"), [failed, unchanged])
    assert metrics == {"calibration/cases": 0}


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity(players) -> None:
    cfg, player, _, _ = players["frozen_lake"]
    model = network(vocab_size=len(player.tokenizer))
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    task = make_task(cfg)
    states = sample_states(task, WorldSource(task, "val", cfg.seeds.val).take(3), seed=0)
    for context in ("bare", "prompt"):
        scored = state_perplexity(model, player.chat, task, states, context=context)
        assert scored.perplexity == pytest.approx(len(player.tokenizer), rel=1e-4)
        characters = sum(len(state) for state in states) - (len(states) if context == "bare" else 0)
        tokens = scored.tokens_per_state * len(states)
        assert scored.bits_per_char == pytest.approx(math.log2(len(player.tokenizer)) * tokens / characters, rel=1e-3)


@pytest.mark.parametrize("style", ["terse", "paper"])
def test_in_the_prompt_exactly_the_state_is_scored(players, monkeypatch, style: str) -> None:
    cfg, player, _, _ = players["sokoban"]
    cfg.agent.style, before = style, cfg.agent.style
    task = make_task(cfg, state_format="coordinates")
    cfg.agent.style = before
    states = sample_states(task, WorldSource(task, "val", cfg.seeds.val).take(2), seed=0)
    seen = []

    def score(model, rows):
        seen.extend(player.tokenizer.decode([ids[p] for p in positions]) for ids, positions in rows)
        return [Scored(-1.0, len(positions)) for _, positions in rows]

    monkeypatch.setattr("spa.models.scoring.score_rows", score)
    state_perplexity(None, player.chat, task, states, context="prompt")
    assert seen == states


def test_states_are_those_of_play_and_repeat(players) -> None:
    cfg, _, _, _ = players["sokoban"]
    task = make_task(cfg)
    worlds = WorldSource(task, "val", cfg.seeds.val).take(3)
    states = sample_states(task, worlds, seed=1, moves=4)
    assert len(states) == 15  # no room is solved by four random moves here
    assert states == sample_states(task, worlds, seed=1, moves=4)
    assert states[0] == task.make_env().reset(seed=worlds[0].seed)[0]


def test_random_guess(players) -> None:
    assert [random_guess(make_task(players[name][0]), 512) for name in WORLDS] == [7.0, 6.0, 5.0]
    stub = SimpleNamespace(make_env=lambda: SimpleNamespace(num_cell_values=None))
    assert random_guess(stub, 512) == 512.0  # type: ignore[arg-type]


def test_bad_input(players) -> None:
    cfg, player, _, _ = players["sokoban"]
    with pytest.raises(ValueError, match="unknown context 'nowhere'"):
        state_perplexity(player.model, player.chat, make_task(cfg), ["x"], context="nowhere")
    with pytest.raises(ValueError, match="no states"):
        state_perplexity(player.model, player.chat, make_task(cfg), [])


def test_the_probe_measures_everything_and_leaves_no_trace(players) -> None:
    for name in WORLDS:
        cfg, player, metrics, episodes = players[name]
        assert metrics["world_model/observation_em"] > 0.8
        assert 0 <= metrics["world_model/prediction_legal"] <= 1
        assert metrics["world_model/observation_legal"] >= metrics["world_model/observation_em"]
        assert {"calibration/top1", "perplexity/grid", "perplexity/coordinates"} <= set(metrics)
        assert len(episodes) == 4
        player.model.train()
        torch.manual_seed(5)
        state = torch.random.get_rng_state()
        again, _ = probe_world_model(cfg, player, state_format="coordinates", worlds=4, seed=3)
        assert again == metrics
        assert torch.equal(state, torch.random.get_rng_state())
        assert player.model.training


def test_without_a_model_only_what_was_written_is_measured(players) -> None:
    cfg, player, metrics, _ = players["frozen_lake"]
    alone = Player(None, player.tokenizer, player.chat, player.engine, player.sampling)
    written, _ = probe_world_model(cfg, alone, state_format="coordinates", worlds=4, seed=3)
    assert written == {name: value for name, value in metrics.items() if name.startswith("world_model/")}


def test_legality_by_turn_and_actions() -> None:
    env = make_env("sokoban", state_format="grid")
    room = "######\n#__O_#\n#PX__#\n###__#\n######\n######"
    lost = room.replace("X", "_")
    turns = [
        Turn(0, room, "", "", room, executed=["Up"], observation=room, prediction=room),
        Turn(1, room, "", "", room, executed=["Up", "Up"], observation=lost, prediction=lost),
    ]
    metrics = world_model_metrics([Episode("Tag", 0, 0, turns=turns)], env.legal)
    assert metrics["world_model/prediction_legal"] == metrics["world_model/observation_legal"] == 0.5
    assert (metrics["world_model/turn_1/prediction_legal"], metrics["world_model/turn_2/prediction_legal"]) == (1, 0)
    assert (metrics["world_model/actions_1/observation_em"], metrics["world_model/actions_2/observation_em"]) == (1, 0)
    assert not any("legal" in name for name in world_model_metrics([Episode("Tag", 0, 0, turns=turns)]))
    silent = world_model_metrics([Episode("Tag", 0, 0, turns=turns)], lambda state, before: None)
    assert not any("legal" in name for name in silent)


def test_command(tmp_path, capsys) -> None:
    out = tmp_path / "ppl.json"
    assert main(["perplexity", "frozen_lake,sudoku", "--worlds", "3", "--json", str(out), "model.threads=1"]) == 0
    printed = capsys.readouterr().out
    assert "raw, alone" in printed
    data = json.loads(out.read_text())
    assert list(data) == ["frozen_lake", "sudoku"]
    assert data["sudoku"]["random_guess"] == 5
    assert f"{data['sudoku']['prompt/coordinates']['perplexity']:.1f}" in printed
    for arguments, message in (
        (["sokobann"], "Did you mean 'sokoban'"),
        (["sokoban", "extra"], "unexpected argument 'extra'"),
        (["sokoban", "--model", "nowhere/global_step_1"], "no model folder"),
    ):
        assert main(["perplexity", *arguments]) == 2
        assert message in capsys.readouterr().err
