"""FrozenLake: cross the ice to the goal without falling into a hole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from spa.envs.base import Example
from spa.envs.grid import GridEnv, Vocabulary, in_rows
from spa.envs.levels import BadRow
from spa.envs.seeded import Outcome, at_least, attempts, pick, real_number

MAX_ATTEMPTS = 10_000  # maps tried for one seed
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # rows and columns that Left, Down, Right and Up move
SLIPS = (-1, 0, 1)  # what is added to a direction
PLAYER_ON = {"empty": "player", "hole": "player in hole", "goal": "player on goal"}
# What a given map is written in: our symbols at the start of an episode, and Gymnasium's.
MAP_SYMBOLS = {"P": "start", "_": "empty", "O": "hole", "G": "goal", "S": "start", "F": "empty", "H": "hole"}


@dataclass(frozen=True, slots=True)
class Lake:
    """A map. Cells are numbered in reading order."""

    height: int
    width: int
    holes: frozenset[int]
    goal: int
    start: int

    def ahead(self, cell: int, direction: int) -> int:
        """The cell in a direction (0 Left, 1 Down, 2 Right, 3 Up); the same one at the edge."""
        down, right = STEPS[direction]
        row, column = divmod(cell, self.width)
        row, column = min(max(row + down, 0), self.height - 1), min(max(column + right, 0), self.width - 1)
        return row * self.width + column

    def ends(self, cell: int) -> bool:
        return cell == self.goal or cell in self.holes

    def has_path(self) -> bool:
        """Whether a way without holes leads from the start to the goal."""
        seen, frontier = {self.start}, [self.start]
        while frontier:
            cell = frontier.pop()
            for direction in range(4):
                following = self.ahead(cell, direction)
                if following == self.goal:
                    return True
                if following not in seen and following not in self.holes:
                    seen.add(following)
                    frontier.append(following)
        return False


@lru_cache(maxsize=4096)
def make_lake(size: int, p: float, seed: int) -> Lake:
    """The lake of a seed. Raises ValueError where no attempt has a path. Cached: groups are reset to one seed."""
    for rng in attempts(seed, MAX_ATTEMPTS):
        lake = generate_lake(rng, size, p)
        if lake is not None:
            return lake
    raise ValueError(f"found no {size}x{size} lake with a path for p={p} in {MAX_ATTEMPTS} attempts; make p larger")


def generate_lake(rng: np.random.Generator, size: int, p: float) -> Lake | None:
    """One attempt, a pure function of the generator: every tile frozen with probability ``p``, then a random start and
    another cell as goal. None where holes bar the way between them."""
    cells = size * size
    draws = rng.random(cells + 2).tolist()
    start = pick(draws[cells], cells)
    goal = (start + 1 + pick(draws[cells + 1], cells - 1)) % cells
    holes = frozenset(cell for cell in range(cells) if draws[cell] >= p and cell not in (start, goal))
    lake = Lake(size, size, holes, goal, start)
    return lake if lake.has_path() else None


def read_lake(rows: Sequence[str]) -> Lake:
    """The lake that the rows of a map show, in our default symbols or Gymnasium's. Raises ``BadRow`` where they show none."""
    rows = [row.strip() for row in rows]
    width = len(rows[0])
    cells = []
    for number, row in enumerate(rows):
        if len(row) != width:
            raise BadRow(number, f"all rows of a map must be equally long, got {len(row)} and {width} cells")
        for column, symbol in enumerate(row, 1):
            if symbol not in MAP_SYMBOLS:
                known = "".join(MAP_SYMBOLS)
                raise BadRow(number, f"unknown symbol {symbol!r} in column {column}; known are {known!r}")
            cells.append(MAP_SYMBOLS[symbol])
    ends = {}
    for what in ("start", "goal"):
        places = [cell for cell, meaning in enumerate(cells) if meaning == what]
        if len(places) != 1:
            raise BadRow(places[1] // width if places else 0, f"a map needs exactly one {what}, got {len(places)}")
        ends[what] = places[0]
    holes = frozenset(cell for cell, meaning in enumerate(cells) if meaning == "hole")
    lake = Lake(len(rows), width, holes, **ends)
    if not lake.has_path():
        raise BadRow(0, "holes block every path from the start to the goal")
    return lake


class FrozenLake(GridEnv):
    """Gymnasium's FrozenLake on random maps with random start and goal, as text.

    See ``docs/worlds/frozen_lake.md``. A state is rows of cells joined by newlines; in the format ``coordinates`` a last line
    gives zero-indexed (row,column) positions, each under its plain symbol even where the grid shows ``X`` or ``√``::

        Player (P) is at (3,2); holes (O) are at (0,1), (1,0); goal (G) is at (2,0).

    With ``is_slippery`` a move goes in the named direction or in one of the two perpendicular to it, each with probability
    1/3; the slips depend on ``noise_seed``, the map does not. Reward 1 on reaching the goal, otherwise 0. Terminated on the
    goal and in a hole; no limit of moves.

    Args:
        size: rows, and columns.
        p: probability that a tile is frozen. (The paper's 4x4 and 6x6 lakes use 0.8.)
        is_slippery: whether moves slip.
        levels: a file of maps to play instead of those made here; ``size`` and ``p`` are then ignored.
        grid_vocab: other symbols, in the order of ``meanings``, or a mapping from symbol to these meanings.
        action_names: other names for ``moves``, in their order.
        state_format: ``"grid"``, ``"coordinates"`` or ``"random_coordinates"``.
        render_mode: ``"ansi"`` or None; ``render()`` returns the text either way.

    Raises:
        ValueError: settings out of range, a malformed map (with its line) or file of maps.

    Source: Gymnasium's FrozenLake-v1; random start and goal and the symbols from RAGEN; the sentence is this project's,
    since the original's is not known.
    """

    name = "FrozenLake"
    instance_option = "map"
    parse = staticmethod(read_lake)
    meanings: ClassVar[Mapping[str, str]] = {
        "player": "P",
        "empty": "_",
        "hole": "O",
        "goal": "G",
        "player in hole": "X",
        "player on goal": "√",
    }
    moves = ("Left", "Down", "Right", "Up")
    example = Example(
        "_O__\nO___\nG___\n__P_",
        "The goal is one row up and two columns to the left.",
        "_O__\nO___\nG_P_\n____",
        "Up",
        (
            "Player (P) is at (3,2); holes (O) are at (0,1), (1,0); goal (G) is at (2,0).",
            "Player (P) is at (2,2); holes (O) are at (0,1), (1,0); goal (G) is at (2,0).",
        ),
    )

    def __init__(
        self,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = True,
        levels: str | Path | None = None,
        grid_vocab: Vocabulary | None = None,
        action_names: Sequence[str] | None = None,
        state_format: str = "grid",
        render_mode: str | None = "ansi",
    ) -> None:
        self.size = at_least("size", size, 2)
        self.p = real_number("p", p, 0, 1)
        if not isinstance(is_slippery, bool):
            raise ValueError(f"is_slippery must be true or false, got {is_slippery!r}")
        self.is_slippery = is_slippery
        super().__init__((self.size, self.size), None, grid_vocab, action_names, state_format, render_mode)
        self.rules = "You walk on a frozen lake and must reach the goal without falling into a hole." + (
            " The ice is slippery: a move may go in a direction perpendicular to the one you chose."
            if is_slippery
            else ""
        )
        left, _, _, up = self.actions
        slippery = "You may move to the unintended direction due to the slippery ice. " if is_slippery else ""
        self.instruction = (
            f"You are solving the FrozenLake puzzle. Forbid the hole and go to the target. {slippery}Example answer format: "
            f"<think>To forbid the hole and go to the target, I should go {left.lower()} then go {up.lower()}.</think>"
            f"<answer>{left} || {up}</answer>"
        )
        self._take_instance(Lake(self.size, self.size, frozenset(), 0, 0))
        if levels is not None:
            self._take_levels(levels)

    def transitions(self, cell: int, direction: int) -> list[tuple[float, int, float, bool]]:
        """What a move from a cell can do: (probability, next cell, reward, terminated), as in Gymnasium's table ``P``."""
        if self.lake.ends(cell):
            return [(1.0, cell, 0.0, True)]
        taken = [(direction + turn) % 4 for turn in SLIPS] if self.is_slippery else [direction]
        cells = [self.lake.ahead(cell, way) for way in taken]
        return [(1.0 / len(cells), to, float(to == self.lake.goal), self.lake.ends(to)) for to in cells]

    def _make(self, world_seed: int) -> None:
        self._take_instance(make_lake(self.size, self.p, world_seed))

    def _take_instance(self, instance: Lake) -> None:
        lake = instance
        self.lake, self.player, self.height, self.width = lake, lake.start, lake.height, lake.width
        ground = ["empty"] * (lake.height * lake.width)
        for hole in lake.holes:
            ground[hole] = "hole"
        ground[lake.goal] = "goal"
        self._lay(ground)

    def _play(self, action: str) -> Outcome | None:
        direction = self.action_index(action)
        if direction is None:
            return None
        if self.is_slippery:  # one of `transitions`
            direction = (direction + SLIPS[pick(self.noise.random(), 3)]) % 4
        cell, lake = self.lake.ahead(self.player, direction), self.lake
        effective, self.player = cell != self.player, cell
        return Outcome(float(cell == lake.goal), effective, lake.ends(cell))

    def _success(self) -> bool:
        return self.player == self.lake.goal

    def _finished(self) -> bool:
        return self.lake.ends(self.player)

    def _problem(self) -> str:
        ground = "".join(map(self.meanings.__getitem__, self._ground))
        return f"{self.height}x{self.width}\n{in_rows(ground, self.width)}"

    def _keeps(self, earlier: Any) -> bool:
        now, then = self.lake, earlier.lake
        return (now.height, now.width, now.holes, now.goal) == (then.height, then.width, then.holes, then.goal)

    def _moving(self) -> tuple[tuple[int, str]]:
        return ((self.player, PLAYER_ON[self._ground[self.player]]),)

    def _set_cells(self, height: int, width: int, cells: list[str]) -> None:
        def where(*meanings: str) -> list[int]:
            return [cell for cell, meaning in enumerate(cells) if meaning in meanings]

        players, goals = where("player", "player in hole", "player on goal"), where("goal", "player on goal")
        for what, places in (("player", players), ("goal", goals)):
            if len(places) != 1:
                raise ValueError(f"a state needs exactly one {what}, got {len(places)}")
        self._take_instance(Lake(height, width, frozenset(where("hole", "player in hole")), goals[0], players[0]))

    def _sentence(self) -> str:
        holes = self._list("hole", "holes", "hole", sorted(self.lake.holes))
        goal = self._list("goal", "goals", "goal", [self.lake.goal])
        return f"Player ({self._symbol['player']}) is at {self._positions([self.player])[0]}; {holes}; {goal}."
