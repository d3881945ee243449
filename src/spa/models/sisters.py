"""Sister worlds: made-up worlds whose dynamics the built-in model is told of, as a language model was told of many.

A pretrained language model has never seen the reader's world, but it knows that "Up" is a direction and that writing fills
a blank. So that the tiny model can be compared with one, its corpus has walks on grids and writing on boards in **other
symbols and by other rules** than any world of the package: nothing is pushed, nothing is fallen into, no goal is to
be reached, and no digit conflicts with another. Actions are random.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

MOVES = ("Up", "Down", "Left", "Right")
_STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))
_SYMBOLS = "+-=*%&@~:?<>ABCDEFHIJKLMNQRTUVWYZ"  # none of a packaged world's default symbols
_WALKERS = ("Walker", "Agent", "Robot", "Ant")
_THINGS = ("stone", "flag", "coin", "tree")
_RULES = ("step", "step", "slide", "wrap", "trail", "step")


@dataclass(frozen=True)
class Exchange:
    """A state, what was done in it, and the state after that."""

    state: str
    actions: list[str]
    following: str


@dataclass(frozen=True)
class Walk:
    """Somebody walks on a grid with walls.

    ``rule``: "step" one cell; "slide" on to the next wall; "wrap" around the edges; "trail" takes away what lies on the way.
    """

    floor: str
    wall: str
    walker: str
    mark: str
    height: int
    width: int
    rule: str
    name: str
    thing: str
    told: ClassVar[float] = 0.7  # share of the states that end in a sentence
    most_left: ClassVar[int] = 10  # actions that may be left

    def exchange(self, rng: np.random.Generator, told: bool) -> Exchange:
        """``told``: states end in a sentence that gives the positions."""
        cells, walker = self._place(rng)
        state = self._text(cells, walker, told)
        directions = [int(d) for d in rng.integers(0, 4, size=int(rng.integers(1, 6)))]
        return Exchange(state, [MOVES[d] for d in directions], self._text(*self._walk(cells, walker, directions), told))

    def _place(self, rng: np.random.Generator) -> tuple[list[str], int]:
        count = self.height * self.width
        cells = [self.wall if wall else self.floor for wall in rng.random(count) < rng.uniform(0, 0.5)]
        walker, *marks = rng.choice(count, size=1 + int(rng.integers(1, 3)), replace=False)
        cells[walker] = self.floor
        for cell in marks:
            cells[cell] = self.mark
        return cells, int(walker)

    def _walk(self, cells: list[str], walker: int, directions: list[int]) -> tuple[list[str], int]:
        cells = list(cells)
        for direction in directions:
            if self.rule == "trail" and cells[walker] == self.mark:
                cells[walker] = self.floor
            walker = self._moved(cells, walker, *_STEPS[direction])
        return cells, walker

    def _moved(self, cells: list[str], walker: int, down: int, right: int) -> int:
        row, column = divmod(walker, self.width)
        while True:
            new_row, new_column = row + down, column + right
            if self.rule == "wrap":
                new_row, new_column = new_row % self.height, new_column % self.width
            inside = 0 <= new_row < self.height and 0 <= new_column < self.width
            if not inside or cells[new_row * self.width + new_column] == self.wall:
                return row * self.width + column
            row, column = new_row, new_column
            if self.rule == "trail":
                cells[row * self.width + column] = self.floor
            if self.rule != "slide":
                return row * self.width + column

    def _text(self, cells: list[str], walker: int, told: bool) -> str:
        shown = [*cells[:walker], self.walker, *cells[walker + 1 :]]
        grid = "\n".join("".join(shown[i : i + self.width]) for i in range(0, len(shown), self.width))
        if not told:
            return grid
        marks = [self._at(i) for i, cell in enumerate(cells) if cell == self.mark and i != walker]
        things = f"{self.thing} ({self.mark}) is at {', '.join(marks)}" if marks else f"no {self.thing} ({self.mark})"
        return f"{grid}\n{self.name} ({self.walker}) is at {self._at(walker)}; {things}."

    def _at(self, cell: int) -> str:
        return f"({cell // self.width},{cell % self.width})"


@dataclass(frozen=True)
class Writing:
    """Digits are written on a 4x4 board in one line. ``over``: on what is written as well, otherwise on blanks alone."""

    blank: str
    bar: str
    over: bool
    told: ClassVar[float] = 0.6
    most_left: ClassVar[int] = 50

    def exchange(self, rng: np.random.Generator, told: bool) -> Exchange:
        """As ``Walk.exchange``."""
        cells = np.where(rng.random(16) < rng.uniform(0.1, 0.7), 0, rng.integers(1, 5, size=16))
        if not (cells == 0).any():
            cells[int(rng.integers(16))] = 0
        blanks = np.flatnonzero(cells == 0)
        chosen = [(int(cell), int(rng.integers(1, 5))) for cell in rng.choice(blanks, size=int(rng.integers(1, 6)))]
        after = cells.copy()
        for cell, digit in chosen:
            if self.over or not after[cell]:
                after[cell] = digit
        actions = [f"{cell // 4 + 1},{cell % 4 + 1},{digit}" for cell, digit in chosen]
        return Exchange(self._text(cells, told), actions, self._text(after, told))

    def _text(self, cells: np.ndarray, told: bool) -> str:
        rows = (cells[start : start + 4] for start in range(0, 16, 4))
        line = "".join(f"{self.bar} " + "".join(f"{digit or self.blank} " for digit in row) for row in rows)
        if not told:
            return line
        free = [f"({cell // 4 + 1},{cell % 4 + 1})" for cell in range(16) if not cells[cell]]
        return f"{line}\nFree cells are {', '.join(free) or 'gone'}."


class Sisters:
    """The sister worlds of the corpus: 24 walks and four boards, always the same."""

    @cached_property
    def walks(self) -> list[Walk]:
        rng = np.random.default_rng(7)
        walks = []
        for i in range(24):
            floor, wall, walker, mark = map(str, rng.choice(list(_SYMBOLS), size=4, replace=False))
            height, width = int(rng.integers(4, 7)), int(rng.integers(4, 7))
            thing = _THINGS[int(rng.integers(len(_THINGS)))]
            walks.append(Walk(floor, wall, walker, mark, height, width, _RULES[i % 6], _WALKERS[i % 4], thing))
        return walks

    writings = tuple(Writing(blank, bar, i < 2) for i, (blank, bar) in enumerate(zip("-*~+", "/;:=", strict=True)))

    def pick(self, rng: np.random.Generator) -> Walk | Writing:
        """A random one."""
        if rng.random() < 0.3:
            return self.writings[int(rng.integers(len(self.writings)))]
        return self.walks[int(rng.integers(len(self.walks)))]
