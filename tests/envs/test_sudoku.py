"""Sudoku: one solution, clue counts, wording, parsing, rewards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from spa.envs import Sudoku
from spa.envs.sudoku.generator import count_solutions, solved_board
from spa.envs.sudoku.world import MAX_ACTION, parse_action

# Every solved 4x4 board, found by trying: rows that are permutations, then columns and boxes checked.
ROWS = list(itertools.permutations((1, 2, 3, 4)))


def is_solved(rows: tuple[tuple[int, ...], ...]) -> bool:
    full = {1, 2, 3, 4}
    boxes = [{rows[r + i][c + j] for i in (0, 1) for j in (0, 1)} for r in (0, 2) for c in (0, 2)]
    return all({row[c] for row in rows} == full for c in range(4)) and all(box == full for box in boxes)


@pytest.fixture(scope="module")
def all_solved() -> list[tuple[int, ...]]:
    pairs = [(a, b) for a in ROWS for b in ROWS if all(x != y for x, y in zip(a, b, strict=True))]
    halves = [(a, b) for a, b in pairs if set(a[:2]) | set(b[:2]) == {1, 2, 3, 4}]
    boards = [top + bottom for top in halves for bottom in halves if is_solved(top + bottom)]
    assert len(boards) == 288
    return [tuple(itertools.chain(*board)) for board in boards]


@pytest.mark.parametrize("difficulty, clues", [("easy", 10), ("medium", 9), ("hard", 6)])
def test_4x4_boards_have_one_solution(difficulty, clues, all_solved):
    env = Sudoku(difficulty=difficulty)
    seen = set()
    for seed in range(100):
        text, info = env.reset(seed=seed)
        assert sum(c.isdigit() for c in text) == clues
        fitting = [b for b in all_solved if all(given in (0, digit) for given, digit in zip(env.clues, b, strict=True))]
        assert len(fitting) == 1
        assert info["content"] == f"Sudoku 4x4\n{text}"
        seen.add(text)
    assert len(seen) > 90


@pytest.mark.parametrize("difficulty, clues", [("easy", 36), ("medium", 30), ("hard", 24)])
def test_9x9_boards_have_one_solution(difficulty, clues):
    env = Sudoku(board_size=9, difficulty=difficulty)
    for seed in range(3):
        env.reset(seed=seed)
        assert sum(digit > 0 for digit in env.clues) == clues
        assert brute_force(list(env.clues)) == 1


def brute_force(board: list[int]) -> int:
    """Solutions of a 9x9 board, at most 2, with sets and no shared code."""
    best = None
    for cell, digit in enumerate(board):
        if not digit:
            r, c = divmod(cell, 9)
            used = {board[9 * r + i] for i in range(9)} | {board[9 * i + c] for i in range(9)}
            used |= {board[9 * (r // 3 * 3 + i) + c // 3 * 3 + j] for i in range(3) for j in range(3)}
            left = set(range(1, 10)) - used
            if best is None or len(left) < len(best[1]):
                best = (cell, left)
    if best is None:
        return 1
    found = 0
    for digit in best[1]:
        board[best[0]] = digit
        found += brute_force(board)
        if found > 1:
            break
    board[best[0]] = 0
    return found


def test_counting_and_solved_boards():
    assert count_solutions((0,) * 16, 4, limit=1000) == 288
    for seed in range(20):
        board = solved_board(np.random.default_rng(seed), 4)
        assert is_solved(tuple(board[4 * r : 4 * r + 4] for r in range(4)))
    nine = np.array(solved_board(np.random.default_rng(0), 9)).reshape(9, 9)
    full = set(range(1, 10))
    assert all(set(row) == full for row in nine) and all(set(column) == full for column in nine.T)
    assert all(set(nine[r : r + 3, c : c + 3].ravel()) == full for r in (0, 3, 6) for c in (0, 3, 6))


ONE_LEFT = "| 1 2 3 4 | 3 4 1 2 | 2 1 4 3 | 4 3 2 . "
TWO_LEFT = "| 1 2 3 4 | 3 4 1 2 | 2 1 4 3 | 4 . 2 . "


def test_wording_and_reward():
    env = Sudoku(state_format="coordinates")
    assert env.reset(options={"state": TWO_LEFT})[0] == f"{TWO_LEFT}\nEmpty positions to be filled are at (4,2), (4,4)."
    state, reward, terminated, truncated, info = env.step("4,2,3")
    assert state == f"{ONE_LEFT}\nEmpty position to be filled is at (4,4)."
    assert (reward, terminated, truncated, info["effective"], info["success"]) == (0.0, False, False, True, False)
    state, reward, terminated, truncated, info = env.step("row 4, column 4: 1")
    assert state == ONE_LEFT.replace(".", "1") + "\nNo empty positions found (board might be complete)."
    assert (reward, terminated, truncated, info["effective"], info["success"]) == (1.0, True, False, True, True)
    assert (
        Sudoku().reset(options={"state": TWO_LEFT + "\nEmpty positions to be filled are at (4,2), (4,4)."})[0]
        == TWO_LEFT
    )


def test_validity():
    env = Sudoku()
    state, _ = env.reset(options={"state": "| 1 . . . | . . . . | . . . . | . . . 2 "})

    def step(action: str) -> tuple[str, float, bool, bool]:
        text, reward, _, _, info = env.step(action)
        return text, reward, info["valid"], info["effective"]

    for action in (
        "",
        "hello",
        "[1,2,3]",
        "1,2",
        "1,2,3,4",
        "0,1,2",
        "1,5,2",
        "2,2,5",
        "1,1,3",
        "4,4,2",
        "row 1 col 2",
    ):
        assert step(action) == (state, 0.0, False, False), action
    for action in ("1,2,1", "2,1,1", "2,2,1", "3,3,2"):  # row, column, box
        assert step(action) == (state, 0.0, True, False), action
    text = step("2,3,3")[0]
    assert text == "| 1 . . . | . . 3 . | . . . . | . . . 2 "
    assert step("2,3,4")[0] == "| 1 . . . | . . 4 . | . . . . | . . . 2 "  # own entries may be overwritten
    assert step("2 3 4")[2:] == (True, False)  # nothing changes
    assert step("2 3 .")[2:] == (False, False)  # but not erased


@pytest.mark.parametrize(
    "action, move",
    [
        ("1,3,2", (1, 3, 2)),
        (" 1, 3 ,2 ", (1, 3, 2)),
        ("1 3 2", (1, 3, 2)),
        ("row 1 col 3 2", (1, 3, 2)),
        ("Row 1, Column 3, value 2", (1, 3, 2)),
        ("place at row 1 and col 3 the digit 2.", (1, 3, 2)),
        ("Place 4 at Row 1, Col 2", (1, 2, 4)),
        ("4 in row 1, column 2.", (1, 2, 4)),
        ("put a 4: (row 1, col 2)", (1, 2, 4)),
        ("[1,3,2]", None),
        ("Place 4 at Row [1], Col 2", None),
        ("Place -4 at Row 1, Col 2", None),
        ("Place 4 at Row 1, Col 2, not 3", None),
        ("Place 4 or 3 at Row 1, Col 2", None),
        ("Place 4 at Row 1", None),
        ("row [1] col [3] value [2]", None),
        ("row -1 col 3 2", None),
        ("row 1 col 3.2", None),
        ("1.3.2", None),
        ("132", None),
        ("1,,3,2", None),
        ("(1,3,2)", None),
        ("row 1 col 3 2 and row 2 col 3 1", None),
        ("1,3,99999999999999999999", None),
        ("row" * 10000, None),
        ("1,3," + " " * (MAX_ACTION - 5) + "2", (1, 3, 2)),
        ("1,3," + " " * (MAX_ACTION - 4) + "2", None),
        ("١,٣,٢", None),  # digits, but not these
    ],
)
def test_parsing(action, move):
    assert parse_action(action) == move


def test_random_actions_reach_every_cell_and_digit():
    rng = np.random.default_rng(0)
    moves = [parse_action(Sudoku().sample_action(rng)) for _ in range(60)]
    assert [set(column) for column in zip(*moves, strict=True)] == [{1, 2, 3, 4}] * 3


def test_truncation():
    env = Sudoku(max_steps=2)
    env.reset(seed=0)
    assert env.step("nonsense")[2:4] == (False, False)  # not a step
    blank = env.board.index(0)
    move = f"{blank // 4 + 1},{blank % 4 + 1},1"
    assert env.step(move)[3] is False
    assert env.step(move)[3] is True


@pytest.mark.parametrize("num_clues", [4, 7, 12, 15])
def test_number_of_clues(num_clues):
    for seed in range(20):
        env = Sudoku(num_clues=num_clues)
        env.reset(seed=seed)
        assert sum(digit > 0 for digit in env.board) == num_clues
        assert count_solutions(tuple(env.board), 4) == 1


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"board_size": 5}, "board_size must be one of 4, 9, got 5"),
        ({"board_size": [4, 4]}, "board_size must be one of 4, 9, got"),
        ({"difficulty": "foo"}, "difficulty must be one of 'easy', 'medium', 'hard', got 'foo'"),
        ({"difficulty": "Easy"}, "Did you mean 'easy'"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"num_clues": 3}, "num_clues must be an integer from 4 to 15, got 3"),
        ({"num_clues": 81, "board_size": 9}, "num_clues must be an integer from 24 to 80, got 81"),
        ({"num_clues": True}, "num_clues must be"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Sudoku(**settings)


@pytest.mark.parametrize(
    "state, message",
    [
        ("| 1 2 3 4 |", "4 rows of 4 cells"),
        (TWO_LEFT.replace("1", "7", 1), "4 rows of 4 cells"),
        (TWO_LEFT.replace("2 1 4 3", "2 1 4 4"), "repeated"),
        (TWO_LEFT + "\nEmpty position to be filled is at (4,2).", "disagree"),
        (7, "must be text"),
    ],
)
def test_bad_states(state, message):
    with pytest.raises(ValueError, match=message):
        Sudoku().reset(options={"state": state})
