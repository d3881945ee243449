"""Rooms, moves and lakes of one library: see benchmarks/worlds.py. Imports of a peer's environment only."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

PEER, KIND, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
ROOMS = {"rooms 6x6, 1 box": ((6, 6), 1), "rooms 10x10, 2 boxes": ((10, 10), 2)}
MOVES = 10  # of an episode


def spa_rooms(size: tuple[int, int], boxes: int) -> Callable[[int], None]:
    from spa.envs.sokoban.generator import RoomSpec, make_room

    spec = RoomSpec(*size, boxes)
    return lambda seed: make_room(spec, seed) and None


def gym_sokoban_rooms(size: tuple[int, int], boxes: int) -> Callable[[int], None]:
    from gym_sokoban.envs.room_utils import generate_room

    def make(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        with contextlib.suppress(RuntimeError, RuntimeWarning):  # its own retry: the next seed
            generate_room(size, num_steps=int(1.7 * sum(size)), num_boxes=boxes)

    return make


def spa_moves() -> Callable[[int], None]:
    from spa.envs.sokoban.world import Sokoban

    env = Sokoban(max_steps=1_000_000)
    env.reset(seed=1)

    def move(number: int) -> None:
        if env.step(env.actions[number * 7 % 4])[2]:
            env.reset(seed=1)

    return move


def gym_sokoban_moves() -> Callable[[int], None]:
    from gym_sokoban.envs.sokoban_env import SokobanEnv

    np.random.seed(1)
    random.seed(1)
    env = SokobanEnv((6, 6), max_steps=1_000_000, num_boxes=1)

    def move(number: int) -> None:
        if env.step(1 + number * 7 % 4, observation_mode="tiny_rgb_array")[2]:
            env.reset()

    return move


def spa_lakes() -> Callable[[int], None]:
    from spa.envs.frozen_lake.world import FrozenLake

    env = FrozenLake()
    return lambda seed: episode(env, seed, env.actions)


def gymnasium_lakes() -> Callable[[int], None]:
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

    def play(seed: int) -> None:
        episode(
            FrozenLakeEnv(desc=generate_random_map(4, seed=seed), render_mode="ansi"), seed, (0, 1, 2, 3), text=True
        )

    return play


def episode(env: Any, seed: int, actions: Any, text: bool = False) -> None:
    """A fresh map and ten moves, with the state as text each time, from the start again where an episode ends."""
    env.reset(seed=seed)
    for number in range(MOVES):
        done = env.step(actions[(seed + number * 7) % 4])
        if text:
            env.render()
        if done[2] or done[3]:
            env.reset(seed=seed)


def batch() -> Callable[[int], None]:
    """256 Sokoban worlds, ten moves each; making them is not counted."""
    from spa.envs.sokoban.world import Sokoban

    envs = [Sokoban(max_steps=1_000_000) for _ in range(256)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)

    def play(number: int) -> None:
        for move in range(MOVES):
            for env in envs:
                if env.step(env.actions[(number + move * 7) % 4])[2]:
                    env.reset(seed=number)

    return play


def main() -> None:
    warnings.simplefilter("ignore")
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        if KIND in ROOMS:
            work = {"spa": spa_rooms, "gym-sokoban": gym_sokoban_rooms}[PEER](*ROOMS[KIND])
        elif KIND == "moves":
            work = {"spa": spa_moves, "gym-sokoban": gym_sokoban_moves}[PEER]()
        elif KIND == "lakes":
            work = {"spa": spa_lakes, "gymnasium": gymnasium_lakes}[PEER]()
        else:
            work = batch()
        work(0)
        started = time.perf_counter()
        for number in range(1, COUNT + 1):
            work(number)
        seconds = time.perf_counter() - started
    print(json.dumps({"per_second": COUNT / seconds, "seconds": seconds}))


if __name__ == "__main__":
    main()
