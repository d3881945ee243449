"""Lookahead and beam against a dynamic program, and against the shortest ways of the true world."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.agent.worlds import World
from spa.config.overrides import choices
from spa.config.schema import Config, PlannerConfig
from spa.planning.search import PLANNERS, Choice, Imagined, Move
from spa.sft.practice import imagine
from tests.planning.tools import (
    IMAGINING,
    Asked,
    Table,
    decide,
    distances,
    finish,
    of_table,
    oracle,
    seen,
    start_of,
    true_moves,
)
from tests.scripted import lake_task

END = "the end"
NOTHING = (Imagined("?", 5.0, True, 0.0),)
MAYBE = st.sampled_from([1.0, 1.0, 1.0, 0.9, 0.5, 0.49, 0.0])


@st.composite
def tables(draw: st.DrawFn, samples: int) -> Table:
    """Small worlds: up to seven states, two or three actions, rewards of either sign, moves that end them."""
    states = [str(number) for number in range(draw(st.integers(1, 7)))]
    answer = st.builds(
        lambda state, reward, probability: seen(state, reward, state == END, probability),
        st.sampled_from([*states, END]),
        st.sampled_from([-1.0, -0.5, 0.0, 0.0, 0.25, 1.0]),
        MAYBE,
    )
    actions = ["a", "b", "c"][: draw(st.integers(2, 3))]
    answers = st.tuples(*[answer] * samples)
    return {state: {action: draw(answers) for action in actions} for state in states}


def believed(table: Table, state: str, action: str, samples: int, least: float) -> list[Imagined]:
    return [one for one in table[state][action] if one.probability > 0 and (samples > 1 or one.probability >= least)]


def layers(table: Table, depth: int, gamma: float, samples: int, least: float) -> set[str]:
    """States in which actions are asked about: by breadth, no further than the layer in which a move ends with a gain that no open
    way has already."""
    asked: set[str] = set()
    layer = {"0": 0.0}  # with the best return of the ways there
    for level in range(depth):
        asked |= set(layer)
        following: dict[str, float] = {}
        won = 0.0
        for state, gained in layer.items():
            for action in table[state]:
                for one in believed(table, state, action, samples, least):
                    after = gained + gamma**level * one.reward
                    if one.ended and one.reward > 0 and samples == 1:
                        won = max(won, after)
                    if not one.ended and one.state not in asked:
                        following[one.state] = max(after, following.get(one.state, after))
        if not following or won > max(0.0, *following.values()):
            break
        layer = following
    return asked


def values_of(
    table: Table, depth: int, gamma: float, optimism: float, samples: int, least: float
) -> dict[str, float | None]:
    """Values of the actions in state 0 with ``depth`` actions to go; None where nothing is believed of an action."""
    asked = layers(table, depth, gamma, samples, least)

    @cache
    def worth(state: str, left: int) -> float:
        if state == END:
            return 0.0
        if state not in asked:
            return optimism
        if not left:
            return min(0.0, optimism)
        return max(
            (value for action in table[state] if (value := of_action(state, action, left)) is not None),
            default=min(0.0, optimism),
        )

    @cache
    def of_action(state: str, action: str, left: int) -> float | None:
        answers = believed(table, state, action, samples, least)
        if not answers:
            return None
        gains = [(one.reward + gamma * worth(one.state, left - 1), one.probability) for one in answers]
        return sum(gain * sure if gain > 0 and samples == 1 else gain for gain, sure in gains) / len(gains)

    return {action: of_action("0", action, depth) for action in table["0"]}


def compare(table: Table, depth: int, gamma: float, optimism: float, samples: int) -> None:
    expected = values_of(table, depth, gamma, optimism, samples, 0.5)
    model = of_table(table)
    settings = {"depth": depth, "gamma": gamma, "optimism": optimism, "samples": samples, "min_probability": 0.5}
    plan = decide("lookahead", "0", model, **settings)
    known = {action: value for action, value in expected.items() if value is not None}
    assert plan.values == pytest.approx(known, abs=1e-9)
    best = max(known.values(), default=0.0)
    assert plan.path[0][0] in table["0"]
    assert not known or known[plan.path[0][0]] == pytest.approx(best, abs=1e-8)
    assert {move.state for move in model.moves} == layers(table, depth, gamma, samples, 0.5)
    assert len(set(model.moves)) == len(model.moves) == plan.questions


GAMMAS = st.sampled_from([1.0, 0.95, 0.5])
OPTIMISM = st.sampled_from([0.0, 0.1, 2.0, -3.0])


@settings(max_examples=120)
@given(tables(1), st.integers(1, 6), GAMMAS, OPTIMISM)
def test_values_are_those_of_a_dynamic_program_over_what_is_believed(
    table: Table, depth: int, gamma: float, optimism: float
) -> None:
    compare(table, depth, gamma, optimism, 1)


@settings(max_examples=60)
@given(tables(3), st.integers(1, 5), GAMMAS, OPTIMISM)
def test_where_chance_decides_values_are_means_over_all_whole_samples(
    table: Table, depth: int, gamma: float, optimism: float
) -> None:
    compare(table, depth, gamma, optimism, 3)


@settings(max_examples=60)
@given(tables(1), st.integers(1, 6))
def test_a_plan_is_a_chain_of_what_was_believed(table: Table, depth: int) -> None:
    plan = decide("lookahead", "0", of_table(table), depth=depth, min_probability=0.5)
    state = "0"
    for number, (action, imagined) in enumerate(plan.path):
        if not believed(table, state, action, 1, 0.5):
            assert (number, len(plan.path), imagined) == (0, 1, Imagined("", 0.0, False, 0.0))
            return
        assert imagined == table[state][action][0]
        assert not imagined.ended or number == len(plan.path) - 1
        state = imagined.state
    assert 1 <= len(plan.path) <= depth


def test_where_every_step_pays_the_search_does_not_stop_at_an_end() -> None:
    """Of a dead end after two steps and a way that goes on, after a first layer in which an action ends the episode."""
    way = {str(number): {"on": (seen(str(number + 1), 1.0),), "fall": (seen(END, 1.0, True),)} for number in range(9)}
    dead = {"dead": {name: (seen(END, 1.0, True),) for name in ("on", "fall")}}
    root = {"0": {"on": (seen("dead", 1.0),), "fall": (seen("1", 1.0),)}}
    model = of_table({**way, **dead, **root})
    plan = decide("lookahead", "0", model, depth=5)
    assert plan.path[0][0] == "fall" and len(plan.path) == 5
    assert plan.values["on"] == pytest.approx(1 + 0.95)


def test_every_lake_within_reach_is_solved_on_a_shortest_way() -> None:
    task = lake_task(1)
    lengths = []
    for seed in range(24):
        start = start_of(task, World(seed, "w"))
        shortest = distances(task, start)[start]
        lengths.append(shortest)
        plan = decide("lookahead", start, oracle(task), depth=8, seed=seed)
        state, look = start, true_moves(task)
        for action, imagined in plan.path:
            true = look(Move(state, action))
            assert (imagined.state, imagined.reward, imagined.ended) == true
            state = true.state
        assert (true.ended, true.reward, len(plan.path)) == (True, 1.0, shortest)
        assert plan.values[plan.path[0][0]] == pytest.approx(0.95 ** (shortest - 1))
    assert max(lengths) >= 5, "otherwise this was too easy"


def test_beyond_its_depth_nothing_is_asked_and_nothing_is_won() -> None:
    task = lake_task(1)
    far = next(start for seed in range(99) if distances(task, start := start_of(task, World(seed, "w")))[start] == 4)
    short, enough = oracle(task), oracle(task)
    assert not any(one.ended and one.reward for _, one in decide("lookahead", far, short, depth=3).path)
    assert decide("lookahead", far, enough, depth=4).path[-1][1].reward == 1
    assert len(short.calls) == 3
    assert decide("lookahead", far, oracle(task), depth=9, left=3).path[-1][1].reward == 0, "so many actions are left"


LOST: Table = {"0": {"a": (seen(END, 0.0, True),), "b": (seen("1"),)}, "1": {"a": (seen("1"),), "b": (seen("1"),)}}


@pytest.mark.parametrize("kind", IMAGINING)
def test_a_lost_end_is_avoided_for_unknown_land(kind: str) -> None:
    for seed in range(8):
        assert decide(kind, "0", of_table(LOST), depth=1, seed=seed).path[0][0] == "b"
    costly = {**LOST, "0": {**LOST["0"], "b": (seen("1", -1.0),)}}
    assert decide(kind, "0", of_table(costly), depth=1).path[0][0] == "a", "but not at any price"


def doubtful(probability: float) -> Table:
    """A fortune behind ``a``, if that leads anywhere; half a unit of reward for ``b``, and no more."""
    return {
        "0": {"a": (seen("1", 0.0, False, probability),), "b": (seen("2", 0.5),)},
        "1": {"a": (seen(END, 9.0, True),), "b": (seen(END, 9.0, True),)},
        "2": {"a": (seen(END, -0.5, True),), "b": (seen(END, -0.5, True),)},
    }


@pytest.mark.parametrize("kind", IMAGINING)
def test_what_the_model_itself_doubts_is_not_built_on(kind: str) -> None:
    model = of_table(doubtful(0.49))
    plan = decide(kind, "0", model, depth=3, min_probability=0.5)
    assert plan.path[0][0] == "b"
    assert {move.state for move in model.moves} == {"0", "2"}
    assert decide(kind, "0", of_table(doubtful(0.5)), depth=3, min_probability=0.5).path[0][0] == "a"
    assert decide(kind, "0", of_table(doubtful(0.49)), depth=3, min_probability=0.4).path[0][0] == "a"
    assert decide(kind, "0", of_table(doubtful(0.0)), depth=3, min_probability=0.0).path[0][0] == "b", (
        "0: it wrote no answer"
    )


@pytest.mark.parametrize("kind", IMAGINING)
def test_a_gain_counts_as_much_as_it_is_believed_and_a_loss_in_full(kind: str) -> None:
    table: Table = {"0": {"a": (seen(END, 1.0, True, 0.6),), "b": (seen(END, 0.7, True, 0.9),)}}
    plan = decide(kind, "0", of_table(table), depth=2, simulations=100)
    assert plan.values == pytest.approx({"a": 0.6, "b": 0.63})
    assert plan.path[0][0] == "b"
    drawn = decide(kind, "0", of_table(table), depth=2, simulations=100, samples=2)
    assert drawn.values == pytest.approx({"a": 1.0, "b": 0.7}), "the shares of what is drawn say the same"
    losses: Table = {"0": {"a": (seen(END, -1.0, True, 0.6),), "b": (seen(END, -0.7, True, 0.9),)}}
    assert decide(kind, "0", of_table(losses), depth=2).values == pytest.approx({"a": -1.0, "b": -0.7})


@pytest.mark.parametrize("kind", IMAGINING)
def test_of_several_samples_all_that_are_whole_are_built_on(kind: str) -> None:
    model = of_table(doubtful(0.01))
    assert decide(kind, "0", model, depth=3, samples=2).path[0][0] == "a"


@pytest.mark.parametrize("kind", IMAGINING)
def test_a_plan_ends_before_what_nothing_is_believed_of(kind: str) -> None:
    table: Table = {"0": {"a": (seen("1", 1.0),), "b": (seen(END, 0.0, True),)}, "1": {"a": NOTHING, "b": NOTHING}}
    plan = decide(kind, "0", of_table(table), depth=4)
    assert [action for action, _ in plan.path] == ["a"]


@pytest.mark.parametrize("kind", IMAGINING)
@pytest.mark.parametrize("actions", [("a", "b"), ()])
def test_a_model_that_answers_nothing_still_leaves_a_plan(kind: str, actions: Sequence[str]) -> None:
    for shares in ({"a": 0.5, "z": 0.5}, {}):
        model = Asked(lambda move: NOTHING, actions, lambda choice, shares=shares: shares)
        plan = decide(kind, "0", model, depth=3, simulations=8)
        assert plan.path[0][0] in (actions or shares or [""])
        assert [one for _, one in plan.path] == [Imagined("", 0.0, False, 0.0)]
        assert all(abs(value) < 1e9 for value in plan.record("0")["values"].values())


@pytest.mark.parametrize("kind", IMAGINING)
def test_ties_are_broken_by_the_seed_alone(kind: str) -> None:
    table: Table = {"0": {name: (seen(END, 1.0, True),) for name in "abc"} | {"d": (seen(END, 0.9, True),)}}
    chosen = [decide(kind, "0", of_table(table), depth=2, seed=seed, simulations=64).path[0][0] for seed in range(40)]
    assert set(chosen) == {"a", "b", "c"}
    assert chosen == [
        decide(kind, "0", of_table(table), depth=2, seed=seed, simulations=64).path[0][0] for seed in range(40)
    ]


def tree(branches: int = 3, levels: int = 5) -> Table:
    """A world in which no two ways meet and nothing is to be had."""
    table: Table = {}
    layer = ["0"]
    for _ in range(levels):
        for state in layer:
            table[state] = {name: (seen(f"{state}{name}"),) for name in "abcdefgh"[:branches]}
        layer = [one.state for state in layer for (one,) in table[state].values()]
    return table


def test_of_several_answers_a_plan_shows_the_most_frequent_one() -> None:
    rare, often = seen("x"), seen("y", 1.0)
    plan = decide("lookahead", "0", of_table({"0": {"a": (rare, often, often)}}), depth=1, samples=3)
    assert plan.path == [("a", often)]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_beam_follows_so_many_states_of_a_layer(width: int) -> None:
    model = of_table(tree())
    decide("beam", "0", model, depth=4, width=width)
    assert [len(call) for call in model.calls] == [3] + [3 * min(width, 3**layer) for layer in range(1, 4)]


@pytest.mark.parametrize("limit", [3, 10, 12, 13, 50])
@pytest.mark.parametrize("kind", IMAGINING)
def test_a_decision_asks_no_more_questions_than_it_may(kind: str, limit: int) -> None:
    model = of_table(tree())
    plan = decide(kind, "0", model, depth=5, max_questions=limit, simulations=200)
    assert 3 <= len(model.moves) == plan.questions <= limit
    free = of_table(tree())
    decide(kind, "0", free, depth=5, simulations=200)
    assert len(free.moves) > 50


@pytest.mark.parametrize(("first", "second"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_beam_follows_the_states_of_the_best_returns_whichever_way_they_were_met_first(
    first: float, second: float
) -> None:
    won = {name: (seen(END, 1.0, True),) for name in "abc"}
    table: Table = {
        "0": {"a": (seen("x", first),), "b": (seen("x", second),), "c": (seen("y", 0.5),)},
        "x": won,
        "y": won,
    }
    model = of_table(table)
    assert decide("beam", "0", model, depth=2, width=1).path[0][0] == ("a" if first else "b")
    assert {move.state for move in model.moves} == {"0", "x"}


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_way_is_a_gain_if_its_discounted_return_is_one(gamma: float) -> None:
    """After -0.5 an end with 0.75 is worth it today, and not tomorrow: then the search goes on behind it."""
    table: Table = {
        "0": {"a": (seen("1", -0.5),), "b": (seen("2"),)},
        "1": {"a": (seen(END, 0.75, True),), "b": (seen("1"),)},
        "2": {"a": (seen("3"),), "b": (seen("2"),)},
        "3": {"a": (seen("3"),), "b": (seen("3"),)},
    }
    model = of_table(table)
    decide("lookahead", "0", model, depth=5, gamma=gamma)
    assert (Move("3", "a") in model.moves) == (gamma == 0.5)


def test_the_actions_of_free_text_are_those_that_the_policy_names() -> None:
    table = {"0": {"go": (seen("1"),), "stay": (seen("0"),)}, "1": {"win": (seen(END, 1.0, True),)}}
    for kind in IMAGINING:
        model = of_table(table, lambda choice: dict.fromkeys(table[choice.state], 0.5), listed=False)
        plan = decide(kind, "0", model, left=7, depth=3)
        assert [action for action, _ in plan.path] == ["go", "win"]
        # In the prompt of a state stands how many actions are left there, however far is looked.
        assert {Choice("0", 7), Choice("1", 6)} == set(model.choices)


def test_every_planner_has_a_name_in_the_settings() -> None:
    assert ("none", *PLANNERS) == choices(Config, "agent.planner")


@pytest.mark.parametrize(("whole", "first"), [(False, "quit"), (True, "go")])
def test_a_later_end_that_pays_more_is_found_by_a_search_of_the_whole(whole: bool, first: str) -> None:
    def answer(move: Move) -> tuple[Imagined, ...]:
        if move.action == "quit":
            return (seen("home", 0.2, True),)
        return (seen("top", 1.0, True) if move.state == "2" else seen(str(int(move.state) + 1)),)

    model = Asked(answer, ("go", "quit"))
    plan = decide("lookahead", "0", model, whole=whole)
    assert plan.path[0][0] == first


@pytest.mark.parametrize(("optimism", "lessons"), [(0.1, 0), (-10.0, 3)])
def test_where_every_step_costs_a_negative_optimism_makes_lessons(optimism: float, lessons: int) -> None:
    def answer(move: Move) -> tuple[Imagined, ...]:
        after = min(3, max(0, int(move.state) + (1 if move.action == "go" else -1)))
        return (seen(str(after), -1.0, after == 3),)

    model = Asked(answer, ("back", "go"))
    config = PlannerConfig(optimism=optimism, whole=True)
    found = finish(imagine("0", model.actions, config, 5, 5, whole=False), model)
    assert len(found) == lessons
    assert all(max(lesson.values, key=lambda name: lesson.values[name]) == "go" for lesson in found)


@pytest.mark.parametrize("cost", [-1.0, -0.1])
def test_where_no_end_is_in_reach_nothing_is_taught(cost: float) -> None:
    model = Asked(lambda move: (seen("b" if move.action == "go" else "a", cost),), ("back", "go"))
    config = PlannerConfig(optimism=-10.0, whole=True)
    assert finish(imagine("a", model.actions, config, 10, 10, whole=True), model) == []


def test_where_every_step_costs_a_state_of_which_nothing_is_believed_is_no_way_out() -> None:
    def answer(move: Move) -> tuple[Imagined, ...]:
        if move.action == "blind" or move.state == "?":
            return (seen("?", -1.0, False, 1.0 if move.state == "0" else 0.01),)
        after = int(move.state) + 1
        return (seen(str(after), -1.0, after == 3),)

    plan = decide("lookahead", "0", Asked(answer, ("blind", "go")), optimism=-10.0, whole=True)
    assert [action for action, _ in plan.path] == ["go"] * 3
