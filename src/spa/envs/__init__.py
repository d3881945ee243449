"""Worlds: text in, text out, seeded. Importing this registers the built-in ones with Gymnasium.

``make_env("sokoban")`` makes one, ``TextEnv`` is the contract. Nothing here imports torch.
"""

from spa.envs.adapter import AdaptedEnv
from spa.envs.base import STATE_FORMATS, StateFormat, TextEnv
from spa.envs.frozen_lake import FrozenLake
from spa.envs.registry import env_names, make_env, register_worlds
from spa.envs.sokoban import Sokoban
from spa.envs.sudoku import Sudoku

register_worlds()

__all__ = [
    "STATE_FORMATS",
    "AdaptedEnv",
    "FrozenLake",
    "Sokoban",
    "StateFormat",
    "Sudoku",
    "TextEnv",
    "env_names",
    "make_env",
    "register_worlds",
]
