"""GEM's games."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from spa.envs.adapters.game import MOVES, PEGS, ForeignGame, Reply, copy_game, digest
from spa.envs.adapters.guard import RandomGuard, find_name, import_library

_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
_COUNTERS = frozenset({"turn_count"})


class GemGame(ForeignGame):
    """A game of GEM, such as ``"game:Mastermind-v0-easy"``. See ``ForeignGame``; rewards are GEM's.

    GEM's other worlds are not offered: its ``rg:`` are ``reasoning_gym:``, and ``math:``, ``qa:`` and ``code:`` need data from
    the hub, tools, or run what a model wrote.

    An action is what the game takes inside ``\\boxed{}`` (``up`` for ``\\boxed{up}``; with the box works, too). A move that GEM
    calls wrong, or that changes nothing but its turn counter, is not valid. The board is the suffix that GEM adds to a prompt,
    where that has several lines; the instructions are the world's ``rules``. The game's turn limit terminates it; ``success``
    is to end before that limit and with a reward.

    Source: ``gem.make``.
    """

    prefix = "gem"
    listed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("Game2048Env", "FifteenPuzzleEnv", "SokobanEnv"), MOVES),
        "TowerofHanoiEnv": PEGS,
    }

    def _find(self, name: str) -> Callable[..., Any]:
        import_library("gem.envs", "gem")  # fills the registry
        registry = import_library("gem.envs.registration", "gem")
        find_name(self.name, name, (known for known in registry.ENV_REGISTRY if known.startswith("game:")))
        self._format_error = import_library("gem.utils.constants", "gem").LanguageGameReward.format_error_reward
        return partial(registry.make, env_id=name)

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
