"""Sudoku boards: made by shuffling a solved board and removing digits while the solution stays unique.

A board is a tuple of ``size * size`` ints in reading order, 0 for empty. Boxes are ``root x root``, ``root**2 == size``.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import isqrt

import numpy as np

from spa.envs.seeded import attempts

Board = tuple[int, ...]

# Clues left on a board (RAGEN PR #147).
CLUES = {
    4: {"easy": 10, "medium": 9, "hard": 6},
    9: {"easy": 36, "medium": 30, "hard": 24},
}
# With fewer a board has more than one solution (4x4), or is hardly ever found (9x9).
FEWEST_CLUES = {4: 4, 9: 24}
MAX_ATTEMPTS = 1_000  # solved boards tried for one seed; a hard 9x9 one needs a few, the others rarely a second


@cache
def units(size: int) -> tuple[tuple[int, int, int], ...]:
    """Row, column and box number of every cell."""
    root = isqrt(size)
    places = ((cell // size, cell % size) for cell in range(size * size))
    return tuple((row, column, row // root * root + column // root) for row, column in places)


@cache
def peers(size: int) -> tuple[tuple[int, ...], ...]:
    """For every cell the others that must hold different digits."""
    of = units(size)
    return tuple(
        tuple(other for other in range(len(of)) if other != cell and any(map(int.__eq__, of[cell], of[other])))
        for cell in range(len(of))
    )


def conflicts(board: Board | list[int], size: int, cell: int, digit: int) -> bool:
    """Whether a digit in a cell would repeat in its row, column or box, whatever the cell holds now."""
    return any(board[other] == digit for other in peers(size)[cell])


@lru_cache(maxsize=4096)
def make_board(size: int, clues: int, seed: int) -> Board:
    """The board of a seed: exactly ``clues`` digits and one solution. Cached: groups are reset to one seed."""
    for rng in attempts(seed, MAX_ATTEMPTS):
        board = generate_board(rng, size, clues)
        if board is not None:
            return board
    raise ValueError(f"found no {size}x{size} board with {clues} clues and one solution in {MAX_ATTEMPTS} attempts")


def generate_board(rng: np.random.Generator, size: int, clues: int) -> Board | None:
    """One attempt, a pure function of the generator. None where no further digit can go before ``clues`` are left."""
    board = list(solved_board(rng, size))
    left = len(board)
    # One pass is enough: a digit that had to stay for uniqueness has to stay when others are gone, too.
    for cell in _shuffled(rng, len(board)):
        if left == clues:
            break
        digit, board[cell] = board[cell], 0
        # The solution was unique before. It stays so exactly if no other digit can stand here.
        if count_solutions(tuple(board), size, limit=1, barred=(cell, digit)):
            board[cell] = digit
        else:
            left -= 1
    return tuple(board) if left == clues else None


def solved_board(rng: np.random.Generator, size: int) -> Board:
    """The cyclic board with bands, stacks, rows within bands, columns within stacks, and digits shuffled."""
    root = isqrt(size)
    digits = [digit + 1 for digit in _shuffled(rng, size)]
    rows = [band * root + row for band in _shuffled(rng, root) for row in _shuffled(rng, root)]
    columns = [stack * root + column for stack in _shuffled(rng, root) for column in _shuffled(rng, root)]
    return tuple(digits[(row % root * root + row // root + column) % size] for row in rows for column in columns)


def count_solutions(board: Board, size: int, limit: int = 2, barred: tuple[int, int] | None = None) -> int:
    """The number of solutions, counted up to ``limit``; ``barred`` (cell, digit) excludes those with that digit there.

    Backtracking on the cell with the fewest candidates. The clues must not contradict each other.
    """
    of = units(size)
    full = (1 << size) - 1
    rows, columns, boxes = [full] * size, [full] * size, [full] * size  # digits still to place, as bits
    empty = []
    for cell, digit in enumerate(board):
        if digit:
            row, column, box = of[cell]
            bit = ~(1 << digit - 1)
            rows[row], columns[column], boxes[box] = rows[row] & bit, columns[column] & bit, boxes[box] & bit
        else:
            empty.append(cell)
    bars = {barred[0]: ~(1 << barred[1] - 1)} if barred else {}

    def count(cells: list[int], limit: int) -> int:
        if not cells:
            return 1
        fewest, best, candidates = size + 1, 0, 0
        for i, cell in enumerate(cells):
            row, column, box = of[cell]
            bits = rows[row] & columns[column] & boxes[box] & bars.get(cell, full)
            number = bits.bit_count()
            if number < fewest:
                fewest, best, candidates = number, i, bits
                if number <= 1:
                    break
        if not candidates:
            return 0
        row, column, box = of[cells[best]]
        rest = cells[:best] + cells[best + 1 :]
        solutions = 0
        while candidates and solutions < limit:
            bit = candidates & -candidates
            candidates ^= bit
            rows[row], columns[column], boxes[box] = rows[row] ^ bit, columns[column] ^ bit, boxes[box] ^ bit
            solutions += count(rest, limit - solutions)
            rows[row], columns[column], boxes[box] = rows[row] ^ bit, columns[column] ^ bit, boxes[box] ^ bit
        return solutions

    return count(empty, limit)


def _shuffled(rng: np.random.Generator, count: int) -> list[int]:
    """0..count-1 in random order, from plain uniform draws, whose values do not depend on numpy's version."""
    draws = rng.random(count).tolist()
    return sorted(range(count), key=draws.__getitem__)
