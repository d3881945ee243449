"""Worlds of other libraries as text worlds: Gymnasium's toy-text worlds, reasoning-gym, TextArena, GEM.

``make_env("gym:Taxi-v4")`` makes one; the part before the first colon is one of ``ADAPTERS``. A library is imported when one of
its worlds is first made, and its use of the global random state is kept apart from everyone else's (``guard``).
"""

from __future__ import annotations

from typing import NamedTuple


class Adapter(NamedTuple):
    """Where the worlds of a prefix come from."""

    factory: str  # module:callable; called with the name behind the prefix and the settings
    description: str
    example: str
    extra: str = ""  # what to install: pip install 'spa-agent[extra]'


# Name before the colon -> adapter. Such a name is never read as module:Class.
ADAPTERS = {
    "gym": Adapter(
        "spa.envs.adapters.toy_text:ToyText",
        "Gymnasium's toy-text worlds: Taxi, CliffWalking, FrozenLake, Blackjack",
        "gym:Taxi-v4",
    ),
    "reasoning_gym": Adapter(
        "spa.envs.adapters.questions:Question",
        "a question of a reasoning-gym data set and its scorer, one step",
        "reasoning_gym:chain_sum",
        "reasoning-gym",
    ),
    "textarena": Adapter(
        "spa.envs.adapters.textarena_games:TextArenaGame",
        "a game of TextArena for one player",
        "textarena:LightsOut-v0",
        "textarena",
    ),
    "gem": Adapter(
        "spa.envs.adapters.gem_games:GemGame",
        "a game of GEM",
        "gem:game:Mastermind-v0-easy",
        "gem",
    ),
}
