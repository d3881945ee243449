"""Calibration and perplexity: scores against a naive loop, corruptions that are false but plausible, known answers."""

from __future__ import annotations

import copy
import json
import math
import tracemalloc
from collections import Counter
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.agent.chat import Chat
from spa.agent.episode import Episode, Turn
from spa.agent.policy import Policy, make_task
from spa.agent.worlds import WorldSource
from spa.cli import main
from spa.config.load import load_config
from spa.config.schema import EnvConfig
from spa.envs import TextEnv, make_env
from spa.envs.checked import CheckedEnv
from spa.envs.states import exact
from spa.evaluate import calibration
from spa.evaluate.calibration import calibration_metrics, cases, changes
from spa.evaluate.perplexity import (
    NothingToScore,
    StatePerplexity,
    _prompted,
    random_guess,
    sample_states,
    state_perplexity,
)
from spa.evaluate.probe import probe_world_model
from spa.evaluate.world_model import world_model_metrics
from spa.models.folders import resolve_path
from spa.models.score import Chosen, sum_logprobs
from tests.models.networks import network
from tests.scripted import CHAT

WORLDS = ["sokoban", "frozen_lake", "sudoku"]
ROOM = "######\n#__O_#\n#PX__#\n###__#\n######\n######"


@pytest.fixture(scope="module")
def policies() -> dict[str, tuple]:
    """Config, policy and one short probe of each world."""
    out = {}
    for name in WORLDS:
        cfg = load_config(name, ["model.threads=1"])
        policy = Policy.load(cfg)
        metrics, episodes = probe_world_model(cfg, policy, state_format="coordinates", worlds=4, seed=3)
        out[name] = (cfg, policy, metrics, episodes)
    return out


def test_scores_equal_a_naive_loop() -> None:
    model = network()
    rows = [Chosen([3, 1, 4, 1, 5, 9, 2, 6], [1, 4, 7]), Chosen([2, 7, 1], [2]), Chosen([8, 2, 8, 1, 8], [])]
    model.train()
    for budget in (4, 8192):
        scored = sum_logprobs(model, rows, budget)
        for (ids, positions), score in zip(rows, scored, strict=True):
            with torch.no_grad():
                logprobs = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], -1)
            expected = sum(float(logprobs[p - 1, ids[p]]) for p in positions)
            assert score == pytest.approx(expected, abs=1e-5)
    assert model.training
    for positions in ([0], [3]):
        with pytest.raises(ValueError, match="after the first"):
            sum_logprobs(model, [Chosen([1, 2, 3], positions)])


def corrupted(env: TextEnv, turn: Turn, rng: np.random.Generator, noise_seed: int = 0) -> list[tuple[str, str]]:
    return calibration.corruptions(CheckedEnv(lambda: env), turn.state, turn.executed, turn.next_state, rng, noise_seed)


def judged(chat: Chat, case: calibration.Case, state: str) -> tuple[list[int], list[int]]:
    return chat.continuations(case.context, case.prefix, [f"{state}</prediction>"])[0]


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
@settings(max_examples=20)
@given(seed=st.integers(0, 10**5))
def test_corruptions_are_false_different_and_consistent(name: str, seed: int) -> None:
    found = turn_of(name, seed)
    if found is None:
        return
    env, turn = found
    others = corrupted(env, turn, np.random.default_rng(seed))
    states = [state for _, state in others]
    assert ("stay", turn.state) in others
    assert len({state.strip() for state in states}) == len(states)
    assert not any(exact(state, turn.next_state) for state in states)
    # Legal, with coordinates that agree with the grid.
    assert all(env.legal(state) and "\n" in state.strip() for state in states)
    assert all(env.legal(state, turn.state) for kind, state in others if kind != "swap")
    assert sum(kind == "swap" for kind, _ in others) == calibration.SWAPS
    assert others == corrupted(make_env(name, state_format="coordinates"), turn, np.random.default_rng(seed))


def test_a_corruption_keeps_walls_and_targets_where_it_can() -> None:
    env = make_env("sokoban", state_format="grid")
    after = ROOM.replace("PX_", "_PX")
    for state in islice(changes(env, after, ROOM, np.random.default_rng(0)), 5):
        assert env.legal(state, ROOM)
    # No other place for a policy who fell into a hole leaves the lake as it was.
    lake = make_env("frozen_lake", size=2)
    made = list(changes(lake, "_X\n_G", "PO\n_G", np.random.default_rng(0)))
    assert made
    assert all(lake.legal(state) and not lake.legal(state, "PO\n_G") for state in made)


def test_wrong_coordinates_are_made_up_as_in_the_episode() -> None:
    env = make_env("sokoban", state_format="random_coordinates")
    before, _ = env.reset(seed=4, options={"noise_seed": 9})
    reached = set()
    for action in env.actions:
        env.reset(seed=4, options={"noise_seed": 9})
        reached.add(env.step(action)[0])
    turn = Turn(0, before, "", "", "elsewhere", executed=["Up"])
    assert dict(corrupted(env, turn, np.random.default_rng(0), 9))["other_move"] in reached


def test_a_world_that_ignores_the_state_has_no_other_move() -> None:
    class Door(TextEnv):
        actions = ("open", "close")

        def reset(self, *, seed=None, options=None):
            self.state = "a closed door"
            return self.state, {}

        def step(self, action):
            self.state = f"a door after {action}"
            return self.state, 0.0, False, False, {"success": False}

        def render(self) -> str:
            return self.state

    rng = np.random.default_rng(0)
    there = Turn(0, "a closed door", "", "", "a door after open", executed=["open"])
    elsewhere = Turn(0, "a wide gate", "", "", "a door after open", executed=["open"])
    assert ("other_move", "a door after close") in corrupted(Door(), there, rng)
    assert "other_move" not in dict(corrupted(Door(), elsewhere, rng))


def test_of_a_large_state_some_cells_are_edited() -> None:
    """Pairs of all cells of 100 x 100 would take gigabytes."""
    grid = "\n".join("".join("_#"[(r + c) % 3 > 1] for c in range(100)) for r in range(100))
    tracemalloc.start()
    made = list(islice(changes(TextEnv(), grid, grid, np.random.default_rng(0)), 3))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(made)) == 3 and most < 300 * 2**20


def test_free_text_swaps_words_and_a_world_without_states_has_no_other_move() -> None:
    class Words(TextEnv):
        actions = ("go",)

        def render(self) -> str:
            return ""

        def reset(self, *, seed=None, options=None):
            raise ValueError("takes no state")

    rng = np.random.default_rng(0)
    made = list(changes(Words(), "a red\ndoor", "a wall", rng))
    assert sorted(made) == ["a door\nred", "door red\na", "red a\ndoor"]  # white space stays where it is
    assert list(changes(Words(), "door", "a wall", rng)) == []
    assert list(changes(Words(), "    @\nexit", "a wall", rng)) == ["    exit\n@"]  # at its ends, too
    turn = Turn(0, "a wall", "", "", "a red door", executed=["go"])
    assert {kind for kind, _ in corrupted(Words(), turn, rng)} == {"stay", "swap"}


@pytest.mark.slow
def test_cases_put_the_truth_into_the_models_own_turn(policies) -> None:
    cfg, policy, _, episodes = policies["sokoban"]
    task = make_task(cfg, state_format="coordinates", prompt="world_model")
    found = cases(task.make_env, episodes, 0)
    changed = [t for e in episodes for t in e.turns if t.prediction is not None and not exact(t.next_state, t.state)]
    assert len(found) == len(changed) > 0
    for case, turn in zip(found, changed, strict=True):
        assert dict(case.candidates[:1]) == {"truth": turn.next_state}
        assert f"<observation>{turn.state}</observation>" in case.prefix
        assert case.prefix.endswith("<prediction>")
        assert turn.user in policy.tokenizer.decode(case.context)
        ids, positions = judged(policy.chat, case, turn.next_state)
        assert policy.tokenizer.decode([ids[p] for p in positions]) == turn.next_state + "</prediction>"


def test_what_the_model_wrote_itself_scores_as_when_it_was_sampled(policies) -> None:
    cfg, policy, _, episodes = policies["sokoban"]
    task = make_task(cfg, state_format="coordinates", prompt="world_model")
    sampled = [sequence for episode in episodes for sequence in episode.sequences]
    written = [t.prediction for e in episodes for t in e.turns if t.prediction is not None and t.state != t.next_state]
    compared = 0
    for case, prediction in zip(cases(task.make_env, episodes, 0), written, strict=True):
        ids, positions = judged(policy.chat, case, prediction)
        # Where the observation was right, these are the very tokens that were sampled.
        for sequence in sampled:
            if sequence.ids[: len(ids)] == ids:
                expected = sum(sequence.logprobs[position] for position in positions)
                assert sum_logprobs(policy.model, [Chosen(ids, positions)])[0] == pytest.approx(expected, abs=1e-3)
                compared += 1
    assert compared >= 3


@pytest.mark.parametrize("favour, top1", [("truth", 1.0), ("stay", 0.0)])
def test_a_model_that_knows_and_one_that_copies(policies, monkeypatch, favour: str, top1: float) -> None:
    cfg, policy, _, episodes = policies["sokoban"]
    task = make_task(cfg, state_format="coordinates", prompt="world_model")
    found = cases(task.make_env, episodes, 0)
    good = [list(judged(policy.chat, case, dict(case.candidates)[favour])) for case in found]

    def score(model, rows):
        return [-1.0 if list(row) in good else -9.0 for row in rows]

    monkeypatch.setattr("spa.models.score.sum_logprobs", score)
    metrics = calibration_metrics(None, policy.chat, task.make_env, episodes, seed=0)
    assert metrics["calibration/beats_stay"] == (1.0 if favour == "truth" else 0.0)
    assert metrics["calibration/top1"] == top1
    if favour == "truth":
        assert metrics["calibration/margin"] == 8.0
        assert metrics["calibration/rank"] == metrics["calibration/top1_per_token"] == 1.0
        assert metrics["calibration/nll_per_token"] == pytest.approx(np.mean([1 / len(at) for _, at in good]))
        assert metrics["calibration/chance"] == pytest.approx(np.mean([1 / len(case.candidates) for case in found]))


def test_a_truth_that_is_neither_the_likeliest_nor_the_least(monkeypatch) -> None:
    """As likely as one rival, less likely than another: it comes after both."""
    candidates = [("truth", "a"), ("stay", "b"), ("swap", "c"), ("swap", "d")]
    monkeypatch.setattr(calibration, "cases", lambda *_: [calibration.Case([1, 2], "<think>", candidates, 1, 1)])
    monkeypatch.setattr("spa.models.score.sum_logprobs", lambda model, rows: [-2.0, -2.0, -1.0, -9.0])
    metrics = calibration_metrics(None, CHAT, make_env, [])
    shown = {name: metrics[f"calibration/{name}"] for name in ("top1", "rank", "chance", "margin", "beats_stay")}
    assert shown == {"top1": 0.0, "rank": 3.0, "chance": 0.25, "margin": -1.0, "beats_stay": 0.0}


def test_parts_by_turn_and_actions_add_up(policies) -> None:
    cfg, _, metrics, episodes = policies["sokoban"]
    task = make_task(cfg, state_format="coordinates", prompt="world_model")
    found = cases(task.make_env, episodes, 3)
    for part, key in (("turn", "turn"), ("actions", "actions")):
        groups = Counter(getattr(case, key) for case in found)
        for metric in ("top1", "margin", "nll_per_token"):
            mean = sum(count * metrics[f"calibration/{part}_{i}/{metric}"] for i, count in groups.items()) / len(found)
            assert mean == pytest.approx(metrics[f"calibration/{metric}"])


def test_no_case_is_no_division(policies) -> None:
    _, policy, _, _ = policies["sokoban"]
    failed = Episode("Tag", 0, 0, status="error")
    unchanged = Episode("Tag", 0, 0, turns=[Turn(0, "a b", "", "<think>", "a b", prediction="a b")])
    metrics = calibration_metrics(policy.model, policy.chat, lambda: make_env("sokoban"), [failed, unchanged])
    assert metrics == {"calibration/cases": 0}


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity(policies) -> None:
    cfg, policy, _, _ = policies["frozen_lake"]
    model = network(vocab_size=len(policy.tokenizer))
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    task = make_task(cfg)
    states = sample_states(task, WorldSource(task, "val", cfg.seeds.val).take(3), seed=0)
    for context in ("bare", "prompt"):
        scored = state_perplexity(model, policy.chat, task, states, context=context)
        assert scored.perplexity == pytest.approx(len(policy.tokenizer), rel=1e-4)
        characters = sum(len(state) for state in states) - (len(states) if context == "bare" else 0)
        tokens = scored.tokens_per_state * len(states)
        assert scored.bits_per_char == pytest.approx(math.log2(len(policy.tokenizer)) * tokens / characters, rel=1e-3)


@pytest.mark.parametrize("style", ["terse", "paper"])
def test_in_the_prompt_exactly_the_state_is_scored(policies, monkeypatch, style: str) -> None:
    cfg, policy, _, _ = policies["sokoban"]
    cfg.agent.style, before = style, cfg.agent.style
    task = make_task(cfg, state_format="coordinates")
    cfg.agent.style = before
    states = sample_states(task, WorldSource(task, "val", cfg.seeds.val).take(2), seed=0)
    seen = []

    def score(model, rows):
        seen.extend(policy.tokenizer.decode([ids[p] for p in positions]) for ids, positions in rows)
        return [-1.0 * len(positions) for _, positions in rows]

    monkeypatch.setattr("spa.models.score.sum_logprobs", score)
    state_perplexity(None, policy.chat, task, states, context="prompt")
    assert seen == states


@pytest.mark.parametrize("style", ["paper", "terse"])
def test_a_state_is_scored_where_the_prompt_shows_it(policies, style: str) -> None:
    """A state such as 1 also stands in "Turn 1"."""
    _, policy, _, _ = policies["sokoban"]
    task = make_task(load_config("sokoban", [f"agent.style={style}"]))
    ids, positions, _ = _prompted(policy.chat, task, task.header(task.make_env()), "1")
    before = policy.tokenizer.decode(ids[: positions[0]])
    assert before.endswith("State:\n") if style == "paper" else "Turn" not in before
    assert "1" in policy.tokenizer.decode([ids[at] for at in positions])


def test_a_template_that_strips_is_no_obstacle_and_one_that_rewrites_is(policies) -> None:
    cfg, policy, _, _ = policies["sokoban"]
    cfg = load_config("sokoban", ["agent.style=paper"])
    task = make_task(cfg, state_format="coordinates")
    states = sample_states(task, WorldSource(task, "val", cfg.seeds.val).take(1), seed=0)
    tokenizer = copy.deepcopy(policy.tokenizer)
    plain = tokenizer.chat_template
    found = []
    for content in ("message.content", "message.content | trim"):
        tokenizer.chat_template = plain.replace("message.content", content)
        _, positions, length = _prompted(Chat(tokenizer), task, task.header(task.make_env()), states[0])
        found.append((len(positions), length))
    assert found[0] == found[1]
    tokenizer.chat_template = plain.replace("message.content", "message.content | replace('#', '*')")
    with pytest.raises(ValueError, match="changes the user's text"):
        state_perplexity(policy.model, Chat(tokenizer), task, states, context="prompt")


def test_a_world_without_random_moves_shows_its_first_states() -> None:
    class Words(TextEnv):
        def reset(self, *, seed=None, options=None):
            return f"a door {seed}", {}

        def render(self) -> str:
            return ""

    worlds = [SimpleNamespace(seed=seed) for seed in (1, 2)]
    task = SimpleNamespace(make_env=lambda: CheckedEnv(Words), env=EnvConfig())
    assert sample_states(task, worlds, seed=0) == ["a door 1", "a door 2"]  # type: ignore[arg-type]
    turn = Turn(0, "a door 0", "", "", "an open door", executed=["push the door"])
    assert "other_move" not in dict(corrupted(Words(), turn, np.random.default_rng(0)))


def test_states_are_those_of_play_and_repeat(policies) -> None:
    cfg, _, _, _ = policies["sokoban"]
    task = make_task(cfg)
    worlds = WorldSource(task, "val", cfg.seeds.val).take(3)
    states = sample_states(task, worlds, seed=1, moves=4)
    assert len(states) == 15  # no room is solved by four random moves here
    assert states == sample_states(task, worlds, seed=1, moves=4)
    assert states[0] == task.make_env().reset(seed=worlds[0].seed)[0]


def test_states_without_a_token_to_score_are_left_out(policies) -> None:
    """Without a begin-of-text token a state's first token has no context."""
    cfg, policy, _, _ = policies["frozen_lake"]

    def of(*states: str, context: str = "bare") -> StatePerplexity:
        return state_perplexity(policy.model, policy.chat, make_task(cfg), states, context=context)

    with pytest.raises(NothingToScore):
        of("P", "")
    assert of("P", "P_O", "") == of("P_O")
    assert of("P", context="prompt").states == 1


def test_random_guess(policies) -> None:
    assert [random_guess(make_task(policies[name][0]), 512) for name in WORLDS] == [7.0, 6.0, 5.0]
    stub = SimpleNamespace(make_env=lambda: SimpleNamespace(num_cell_values=None))
    assert random_guess(stub, 512) == 512.0  # type: ignore[arg-type]


def test_bad_input(policies) -> None:
    cfg, policy, _, _ = policies["sokoban"]
    with pytest.raises(ValueError, match="unknown context 'nowhere'"):
        state_perplexity(policy.model, policy.chat, make_task(cfg), ["x"], context="nowhere")
    with pytest.raises(ValueError, match="no states"):
        state_perplexity(policy.model, policy.chat, make_task(cfg), [])


@pytest.mark.slow
def test_the_probe_measures_everything_and_leaves_no_trace(policies) -> None:
    for name in WORLDS:
        cfg, policy, metrics, episodes = policies[name]
        assert metrics["world_model/observation_em"] > 0.8
        assert 0 <= metrics["world_model/prediction_legal"] <= 1
        assert metrics["world_model/observation_legal"] >= metrics["world_model/observation_em"]
        assert {"calibration/top1", "perplexity/grid", "perplexity/coordinates"} <= set(metrics)
        assert len(episodes) == 4
        policy.model.train()
        torch.manual_seed(5)
        state = torch.random.get_rng_state()
        again, _ = probe_world_model(cfg, policy, state_format="coordinates", worlds=4, seed=3)
        assert again == metrics
        assert torch.equal(state, torch.random.get_rng_state())
        assert policy.model.training


def test_without_a_model_only_what_was_written_is_measured(policies) -> None:
    cfg, policy, metrics, _ = policies["frozen_lake"]
    alone = Policy(None, policy.tokenizer, policy.chat, policy.engine, policy.sampling)
    written, _ = probe_world_model(cfg, alone, state_format="coordinates", worlds=4, seed=3)
    assert written == {name: value for name, value in metrics.items() if name.startswith("world_model/")}


def test_legality_by_turn_and_actions() -> None:
    env = make_env("sokoban", state_format="grid")
    room = ROOM
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
    assert "scored tokens per state" in printed
    data = json.loads(out.read_text())
    assert list(data) == ["frozen_lake", "sudoku"]
    assert data["sudoku"]["random_guess"] == 5
    assert f"{data['sudoku']['prompt/coordinates']['perplexity']:.1f}" in printed
    for arguments, message in (
        (["sokobann"], "Did you mean 'sokoban'"),
        (["sokoban", "extra"], "settings are written key=value, not 'extra'"),
        (["sokoban", "--model", "nowhere/global_step_1"], "no model folder"),
    ):
        assert main(["perplexity", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_perplexity_takes_a_stages_folder(tmp_path, capsys) -> None:
    (tmp_path / "last").symlink_to(resolve_path("builtin:tiny"))
    (tmp_path / "done.json").write_text(json.dumps({"model": "last", "seconds": 1}))
    assert main(["perplexity", "frozen_lake", "--worlds", "2", "--model", str(tmp_path), "model.threads=1"]) == 0
    assert f"States under {tmp_path / 'last'}" in capsys.readouterr().out
