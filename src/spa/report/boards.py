"""States of the grid worlds as drawings: inline SVG of the page's tiles (``boards.html.jinja``), without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

from markupsafe import Markup, escape

from spa.envs.registry import make_env
from spa.envs.states import cells

_TILED = ("frozen_lake", "sokoban")
_LARGEST = 30  # rows and columns that are drawn
_CELL, _SHOWN = 10, 24  # a cell's side in user units and, unscaled, in pixels


@dataclass(frozen=True)
class Alphabet:
    """How a world's states are drawn: the tile of each symbol (``""`` for bare floor), or ``digits`` of a Sudoku board.

    Neither: states are shown as text.
    """

    tiles: Mapping[str, str] = field(default_factory=dict)
    digits: bool = False


def alphabet(world: str, settings: Mapping[str, Any]) -> Alphabet:
    """The alphabet of a world (``env.id``) with the symbols that its settings choose."""
    if world == "sudoku":
        return Alphabet(digits=True)
    if world not in _TILED:
        return Alphabet()
    vocabulary = {key: settings[key] for key in ("grid_vocab",) if settings.get(key)}
    try:
        meanings = make_env(world, **vocabulary).symbols
    except (ValueError, TypeError):
        return Alphabet()
    return Alphabet(
        {
            symbol: "" if meaning == "empty" else "tile-" + meaning.replace(" ", "-")
            for symbol, meaning in meanings.items()
        }
    )


def grid(state: str, letters: Alphabet) -> list[list[str]] | None:
    """Rows of cells if the state can be drawn, else None."""
    if not (letters.tiles or letters.digits):
        return None
    rows = cells(state, letters.digits)
    size = (len(rows), len(rows[0]) if rows else 0)
    if min(size) < 2 or max(size) > _LARGEST or any(len(row) != size[1] for row in rows):
        return None
    if letters.digits:
        return rows if all(len(cell) == 1 for row in rows for cell in row) else None
    known = sum(cell in letters.tiles for row in rows for cell in row)
    return rows if 2 * known >= size[0] * size[1] else None  # other text that happens to be rectangular stays text


def board(state: str, letters: Alphabet, truth: str | None = None) -> Markup | None:
    """A state as SVG, with cells that differ from ``truth`` marked; None if it is not a board (of the truth's size)."""
    rows = grid(state, letters)
    true_rows = rows if truth is None else grid(truth, letters)
    if rows is None or true_rows is None or [len(row) for row in rows] != [len(row) for row in true_rows]:
        return None
    height, width = len(rows), len(rows[0])
    wrong = [(r, c) for r in range(height) for c in range(width) if rows[r][c] != true_rows[r][c]]
    label = " / ".join("".join(row) for row in rows) + (f"; {len(wrong)} wrong cells" if wrong else "")
    h, w = height * _CELL, width * _CELL
    parts = [
        f'<svg class="board" viewBox="-1 -1 {w + 2} {h + 2}" width="{width * _SHOWN}" height="{height * _SHOWN}" '
        f'role="img" aria-label="{escape(label)}"><rect class="floor" width="{w}" height="{h}"/>',
        f'<rect fill="url(#grid-1)" width="{w}" height="{h}"/>',
    ]
    for r, row in enumerate(rows):
        for c, cell in enumerate(row):
            x, y = c * _CELL, r * _CELL
            if tile := letters.tiles.get(cell):
                parts.append(f'<use href="#{tile}" x="{x}" y="{y}"/>')
            elif tile is None and cell != ".":
                parts.append(f'<text x="{x + 5}" y="{y + 7.6:g}">{escape(cell)}</text>')
    if letters.digits:
        parts.append(f'<rect fill="url(#grid-{isqrt(width)})" width="{w}" height="{h}"/>')
    parts += [f'<rect class="wrong" x="{c * _CELL}" y="{r * _CELL}" width="10" height="10"/>' for r, c in wrong]
    return Markup("".join(parts) + "</svg>")  # cells are escaped, tiles come from our worlds' meanings
