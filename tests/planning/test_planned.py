"""How far imagination is trusted: right where it is right, wrong by as much as it is wrong; a planner's result beside it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.agent.episode import Episode, Turn, read_episodes
from spa.agent.policy import make_task
from spa.agent.worlds import World, WorldSource
from spa.config.schema import PlannerConfig
from spa.data.transitions import RESPONSE_FORMATS
from spa.evaluate import planned
from spa.evaluate.planned import (
    area_under_curve,
    chance_decides,
    evaluate_planner,
    expected_wins,
    imagination_metrics,
    oscillates,
    planning_model,
)
from spa.evaluate.summary import EvalResult
from spa.planning.play import play_with_planner
from spa.planning.search import Imagined, Move
from spa.planning.world_model import Headers, WorldModel
from tests.planning.tools import Asked, TrueEngine, depths, oracle, player_of, seen, shortest, start_of, true_moves
from tests.scripted import CHAT, lake_task, tiny_config, tiny_policy

TASK = lake_task(1)
WORLDS = [World(seed, f"w{seed}") for seed in range(8)]
DEPTH = 4
SHARES = ("exact", "legal", "reward", "ended")


def measure(model: Asked | WorldModel, depth: int = DEPTH, **kwargs: int) -> dict[str, dict[str, float]]:
    """Metrics by depth and name."""
    found: dict[str, dict[str, float]] = {}
    for name, value in imagination_metrics(model, TASK, WORLDS, depth=depth, seed=5, **kwargs).items():  # type: ignore[arg-type]
        prefix, level, metric = name.split("/")
        assert prefix == "imagination"
        found.setdefault(level, {})[metric] = value
    return found


@pytest.mark.parametrize("sure", [1.0, 0.9])
def test_who_imagines_the_truth_is_right_at_every_depth(sure: float) -> None:
    found = measure(WorldModel(player_of(TrueEngine(TASK, sure=sure)), TASK))
    assert list(found) == [f"depth_{number}" for number in range(1, DEPTH + 1)]
    for metrics in found.values():
        assert [metrics[name] for name in SHARES] == [1.0] * 4
        assert metrics.get("ended_auc", 1.0) == 1.0, "absent where no walk ended"
        assert metrics["believed"] == pytest.approx(sure**2)
    assert "ended_auc" in found["depth_1"]
    walks = [metrics["walks"] for metrics in found.values()]
    assert walks[0] == 4 * len(WORLDS)
    assert walks == sorted(walks, reverse=True) and walks[-1] < walks[0], "some walks end"


def test_an_answer_that_was_not_given_is_never_right() -> None:
    """What stands in for it is the old state, which a blocked move does not change."""

    found = measure(Asked(lambda move: (Imagined(move.state, 0.0, False, 0.0),), TASK.make_env().actions))["depth_1"]
    assert [found.get(name, 0.0) for name in SHARES] == [0.0] * 4 and found["walks"] == 4 * len(WORLDS)


def test_walks_are_those_of_the_true_world() -> None:
    """Each begins in the start of a world and goes on for as long as that does."""
    model = oracle(TASK)
    found = measure(model, walks=3)
    states = [start_of(TASK, world) for world in WORLDS for _ in range(3)]
    look = true_moves(TASK)
    for number, call in enumerate(model.calls):
        assert [move.state for move in call] == states
        assert found[f"depth_{number + 1}"]["walks"] == len(call)
        states = [true.state for true in map(look, call) if not true.ended]
    assert len(model.calls) == DEPTH
    assert len({move.action for move in model.calls[0]}) == 4
    again = oracle(TASK)
    measure(again, walks=3)
    assert again.calls == model.calls


def wrong(error: Imagined) -> Asked:
    """Errs in every move to the left, and in no other."""
    truth = oracle(TASK)
    return Asked(lambda move: (error,) if move.action == "Left" else truth.answer(move), truth.actions)


def test_a_known_error_costs_its_share() -> None:
    errors = wrong(seen("nonsense", 7.0, True, 0.5))
    first = measure(errors, depth=1)["depth_1"]
    asked = errors.calls[0]
    left = [move for move in asked if move.action == "Left"]
    share = len(left) / len(asked)
    ended = sum(true_moves(TASK)(move).ended for move in left) / len(asked)
    assert 0 < share < 1
    assert first["exact"] == first["legal"] == first["reward"] == pytest.approx(1 - share)
    assert first["ended"] == pytest.approx(1 - share + ended)
    assert first["believed"] == pytest.approx(1 - share / 2)
    assert first["ended_auc"] < 1


def test_errors_are_gone_on_from() -> None:
    """One error in the first move: all that follows is imagined from it, and is wrong with it."""
    truth = oracle(TASK)
    elsewhere = start_of(TASK, World(77, "w"))
    starts = {start_of(TASK, world) for world in WORLDS}
    model = Asked(lambda move: (seen(elsewhere),) if move.state in starts else truth.answer(move), truth.actions)
    found = measure(model, depth=2)
    assert found["depth_1"]["exact"] == found["depth_2"]["exact"] == 0
    assert {move.state for move in model.calls[1]} == {elsewhere}
    assert found["depth_1"]["legal"] == 0, "another lake's state is no state of this one"


def test_what_is_imagined_ends_with_an_imagined_end() -> None:
    """A model that takes every move for the last is right about states, once."""
    truth = oracle(TASK)
    found = measure(
        Asked(lambda move: tuple(dataclasses.replace(one, ended=True) for one in truth.answer(move)), truth.actions),
        depth=2,
    )
    assert found["depth_1"]["exact"] == 1 > found["depth_2"]["exact"] == 0


def test_what_cannot_be_read_predicts_neither_reward_nor_end() -> None:
    unreadable = Asked(lambda move: (Imagined(move.state, 0.0, False, 0.0),), TASK.make_env().actions)
    found = measure(unreadable)["depth_1"]
    assert (found["reward"], found["ended"], found["believed"]) == (0, 0, 0)


def test_a_state_may_be_legal_and_yet_not_be_the_true_one() -> None:
    """A model that never moves: right where a move does nothing, and legal everywhere."""
    still = Asked(lambda move: (seen(move.state),), TASK.make_env().actions)
    found = measure(still)["depth_1"]
    look = true_moves(TASK)
    assert found["legal"] == 1.0
    assert found["exact"] == sum(look(move).state == move.state for move in still.calls[0]) / len(still.calls[0])
    assert 0 < found["exact"] < 1
    assert found["ended_auc"] == 0.5


def test_an_answer_that_broke_off_is_wrong_and_not_gone_on_from() -> None:
    errors = wrong(seen("", probability=0.0))
    found = measure(errors)
    first, second = errors.calls[:2]
    kept = [move for move in first if move.action != "Left"]
    assert found["depth_1"]["exact"] == len(kept) / len(first) < 1
    assert 0 < len(second) == sum(not true_moves(TASK)(move).ended for move in kept)
    assert all(move.state for move in second)


class Scored(Asked):
    """Finds a state the likelier the better ``liking`` says."""

    has_weights = True

    def __init__(self, liking: Callable[[Move, str], float]) -> None:
        truth = oracle(TASK)
        super().__init__(truth.answer, truth.actions)
        self.liking = liking
        self.scored: list[tuple[Move, str]] = []

    def log_probs(self, asked: Sequence[tuple[Move, str]], headers: Sequence[Headers] = ()) -> list[float]:
        self.scored += asked
        return [self.liking(*one) for one in asked]


def test_the_truth_is_judged_beside_its_corruptions_at_every_depth() -> None:
    look = true_moves(TASK)
    knows = Scored(lambda move, state: float(state == look(move).state))
    found = measure(knows)
    assert [metrics["top1"] for metrics in found.values()] == [1.0] * DEPTH
    assert all(0.1 < metrics["chance"] < 0.5 for metrics in found.values())
    assert all(look(move).state != move.state for move, _ in knows.scored), "where nothing changes nothing is judged"
    copies = measure(Scored(lambda move, state: float(state == move.state)))
    assert [metrics["top1"] for metrics in copies.values()] == [0.0] * DEPTH
    assert "top1" not in measure(oracle(TASK))["depth_1"]


def test_a_truth_as_likely_as_a_corruption_is_not_the_likeliest() -> None:
    assert [metrics["top1"] for metrics in measure(Scored(lambda move, state: 0.0)).values()] == [0.0] * DEPTH


@pytest.mark.parametrize("style", ["terse", "paper"])
def test_weights_score_a_state_by_its_tokens_after_the_question(style: str) -> None:
    task, policy = lake_task(1, style), tiny_policy()
    moves = [(Move(start_of(task, world), "Up"), start_of(task, WORLDS[5])) for world in WORLDS[:3]]
    found = WorldModel(policy, task).log_probs(moves)
    form = RESPONSE_FORMATS[style]
    told = dataclasses.replace(task, agent=dataclasses.replace(task.agent, prompt="world_model"))
    for (move, state), score in zip(moves, found, strict=True):
        env = task.make_env()
        env.reset(seed=0)
        opening = CHAT.opening(told.system, told.header(env) + told.turn_text(1, move.state, told.env.max_actions))
        context = [*opening, *CHAT.response_ids(form.question(*move))]
        ids = [*opening, *CHAT.response_ids(form.question(*move) + state + form.after_state)]
        logits = policy.model(torch.tensor([ids])).logits[0].detach().log_softmax(-1)
        expected = sum(float(logits[i - 1, ids[i]]) for i in range(len(context), len(ids)))
        assert ids[: len(context)] == context
        assert score == pytest.approx(expected, abs=1e-3)
    with pytest.raises(ValueError, match="engine=transformers"):
        WorldModel(player_of(TrueEngine(TASK)), TASK).log_probs(moves)
    one, other = WorldModel(policy, task).log_probs([moves[0]] * 2, [Headers(), Headers("", "Other rules. ")])
    assert one != pytest.approx(other, abs=1e-3), "each in the words of its world"


SCORES = st.lists(st.tuples(st.sampled_from([-1.0, -0.7, -0.2, 0.0, 0.2, 0.7, 1.0]), st.booleans()), max_size=12)


@settings(max_examples=60)
@given(SCORES)
def test_the_area_under_the_curve_is_the_share_of_pairs_in_order(scores: list[tuple[float, bool]]) -> None:
    pairs = [(a, b) for a, ended in scores if ended for b, other in scores if not other]
    if not pairs:
        assert area_under_curve(scores) is None
        return
    in_order = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert area_under_curve(scores) == pytest.approx(in_order)


def test_a_planner_is_played_on_every_world_and_its_cost_is_told(tmp_path: Path) -> None:
    cfg = tiny_config()
    cfg = dataclasses.replace(
        cfg,
        agent=dataclasses.replace(cfg.agent, planner="lookahead"),
        planner=PlannerConfig(depth=5),
        eval=dataclasses.replace(cfg.eval, world_model_worlds=2, bootstrap=50),
    )
    worlds = WorldSource(TASK, "test", 0, unique=True).take(12)
    engine = TrueEngine(TASK)
    result = evaluate_planner(cfg, "plan", player_of(engine, max_tokens=40), TASK, worlds, tmp_path)
    within = [shortest(TASK, depths(TASK, start))[start][0] <= 5 for start in (start_of(TASK, w) for w in worlds)]
    episodes = list(read_episodes(tmp_path / "planner_episodes.jsonl"))
    assert [episode.group for episode in episodes] == list(range(12))
    assert [episode.content for episode in episodes] == [world.content for world in worlds]
    assert all(episode.success for episode, near in zip(episodes, within, strict=True) if near)
    assert sum(within) >= 8
    assert result.name == "plan+lookahead"
    assert result.metrics["pass@1"] == sum(episode.success for episode in episodes) / 12
    assert EvalResult.read(tmp_path / "planner.json") == result
    assert json.loads((tmp_path / "planner.json").read_text())
    asked = sum(turn.imagined["questions"] for episode in episodes for turn in episode.turns)
    assert 0 < result.metrics["planner/questions"] <= asked / 12, "what a cache or an episode knows is not asked again"
    assert result.metrics["planner/tokens_written"] > result.metrics["planner/questions"] > 0
    assert result.metrics["planner/tokens_read"] > result.metrics["planner/questions"]
    assert {value for name, value in result.world_model.items() if name.endswith("/exact")} == {1.0}
    assert sum(name.endswith("/exact") for name in result.world_model) == 5


@pytest.mark.parametrize("actions", [1, 3])
def test_wins_that_were_only_imagined_are_told_from_true_ones(actions: int) -> None:
    task = dataclasses.replace(TASK, env=dataclasses.replace(TASK.env, max_actions_per_turn=actions))
    truth, starts = oracle(task), {start_of(task, world) for world in WORLDS}
    false = seen("nowhere", 1.0, True)
    model = Asked(
        lambda move: (false,) if move.state in starts and move.action == "Left" else truth.answer(move), truth.actions
    )
    episodes = play_with_planner(model, task, WORLDS, "lookahead", PlannerConfig(), seed=0)
    wins = expected_wins(episodes)
    assert wins.count(True) == sum(episode.success for episode in episodes) >= 4
    look = true_moves(task)
    lies = sum(not look(Move(start_of(task, world), "Left")).reward for world in WORLDS)
    assert wins.count(False) == lies >= 4, "each start promises one, which its episode does not believe twice"
    assert expected_wins(play_with_planner(truth, task, WORLDS, "lookahead", PlannerConfig(), seed=0)).count(False) == 0


@pytest.mark.parametrize(
    ("expected", "rewards", "ended", "wins"),
    [
        ([(0.0, False), (1.0, True)], [0.0, 1.0], True, [True]),
        ([(0.0, False), (1.0, True)], [0.0, 0.0], False, [False]),
        ([(0.0, False), (1.0, True)], [0.0, 0.0], True, [False]),
        ([(0.0, False), (1.0, True)], [0.0], False, []),  # the turn played one move of the plan
        ([(1.0, True), (0.0, False)], [1.0, 1.0], True, [False]),  # the end came a move later
        ([(1.0, False)], [1.0], True, []),
        ([(-1.0, True)], [-1.0], True, []),
        ([], [1.0], True, []),
    ],
)
def test_what_counts_as_an_expected_win(
    expected: list[tuple[float, bool]], rewards: list[float], ended: bool, wins: list[bool]
) -> None:
    path = [{"reward": reward, "ended": over} for reward, over in expected]
    turn = Turn(0, "", "", "", rewards=rewards, ended=ended, imagined={"path": path} if path else {})
    episode = play_with_planner(oracle(TASK), TASK, WORLDS[:1], "lookahead", PlannerConfig(), seed=0)[0]
    assert expected_wins([dataclasses.replace(episode, turns=[turn])]) == wins


@pytest.mark.parametrize(
    ("states", "expected"), [("abcbcbc", True), ("abbbb", True), ("bbbbb", True), ("abcbc", False), ("bcbc", False)]
)
def test_what_counts_as_oscillating(states: str, expected: bool) -> None:
    turns = [Turn(i, state, "", "", next_state=after) for i, (state, after) in enumerate(pairwise(states))]
    assert oscillates(Episode("T", 0, 0, turns=turns)) is expected


def test_a_planner_that_expects_wins_in_vain_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = tiny_config()
    cfg.agent.planner, cfg.eval.world_model_worlds = "lookahead", 0
    result = evaluate_planner(cfg, "a", player_of(TrueEngine(TASK)), TASK, WORLDS, tmp_path)
    assert result.metrics["planner/wins_true"] == 1.0
    assert "planner/oscillating" not in result.metrics, "none was lost"
    assert result.metrics["planner/wins_expected"] == result.metrics["pass@1"] > 0
    assert "expected to win" not in "".join(capsys.readouterr())
    monkeypatch.setattr(planned, "expected_wins", lambda episodes: [True, False, False, False])
    result = evaluate_planner(cfg, "a", player_of(TrueEngine(TASK)), TASK, WORLDS, tmp_path / "b")
    assert result.metrics["planner/wins_expected"] == 4 / len(WORLDS)
    assert "a+lookahead: of 4 moves that it expected to win, 25% did. Another training" in "".join(capsys.readouterr())
    cfg.planner.model = "simulator"
    evaluate_planner(cfg, "a", player_of(TrueEngine(TASK)), TASK, WORLDS, tmp_path / "simulated")
    assert "25% did. Moves have several results: set planner.samples=8" in "".join(capsys.readouterr())
    cfg.planner.model, cfg.planner.samples = None, 2
    evaluate_planner(cfg, "a", player_of(TrueEngine(TASK)), TASK, WORLDS, tmp_path / "c")
    assert "expected to win" not in "".join(capsys.readouterr()), "chance may be the reason"


def test_what_counts_as_chance() -> None:
    def episode(*states: str) -> Episode:
        turns = [
            Turn(number, before, "", "", after, executed=["Right"], reward=0.0, rewards=[0.0])
            for number, (before, after) in enumerate(pairwise(states))
        ]
        return Episode("Lake", 7, 0, turns=turns)

    assert not chance_decides([episode("a", "b", "c"), episode("a", "b", "c")])
    assert chance_decides([episode("a", "b", "c"), episode("b", "d")])
    assert chance_decides([episode("a", "a", "b")])


def test_oscillating_is_a_share_of_the_lost_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = tiny_config()
    cfg.agent.planner, cfg.eval.world_model_worlds = "lookahead", 0
    task = dataclasses.replace(TASK, env=dataclasses.replace(TASK.env, max_actions=2))
    lost = []
    monkeypatch.setattr(planned, "oscillates", lambda episode: lost.append(episode) or len(lost) == 1)
    result = evaluate_planner(cfg, "a", player_of(TrueEngine(task)), task, WORLDS, tmp_path)
    assert 1 < len(lost) == len(WORLDS) * (1 - result.metrics["pass@1"])
    assert result.metrics["planner/oscillating"] == 1 / len(lost)


def test_the_imagination_is_not_measured_where_that_is_turned_off(tmp_path: Path) -> None:
    cfg = tiny_config()
    cfg.agent.planner, cfg.eval.world_model_worlds = "beam", 0
    result = evaluate_planner(cfg, "a", player_of(TrueEngine(TASK)), TASK, WORLDS[:2], tmp_path)
    assert (result.name, result.world_model) == ("a+beam", {})


def test_another_world_model_is_asked_about_moves_and_the_policy_for_proposals() -> None:
    cfg, policy = tiny_config(), tiny_policy()
    cfg.planner.model = "builtin:tiny"
    with planning_model(cfg, policy, make_task(cfg)) as world_model:
        assert world_model.player is policy and world_model.policy is not policy
