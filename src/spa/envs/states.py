"""States as text: their grid, and the accuracy of a written state."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_SENTENCE = re.compile(r"\s*(?:Player \(.+?\) is at|Empty positions? to be filled|No empty positions? found)")

_IN_SENTENCES = ("Player (", "mpty position")  # checked first: most states have none, and some have very many lines


def grid_part(state: str) -> str:
    """The lines of a state before its coordinate sentence, without surrounding white space.

    The sentence is the first line that starts with ``Player (P) is at`` (Sokoban, FrozenLake; any symbol), ``Empty
    position``, ``Empty positions to be filled`` or ``No empty positions found`` (Sudoku). A state without one is returned
    whole.
    """
    lines = state.strip().splitlines()
    if any(words in state for words in _IN_SENTENCES):
        lines = lines[: next((i for i, line in enumerate(lines) if _SENTENCE.match(line)), len(lines))]
    return "\n".join(lines).strip()


def is_board(grid: str) -> bool:
    """Whether a grid part is written as ``| a b c | ...``: rows after a bar, cells separated by spaces (Sudoku)."""
    return re.match(r"\|\s+\S", grid) is not None


def cells(state: str, board: bool | None = None, most: int | None = None) -> list[list[str]]:
    """The first ``most`` rows of cells of a state's grid part (None: all).

    In a board (``is_board``; ``board`` overrides the guess) bars separate rows and spaces separate cells. In every
    other grid a line is a row and a character is a cell.
    """
    grid = grid_part(state)
    if is_board(grid) if board is None else board:
        return [row.split() for row in grid.split("|") if row.strip()][:most]
    return [list(line.rstrip()) for line in grid.splitlines()[:most]]


def _is_grid(rows: Sequence[Sequence[str]]) -> bool:
    return len(rows) > 1 and len(rows[0]) > 1 and all(len(row) == len(rows[0]) and " " not in row for row in rows)


def cell_accuracy(written: str, truth: str, before: str | None = None) -> float | None:
    """Share of the cells of ``truth``'s grid that match ``written`` at the same row and column.

    A cell missing from ``written`` is wrong; cells beyond the true grid are ignored (exact match penalises those). Given the state
    ``before``, only the cells in which ``truth`` differs from it count. None if no cell counts, or ``truth`` is not a rectangular
    grid (free-text worlds).
    """
    board = is_board(grid_part(truth))
    true_rows = cells(truth, board)
    if not _is_grid(true_rows):
        return None
    rows = cells(written, board, len(true_rows))
    old_rows = cells(before, board) if before is not None else None
    right = total = 0
    for r, true_row in enumerate(true_rows):
        row = rows[r] if r < len(rows) else []
        for c, cell in enumerate(true_row):
            if old_rows is not None and r < len(old_rows) and old_rows[r][c : c + 1] == [cell]:
                continue
            total += 1
            right += row[c : c + 1] == [cell]
    return right / total if total else None


def within(body: str, state: str = "", other: str = "") -> tuple[int, int]:
    """The range of ``body`` without the layout's white space around a state written in it.

    Around a copy of ``state`` newlines are layout. Otherwise all white space is, except for the kinds (spaces, newlines) that
    ``state`` itself has on that side, or that ``other`` has, the state before or after it: in a map drawn with blanks they tell
    where something is.
    """
    at = body.find(state) if state else -1
    if at >= 0 and not f"{body[:at]}{body[at + len(state) :]}".strip("\n"):
        return at, at + len(state)
    before = "".join(each[: len(each) - len(each.lstrip())] for each in (state, other))
    after = "".join(each[len(each.rstrip()) :] for each in (state, other))
    start = len(body) - len(body.lstrip(_layout(before)))
    return start, max(start, len(body.rstrip(_layout(after))))


def _layout(edge: str) -> str | None:
    """What to strip beside a state with the white space ``edge`` on that side; None: all white space."""
    return "".join(space for space in string.whitespace if space not in edge) if edge else None


def bare(written: str, truth: str, other: str = "") -> str:
    """``written`` without the layout's white space around it (see ``within``)."""
    return written[slice(*within(written, truth, other))]


def exact(written: str, truth: str, other: str = "") -> bool:
    """Equality up to newlines around ``truth`` and the layout's white space around ``written`` (see ``within``)."""
    truth = truth.strip("\n")
    return bare(written, truth, other.strip("\n")) == truth


def same(one: str, other: str) -> bool:
    """Whether two of a world's own states are equal, up to newlines around them."""
    return one.strip("\n") == other.strip("\n")
