"""Sokoban: push every box onto a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from spa.envs.grid import GridEnv, Vocabulary
from spa.envs.seeded import Outcome, at_least
from spa.envs.sokoban_generator import Room, RoomSpec, make_room

STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0


class Sokoban(GridEnv):
    """Sokoban in the rooms and with the rewards of gym-sokoban, as text.

    ## Actions
    ``Up``, ``Down``, ``Left``, ``Right``, in any case: walk one cell, pushing a box that stands there. A move that a
    wall or a stuck box prevents is allowed and costs a step, but is not effective. Anything else is not valid.

    ## States
    Rows of cells joined by newlines: ``#`` wall, ``_`` empty, ``O`` target, ``√`` box on target, ``X`` box, ``P``
    player, ``S`` player on target. In the format ``coordinates`` a last line gives zero-indexed (row,column) positions::

        Player (P) is at (4,3); box (X) is at (3,3); target (O) is at (1,4).

    With several of a kind, in reading order: ``boxes (X) are at (1,2), (3,3)``. A box on a target is listed as box and
    as target, a player on a target as player and as target.

    ## Rewards
    -0.1 per step; +1 when a step raises the number of boxes on targets, -1 when it lowers it; +10 when all
    are on targets. Pushing the only box home gives 10.9.

    ## Episode end
    Terminated when solved, truncated after ``max_steps`` moves.

    ## Rooms
    Carved by a random walk, then played in reverse from the solved room (see ``spa.envs.sokoban_generator``). Every
    room is solvable and starts with no box on a target. Nothing says that it is solvable within an agent's action
    limit: see ``max_moves``.

    Args:
        dim_room: rows and columns, the surrounding wall included.
        num_boxes: boxes, and targets.
        max_steps: moves after which an episode is cut off.
        search_depth: bound on the moves of the reverse play. Larger values make harder rooms.
        max_moves: only make rooms that can be solved in so many moves; None for any solvable room.
        grid_vocab: other symbols, in the order wall, empty, target, box on target, box, player, player on target
            (``"W.GCBA@"``), or a mapping from symbol to these meanings.
        action_names: other names, in the order up, down, left, right: ``("Left", "Right", "Up", "Down")`` makes
            "Left" move up.
        state_format: ``"grid"``, ``"coordinates"`` or ``"random_coordinates"``.
        render_mode: ``"ansi"`` or None; ``render()`` returns the text either way.

    Raises:
        ValueError: for settings out of range, and at reset where the settings leave no room.

    Source: gym-sokoban; settings, symbols and the generator's changes from RAGEN; the sentence for one box is that of
    the SPA paper's published data, the wording for several is this project's.
    """

    name = "Sokoban"
    meanings: ClassVar[Mapping[str, str]] = {
        "wall": "#",
        "empty": "_",
        "target": "O",
        "box on target": "√",
        "box": "X",
        "player": "P",
        "player on target": "S",
    }
    moves = ("Up", "Down", "Left", "Right")
    rules = (
        "You are the player in a Sokoban room and must push every box onto a target. Walking against a box pushes it "
        "one cell, unless a wall or another box is behind it. Boxes cannot be pulled."
    )

    def __init__(
        self,
        dim_room: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        max_steps: int = 100,
        search_depth: int = 300,
        max_moves: int | None = None,
        grid_vocab: Vocabulary | None = None,
        action_names: Sequence[str] | None = None,
        state_format: str = "grid",
        render_mode: str | None = "ansi",
    ) -> None:
        if isinstance(dim_room, (str, int)) or len(dim_room) != 2:
            raise ValueError(f"dim_room must be two integers, rows and columns, got {dim_room!r}")
        height, width = (at_least("dim_room", side, 3) for side in dim_room)
        num_boxes = at_least("num_boxes", num_boxes, 1)
        if (height - 2) * (width - 2) < 2 * num_boxes + 1:
            raise ValueError(
                f"dim_room={(height, width)} has no space for num_boxes={num_boxes}: boxes, targets and the player need "
                f"{2 * num_boxes + 1} cells inside the wall"
            )
        self.room_spec = RoomSpec(
            height,
            width,
            num_boxes,
            at_least("search_depth", search_depth, 3),
            None if max_moves is None else at_least("max_moves", max_moves, 1),
        )
        position = len(f"({height},{width}), ")
        super().__init__(
            height=height,
            width=width,
            grid_vocab=grid_vocab,
            action_names=action_names,
            state_format=state_format,
            max_steps=max_steps,
            render_mode=render_mode,
            longest_sentence=64 + (2 * num_boxes + 1) * position,
        )
        self.room = Room(height, width, 0, 0, 0, 0)

    def _make(self, world_seed: int) -> None:
        self.room = make_room(self.room_spec, world_seed)

    def _play(self, action: str) -> Outcome | None:
        direction = self.action_index(action)
        if direction is None:
            return None
        before, self.room = self.room, self.room.move(direction)
        gained = self.room.boxes_on_targets - before.boxes_on_targets
        reward = STEP_REWARD + gained * BOX_REWARD + (SOLVED_REWARD if self.room.solved else 0.0)
        return Outcome(reward, self.room is not before, self.room.solved)

    def _success(self) -> bool:
        return self.room.solved

    def _problem(self) -> str:
        # Default symbols and no player: the same boxes and targets in the same walls are the same problem.
        return f"{self.height}x{self.width}\n{grid_text(replace(self.room, player=-1))}"

    def _keeps(self, earlier: Any) -> bool:
        return (self.room.walls, self.room.targets) == (earlier.room.walls, earlier.room.targets)

    def _cells(self) -> list[str]:
        return _cells(self.room)

    def _set_cells(self, cells: list[str]) -> None:
        def mask(*meanings: str) -> int:
            return sum(1 << cell for cell, meaning in enumerate(cells) if meaning in meanings)

        players = [cell for cell, meaning in enumerate(cells) if meaning in ("player", "player on target")]
        boxes = mask("box", "box on target")
        targets = mask("target", "box on target", "player on target")
        if len(players) != 1:
            raise ValueError(f"a state needs exactly one player, got {len(players)}")
        if not boxes.bit_count() == targets.bit_count() == self.room_spec.num_boxes:
            raise ValueError(
                f"the state must have {self.room_spec.num_boxes} boxes and as many targets, as this world's settings say, "
                f"got {boxes.bit_count()} and {targets.bit_count()}"
            )
        for cell, meaning in enumerate(cells):
            row, column = divmod(cell, self.width)
            if meaning != "wall" and (row in (0, self.height - 1) or column in (0, self.width - 1)):
                raise ValueError(f"the border of the state must be wall, but {self._at(cell)} is {meaning}")
        self.room = Room(self.height, self.width, mask("wall"), targets, boxes, players[0])

    def _sentence(self) -> str:
        room = self.room
        boxes = self._list("box", "boxes", "box", _bits(room.boxes))
        targets = self._list("target", "targets", "target", _bits(room.targets))
        return f"Player ({self._symbol['player']}) is at {self._positions([room.player])[0]}; {boxes}; {targets}."


def _bits(mask: int) -> list[int]:
    cells = []
    while mask:
        lowest = mask & -mask
        cells.append(lowest.bit_length() - 1)
        mask ^= lowest
    return cells


@lru_cache(1024)
def _fixed_cells(count: int, walls: int, targets: int) -> tuple[str, ...]:
    """What each cell holds of what never moves: drawn once a room."""
    return tuple("wall" if walls >> cell & 1 else "target" if targets >> cell & 1 else "empty" for cell in range(count))


def _cells(room: Room) -> list[str]:
    """What each cell holds, in reading order; a negative ``player`` leaves the player out."""
    cells = list(_fixed_cells(room.height * room.width, room.walls, room.targets))
    for cell in _bits(room.boxes):
        cells[cell] = "box on target" if room.targets >> cell & 1 else "box"
    if room.player >= 0:
        cells[room.player] = "player on target" if room.targets >> room.player & 1 else "player"
    return cells


def grid_text(room: Room) -> str:
    """A room drawn in the default symbols; a negative ``player`` leaves the player out."""
    drawn = "".join(Sokoban.meanings[meaning] for meaning in _cells(room))
    return "\n".join(drawn[start : start + room.width] for start in range(0, len(drawn), room.width))
