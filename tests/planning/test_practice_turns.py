"""Practice for turns of several actions."""

from __future__ import annotations

from spa.agent.response import parse_response
from spa.agent.worlds import World
from spa.config.schema import PlannerConfig
from spa.planning.search import Move
from spa.sft.practice import lesson_rows
from tests.planning.tools import depths, oracle, shortest, start_of, true_moves
from tests.scripted import lake_task

WORLDS = [World(seed, "w") for seed in range(4)]


def test_a_row_answers_with_as_many_actions_as_a_turn_may_have() -> None:
    """Along a shortest way, which a turn cuts where it wins."""
    task = lake_task(1, max_actions_per_turn=3, max_turns=4)
    rows = lesson_rows(oracle(task), task, WORLDS, PlannerConfig(), whole=True).plans
    lengths = set()
    for world in WORLDS:
        ways = shortest(task, depths(task, start_of(task, world)))
        for row in (row for row in rows if row.extra["seed"] == world.seed):
            state = next(state for state in ways if f"{state}\n" in row.prompt[-1]["content"])
            parsed = parse_response(row.response, "base", max_actions=3)
            assert parsed.format_ok and list(parsed.actions) == row.extra["executed"]
            left, look = ways[state][0], true_moves(task)
            assert len(parsed.actions) == min(3, left)
            lengths.add(left)
            for action in parsed.actions:
                assert action in ways[state][1]
                state = look(Move(state, action)).state
    assert lengths > {1, 2, 3, 4}
