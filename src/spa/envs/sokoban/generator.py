"""Sokoban rooms: made by carving, placing and reverse play, and solved by breadth-first search.

The procedure is that of gym-sokoban (and of the original code, which adds the pulls-only search and the final walk),
written over bit masks and cell numbers instead of arrays, because training makes tens of thousands of rooms.

Cells are numbered in reading order, ``row * width + column``; a set of cells is an int with those bits set.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from spa.envs.seeded import attempts, pick

TURN_PROBABILITY = 0.35  # of the carving walk, per step
MAX_STATES = 300_000  # of one reverse play
MAX_ATTEMPTS = 2_000  # rooms tried for one seed; a 6x6 room with one box needs one or two
MAX_WALK = 3  # steps of the player after the reverse play

# What is carved around each cell of the walk, as (row, column) offsets.
STAMPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)


class Room(NamedTuple):
    """A room at one moment. The border is wall, so a move never leaves the grid."""

    height: int
    width: int
    walls: int
    targets: int
    boxes: int
    player: int

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    @property
    def boxes_on_targets(self) -> int:
        return (self.boxes & self.targets).bit_count()

    def offsets(self) -> tuple[int, int, int, int]:
        """What Up, Down, Left and Right add to a cell number."""
        return -self.width, self.width, -1, 1

    def move(self, direction: int) -> Room:
        """The room after Up (0), Down (1), Left (2) or Right (3); the same object where nothing moves."""
        moved = push(self.walls, self.boxes, self.player, self.offsets()[direction])
        if moved is None:
            return self
        return Room(self.height, self.width, self.walls, self.targets, moved[1], moved[0])


@dataclass(frozen=True, slots=True)
class RoomSpec:
    """What kind of room to make. ``search_depth`` bounds the moves of the reverse play."""

    height: int = 6
    width: int = 6
    num_boxes: int = 1
    search_depth: int = 300
    max_moves: int | None = None  # only rooms solvable within so many moves; None = any solvable room
    max_pushes: int | None = None  # the same in moves that push a box


def push(walls: int, boxes: int, player: int, offset: int) -> tuple[int, int] | None:
    """Player and boxes after a move by ``offset``; None where a wall, or a box that cannot move, is in the way."""
    ahead = player + offset
    if walls >> ahead & 1:
        return None
    if boxes >> ahead & 1:
        beyond = ahead + offset
        if (walls | boxes) >> beyond & 1:
            return None
        boxes ^= 1 << ahead | 1 << beyond
    return ahead, boxes


@lru_cache(maxsize=4096)  # every member of a group is reset to the same seed
def make_room(spec: RoomSpec, seed: int) -> Room:
    """The room of a seed: solvable, with no box on a target.

    Raises:
        ValueError: no attempt made a room that fits ``spec``.
    """
    for rng in attempts(seed, MAX_ATTEMPTS):
        room = generate_room(rng, spec)
        if room is not None and _is_short_enough(room, spec):
            return room
    limits = [name for name in ("max_moves", "max_pushes") if getattr(spec, name) is not None]
    within = " and ".join(f"{name}={getattr(spec, name)}" for name in limits)
    raise ValueError(
        f"found no {spec.height}x{spec.width} room with {spec.num_boxes} boxes{within and f' solvable within {within}'} in "
        f"{MAX_ATTEMPTS} attempts; make dim_room larger, num_boxes smaller"
        + "".join(f", {name} larger" for name in limits)
    )


def _is_short_enough(room: Room, spec: RoomSpec) -> bool:
    if spec.max_moves is not None and solve(room, spec.max_moves) is None:
        return False
    return spec.max_pushes is None or min_pushes(room, spec.max_pushes) is not None


def generate_room(rng: np.random.Generator, spec: RoomSpec) -> Room | None:
    """One attempt, a pure function of the generator: carve, place, play in reverse, walk. None where it fails."""
    steps = int(1.7 * (spec.height + spec.width))
    # All numbers of an attempt at once: a draw costs as much as a move of the search.
    draws = rng.random(3 + 3 * steps + 1 + spec.num_boxes + 1 + 2 * MAX_WALK).tolist()
    floor = _carve(spec.height, spec.width, draws[: 3 + 3 * steps])
    draws = draws[3 + 3 * steps :]
    free = [cell for cell in range(spec.height * spec.width) if floor >> cell & 1]
    if len(free) <= spec.num_boxes + 1:
        return None
    player = free.pop(pick(draws[0], len(free)))
    targets = tuple(free.pop(pick(draw, len(free))) for draw in draws[1 : 1 + spec.num_boxes])
    walls = (1 << spec.height * spec.width) - 1 & ~floor
    start = _play_in_reverse(spec, walls, player, targets)
    if start is None:
        return None
    player, boxes, displacement = start
    player = _walk(spec.width, walls | boxes, player, 0.8 if displacement == 1 else 0.5, draws[1 + spec.num_boxes :])
    return Room(spec.height, spec.width, walls, _mask(targets), boxes, player)


def solve(room: Room, max_moves: int | None = None) -> tuple[int, ...] | None:
    """A shortest solution as directions (0 Up, 1 Down, 2 Left, 3 Right); None where there is none within the limit."""
    if room.solved:
        return ()
    walls, targets, offsets = room.walls, room.targets, room.offsets()
    start = (room.player, room.boxes)
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {start: None}
    queue = deque([(start, 0)])
    while queue:
        state, depth = queue.popleft()
        if depth == max_moves:
            break
        for direction, offset in enumerate(offsets):
            following = push(walls, state[1], state[0], offset)
            if following is None or following in came_from:
                continue
            came_from[following] = (state, direction)
            if following[1] == targets:
                return _path(came_from, following)
            queue.append((following, depth + 1))
    return None


def min_moves(room: Room) -> int | None:
    """The length of a shortest solution in moves; None where the room cannot be solved."""
    solution = solve(room)
    return None if solution is None else len(solution)


def min_pushes(room: Room, max_pushes: int | None = None) -> int | None:
    """The fewest pushes of any solution, moves not counted; None where there is none (within the limit)."""
    walls, offsets = room.walls, room.offsets()
    queue = deque([(room.player, room.boxes, 0)])  # 0-1 BFS: moves without a push first
    seen: set[tuple[int, int]] = set()
    while queue:
        player, boxes, pushes = queue.popleft()
        if boxes == room.targets:
            return pushes
        if (player, boxes) in seen:
            continue
        seen.add((player, boxes))
        for offset in offsets:
            following = push(walls, boxes, player, offset)
            if following is None or following in seen:
                continue
            if following[1] == boxes:
                queue.appendleft((*following, pushes))
            elif pushes != max_pushes:
                queue.append((*following, pushes + 1))
    return None


def _carve(height: int, width: int, draws: list[float]) -> int:
    """The floor left by a random walk that stamps a mask at every step; the border stays wall."""
    directions = ((1, 0), (0, 1), (-1, 0), (0, -1))
    direction = directions[pick(draws[0], 4)]
    row, column = 1 + pick(draws[1], height - 1), 1 + pick(draws[2], width - 1)
    floor = 0
    for start in range(3, len(draws), 3):
        if draws[start] < TURN_PROBABILITY:
            direction = directions[pick(draws[start + 1], 4)]
        row = max(min(row + direction[0], height - 2), 1)
        column = max(min(column + direction[1], width - 2), 1)
        for r, c in STAMPS[pick(draws[start + 2], len(STAMPS))]:
            floor |= 1 << (row + r) * width + column + c
    interior = 0
    for r in range(1, height - 1):
        interior |= (1 << width - 2) - 1 << r * width + 1
    return floor & interior


def _play_in_reverse(spec: RoomSpec, walls: int, player: int, targets: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Player, boxes and displacement of the best state found by pulling the boxes off their targets.

    Depth-first, over states seen once. A move away from a box always pulls it. The score of a state is the number of
    switches from one box to another (the first pull counts) times the boxes' summed Manhattan distance to their own
    targets; a state that hides a target, under a box or the player, scores 0. None where no state scores above 0.

    Every state is solvable: its way here, played backwards, is made of pushes and moves.
    """
    width = spec.width
    target_mask = _mask(targets)
    offsets = (1, -1, width, -width)  # pushed in this order, so popped Up, Down, Left, Right
    # Distance of every cell to every target.
    distances = [
        [abs(cell // width - t // width) + abs(cell % width - t % width) for cell in range(spec.height * width)]
        for t in targets
    ]
    best: tuple[int, int, int] | None = None
    best_score = 0
    seen: set[tuple[int, int]] = set()
    # (player, box mask, box of each target, switches, target whose box was pulled last, displacement, depth)
    stack = [(player, target_mask, targets, 0, -1, 0, 1)]
    while stack:
        player, mask, boxes, switches, last, displacement, depth = stack.pop()
        if (player, mask) in seen:
            continue
        if len(seen) >= MAX_STATES:
            break
        seen.add((player, mask))
        score = switches * displacement
        if score > best_score and not target_mask & (mask | 1 << player):
            best, best_score = (player, mask, displacement), score
        depth += 1
        if depth >= spec.search_depth:
            continue
        blocked = walls | mask
        for offset in offsets:
            ahead = player + offset
            if blocked >> ahead & 1:
                continue
            behind = player - offset
            if not mask >> behind & 1:
                if (ahead, mask) not in seen:
                    stack.append((ahead, mask, boxes, switches, last, displacement, depth))
                continue
            pulled = mask ^ (1 << behind | 1 << player)
            if (ahead, pulled) in seen:
                continue
            which = boxes.index(behind)
            stack.append(
                (
                    ahead,
                    pulled,
                    (*boxes[:which], player, *boxes[which + 1 :]),
                    switches + (which != last),
                    which,
                    displacement + distances[which][player] - distances[which][behind],
                    depth,
                )
            )
    return best


def _walk(width: int, blocked: int, player: int, probability: float, draws: list[float]) -> int:
    """The player after up to three random steps to cells not yet visited: otherwise it would always touch a box."""
    if draws[0] > probability:
        return player
    for step in range(MAX_WALK):
        blocked |= 1 << player
        choices = [player + offset for offset in (-width, width, -1, 1) if not blocked >> player + offset & 1]
        if not choices:
            break
        player = choices[pick(draws[1 + 2 * step], len(choices))]
        if draws[2 + 2 * step] > 0.5:
            break
    return player


def _mask(cells: tuple[int, ...]) -> int:
    mask = 0
    for cell in cells:
        mask |= 1 << cell
    return mask


def _path(
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int] | None], state: tuple[int, int]
) -> tuple[int, ...]:
    directions = []
    while (step := came_from[state]) is not None:
        state, direction = step
        directions.append(direction)
    return tuple(reversed(directions))
