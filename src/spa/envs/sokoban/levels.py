"""Parses Sokoban levels, in the default symbols or in XSB (the format of Boxoban's files)."""

from __future__ import annotations

from collections.abc import Sequence

from spa.envs.levels import BadRow
from spa.envs.sokoban.generator import Room

LEVEL_SYMBOLS = {
    "#": "wall",
    "_": "empty",
    "O": "target",
    "√": "box on target",
    "X": "box",
    "P": "player",
    "S": "player on target",
    # XSB
    " ": "empty",
    "-": "empty",
    ".": "target",
    "*": "box on target",
    "$": "box",
    "@": "player",
    "+": "player on target",
}


def read_room(rows: Sequence[str]) -> Room:
    """The room that the rows of a level show, in our default symbols or XSB. Raises ``BadRow`` where they show none."""
    for number, row in enumerate(rows):
        for column, symbol in enumerate(row, 1):
            if symbol not in LEVEL_SYMBOLS:
                known = "".join(LEVEL_SYMBOLS)
                raise BadRow(number, f"unknown symbol {symbol!r} in column {column}; known are {known!r}")
    indent = min(len(row) - len(row.lstrip()) for row in rows)
    rows = [row[indent:] for row in rows]
    height, width = len(rows), max(map(len, rows))
    if height < 3 or width < 3:
        raise BadRow(0, f"a level needs at least 3 rows and 3 columns, got {height} and {width}")
    cells = [LEVEL_SYMBOLS[symbol] for line in rows for symbol in line.ljust(width)]
    _close(cells, height, width, indent)
    room, players = room_of(height, width, cells)
    if len(players) != 1:
        where = players[1] // width if players else 0
        raise BadRow(where, f"a level needs exactly one player, got {len(players)}")
    boxes, targets = room.boxes.bit_count(), room.targets.bit_count()
    if not boxes or boxes != targets:
        raise BadRow(0, f"a level needs boxes and as many targets, got {boxes} boxes, {targets} targets")
    if room.solved:
        raise BadRow(0, "the level is solved from the start")
    return room


def _close(cells: list[str], height: int, width: int, indent: int) -> None:
    """Makes wall of the floor outside of the walls, which touches the border. Raises ``BadRow`` where a room is open."""
    for border in range(height * width):
        if cells[border] == "wall" or not on_border(border, height, width):
            continue
        seen, frontier = {border}, [border]
        while frontier:
            row, column = divmod(frontier.pop(), width)
            for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                cell = r * width + c
                if 0 <= r < height and 0 <= c < width and cells[cell] != "wall" and cell not in seen:
                    seen.add(cell)
                    frontier.append(cell)
        things = [cell for cell in seen if cells[cell] != "empty"]
        if things:
            row, column = divmod(min(things), width)
            what = cells[min(things)]
            raise BadRow(row, f"the wall has a gap: the {what} in column {column + indent + 1} is open to the edge")
        for cell in seen:
            cells[cell] = "wall"


def room_of(height: int, width: int, cells: Sequence[str]) -> tuple[Room, list[int]]:
    """The room with such cells, and where its players are: whether it makes sense is left to the caller."""

    def mask(*meanings: str) -> int:
        return sum(1 << cell for cell, meaning in enumerate(cells) if meaning in meanings)

    players = [cell for cell, meaning in enumerate(cells) if meaning in ("player", "player on target")]
    targets = mask("target", "box on target", "player on target")
    boxes = mask("box", "box on target")
    return Room(height, width, mask("wall"), targets, boxes, players[0] if players else -1), players


def on_border(cell: int, height: int, width: int) -> bool:
    row, column = divmod(cell, width)
    return row in (0, height - 1) or column in (0, width - 1)
