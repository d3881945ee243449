"""What moves are worth, as the model says it: where searches stop, which states a beam follows, and the best of n."""

from __future__ import annotations

from pathlib import Path

import pytest

from spa.agent.worlds import World
from spa.evaluate.planned import evaluate_planner
from spa.planning.search import Choice, Move, Worth
from spa.planning.world_model import WorldModel
from tests.planning.test_world_model import STARTS, TASK
from tests.planning.tools import IMAGINING, MOVES, Asked, Table, decide, of_table, player_of, seen
from tests.scripted import Scripted, lake_task, tiny_config, tiny_policy

END = "the end"
# Two ways that look alike as far as they are imagined; behind `b` lies more.
FORK: Table = {
    "0": {"a": (seen("1", 0.2),), "b": (seen("2", 0.2),)},
    "1": {"a": (seen("3"),), "b": (seen("3"),)},
    "2": {"a": (seen("4"),), "b": (seen("4"),)},
    "3": {"a": (seen(END, 0.1, True),), "b": (seen(END, 0.0, True),)},
    "4": {"a": (seen(END, 0.9, True),), "b": (seen(END, 0.0, True),)},
}
WORTH = {("0", "a"): 0.2 + 0.9**2 * 0.1, ("0", "b"): 0.2 + 0.9**2 * 0.9, ("1", "a"): 0.09, ("2", "a"): 0.81}


def fork(**more: float | None) -> Asked:
    return of_table(FORK, worth=lambda one: more.get(one.state + one.action, WORTH.get((one.state, one.action), 0.0)))


@pytest.mark.parametrize("kind", IMAGINING)
@pytest.mark.parametrize("depth", [1, 2])
def test_where_a_search_stops_a_state_is_worth_what_the_model_says(kind: str, depth: int) -> None:
    settings = {"depth": depth, "gamma": 0.9, "simulations": 200}
    plan = decide(kind, "0", fork(), **settings, values=True)
    assert plan.path[0][0] == "b"
    if kind != "mcts":  # whose values are means over what it tried
        assert plan.values == pytest.approx({name: WORTH["0", name] for name in "ab"})
    blind = [decide(kind, "0", fork(), **settings, seed=seed).path[0][0] for seed in range(20)]
    assert set(blind) == {"a", "b"}, "without values both are unknown land"


@pytest.mark.parametrize("kind", IMAGINING)
def test_a_move_whose_worth_cannot_be_read_is_unknown_land(kind: str) -> None:
    plan = decide(kind, "0", fork(**{"0a": None, "0b": -1.0}), depth=1, gamma=0.9, values=True, simulations=50)
    assert plan.path[0][0] == "a"
    assert plan.values["a"] == pytest.approx(0.2 + 0.9 * 0.1)


def test_a_beam_follows_what_is_said_to_be_worth_most() -> None:
    for better, worse in (("2", "1"), ("1", "2")):
        model = fork(**{"0b": 2.0 if better == "2" else 0.0, "0a": 1.0})
        decide("beam", "0", model, depth=2, width=1, values=True)
        assert {move.state for move in model.moves} == {"0", better}, worse


def test_a_beam_discounts_what_lies_ahead() -> None:
    """A reward of 0.5 now is more than 0.8 a step later, of which half counts."""
    table: Table = {**FORK, "0": {"a": (seen("1", 0.5),), "b": (seen("2", 0.0),)}}
    worth = {Worth("0", "a"): 0.5, Worth("0", "b"): 0.5 * 0.8}
    model = of_table(table, worth=lambda one: worth.get(one, 0.0))
    decide("beam", "0", model, depth=2, width=1, gamma=0.5, values=True)
    assert {move.state for move in model.moves} == {"0", "1"}


@pytest.mark.parametrize("kind", IMAGINING)
def test_values_are_questions_too(kind: str) -> None:
    model = fork()
    plan = decide(kind, "0", model, depth=3, values=True, simulations=100, max_questions=8)
    worths = [one for call in model.calls for one in call if isinstance(one, Worth)]
    assert [(one.state, one.action) for one in worths] == model.moves
    assert plan.questions == 2 * len(model.moves) <= 8


def test_with_a_discount_of_nothing_nothing_is_divided_by_it() -> None:
    assert decide("lookahead", "0", fork(), depth=1, gamma=0.0, values=True).values == {"a": 0.2, "b": 0.2}


def test_the_best_of_n_is_the_proposal_of_the_highest_worth() -> None:
    shares = {"a": 0.5, "c": 0.5}
    said = {"a": 0.1, "b": 0.9, "c": 0.3}
    model = Asked(lambda move: (), "abc", lambda choice: shares, lambda one: said[one.action])
    plan = decide("best_of_n", "0", model, left=7)
    assert (plan.path[0][0], plan.values, plan.questions) == ("c", {"a": 0.1, "c": 0.3}, 2)
    assert (model.choices, model.moves) == ([Choice("0", 7)], []), "nothing is imagined"
    shares.clear()
    assert decide("best_of_n", "0", model).path[0][0] == "b", "without proposals all that are listed"
    said |= {"b": None}
    assert decide("best_of_n", "0", model).path[0][0] == "c"
    said.update(dict.fromkeys("abc"))
    assert {decide("best_of_n", "0", model, seed=seed).path[0][0] for seed in range(30)} == set("abc")
    assert decide("best_of_n", "0", Asked(lambda move: ())).path[0][0] == "", (
        "neither the world nor the policy names one"
    )


@pytest.mark.parametrize(
    "text, value", [("0.77</value>", 0.77), ("-1</", -1.0), ("much</", None), ("0.5 end</", None), ("0.5", None)]
)
def test_a_worth_is_a_number_or_nothing(text: str, value: float | None) -> None:
    engine = Scripted(lambda number: text)
    model = WorldModel(player_of(engine), TASK)
    worths = [Worth(STARTS[0], action) for action in MOVES]
    assert model.ask(worths) == [value] * 4
    assert model.ask([worths[2], Worth(STARTS[1], "Up")]) == [value] * 2
    assert (model.usage.questions, model.usage.cached, [len(call) for call in engine.contexts]) == (5, 1, [4, 1])


def test_a_worth_is_not_taken_for_its_move() -> None:
    assert Worth("0", "a") != Move("0", "a")


def test_a_model_without_values_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = tiny_config()
    cfg.agent.planner, cfg.eval.world_model_worlds, cfg.planner.proposals = "best_of_n", 0, 2
    evaluate_planner(cfg, "a", tiny_policy(), lake_task(1), [World(0, "w")], tmp_path)
    told = "a+best_of_n: the model gave no value of any move: it has to be trained with practice.values"
    assert told in "".join(capsys.readouterr())
