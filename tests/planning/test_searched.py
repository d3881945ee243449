"""How often a search was told what the world does, by a world that is set to its states."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from spa.agent.episode import Episode
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import PlannerConfig
from spa.evaluate.planned import evaluate_planner
from spa.evaluate.search_accuracy import Searched
from spa.planning.play import play_with_planner
from spa.planning.search import Imagined, Move
from spa.planning.world_model import Headers, WorldModel
from tests.planning.tools import TrueEngine, oracle, player_of, seen, start_of, true_moves
from tests.scripted import lake_task, tiny_config

TASK = lake_task(1)
WORLDS = [World(seed, f"w{seed}") for seed in range(8)]


def test_the_answers_to_a_search_are_compared_with_the_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = tiny_config()
    cfg.agent.planner, cfg.eval.world_model_worlds = "lookahead", 0
    result = evaluate_planner(cfg, "a", player_of(TrueEngine(TASK)), TASK, WORLDS, tmp_path)
    assert result.metrics["planner/questions_exact"] == result.metrics["planner/questions_possible"] == 1.0
    assert "are the world's" not in "".join(capsys.readouterr())
    cfg.planner.samples = 2
    result = evaluate_planner(cfg, "a", player_of(TrueEngine(TASK)), TASK, WORLDS, tmp_path / "b")
    assert "planner/questions_exact" not in result.metrics, "chance may be the reason"


def test_a_planner_whose_search_is_told_untruths_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = tiny_config()
    cfg.agent.planner, cfg.eval.world_model_worlds = "lookahead", 0
    monkeypatch.setattr(Searched, "metrics", lambda *_: {"planner/questions_exact": 0.5})
    evaluate_planner(cfg, "a", player_of(TrueEngine(TASK)), TASK, WORLDS, tmp_path)
    assert "of the answers to its search 50% are the world's" in "".join(capsys.readouterr())


def test_questions_about_worlds_with_other_headers_are_left_out() -> None:
    model = WorldModel(player_of(TrueEngine(TASK)), TASK)
    move = Move(start_of(TASK, WORLDS[0]), "Left")
    model.ask([move], [Headers("other rules", "other rules")])
    assert model.answered() == {}
    (answer,) = model.ask([move])
    assert model.answered() == {move: answer}


class Told(WorldModel):
    """Has answered what it is given."""

    def __init__(self, answers: dict[Move, Imagined]) -> None:
        self.answers = {move: (one,) for move, one in answers.items()}

    def answered(self) -> dict[Move, tuple[Imagined, ...]]:
        return self.answers


def shares_of(
    answers: dict[Move, Imagined], task: Task = TASK, episodes: Sequence[Episode] = (), least: float = 0.2
) -> dict[str, float]:
    searched = Searched(Told(answers), 0)
    searched.add()
    found = searched.metrics(player_of(TrueEngine(TASK)), task, episodes, PlannerConfig(min_probability=least))
    return {name.removeprefix("planner/questions_"): value for name, value in found.items()}


def test_shares_of_a_search_count_what_is_wrong_impossible_and_disbelieved() -> None:
    look = true_moves(TASK)
    moves = [Move(start_of(TASK, world), action) for world in WORLDS for action in ("Left", "Right", "Up", "Down")]
    truth = {move: seen(*look(move)) for move in moves}
    assert shares_of(truth) == {"possible": 1.0, "exact": 1.0}
    first, second, third, fourth = moves[:4]
    wrong = truth | {first: seen("nonsense"), second: dataclasses.replace(truth[second], reward=7.0)}
    wrong |= {third: dataclasses.replace(truth[third], ended=not truth[third].ended)}
    assert shares_of(wrong) == {"possible": 1.0, "exact": pytest.approx(1 - 3 / len(moves))}
    doubted = {move: dataclasses.replace(one, probability=0.1) for move, one in wrong.items() if move in moves[:3]}
    assert shares_of(truth | doubted) == {"possible": 1.0, "exact": 1.0}, "a planner drops them"
    nowhere = {Move("nowhere", "Left"): seen("nonsense")}
    assert shares_of({fourth: truth[fourth]} | nowhere) == {"possible": 0.5, "exact": 1.0}
    assert shares_of(nowhere) == {"possible": 0.0}
    assert shares_of(doubted) == shares_of({}) == {}
    assert shares_of(doubted, least=0.0) == {"possible": 1.0, "exact": 0.0}


def test_a_world_that_plays_otherwise_once_set_to_a_state_measures_nothing() -> None:
    start = start_of(TASK, WORLDS[0])
    move = Move(start, "Left")
    truth = {move: seen(*true_moves(TASK)(move))}
    episodes = play_with_planner(oracle(TASK), TASK, WORLDS[:2], "lookahead", PlannerConfig(), seed=0)
    assert shares_of(truth, episodes=episodes) == {"possible": 1.0, "exact": 1.0}
    turn = episodes[0].turns[0]
    other = dataclasses.replace(turn, rewards=[reward + 1 for reward in turn.rewards])
    assert shares_of(truth, episodes=[dataclasses.replace(episodes[0], turns=[other])]) == {}
    unsettable = dataclasses.replace(TASK, env=dataclasses.replace(TASK.env, id="tests.planning.test_simulator:Strict"))
    assert shares_of(truth, task=unsettable) == {}
