"""Sister worlds share no symbol with the package's, and what is told of them follows from their rules (a naive replay)."""

from __future__ import annotations

import re

import numpy as np
import pytest

from spa.envs.frozen_lake import FrozenLake
from spa.envs.sokoban import Sokoban
from spa.models.sisters import Sisters, Walk, Writing

SISTERS = Sisters()
AHEAD = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def test_no_symbol_is_one_of_the_packages() -> None:
    known = {*Sokoban.meanings.values(), *FrozenLake.meanings.values(), *"|.123456789\n"}
    for walk in SISTERS.walks:
        symbols = [walk.floor, walk.wall, walk.walker, walk.mark]
        assert len({*symbols}) == 4
        assert not known & {*symbols}
    for writing in SISTERS.writings:
        assert not known & {writing.blank, writing.bar}
    assert {walk.rule for walk in SISTERS.walks} == {"step", "slide", "wrap", "trail"}


def replay(walk: Walk, state: str, actions: list[str]) -> dict[tuple[int, int], str]:
    """Cells after the actions, found by looking up single cells of the text."""
    grid = {(r, c): s for r, row in enumerate(state.split("\n")[: walk.height]) for c, s in enumerate(row)}
    at = next(cell for cell, symbol in grid.items() if symbol == walk.walker)
    grid[at] = walk.floor
    for action in actions:
        for _ in range(10 if walk.rule == "slide" else 1):
            ahead = (at[0] + AHEAD[action][0], at[1] + AHEAD[action][1])
            if walk.rule == "wrap":
                ahead = (ahead[0] % walk.height, ahead[1] % walk.width)
            if grid.get(ahead, walk.wall) != walk.wall:
                at = ahead
                if walk.rule == "trail":
                    grid[at] = walk.floor
    grid[at] = walk.walker
    return grid


@pytest.mark.parametrize("index", range(24))
def test_walks_go_by_their_rule(index: int) -> None:
    walk, rng, changed = SISTERS.walks[index], np.random.default_rng(index), 0
    for _ in range(60):
        exchange = walk.exchange(rng, told=True)
        assert 1 <= len(exchange.actions) <= 5
        *rows, sentence = exchange.following.split("\n")
        expected = replay(walk, exchange.state, exchange.actions)
        assert {(r, c): s for r, row in enumerate(rows) for c, s in enumerate(row)} == expected
        (at,) = (cell for cell, symbol in expected.items() if symbol == walk.walker)
        marks = sorted(cell for cell, symbol in expected.items() if symbol == walk.mark)
        assert [tuple(map(int, p)) for p in re.findall(r"\((\d),(\d)\)", sentence)] == [at, *marks]
        changed += exchange.following != exchange.state
    assert changed > 15
    assert walk.exchange(rng, told=False).state.count("\n") == walk.height - 1


@pytest.mark.parametrize("writing", SISTERS.writings, ids=lambda w: w.bar)
def test_boards_are_written_on(writing: Writing) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        exchange = writing.exchange(rng, told=True)
        line, sentence = exchange.state.split("\n")
        cells = {(i // 4 + 1, i % 4 + 1): c for i, c in enumerate(line.replace(writing.bar, " ").split())}
        free = [cell for cell, content in cells.items() if content == writing.blank]
        assert [tuple(map(int, p)) for p in re.findall(r"\((\d),(\d)\)", sentence)] == free
        for action in exchange.actions:
            row, column, digit = action.split(",")
            cell = (int(row), int(column))
            assert cell in free
            if writing.over or cells[cell] == writing.blank:
                cells[cell] = digit
        after = exchange.following.split("\n")[0].replace(writing.bar, " ").split()
        assert after == list(cells.values())
