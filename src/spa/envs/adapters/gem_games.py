"""GEM's games."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from spa.envs.adapters.game import MOVES, PEGS, ForeignGame, Reply, copy_game, digest
from spa.envs.adapters.guard import RandomGuard, find_name, import_library

_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
_COUNTERS = frozenset({"turn_count"})


class GemGame(ForeignGame):
    """A game of GEM.

    GEM's other worlds are not offered: its ``rg:`` are ``reasoning_gym:``, and ``math:``, ``qa:`` and ``code:`` need data from
    the hub, tools, or run what a model wrote.

    ## Actions
    What the game takes inside ``\\boxed{}`` (``up`` for ``\\boxed{up}``; with the box works, too). 2048, FifteenPuzzle, Sokoban and
    TowerofHanoi list their actions. A move that GEM calls wrong, or that changes nothing but its turn counter, is not valid.

    ## States
    See ``view`` of ``ForeignGame``; the board is the suffix that GEM adds to a prompt, where that has several lines. The
    instructions are the world's ``rules``.

    ## Rewards
    GEM's.

    ## Episode end
    Terminated when the game is over, its turn limit included; truncated after ``max_steps`` valid moves. ``success``: over
    before the turn limit and with a reward.

    Args:
        name: GEM's id, such as ``"game:Mastermind-v0-easy"``.
        settings: ``view``, ``actions``, ``max_steps`` and the keyword arguments of the game.

    Raises:
        ValueError: GEM is not installed, there is no such game or setting, or data is missing.

    Source: ``gem.make``.
    """

    listed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("Game2048Env", "FifteenPuzzleEnv", "SokobanEnv"), MOVES),
        "TowerofHanoiEnv": PEGS,
    }

    def __init__(
        self,
        name: str,
        /,
        *,
        view: str = "auto",
        actions: Sequence[str] | None = None,
        max_steps: int | None = None,
        **settings: Any,
    ) -> None:
        world = f"gem:{name}"
        super().__init__(world, view=view, actions=actions, max_steps=max_steps)
        import_library("gem.envs", "gem")  # fills the registry
        registry = import_library("gem.envs.registration", "gem")
        find_name(world, name, (known for known in registry.ENV_REGISTRY if known.startswith("game:")))
        self._format_error = import_library("gem.utils.constants", "gem").LanguageGameReward.format_error_reward
        self._take_game(partial(registry.make, env_id=name), settings)

    def sample_action(self, rng: np.random.Generator) -> str:
        """One of the listed actions, else GEM's own random action."""
        if self.actions:
            return super().sample_action(rng)
        game = copy_game(self._game)
        try:
            with RandomGuard(int(rng.integers(2**31))):
                action = str(game.sample_random_action())
        except NotImplementedError:
            return super().sample_action(rng)
        match = _BOX.search(action)
        return match[1] if match else action

    def _open(self, seed: int) -> tuple[str, Reply]:
        rules, info = self._game.reset(seed=seed)
        return str(rules), Reply(_board(info), "")

    def _move(self, game: Any, action: str) -> Reply:
        before = digest(game, _COUNTERS)
        said, reward, terminated, truncated, info = game.step(action if "\\boxed" in action else f"\\boxed{{{action}}}")
        if float(reward) == self._format_error or digest(game, _COUNTERS) == before:
            return Reply(None, "", valid=False)
        won = bool(terminated) and not truncated and float(reward) > 0
        return Reply(_board(info), str(said), float(reward), bool(terminated or truncated), won)


def _board(info: dict[str, Any]) -> str | None:
    """The board of a suffix; one of a single line only asks for the next move."""
    suffix = str(info.get("suffix", "")).strip()
    return suffix if "\n" in suffix else None
