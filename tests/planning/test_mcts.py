"""Monte Carlo tree search in worlds that are small enough to be solved."""

from __future__ import annotations

import numpy as np
import pytest

from spa.agent.worlds import World
from spa.planning.search import Choice, Move
from tests.planning.tools import Table, decide, depths, distances, of_table, oracle, seen, start_of, true_moves
from tests.scripted import lake_task

GAMMA = 0.95
LEVELS = 3


def layered(seed: int, samples: int) -> Table:
    """Three layers of up to three states, each leading into the next, the last to the end."""
    rng = np.random.default_rng(seed)
    layers = [["0"], ["1a", "1b", "1c"], ["2a", "2b", "2c"]]
    table: Table = {}
    for level, layer in enumerate(layers):
        following = layers[level + 1] if level + 1 < LEVELS else ["the end"]
        for state in layer:
            table[state] = {
                action: tuple(
                    seen(str(rng.choice(following)), float(rng.integers(-4, 5)) / 4, level + 1 == LEVELS)
                    for _ in range(samples)
                )
                for action in "abc"
            }
    return table


def exact(table: Table, state: str = "0") -> dict[str, float]:
    """Values of the actions in a state, by going through all that can come."""
    return {
        action: float(
            np.mean(
                [one.reward + GAMMA * (0 if one.ended else max(exact(table, one.state).values())) for one in answers]
            )
        )
        for action, answers in table[state].items()
    }


@pytest.mark.parametrize("samples", [1, 3])
def test_many_simulations_find_the_best_action(samples: int) -> None:
    clear = 0
    for seed in range(30):
        table = layered(seed, samples)
        values = exact(table)
        best, second = sorted(values, key=lambda action: -values[action])[:2]
        if values[best] - values[second] < 0.15:
            continue
        clear += 1
        plan = decide("mcts", "0", of_table(table), seed=seed, simulations=300, samples=samples, gamma=GAMMA)
        assert plan.path[0][0] == best, (seed, values, plan)
    assert clear >= 12


def test_the_first_step_in_a_lake_is_on_a_shortest_way() -> None:
    task = lake_task(1)
    tried = 0
    for seed in range(12):
        start = start_of(task, World(seed, "w"))
        far = distances(task, start)
        if far[start] > 3:
            continue
        tried += 1
        plan = decide("mcts", start, oracle(task), seed=seed, simulations=200)
        true = true_moves(task)(Move(start, plan.path[0][0]))
        assert far[start] == 1 + (0 if true.ended else far[true.state])
        assert not true.ended or true.reward == 1
    assert tried >= 6


@pytest.mark.parametrize("simulations", [1, 7, 60])
def test_nothing_is_asked_twice_or_beyond_the_depth(simulations: int) -> None:
    task = lake_task(1)
    start = start_of(task, World(7, "w"))
    met = depths(task, start)
    model = oracle(task)
    plan = decide("mcts", start, model, left=9, depth=3, simulations=simulations)
    assert len(set(model.moves)) == len(model.moves) == plan.questions
    assert len({choice.state for choice in model.choices}) == len(model.choices) <= simulations + 1
    assert max(met[move.state] for move in model.moves) < 3 < max(met.values())
    assert all(9 - choice.actions_left >= met[choice.state] for choice in model.choices)
    assert all(len(call) == 1 for call in model.calls)


def test_a_move_that_leads_back_is_not_chosen_for_being_repeated() -> None:
    """By visits, 17 of these decisions were to walk into a wall."""
    task = lake_task(1)
    stays = 0
    for seed in range(60):
        start = start_of(task, World(seed, "w"))
        after = decide("mcts", start, oracle(task), seed=seed, simulations=16).path[0][1]
        stays += after.state == start
    assert stays < 5


def test_one_question_is_always_asked() -> None:
    model = of_table(layered(0, 1))
    assert decide("mcts", "0", model, max_questions=1, values=True).path and len(model.moves) == 1


def test_one_simulation_takes_what_the_policy_would() -> None:
    table: Table = {"0": {name: (seen("0"),) for name in "abcd"}}
    for favourite in "abcd":
        model = of_table(table, lambda choice, favourite=favourite: {favourite: 0.75, "z": 0.25})
        assert decide("mcts", "0", model, simulations=1).path[0][0] == favourite
        assert model.choices == [Choice("0", 99)]


def test_a_policy_that_is_wrong_is_outvoted() -> None:
    table: Table = {"0": {name: (seen("end", float(name == "c"), True),) for name in "abc"}}
    model = of_table(table, lambda choice: {"a": 1.0})
    assert decide("mcts", "0", model, simulations=100).path[0][0] == "c"


def test_rewards_of_another_size_change_nothing_but_the_values() -> None:
    for seed in range(5):
        table = layered(seed, 1)
        table["1a"]["a"] = (seen("2a", 0.0, False, 0.1),)  # not believed
        large = {
            state: {
                name: (seen(one.state, 64 * one.reward, one.ended, one.probability),) for name, (one,) in row.items()
            }
            for state, row in table.items()
        }
        plan = decide("mcts", "0", of_table(table), simulations=80, optimism=0.125)
        other = decide("mcts", "0", of_table(large), simulations=80, optimism=8.0)
        assert [action for action, _ in other.path] == [action for action, _ in plan.path]
        assert other.values == pytest.approx({name: 64 * value for name, value in plan.values.items()})


@pytest.mark.parametrize("simulations", [20, 200, 2000])
def test_what_is_not_believed_counts_as_the_worst_that_was_imagined_and_no_worse(simulations: int) -> None:
    lost = {name: (seen("end", -3.0, True),) for name in "ab"}
    unknown = {name: (seen("?", 0.0, False, 0.0),) for name in "ab"}
    table: Table = {"0": {"a": (seen("1", -1.0),), "b": (seen("2", -2.0),)}, "1": unknown, "2": lost}
    values = decide("mcts", "0", of_table(table), simulations=simulations).values
    worst = -2.0 + GAMMA * -3.0
    assert -1.0 + GAMMA * worst - 1e-9 <= values["a"] <= -1.0
    assert worst - 1e-9 <= values["b"] <= -2.0
