"""Pictures of a Sokoban room for human viewers, 16 x 16 pixels a cell. Agents read the text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

TILE = 16  # pixels

Picture = NDArray[np.uint8]

FLOOR, WALL, MORTAR = (238, 232, 213), (96, 108, 118), (66, 76, 84)
TARGET, BOX, BOX_EDGE = (204, 72, 60), (198, 140, 66), (120, 78, 32)
HOME, HOME_EDGE = (104, 166, 84), (52, 102, 44)
PLAYER, FACE = (48, 104, 176), (250, 220, 184)


def draw(cells: Sequence[str], width: int) -> Picture:
    """The picture of a room as uint8 RGB, shape (rows * TILE, width * TILE, 3).

    Args:
        cells: what every cell holds, in reading order: the meanings of ``Sokoban.symbols``.
        width: columns of the room.
    """
    tiles = _tiles()
    picture = np.stack([tiles[cell] for cell in cells])  # (cells, TILE, TILE, 3)
    rows = picture.reshape(-1, width, TILE, TILE, 3)
    return rows.swapaxes(1, 2).reshape(-1, width * TILE, 3)


@cache
def _tiles() -> dict[str, Picture]:
    row, column = np.mgrid[:TILE, :TILE]
    centre = (TILE - 1) / 2
    radius = np.hypot(row - centre, column - centre)
    from_edge = np.minimum(np.minimum(row, column), TILE - 1 - np.maximum(row, column))

    empty = np.full((TILE, TILE, 3), FLOOR, dtype=np.uint8)
    wall = np.full((TILE, TILE, 3), WALL, dtype=np.uint8)
    shift = row // 4 % 2 * 4  # every other course of bricks is moved by half a brick
    wall[(row % 4 == 3) | ((column + shift) % 8 == 7)] = MORTAR

    target = empty.copy()
    target[(radius < 7) & (radius > 5)] = TARGET
    target[radius < 2] = TARGET

    def with_box(tile: Picture, face: tuple[int, int, int], edge: tuple[int, int, int]) -> Picture:
        tile = tile.copy()
        tile[from_edge >= 1] = face
        tile[(from_edge >= 1) & ((from_edge < 3) | (abs(row - column) < 2) | (abs(row + column - 2 * centre) < 2))] = (
            edge
        )
        return tile

    def with_player(tile: Picture) -> Picture:
        tile = tile.copy()
        tile[np.hypot((row - 15) / 1.4, column - centre) < 5] = PLAYER
        tile[np.hypot(row - 5, column - centre) < 3.5] = FACE
        return tile

    return {
        "wall": wall,
        "empty": empty,
        "target": target,
        "box on target": with_box(target, HOME, HOME_EDGE),
        "box": with_box(empty, BOX, BOX_EDGE),
        "player": with_player(empty),
        "player on target": with_player(target),
    }
