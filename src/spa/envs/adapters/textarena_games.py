"""TextArena's games for one player."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any, ClassVar

from spa.envs.adapters.game import MOVES, PEGS, ForeignGame, Reply
from spa.envs.adapters.guard import find_name, import_library, untouched


class TextArenaGame(ForeignGame):
    """A game of TextArena for one player. See ``ForeignGame``; rewards are TextArena's, at the end: usually 1 for a win.

    An action is what the game takes between its square brackets (``up`` for ``[up]``; with brackets works, too). Invalid moves
    change nothing and do not end the game, as TextArena's second one in a row would. The rules that the game prints are the
    world's ``rules``; a finished game adds its verdict. The game's turn limit terminates it; ``success`` is a reward of 1.

    Raises:
        ValueError: as ``ForeignGame``, or the game needs more players.

    Source: ``textarena.make``.
    """

    prefix = "textarena"
    listed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("Game2048Env", "FifteenPuzzleEnv", "FrozenLakeEnv", "SokobanEnv"), MOVES),
        "TowerOfHanoiEnv": PEGS,
    }

    def __init__(self, name: str, /, **settings: Any) -> None:
        super().__init__(name, **settings)
        if not _for_one(name):
            raise ValueError(f"{self.name} is not for one player")

    def _find(self, name: str) -> Callable[..., Any]:
        find_name(self.name, name, import_library("textarena.envs.registration", "textarena").ENV_REGISTRY)
        return partial(_make, name)

    def _open(self, seed: int) -> tuple[str, Reply]:
        self._game.reset(num_players=1, seed=seed)
        # An invalid move is taken back, not counted.
        self._game.state.error_allowance = 10**9
        _, messages = self._game.get_observation()
        kinds = _library().ObservationType
        prompt = "\n".join(text for _, text, kind in messages if kind == kinds.PROMPT)
        return prompt, self._reply([message for message in messages if message[2] != kinds.PROMPT], None)

    def _move(self, game: Any, action: str) -> Reply:
        over, _ = game.step(action if "[" in action else f"[{action}]")
        messages = game.state.observations[0]
        game.state.observations[0] = []
        kinds = _library().ObservationType
        reply = self._reply([message for message in messages if message[2] != kinds.PLAYER_ACTION], self._board)
        if any(kind == kinds.GAME_ADMIN for _, _, kind in messages) or game.state.game_info[0].get("invalid_move"):
            return reply._replace(valid=False)
        if not over:
            return reply
        reward = float((game.state.rewards or {}).get(0, 0.0))
        verdict = str(game.state.game_info[0].get("reason") or "")
        return reply._replace(message=f"{reply.message}\n{verdict}", reward=reward, over=True, won=reward >= 1.0)

    def _reply(self, messages: Sequence[tuple[int, str, Any]], board: str | None) -> Reply:
        """The newest board, and all that was said besides; where boards are not looked at, they are said."""
        boards = [text for _, text, kind in messages if kind == _library().ObservationType.GAME_BOARD]
        keep = self.view in ("history", "last")
        lines = [text for _, text, kind in messages if keep or kind != _library().ObservationType.GAME_BOARD]
        return Reply(boards[-1].strip("\n") if boards else board, "\n".join(text.strip("\n") for text in lines))


def _library() -> ModuleType:
    return import_library("textarena", "textarena")


def _make(name: str, **settings: Any) -> Any:
    """The game without TextArena's wrappers, which turn messages into one prompt."""
    game = _library().make(name, **settings)
    while hasattr(game, "env"):
        game = game.env
    return game


@cache
def _for_one(name: str) -> bool:
    """Whether one can play it alone: that is seen when it starts."""
    game = _make(name)
    try:
        with untouched():
            game.reset(num_players=1, seed=0)
    except Exception:
        return False
    return isinstance(game.state, _library().SinglePlayerState)
