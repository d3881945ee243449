"""Base class of grid worlds: symbols, action names and the coordinate sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from spa.envs.levels import read_level, read_levels
from spa.envs.seeded import SeededEnv

Vocabulary = str | Sequence[str] | Mapping[str, str]


class GridEnv(SeededEnv):
    """A world whose state is ``height`` rows of one symbol per cell, joined by newlines.

    Cells are numbered in reading order: ``row * width + column``.

    The size is that of the settings, or of the given instance that is being played.

    Attributes:
        height, width: rows and columns of the state.
        meanings: what a cell can hold, in listing order, with the symbol each has by default.
        moves: the default action names, in listing order.
        parse: makes an instance from its rows; raises ``BadRow``.
    """

    meanings: ClassVar[Mapping[str, str]] = {}  # meaning -> default symbol
    moves: tuple[str, ...] = ()
    parse: Callable[[Sequence[str]], Any]

    def __init__(
        self,
        size: tuple[int, int],
        max_steps: int | None,
        grid_vocab: Vocabulary | None,
        action_names: Sequence[str] | None,
        state_format: str,
        render_mode: str | None,
    ) -> None:
        super().__init__(state_format=state_format, max_steps=max_steps, render_mode=render_mode)
        self.height, self.width = self._set_size = size
        self.symbols = _symbols(grid_vocab, self.meanings)
        self.actions = _actions(action_names, self.moves)
        if tuple(self.symbols) != tuple(self.meanings.values()) or self.actions != self.moves:
            self.example = None  # it is written with the default symbols and action names
        self._symbol = {meaning: symbol for symbol, meaning in self.symbols.items()}

    def render(self) -> Any:
        """The text of the state, or a picture of it: see ``render_mode`` of the world."""
        return self.text()

    def text(self) -> str:
        """The true state: the grid and, in the other formats, a last line with zero-indexed positions, true or wrong."""
        drawn, symbol, width = self._canvas.copy(), self._symbol, self.width
        for cell, meaning in self._moving():
            drawn[cell + cell // width] = symbol[meaning]
        grid = "".join(drawn)
        return grid if self.state_format == "grid" else f"{grid}\n{self._sentence()}"

    def _load(self, text: str) -> None:
        lines = text.strip("\n").split("\n")
        rows = list(takewhile(lambda line: " " not in line, lines))  # no symbol is a space; a sentence has some
        size = (len(rows), len(rows[0]) if rows else 0)
        ragged = any(len(row) != size[1] for row in rows)
        if ragged or (size not in (self._set_size, (self.height, self.width)) and not self._levels):
            height, width = self._set_size
            raise ValueError(f"a state of these settings has {height} rows of {width} symbols, got:\n{text}")
        unknown = sorted(set("".join(rows)) - set(self.symbols))
        if unknown:
            raise ValueError(f"unknown symbols {''.join(unknown)!r} in the state. Known: {''.join(self.symbols)}")
        self._set_cells(*size, [self.symbols[symbol] for row in rows for symbol in row])
        rest = "\n".join(lines[len(rows) :]).strip()
        if rest and self.state_format != "random_coordinates" and rest != self._sentence():
            raise ValueError(f"the positions {rest!r} disagree with the grid's, {self._sentence()!r}")

    def _symmetry(self) -> str:
        return canonical_grid(self._problem().partition("\n")[2])

    def _at(self, cell: int) -> str:
        return f"({cell // self.width},{cell % self.width})"

    def _positions(self, cells: Iterable[int]) -> list[str]:
        """How the sentence names cells."""
        named = list(cells)
        if self.state_format == "random_coordinates":
            wrong = self.wrong_cells(self.height * self.width, "".join(self._cells()))
            named = sorted(wrong[cell] for cell in named)
        return [self._at(cell) for cell in named]

    def _list(self, singular: str, plural: str, meaning: str, cells: Iterable[int]) -> str:
        """``box (X) is at (1,2)``, ``boxes (X) are at (1,2), (3,4)`` or ``no boxes (X)``."""
        positions = self._positions(cells)
        symbol = self._symbol[meaning]
        if not positions:
            return f"no {plural} ({symbol})"
        noun, verb = (singular, "is") if len(positions) == 1 else (plural, "are")
        return f"{noun} ({symbol}) {verb} at {', '.join(positions)}"

    def _take_levels(self, path: str | Path) -> None:
        """Plays the instances of a file."""
        self._levels = read_levels(path, self.parse)

    def _read_instance(self, text: Any) -> Any:
        return read_level(text, self.instance_option, self.parse)

    def _lay(self, ground: Sequence[str]) -> None:
        """Takes over what each cell holds of what never moves, once an instance."""
        self._ground = ground
        symbols = "".join(map(self._symbol.__getitem__, ground))
        self._canvas = list(in_rows(symbols, self.width))

    def _cells(self) -> list[str]:
        """What each cell holds, in reading order."""
        cells = list(self._ground)
        for cell, meaning in self._moving():
            cells[cell] = meaning
        return cells

    # A subclass takes over instances, lays their ground, says what stands on it (see `meanings`), takes over a list of cells and
    # writes the sentence.

    def _moving(self) -> Iterable[tuple[int, str]]:
        raise NotImplementedError

    def _set_cells(self, height: int, width: int, cells: list[str]) -> None:
        raise NotImplementedError

    def _sentence(self) -> str:
        raise NotImplementedError


def in_rows(cells: str, width: int) -> str:
    """Cells in reading order as rows joined by newlines."""
    return "\n".join(cells[start : start + width] for start in range(0, len(cells), width))


@lru_cache(4096)
def canonical_grid(grid: str) -> str:
    """The least of the eight rotations and mirror images of a grid: two grids share it exactly if one is an image of the other."""
    rows = grid.split("\n")
    images = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*reversed(rows), strict=True)]  # a quarter turn clockwise
        images += ["\n".join(rows), "\n".join(reversed(rows))]
    return min(images)


def _symbols(vocabulary: Vocabulary | None, meanings: Mapping[str, str]) -> dict[str, str]:
    """Symbol -> meaning, in listing order, from symbols in that order or from such a mapping in any order."""
    if vocabulary is None:
        return {symbol: meaning for meaning, symbol in meanings.items()}
    wanted = f"one symbol for each of: {', '.join(meanings)}"
    if not isinstance(vocabulary, (str, Sequence, Mapping)):
        raise ValueError(f"grid_vocab must give {wanted}; got {vocabulary!r}")
    if isinstance(vocabulary, Mapping):
        if not all(isinstance(meaning, str) for meaning in vocabulary.values()):
            raise ValueError(f"grid_vocab must map symbols to meanings, {wanted}; got {dict(vocabulary)!r}")
        by_meaning: dict[Any, Any] = {meaning: symbol for symbol, meaning in vocabulary.items()}
        if set(by_meaning) != set(meanings) or len(vocabulary) != len(meanings):
            raise ValueError(f"grid_vocab must map symbols to meanings, {wanted}; got {dict(vocabulary)!r}")
        chosen = [by_meaning[meaning] for meaning in meanings]
    else:
        chosen = list(vocabulary)
    if len(chosen) != len(meanings) or len(set(chosen)) != len(chosen):
        raise ValueError(f"grid_vocab must give {wanted}, all different; got {vocabulary!r}")
    for symbol in chosen:
        if not isinstance(symbol, str) or len(symbol) != 1 or symbol.isspace():
            raise ValueError(f"every symbol of grid_vocab must be one visible character, got {symbol!r}")
    return dict(zip(chosen, meanings, strict=True))


def _actions(action_names: Sequence[str] | None, moves: tuple[str, ...]) -> tuple[str, ...]:
    if action_names is not None and not isinstance(action_names, Iterable):
        raise ValueError(f"action_names must be a list of names, got {action_names!r}")
    names = moves if action_names is None else tuple(action_names)
    if not all(isinstance(name, str) and name.strip() == name and name for name in names):
        raise ValueError(f"every action name must be non-empty text without surrounding space, got {names!r}")
    if len({name.casefold() for name in names}) != len(moves) or len(names) != len(moves):
        raise ValueError(f"action_names must be {len(moves)} different names for {', '.join(moves)}, got {names!r}")
    return names
