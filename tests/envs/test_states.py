"""Wrong coordinates are wrong, repeatable and distinct; legality accepts what play reaches and little else."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.envs import TextEnv, make_env

WORLDS = ["sokoban", "frozen_lake", "sudoku"]
SETTINGS = {"sokoban": {"num_boxes": 2, "dim_room": (7, 7)}, "frozen_lake": {"size": 5}, "sudoku": {}}


def played(name: str, state_format: str, seed: int, moves: int = 12) -> list[tuple[TextEnv, str]]:
    """(world, state) along a random play; the world is the same object, moved on."""
    env = make_env(name, state_format=state_format, **SETTINGS[name])
    rng = np.random.default_rng(seed)
    states = [env.reset(seed=seed)[0]]
    for _ in range(moves):
        state, _, terminated, truncated, _ = env.step(env.sample_action(rng))
        states.append(state)
        if terminated or truncated:
            break
    return [(env, state) for state in states]


def positions(state: str) -> list[str]:
    return re.findall(r"\(\d,\d\)", state)


@pytest.mark.parametrize("name", WORLDS)
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_wrong_coordinates_name_other_cells(name: str, seed: int) -> None:
    right = [state for _, state in played(name, "coordinates", seed)]
    wrong = [state for _, state in played(name, "random_coordinates", seed)]
    for true, false in zip(right, wrong, strict=True):
        grid, _, sentence = true.rpartition("\n")
        assert false.startswith(grid + "\n")
        assert re.sub(r"\d,\d", "?", false) == re.sub(r"\d,\d", "?", true)  # the words are the same
        if positions(sentence):
            assert positions(false) != positions(sentence)
        for cells in map(positions, re.findall(r"\(\d,\d\)(?:, \(\d,\d\))*", false)):
            assert cells == sorted(cells)  # like the true ones
    # An object is never where it is said to be.
    if name == "frozen_lake":
        assert all(positions(a)[0] != positions(b)[0] for a, b in zip(right, wrong, strict=True))


@pytest.mark.parametrize("name", WORLDS)
def test_wrong_coordinates_are_repeatable_and_change_with_the_state_only(name: str) -> None:
    first = [state for _, state in played(name, "random_coordinates", 5)]
    again = [state for _, state in played(name, "random_coordinates", 5)]
    assert first == again
    env = make_env(name, state_format="random_coordinates", **SETTINGS[name])
    state, _ = env.reset(seed=5)
    assert env.render() == env.render() == state == env.step("nonsense")[0]
    other, _ = env.reset(seed=5, options={"noise_seed": 1})
    assert other != state
    assert other.rpartition("\n")[0] == state.rpartition("\n")[0]
    assert env.reset(seed=5, options={"state": state})[0].rpartition("\n")[0] == state.rpartition("\n")[0]


@pytest.mark.parametrize("state_format", ["grid", "coordinates", "random_coordinates"])
@pytest.mark.parametrize("name", WORLDS)
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_every_state_of_a_play_is_legal_after_the_one_before(name: str, state_format: str, seed: int) -> None:
    play = played(name, state_format, seed)
    env = play[-1][0]
    now = env.render()
    for (_, before), (_, after) in pairwise(play):
        assert env.legal(after) is True
        assert env.legal(after, before) is True
        assert env.legal(f"\n {after} ", before) is True  # as a model may lay it out
    assert env.render() == now


ROOM = "######\n#__O_#\n#PX__#\n###__#\n######\n######"
LAKE = "_O__\nO___\nG___\n__P_"
BOARD = "| 1 2 3 4 | 3 4 1 2 | 2 1 4 . | 4 3 2 1 "


@pytest.mark.parametrize(
    "name, before, state, legal",
    [
        ("sokoban", ROOM, ROOM.replace("P", "_"), False),  # no player
        ("sokoban", ROOM, ROOM.replace("__#", "_P#", 1), False),  # two
        ("sokoban", ROOM, ROOM.replace("X", "_"), False),  # a box lost
        ("sokoban", ROOM, ROOM.replace("PX_", "_PX"), True),
        ("sokoban", ROOM, ROOM.replace("O_#", "_O#"), False),  # the target moved
        ("sokoban", ROOM, ROOM.replace("###__#", "##___#"), False),  # a wall fell
        ("sokoban", ROOM, ROOM.replace("###", "##", 1), False),  # a ragged row
        ("sokoban", ROOM, ROOM + "\nPlayer (P) is at (1,1); box (X) is at (2,2); target (O) is at (1,3).", False),
        ("frozen_lake", LAKE, LAKE.replace("P_", "_P"), True),
        ("frozen_lake", LAKE, LAKE.replace("P", "_").replace("G", "√"), True),
        ("frozen_lake", LAKE, LAKE.replace("_O__", "__O_"), False),  # a hole moved
        ("frozen_lake", LAKE, LAKE.replace("G", "_"), False),
        ("frozen_lake", LAKE, LAKE.replace("G_", "_G"), False),  # the goal moved
        ("sudoku", BOARD, BOARD.replace(".", "3"), True),
        ("sudoku", BOARD, BOARD.replace(".", "4"), False),  # a conflict
        ("sudoku", BOARD, BOARD.replace("| 1", "| ."), False),  # a filled cell emptied
        ("sudoku", BOARD, BOARD.replace(".", "9"), False),
    ],
)
def test_single_corruptions_are_not_legal(name: str, before: str, state: str, legal: bool) -> None:
    env = make_env(name, state_format="coordinates")
    assert state != before
    assert env.legal(state, before) is legal


@settings(max_examples=60)
@given(st.text(max_size=60), st.sampled_from(WORLDS))
def test_any_text_has_an_answer(text: str, name: str) -> None:
    env = make_env(name)
    state, _ = env.reset(seed=0)
    assert env.legal(text) in (True, False)
    assert env.legal(state, text) in (None, True, False)
    assert env.render() == state


def test_a_world_that_cannot_say_says_none() -> None:
    class Words(TextEnv):
        def render(self) -> str:
            return "a room"

    assert Words().legal("a room") is None
    assert Words().num_cell_values is None
    assert {name: make_env(name).num_cell_values for name in WORLDS} == {"sokoban": 7, "frozen_lake": 6, "sudoku": 5}


@pytest.mark.parametrize("name", WORLDS)
def test_a_refused_state_leaves_no_episode(name: str) -> None:
    env = make_env(name, state_format="coordinates", **SETTINGS[name])
    other, _ = env.reset(seed=1)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="disagree"):
        env.reset(options={"state": other + " And one more."})
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(env.sample_action(np.random.default_rng(0)))
