"""Worlds: text in, text out, seeded. Importing this registers the built-in ones with Gymnasium.

``make_env("sokoban")`` makes one, ``TextEnv`` is the contract. Nothing here imports torch.
"""

from spa.config.fields import StateFormat
from spa.envs.adapter import AdaptedEnv
from spa.envs.bandit.world import Bandit
from spa.envs.base import STATE_FORMATS, TextEnv
from spa.envs.countdown.world import Countdown
from spa.envs.frozen_lake.world import FrozenLake
from spa.envs.metamathqa.world import MetamathQA
from spa.envs.registry import env_names, make_env, register_worlds
from spa.envs.sokoban.world import Sokoban
from spa.envs.sudoku.world import Sudoku
from spa.envs.webshop import WebShop

register_worlds()

__all__ = [
    "STATE_FORMATS",
    "AdaptedEnv",
    "Bandit",
    "Countdown",
    "FrozenLake",
    "MetamathQA",
    "Sokoban",
    "StateFormat",
    "Sudoku",
    "TextEnv",
    "WebShop",
    "env_names",
    "make_env",
    "register_worlds",
]
