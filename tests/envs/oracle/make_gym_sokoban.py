"""Records what gym-sokoban does: ``PYTHONPATH=src python -m tests.envs.oracle.make_gym_sokoban`` writes ``gym_sokoban.json``.

Needs ``gym-sokoban==0.0.6`` with ``gym==0.26.2``, ``imageio``, ``requests``, ``tqdm`` and ``setuptools<81``, best in a virtual
environment of its own. ``tests/envs/test_sokoban_oracle.py`` reads the file and needs none of this.

A trajectory holds ``level`` (rows in XSB), ``moves`` (one letter of UDLR each), ``rewards`` (in tenths), ``players`` (the cell
after every move, in reading order), ``boxes`` ([number of the move, cells] wherever a box moved; -1 is the start), ``solved``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from gym_sokoban.envs.sokoban_env import SokobanEnv
from tests.envs.oracle import LEVELS

from spa.envs.sokoban.generator import Room, RoomSpec, make_room, solve

LETTERS = "UDLR"  # their actions 1 to 4
# XSB: what never moves, and what stands there
CODES = {"#": (0, 0), " ": (1, 1), ".": (2, 2), "*": (2, 3), "$": (1, 4), "@": (1, 5), "+": (2, 5)}
KINDS = [
    (RoomSpec(6, 6, 1), 8),
    (RoomSpec(6, 6, 2), 8),
    (RoomSpec(7, 9, 3, 60), 6),
    (RoomSpec(10, 10, 2), 6),
    (RoomSpec(10, 10, 4, 40), 6),
]


def theirs(level: list[str]) -> Any:
    """Their environment in a given room."""
    cells = np.array([[CODES[symbol] for symbol in row] for row in level])
    env = SokobanEnv(cells.shape[:2], max_steps=100_000, num_boxes=int((cells[..., 0] == 2).sum()), reset=False)
    env.render = lambda **_: None  # its pictures need an older numpy
    env.room_fixed, env.room_state = cells[..., 0].copy(), cells[..., 1].copy()
    env.player_position = np.argwhere(env.room_state == 5)[0]
    env.num_env_steps = 0
    # Its own reset says 0, which is wrong where a box stands on a target from the start.
    env.boxes_on_target = int((env.room_state == 3).sum())
    return env


def cells_of(env: Any) -> tuple[int, list[int]]:
    """The cells of the player and of the boxes."""
    width = env.room_state.shape[1]
    boxes = [int(row * width + column) for row, column in np.argwhere((env.room_state == 3) | (env.room_state == 4))]
    return int(env.player_position[0] * width + env.player_position[1]), boxes


def trajectory(level: list[str], wanted: str) -> dict[str, Any]:
    """What their environment does with the moves, up to the end."""
    env = theirs(level)
    boxes = cells_of(env)[1]
    out: dict[str, Any] = {
        "level": level,
        "moves": "",
        "rewards": [],
        "players": [],
        "boxes": [[-1, boxes]],
        "solved": False,
    }
    for number, letter in enumerate(wanted):
        _, reward, done, _ = env.step(1 + LETTERS.index(letter))
        player, now = cells_of(env)
        out["moves"] += letter
        out["rewards"].append(round(10 * reward))
        out["players"].append(player)
        if now != boxes:
            out["boxes"].append([number, now])
            boxes = now
        if done:
            out["solved"] = True
            break
    return out


def xsb(room: Room) -> list[str]:
    """The rows of a room, drawn apart from the package."""
    rows = []
    for row in range(room.height):
        drawn = ""
        for bit in (1 << row * room.width + column for column in range(room.width)):
            on = bool(room.targets & bit)
            if room.walls & bit:
                drawn += "#"
            elif room.boxes & bit:
                drawn += "*" if on else "$"
            elif bit == 1 << room.player:
                drawn += "+" if on else "@"
            else:
                drawn += "." if on else " "
        rows.append(drawn)
    return rows


def levels() -> list[list[str]]:
    """The levels of the file, read apart from the package."""
    blocks = [block.split("\n") for block in LEVELS.read_text().strip().split("\n\n")]
    return [[row for row in block if not row.startswith(";")] for block in blocks]


def record() -> list[dict[str, Any]]:
    """All trajectories: random moves, and for every third room a solution at the end."""
    rng = random.Random(0)
    found = []
    rooms = [make_room(spec, seed) for spec, count in KINDS for seed in range(count)]
    for number, level in enumerate([*map(xsb, rooms), *levels()]):
        found.append(trajectory(level, "".join(rng.choice(LETTERS) for _ in range(90))))
        if number < len(rooms) and number % 3 == 0:
            found.append(trajectory(level, "".join(LETTERS[way] for way in solve(rooms[number]) or ())))
    return found


if __name__ == "__main__":
    made = record()
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in made)
    Path(__file__).with_name("gym_sokoban.json").write_text(f"[\n{lines}\n]\n")
    print(f"{len(made)} trajectories, {sum(len(each['moves']) for each in made)} moves")
