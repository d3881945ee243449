"""Sokoban: the paper's states, rewards and dynamics against oracles, solvable rooms."""

from __future__ import annotations

import random
from collections import deque

import gymnasium
import numpy as np
import pytest

from spa.envs import Sokoban
from spa.envs.sokoban.generator import RoomSpec, generate_room, make_room, min_moves, min_pushes, solve

# The two states printed in the paper.
FIRST = """######
#___O#
#____#
###X_#
###P_#
######
Player (P) is at (4,3); box (X) is at (3,3); target (O) is at (1,4)."""
SECOND = """######
#_####
#_P###
#_X#_#
#__O_#
######
Player (P) is at (2,2); box (X) is at (3,2); target (O) is at (4,3)."""

CELLS = "#_O√XPS"
DIRECTIONS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def loaded(state: str, **settings) -> Sokoban:
    env = Sokoban(**settings)
    env.reset(seed=0, options={"state": state})
    return env


def naive_step(grid: list[list[str]], action: str) -> tuple[list[list[str]], float]:
    """One step on characters, written apart from the package: the new grid and the reward."""
    fixed = [["#" if c == "#" else "O" if c in "O√S" else "_" for c in row] for row in grid]
    boxes = {(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell in "X√"}
    (player,) = [(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell in "PS"]
    targets = {(r, c) for r, row in enumerate(fixed) for c, cell in enumerate(row) if cell == "O"}
    before = len(boxes & targets)
    dr, dc = DIRECTIONS[action]
    ahead, beyond = (player[0] + dr, player[1] + dc), (player[0] + 2 * dr, player[1] + 2 * dc)
    if fixed[ahead[0]][ahead[1]] != "#":
        if ahead not in boxes:
            player = ahead
        elif fixed[beyond[0]][beyond[1]] != "#" and beyond not in boxes:
            boxes = (boxes - {ahead}) | {beyond}
            player = ahead
    after = len(boxes & targets)
    reward = -0.1 + (after > before) - (after < before) + 10 * (boxes == targets)
    drawn = [row[:] for row in fixed]
    for r, c in boxes:
        drawn[r][c] = "√" if (r, c) in targets else "X"
    drawn[player[0]][player[1]] = "S" if player in targets else "P"
    return drawn, reward


def naive_solvable(text: str) -> bool:
    """Breadth-first over the drawn grids themselves."""
    start = tuple(text.split("\n"))
    seen, queue = {start}, deque([start])
    while queue:
        rows = queue.popleft()
        if not any("X" in row for row in rows):
            return True
        for action in DIRECTIONS:
            following = tuple("".join(row) for row in naive_step([list(row) for row in rows], action)[0])
            if following not in seen:
                seen.add(following)
                queue.append(following)
    return False


@pytest.mark.parametrize("state", [FIRST, SECOND])
def test_paper_states_round_trip(state):
    assert loaded(state, state_format="coordinates").render() == state
    grid = state.rsplit("\n", 1)[0]
    assert loaded(state).render() == grid  # positions are read in either format
    assert loaded(grid, state_format="coordinates").render() == state


def test_paper_transition():
    env = loaded(SECOND)
    for action in ("Down", "Left", "Down"):
        state, reward, terminated, truncated, info = env.step(action)
        assert (round(reward, 9), terminated, truncated, info["valid"], info["success"]) == (
            -0.1,
            False,
            False,
            True,
            False,
        )
    assert state.split("\n")[2:5] == ["#__###", "#__#_#", "#PXO_#"]
    state, reward, terminated, truncated, info = env.step("Right")
    assert reward == pytest.approx(10.9)
    assert terminated and not truncated and info["success"]
    assert state.split("\n")[4] == "#_P√_#"


def test_pushes_on_and_off_targets():
    env = loaded("#######\n#PXO_O#\n#__X__#\n#######", dim_room=(4, 7), num_boxes=2, state_format="coordinates")
    assert env.render().endswith(
        "Player (P) is at (1,1); boxes (X) are at (1,2), (2,3); targets (O) are at (1,3), (1,5)."
    )
    state, reward, *_ = env.step("Right")
    assert reward == pytest.approx(0.9)
    assert state.split("\n")[1] == "#_P√_O#"
    assert state.endswith("Player (P) is at (1,2); boxes (X) are at (1,3), (2,3); targets (O) are at (1,3), (1,5).")
    state, reward, *_ = env.step("right ")
    assert reward == pytest.approx(-1.1)
    assert state.split("\n")[1] == "#__SXO#"
    assert state.endswith("Player (P) is at (1,3); boxes (X) are at (1,4), (2,3); targets (O) are at (1,3), (1,5).")
    assert env.step("Right")[1] == pytest.approx(0.9)
    blocked = env.step("Right")  # the box is against the wall
    assert blocked[1] == pytest.approx(-0.1)
    assert blocked[4]["valid"] and not blocked[4]["effective"] and not blocked[2]
    nothing = env.step("Jump")
    assert nothing[1] == 0.0 and not nothing[4]["valid"] and nothing[0] == blocked[0]


@pytest.mark.parametrize("num_boxes", [1, 2, 3])
def test_steps_equal_the_oracle(num_boxes):
    rng = random.Random(num_boxes)
    env = Sokoban(num_boxes=num_boxes, dim_room=(7, 6), max_steps=1000)
    for seed in range(25):
        text, _ = env.reset(seed=seed)
        grid = [list(row) for row in text.split("\n")]
        for _ in range(60):
            action = rng.choice(list(DIRECTIONS))
            following, reward = naive_step(grid, action)
            state, got, terminated, _, info = env.step(action)
            assert state == "\n".join("".join(row) for row in following)
            assert got == pytest.approx(reward)
            assert info["effective"] == (following != grid)
            assert terminated == info["success"] == (reward > 5)
            grid = following
            if terminated:
                break


def test_rooms_are_solvable():
    env = Sokoban()
    spots = set()
    for seed in range(300):
        text, info = env.reset(seed=seed)
        assert set(text) <= set(CELLS + "\n")
        assert text.count("X") == 1 and "√" not in text and text.count("O") + text.count("S") == 1
        assert text.count("P") + text.count("S") == 1
        assert naive_solvable(text), text
        spots.add(info["content"])
    assert len(spots) > 200  # they differ


@pytest.mark.parametrize("settings", [{"num_boxes": 2, "search_depth": 30}, {"dim_room": (10, 10), "num_boxes": 2}])
def test_larger_rooms_are_solvable(settings):
    env = Sokoban(**settings)
    for seed in range(15):
        text, _ = env.reset(seed=seed)
        assert "√" not in text and text.count("X") == 2
        solution = solve(env.room)
        assert solution is not None
        for direction in solution:
            *_, terminated, _, info = env.step(env.actions[direction])
        assert terminated and info["success"]


def test_solve_finds_shortest():
    assert solve(loaded(SECOND).room) == (1, 2, 1, 3)
    assert min_moves(loaded(FIRST).room) is not None
    stuck = loaded("######\n#X__O#\n#P___#\n#____#\n#____#\n######")
    assert solve(stuck.room) is None and min_moves(stuck.room) is None
    assert solve(loaded(SECOND).room, max_moves=3) is None
    assert solve(loaded(SECOND).room, max_moves=4) == (1, 2, 1, 3)


def test_max_moves_limits_difficulty():
    easy = Sokoban(max_moves=3)
    for seed in range(40):
        easy.reset(seed=seed)
        assert min_moves(easy.room) <= 3
    with pytest.raises(ValueError, match="max_moves=1"):
        make_room(RoomSpec(num_boxes=3, max_moves=1), 0)


def naive_pushes(text: str) -> int:
    """The fewest pushes, by Dijkstra's rounds over the drawn grids."""
    layer, pushes, seen = {tuple(text.split("\n"))}, 0, set()
    while layer:
        reach, frontier, beyond = set(layer), set(layer), set()
        while frontier:  # as far as the player walks without a push
            following = set()
            for rows in frontier:
                for action in DIRECTIONS:
                    after = tuple("".join(row) for row in naive_step([list(row) for row in rows], action)[0])
                    pushed = [c in "X√" for c in "".join(rows)] != [c in "X√" for c in "".join(after)]
                    (beyond if pushed else following).add(after)
            frontier = following - reach
            reach |= frontier
        if any(not any("X" in row for row in rows) for rows in reach):
            return pushes
        seen |= reach
        layer, pushes = beyond - seen, pushes + 1
    raise AssertionError("cannot be solved")


def test_pushes_are_the_fewest():
    env = Sokoban(dim_room=(6, 7))
    for seed in range(12):
        text, _ = env.reset(seed=seed)
        fewest = min_pushes(env.room)
        assert fewest == naive_pushes(text)
        assert min_pushes(env.room, fewest) == fewest and min_pushes(env.room, fewest - 1) is None
    assert min_pushes(loaded("######\n#X__O#\n#P___#\n#____#\n#____#\n######").room) is None


def test_max_pushes_limits_difficulty():
    seen = set()
    for limits in ({"max_pushes": 1}, {"max_pushes": 3, "max_moves": 5}):
        env = Sokoban(**limits)
        for seed in range(25):
            text, _ = env.reset(seed=seed)
            assert min_pushes(env.room) <= limits["max_pushes"]
            assert "max_moves" not in limits or min_moves(env.room) <= limits["max_moves"]
            seen.add(text)
    assert len(seen) > 30
    with pytest.raises(
        ValueError, match=r"within max_moves=2 and max_pushes=1 in .* max_moves larger, max_pushes larger"
    ):
        make_room(RoomSpec(num_boxes=3, max_moves=2, max_pushes=1), 0)


def test_pictures_are_for_people():
    env = Sokoban(render_mode="rgb_array", state_format="coordinates")
    state, _ = env.reset(options={"state": SECOND})
    assert state == SECOND == env.text()
    picture = env.render()
    assert picture.shape == (96, 96, 3) and picture.dtype == np.uint8

    def tile(row: int, column: int) -> bytes:
        return env.render()[16 * row : 16 * row + 16, 16 * column : 16 * column + 16].tobytes()

    grid = state.split("\n")[:6]
    for row in range(6):  # equal symbols look alike, others do not
        for column in range(6):
            assert (tile(row, column) == tile(0, 0)) == (grid[row][column] == "#")
    player, box = tile(2, 2), tile(3, 2)
    after, *_ = env.step("Down")
    assert isinstance(after, str) and after.split("\n")[3] == "#_P#_#"
    assert (tile(3, 2), tile(4, 2)) == (player, box)
    env.reset(options={"level": "########\n#_O√XP_#\n########"})
    drawn = {tile(1, column) for column in range(1, 7)}
    env.reset(options={"level": "########\n#__$.+$#\n########"})
    assert len(drawn | {tile(1, 5)}) == 6  # empty, target, box on target, box, player, player on target
    assert env.render().shape == (48, 128, 3)


def test_gymnasium_makes_pictures():
    env = gymnasium.make("spa/Sokoban-v0", render_mode="rgb_array")
    env.reset(seed=0)
    env.step("Up")
    assert env.render().shape == (96, 96, 3)
    assert Sokoban(render_mode=None).metadata["render_modes"] == ["ansi", "rgb_array"]
    with pytest.raises(ValueError, match="render_mode must be 'ansi', 'rgb_array' or None, got 'human'"):
        Sokoban(render_mode="human")


def test_generation_is_a_function_of_the_generator():
    spec = RoomSpec()
    for seed in range(20):
        assert generate_room(np.random.default_rng(seed), spec) == generate_room(np.random.default_rng(seed), spec)


def naive_reverse_play(height, width, walls, player, targets, depth):
    """The pulls-only search of the original, recursive over full states: (player, boxes, displacement) or None."""
    best: list = [0, None]
    seen = set()

    def visit(player, boxes, switches, last, left):
        left -= 1
        if left <= 0 or (player, frozenset(boxes.values())) in seen:
            return
        seen.add((player, frozenset(boxes.values())))
        far = sum(abs(b[0] - t[0]) + abs(b[1] - t[1]) for t, b in boxes.items())
        hidden = any(t == player or t in boxes.values() for t in boxes)
        if not hidden and switches * far > best[0]:
            best[:] = switches * far, (player, set(boxes.values()), far)
        for dr, dc in DIRECTIONS.values():
            ahead, behind = (player[0] + dr, player[1] + dc), (player[0] - dr, player[1] - dc)
            if ahead in walls or ahead in boxes.values():
                continue
            pulled = [t for t, b in boxes.items() if b == behind]
            after = boxes | dict.fromkeys(pulled, player)
            visit(ahead, after, switches + (pulled != [] and pulled[0] != last), pulled[0] if pulled else last, left)

    visit(player, {t: t for t in targets}, 0, None, depth)
    return best[1]


@pytest.mark.parametrize("num_boxes, depth", [(1, 300), (2, 30), (2, 300), (3, 12)])
def test_reverse_play_equals_the_recursive_search(num_boxes, depth):
    from spa.envs.sokoban.generator import _play_in_reverse

    rng = random.Random(num_boxes * depth)
    for _ in range(30):
        cells = [(r, c) for r in range(6) for c in range(6)]
        floor = rng.sample([(r, c) for r, c in cells if 0 < r < 5 and 0 < c < 5], 10)
        player, *targets = rng.sample(floor, 1 + num_boxes)
        walls = set(cells) - set(floor)
        expected = naive_reverse_play(6, 6, walls, player, targets, depth)
        mask = sum(1 << 6 * r + c for r, c in walls)
        got = _play_in_reverse(
            RoomSpec(6, 6, num_boxes, depth), mask, 6 * player[0] + player[1], tuple(6 * r + c for r, c in targets)
        )
        if expected is None:
            assert got is None
        else:
            player, boxes, far = expected
            assert got == (6 * player[0] + player[1], sum(1 << 6 * r + c for r, c in boxes), far)


def test_truncation_at_max_steps():
    env = Sokoban(max_steps=3)
    env.reset(seed=0, options={"state": SECOND})
    outcomes = [env.step("Up")[2:4] for _ in range(3)]
    assert outcomes == [(False, False), (False, False), (False, True)]


def test_winning_with_the_last_step_is_no_truncation():
    env = loaded("######\n#_O__#\n#_X__#\n#_P__#\n#____#\n######", max_steps=1)
    assert env.step("Up")[2:4] == (True, False)


def test_other_symbols_and_names():
    env = Sokoban(grid_vocab="W.GCBA@", state_format="coordinates")
    assert list(env.symbols.values()) == list(Sokoban().symbols.values())
    env.reset(seed=0, options={"state": "WWWWWW\nWA.WWW\nWBGW.W\nW....W\nW....W\nWWWWWW"})
    assert env.render().split("\n")[1:3] == ["WA.WWW", "WBGW.W"]
    assert env.render().endswith("Player (A) is at (1,1); box (B) is at (2,1); target (G) is at (2,2).")
    assert env.render() in env.observation_space
    mapped = Sokoban(grid_vocab=dict(reversed(env.symbols.items())))
    assert mapped.symbols == env.symbols
    plain, renamed = Sokoban(), Sokoban(action_names=("Left", "Right", "Up", "Down"))
    assert renamed.actions == ("Left", "Right", "Up", "Down")
    for theirs, ours in zip(renamed.actions, plain.actions, strict=True):
        plain.reset(options={"state": FIRST})
        renamed.reset(options={"state": FIRST})
        assert renamed.step(theirs)[0] == plain.step(ours)[0]


def test_content_ignores_player_and_symbols():
    first = loaded(FIRST).reset(options={"state": FIRST})[1]["content"]
    moved = FIRST.rsplit("\n", 1)[0].replace("P", "_").replace("#___O#", "#P__O#")
    assert first == loaded(moved).reset(options={"state": moved})[1]["content"]
    assert first == "Sokoban 6x6\n######\n#___O#\n#____#\n###X_#\n###__#\n######"
    ours, theirs = Sokoban(), Sokoban(grid_vocab="W.GCBA@")
    assert ours.reset(seed=7)[1]["content"] == theirs.reset(seed=7)[1]["content"]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"dim_room": 6}, "dim_room must be two integers"),
        ({"dim_room": 6.5}, "dim_room must be two integers"),
        ({"action_names": 4}, "action_names must be a list of names, got 4"),
        ({"dim_room": (0, 6)}, "dim_room must be an integer of at least 3, got 0"),
        ({"num_boxes": 0}, "num_boxes must be an integer of at least 1"),
        ({"dim_room": (4, 4), "num_boxes": 2}, "no space for num_boxes=2"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"state_format": "xy"}, "state_format must be one of 'grid', 'coordinates', 'random_coordinates', got 'xy'"),
        ({"state_format": "coordinate"}, "Did you mean 'coordinates'"),
        ({"grid_vocab": "W.GCBAA"}, "all different"),
        ({"grid_vocab": {"W": "wall"}}, "one symbol for each of: wall"),
        ({"action_names": ("Up", "up", "Left", "Right")}, "4 different names"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Sokoban(**settings)


@pytest.mark.parametrize(
    "state, message",
    [
        ("######", "6 rows of 6"),
        (FIRST.replace("P_#", "__#"), "exactly one player"),
        (FIRST.replace("X", "?"), "unknown symbols '\\?'"),
        (FIRST.replace("#___O#", "____O#"), "border"),
        (FIRST.replace("#___O#", "#__OO#"), "as many targets"),
        (FIRST.replace("(1,4)", "(1,3)"), "disagree"),
        (FIRST.replace("#___O#", "#_XOO#"), "must have 1 boxes and as many targets, .*got 2 and 2"),
    ],
)
def test_bad_states(state, message):
    with pytest.raises(ValueError, match=message):
        loaded(state)


def test_oracle_itself():
    """The oracle of this file gives the paper's transition, too."""
    grid = [list(row) for row in SECOND.split("\n")[:6]]
    for action in ("Down", "Left", "Down"):
        grid, _ = naive_step(grid, action)
    assert ["".join(row) for row in grid[2:5]] == ["#__###", "#__#_#", "#PXO_#"]
