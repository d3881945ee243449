"""``planner.max_tokens``: a search decides before it would write more, and an interrupted one counts what it had written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spa.agent.worlds import World
from spa.config.schema import PlannerConfig
from spa.planning.journal import journaled
from spa.planning.play import play_with_planner, search_all
from spa.planning.search import PLANNERS, Choice, Move, Plan, Question, Worth
from spa.planning.world_model import Headers, WorldModel
from tests.planning.test_lookahead import tree
from tests.planning.tools import IMAGINING, MOVES, Asked, TrueEngine, of_table, player_of, start_of
from tests.scripted import lake_task, tiny_policy

TASK = lake_task(1)
WORLDS = [World(seed, "w") for seed in range(3)]
STARTS = [start_of(TASK, world) for world in WORLDS]
EACH = 10  # tokens an answer


class Wordy(Asked):
    def tokens_written(self, questions: Iterable[Question], headers: Headers) -> int:
        return EACH * len(list(questions))


def decide(kind: str, limit: int, **settings: Any) -> tuple[Asked, Plan]:
    model = Wordy(of_table(tree()).answer, "abc", lambda choice: {"a": 1.0}, lambda worth: 0.0)
    config = PlannerConfig(depth=5, simulations=200, max_tokens=limit, **settings)
    search = PLANNERS[kind]("0", model.actions, 9, 9, config, np.random.default_rng(0))
    (plan,) = search_all(model, [search], [Headers()], max_tokens=limit)  # type: ignore[arg-type]
    return model, plan


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("limit", [60, 119, 120, 121, 400])
@pytest.mark.parametrize("kind", IMAGINING)
def test_a_decision_writes_no_more_than_it_may(kind: str, limit: int, values: bool) -> None:
    model, plan = decide(kind, limit, values=values)
    written = EACH * sum(map(len, model.calls))
    spare = EACH * (kind == "mcts")  # one more proposal, for the state that was met last
    assert written <= limit + spare and limit < written + EACH * 3**3 * 2
    assert plan.path[0][0] in "abc" and plan.questions == sum(
        not isinstance(question, Choice) for call in model.calls for question in call
    )
    assert len(decide(kind, 0, values=values)[0].moves) > len(model.moves)


@pytest.mark.parametrize(("kind", "first"), [("lookahead", 3), ("beam", 3), ("mcts", 1)])
def test_the_first_moves_are_always_asked_about(kind: str, first: int) -> None:
    model, plan = decide(kind, 1)
    assert len(model.moves) == plan.questions == first and plan.values


def test_what_is_known_of_an_episode_costs_nothing() -> None:
    model = Wordy(of_table(tree()).answer, "abc")
    memory = {Move("0", action): model.answer(Move("0", action)) for action in "abc"}
    config = PlannerConfig(depth=2)
    search = PLANNERS["lookahead"]("0", "abc", 2, 2, config, np.random.default_rng(0))
    search_all(model, [search], [Headers()], [memory], max_tokens=EACH)  # type: ignore[arg-type]
    assert len(model.moves) == 9


def test_each_search_has_a_budget_of_its_own() -> None:
    model = Wordy(of_table(tree()).answer, "abc")
    roots = ["0", "0a", "0ab"]
    searches = [
        PLANNERS["lookahead"](root, "abc", 2, 2, PlannerConfig(depth=2), np.random.default_rng(0)) for root in roots
    ]
    plans = search_all(model, searches, [Headers()] * 3, max_tokens=12 * EACH)  # type: ignore[arg-type]
    assert [plan.questions for plan in plans] == [12, 12, 12]


@pytest.mark.parametrize("limit", [1, 1000])
def test_a_planner_plays_within_its_budget(limit: int) -> None:
    model = WorldModel(player_of(TrueEngine(TASK, sure=0.9)), TASK)
    config = PlannerConfig(depth=6, max_tokens=limit)
    episodes = play_with_planner(model, TASK, WORLDS, "lookahead", config, seed=0)
    asked = [turn.imagined["questions"] for episode in episodes for turn in episode.turns]
    assert (set(asked) == {4}) == (limit == 1)
    assert (model.usage.tokens_written <= 1000 * len(asked)) and max(asked) < 4**3


def test_tokens_are_those_of_the_answers(tmp_path: Path) -> None:
    """Whoever asked, in this process or before it was interrupted."""
    asked = [Move(state, action) for state in STARTS for action in MOVES]
    models = [WorldModel(player_of(TrueEngine(TASK, sure=0.9)), TASK, samples=2) for _ in range(2)]
    shown = models[0]._first_headers
    for model in models:
        with journaled(model, tmp_path / "answers.jsonl", "a model"):
            model.ask(asked[:7])
            model.ask(asked)
        each = [model.tokens_written([question], shown) for question in asked]
        assert model.usage.tokens_written == sum(each) == model.tokens_written(asked, shown)
        assert min(each) > 0
        model.forget()
        assert model.tokens_written(asked, shown) == 0
    assert not models[1].policy.engine.contexts  # type: ignore[attr-defined]


def test_tokens_are_those_of_proposals_too() -> None:
    model = WorldModel(tiny_policy(), TASK, proposals=2)
    asked: list[Question] = [question for state in STARTS for question in (Choice(state, 3), Worth(state, "Left"))]
    model.ask(asked)
    assert model.tokens_written(asked, model._first_headers) == model.usage.tokens_written > 0
