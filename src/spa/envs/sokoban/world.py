"""Sokoban: push every box onto a target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from spa.envs.base import Example
from spa.envs.grid import GridEnv, Vocabulary, in_rows
from spa.envs.seeded import Outcome, at_least
from spa.envs.sokoban import pictures
from spa.envs.sokoban.generator import Room, RoomSpec, make_room
from spa.envs.sokoban.levels import on_border, read_room, room_of

STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0


class Sokoban(GridEnv):
    """Sokoban in the rooms and with the rewards of gym-sokoban, as text.

    See ``docs/worlds/sokoban.md``. A state is rows of cells joined by newlines; in the format ``coordinates`` a last line
    gives zero-indexed (row,column) positions, in reading order, a box on a target as box and as target::

        Player (P) is at (4,3); box (X) is at (3,3); target (O) is at (1,4).

    A blocked move is valid and not effective. Rewards: -0.1 per step, +1 when a step raises the number of boxes on targets, -1
    when it lowers it, +10 when all are on targets. Terminated when solved, truncated after ``max_steps`` moves.

    Args:
        dim_room: rows and columns, the surrounding wall included.
        num_boxes: boxes, and targets.
        max_steps: moves after which an episode is cut off.
        search_depth: bound on the moves of the reverse play that makes a room. Larger values make harder rooms.
        max_moves, max_pushes: only make rooms solvable within so many moves, or moves that push a box; None for any.
        levels: a file of levels in Boxoban's format to play instead; ``dim_room`` and ``num_boxes`` are then ignored.
        grid_vocab: other symbols, in the order of ``meanings`` (``"W.GCBA@"``), or a mapping from symbol to these meanings.
        action_names: other names for ``moves``, in their order.
        state_format: ``"grid"``, ``"coordinates"`` or ``"random_coordinates"``.
        render_mode: ``"rgb_array"``: ``render()`` returns uint8 of shape (16 * rows, 16 * columns, 3); states stay text.

    Raises:
        ValueError: settings out of range, a malformed level (with its line) or file of levels, and at reset where the
            settings leave no room.

    Source: gym-sokoban; settings, symbols and the generator's changes from RAGEN; the sentence for one box is that of
    the SPA paper's published data, the wording for several is this project's.
    """

    name = "Sokoban"
    instance_option = "level"
    parse = staticmethod(read_room)
    metadata: dict[str, Any] = {**GridEnv.metadata, "render_modes": ["ansi", "rgb_array"]}
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
    example = Example(  # the paper's second state with the true outcome of its actions
        "######\n#_####\n#_P###\n#_X#_#\n#__O_#\n######",
        "I push the box down, go around it and push it on.",
        "######\n#_####\n#__###\n#__#_#\n#PXO_#\n######",
        "Down || Left || Down",
        (
            "Player (P) is at (2,2); box (X) is at (3,2); target (O) is at (4,3).",
            "Player (P) is at (4,1); box (X) is at (4,2); target (O) is at (4,3).",
        ),
    )

    def __init__(
        self,
        dim_room: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        max_steps: int = 100,
        search_depth: int = 300,
        max_moves: int | None = None,
        max_pushes: int | None = None,
        levels: str | Path | None = None,
        grid_vocab: Vocabulary | None = None,
        action_names: Sequence[str] | None = None,
        state_format: str = "grid",
        render_mode: str | None = "ansi",
    ) -> None:
        if not isinstance(dim_room, Collection) or len(dim_room) != 2:
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
            None if max_pushes is None else at_least("max_pushes", max_pushes, 1),
        )
        super().__init__((height, width), max_steps, grid_vocab, action_names, state_format, render_mode)
        up, _, _, right = self.actions
        self.instruction = (
            "You are solving the Sokoban puzzle. You are the player and you need to push all boxes to targets. "
            "When you are right next to a box, you can push it by moving in the same direction. "
            "You cannot push a box through a wall, and you cannot pull a box. "
            f"The answer must be one of action in a turn, format is <answer>{right} || {up}</answer>."
        )
        self._take_instance(Room(height, width, 0, 0, 0, 0))
        if levels is not None:
            if max_moves is not None or max_pushes is not None:
                raise ValueError("max_moves and max_pushes apply to generated rooms: omit them or levels")
            self._take_levels(levels)

    def render(self) -> Any:
        """The text of the state or, with ``render_mode="rgb_array"``, a picture: see ``spa.envs.sokoban.pictures``."""
        return pictures.draw(self._cells(), self.width) if self.render_mode == "rgb_array" else self.text()

    def _make(self, world_seed: int) -> None:
        self._take_instance(make_room(self.room_spec, world_seed))

    def _take_instance(self, instance: Room) -> None:
        room = instance
        self.room, self.height, self.width = room, room.height, room.width
        self._lay(_ground(room.height * room.width, room.walls, room.targets))

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
        return f"{self.height}x{self.width}\n{grid_text(self.room._replace(player=-1))}"

    def _keeps(self, earlier: Any) -> bool:
        now, then = self.room, earlier.room
        return (now.height, now.width, now.walls, now.targets) == (then.height, then.width, then.walls, then.targets)

    def _moving(self) -> list[tuple[int, str]]:
        return _moving(self.room)

    def _set_cells(self, height: int, width: int, cells: list[str]) -> None:
        room, players = room_of(height, width, cells)
        boxes, targets = room.boxes.bit_count(), room.targets.bit_count()
        if len(players) != 1:
            raise ValueError(f"a state needs exactly one player, got {len(players)}")
        wanted = (self.room_spec.num_boxes, self.room.boxes.bit_count())
        if not boxes or boxes != targets or (boxes not in wanted and not self._levels):
            raise ValueError(
                f"the state must have {self.room_spec.num_boxes} boxes and as many targets, as this world's settings say, "
                f"got {boxes} and {targets}"
            )
        for cell, meaning in enumerate(cells):
            if meaning != "wall" and on_border(cell, height, width):
                row, column = divmod(cell, width)
                raise ValueError(f"the border of the state must be wall, but ({row},{column}) is {meaning}")
        self._take_instance(room)

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
def _ground(count: int, walls: int, targets: int) -> tuple[str, ...]:
    """What each cell holds of what never moves."""
    return tuple("wall" if walls >> cell & 1 else "target" if targets >> cell & 1 else "empty" for cell in range(count))


def _moving(room: Room) -> list[tuple[int, str]]:
    """Boxes and player with their cells; a negative ``player`` leaves the player out."""
    player, targets = room.player, room.targets
    things = [(box, "box on target" if targets >> box & 1 else "box") for box in _bits(room.boxes)]
    if player >= 0:
        things.append((player, "player on target" if targets >> player & 1 else "player"))
    return things


def grid_text(room: Room) -> str:
    """A room drawn in the default symbols; a negative ``player`` leaves the player out."""
    cells = list(_ground(room.height * room.width, room.walls, room.targets))
    for cell, meaning in _moving(room):
        cells[cell] = meaning
    return in_rows("".join(map(Sokoban.meanings.__getitem__, cells)), room.width)
