"""Sudoku: fill a board so that no row, column or box repeats a digit."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

from spa.envs.base import Example
from spa.envs.levels import BadRow, read_level, read_levels
from spa.envs.seeded import Outcome, SeededEnv, at_least, one_of
from spa.envs.sudoku.generator import CLUES, FEWEST_CLUES, Board, conflicts, count_solutions, make_board

MAX_ACTION = 200  # characters; anything longer is no move
EMPTY = ".0_"  # an empty cell of a given board

_NUMBERS = re.compile(r"([0-9]{1,3})(?:\s*,\s*|\s+)([0-9]{1,3})(?:\s*,\s*|\s+)([0-9]{1,3})")
# No digit besides the three, and no minus sign, decimal point between digits or bracket: nothing has to be guessed.
_GAP = r"[^0-9\-\[\]]*"
_WORDS = re.compile(
    rf"{_GAP}\brow{_GAP}([0-9]{{1,3}}){_GAP}\bcol{_GAP}([0-9]{{1,3}}){_GAP}([0-9]{{1,3}}){_GAP}", re.IGNORECASE
)
_VALUE_FIRST = re.compile(
    rf"{_GAP}([0-9]{{1,3}}){_GAP}\brow{_GAP}([0-9]{{1,3}}){_GAP}\bcol{_GAP}([0-9]{{1,3}}){_GAP}", re.IGNORECASE
)


def parse_action(action: str) -> tuple[int, int, int] | None:
    """(row, column, value) of ``"1,3,2"``, ``"1 3 2"``, ``"row 1 col 3 value 2"`` or ``"Place 2 at Row 1, Col 3"``; None for
    anything else.

    Square brackets make it no action, as in RAGEN.
    """
    action = action.strip()
    if len(action) > MAX_ACTION or re.search(r"[0-9]\.[0-9]", action):
        return None
    if match := _NUMBERS.fullmatch(action) or _WORDS.fullmatch(action):
        row, column, value = map(int, match.groups())
    elif match := _VALUE_FIRST.fullmatch(action):
        value, row, column = map(int, match.groups())
    else:
        return None
    return row, column, value


def read_board(rows: Sequence[str], size: int) -> Board:
    """The board that rows show, or a single row with all of them. Raises ``BadRow`` where they show none.

    Empty cells are ``.``, ``0`` or ``_``. Spaces and ``|`` are left out, and so are rows of ``-``, ``+`` and ``=``.
    """
    board: list[int] = []
    lines: list[int] = []  # the row that each cell was in
    for number, row in enumerate(rows):
        cells = row.replace("|", "").replace(" ", "")
        if cells.strip("-+=") == "":
            continue
        if len(cells) not in (size, size * size):
            raise BadRow(number, f"a row of a {size}x{size} board has {size} cells, got {len(cells)}; see board_size")
        for symbol in cells:
            if symbol not in EMPTY and symbol not in string.digits[1 : size + 1]:
                raise BadRow(
                    number,
                    f"{symbol!r} is not a cell: a cell is a digit from 1 to {size} or, if empty, one of {EMPTY!r}",
                )
            board.append(0 if symbol in EMPTY else int(symbol))
            lines.append(number)
    if len(board) != size * size:
        raise BadRow(0, f"a {size}x{size} board has {size * size} cells, got {len(board)}; see board_size")
    for cell, digit in enumerate(board):
        if digit and conflicts(board, size, cell, digit):
            where = f"({cell // size + 1},{cell % size + 1})"
            raise BadRow(lines[cell], f"the {digit} at {where} is repeated in its row, column or box")
    if all(board):
        raise BadRow(0, "the board has no empty cell")
    if not count_solutions(tuple(board), size, limit=1):
        raise BadRow(0, "the board has no solution")
    return tuple(board)


def _is_whole(row: str) -> bool:
    """Whether a line is a board by itself."""
    return sum(character in EMPTY or character in string.digits for character in row) > max(CLUES)


class Sudoku(SeededEnv):
    """Sudoku with one solution, as text.

    See ``docs/worlds/sudoku.md``. A state is a single line that ends in a space. In the format ``coordinates`` a second line
    lists the empty cells, 1-indexed (row,column)::

        | 1 2 3 4 | 3 4 . 2 | . 1 4 3 | 4 3 2 1 (and a space)
        Empty positions to be filled are at (2,3), (3,1).

    An action is what ``parse_action`` reads. A given cell cannot be changed (not valid). A digit that its row, column or box
    already holds is valid but not effective. Reward 1 on completing the board, otherwise 0. Terminated when complete,
    truncated after ``max_steps`` valid actions.

    Args:
        board_size: 4 or 9.
        difficulty: ``"easy"``, ``"medium"`` or ``"hard"``: the number of ``CLUES``.
        num_clues: digits on a board, if not the difficulty's: from 4 to 15 for 4x4, from 24 to 80 for 9x9.
        max_steps: valid actions after which an episode is cut off.
        levels: a file of boards (see ``read_board``) to play instead of those made here; ``difficulty`` is then ignored.
        state_format: ``"grid"`` (the line alone), ``"coordinates"`` or ``"random_coordinates"``.
        render_mode: ``"ansi"`` or None; ``render()`` returns the text either way.

    Raises:
        ValueError: settings out of range, a malformed board (with its line) or file of boards.

    Source: RAGEN PR #147.
    """

    name = "Sudoku"
    instance_option = "board"
    instruction = (
        "You are solving a Sudoku puzzle. Fill in the empty cells so that every row, column and box holds each digit "
        "once. An action places one digit: row, column, value, counted from 1. "
        "Example answer format: <answer>1,1,4 || 2,3,1</answer>"
    )
    example = Example(
        "| 1 2 3 4 | 3 4 1 2 | 2 1 4 . | 4 3 2 1 ",
        "Row 3 holds 2, 1 and 4, so the empty cell is 3.",
        "| 1 2 3 4 | 3 4 1 2 | 2 1 4 3 | 4 3 2 1 ",
        "3,4,3",
        ("Empty position to be filled is at (3,4).", "No empty positions found (board might be complete)."),
    )

    def __init__(
        self,
        board_size: int = 4,
        difficulty: str = "easy",
        num_clues: int | None = None,
        max_steps: int = 30,
        levels: str | Path | None = None,
        state_format: str = "grid",
        render_mode: str | None = "ansi",
    ) -> None:
        if isinstance(board_size, bool) or board_size not in tuple(CLUES):
            raise ValueError(f"board_size must be one of {', '.join(map(str, CLUES))}, got {board_size!r}")
        super().__init__(state_format=state_format, max_steps=max_steps, render_mode=render_mode)
        self.size = int(board_size)
        self.difficulty = one_of("difficulty", difficulty, CLUES[self.size])
        num_clues = CLUES[self.size][self.difficulty] if num_clues is None else num_clues
        self.num_clues = at_least("num_clues", num_clues, FEWEST_CLUES[self.size], self.size**2 - 1)
        root = isqrt(self.size)
        self.rules = (
            f"Fill the empty cells (.) of the {self.size}x{self.size} Sudoku so that every row, every column and every "
            f"{root}x{root} box holds each digit from 1 to {self.size} once. An action is row,column,digit, counted "
            "from 1: 1,3,2 writes a 2 into row 1, column 3. Given digits cannot be changed."
        )
        self.clues: Board = (0,) * self.size**2
        self.board: list[int] = list(self.clues)
        if levels is not None:
            self._levels = read_levels(levels, read_board, self.size, whole=_is_whole)

    def render(self) -> str:
        """The true state: the board's line and, in the other formats, the line of empty cells, true or wrong."""
        line = _line(self.board, self.size)
        return line if self.state_format == "grid" else f"{line}\n{self._sentence()}"

    def sample_action(self, rng: np.random.Generator) -> str:
        """A random row, column and digit, blind to the board."""
        row, column, digit = rng.integers(1, self.size + 1, size=3)
        return f"{row},{column},{digit}"

    def _make(self, world_seed: int) -> None:
        self._take_instance(make_board(self.size, self.num_clues, world_seed))

    def _read_instance(self, text: Any) -> Board:
        return read_level(text, self.instance_option, read_board, self.size)

    def _take_instance(self, instance: Board) -> None:
        self.clues, self.board = instance, list(instance)

    def _load(self, text: str) -> None:
        """Takes over a board; all its digits count as given."""
        line, _, rest = text.strip("\n").partition("\n")
        rows = [row.split() for row in line.strip().strip("|").split("|")]
        allowed = {".": 0} | {str(digit): digit for digit in range(1, self.size + 1)}
        if [len(row) for row in rows] != [self.size] * self.size or not all(c in allowed for row in rows for c in row):
            raise ValueError(
                f"a state must be {self.size} rows of {self.size} cells, each a digit up to {self.size} or '.', written "
                f"like {_line([0] * self.size**2, self.size)!r}; got {line!r}"
            )
        board = [allowed[cell] for row in rows for cell in row]
        for cell, digit in enumerate(board):
            if digit and conflicts(board, self.size, cell, digit):
                row, column = divmod(cell, self.size)
                raise ValueError(f"the {digit} at ({row + 1},{column + 1}) is repeated in its row, column or box")
        self._take_instance(tuple(board))
        sentence = "" if self.state_format == "random_coordinates" else rest.strip()
        if sentence and sentence != self._sentence():
            raise ValueError(f"the positions {rest!r} disagree with the board's, {self._sentence()!r}")

    def _play(self, action: str) -> Outcome | None:
        parsed = parse_action(action)
        if parsed is None or not all(1 <= number <= self.size for number in parsed):
            return None
        row, column, digit = parsed
        cell = (row - 1) * self.size + column - 1
        if self.clues[cell]:
            return None
        effective = self.board[cell] != digit and not conflicts(self.board, self.size, cell, digit)
        if effective:
            self.board[cell] = digit
        complete = self._success()
        return Outcome(float(complete), effective, complete)

    def _success(self) -> bool:
        return 0 not in self.board  # conflicting digits never get onto the board

    def _keeps(self, earlier: Any) -> bool:
        return all(digit or not before for digit, before in zip(self.board, earlier.board, strict=True))

    @property
    def num_cell_values(self) -> int:
        return self.size + 1  # digits and the mark of an empty cell

    def _problem(self) -> str:
        return f"{self.size}x{self.size}\n{_line(list(self.clues), self.size)}"

    def _sentence(self) -> str:
        cells = [cell for cell, digit in enumerate(self.board) if not digit]
        if self.state_format == "random_coordinates":
            wrong = self.wrong_cells(len(self.board), _line(self.board, self.size))
            cells = sorted(wrong[cell] for cell in cells)
        where = ", ".join(f"({cell // self.size + 1},{cell % self.size + 1})" for cell in cells)
        if not cells:
            return "No empty positions found (board might be complete)."
        if len(cells) == 1:
            return f"Empty position to be filled is at {where}."
        return f"Empty positions to be filled are at {where}."


def _line(board: list[int], size: int) -> str:
    rows = (board[start : start + size] for start in range(0, len(board), size))
    return "".join("| " + "".join(f"{digit or '.'} " for digit in row) for row in rows)
