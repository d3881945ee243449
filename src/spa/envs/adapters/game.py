"""Base class of games of other libraries: isolated randomness, moves played on a copy, a state made of the game's messages."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from spa.envs.adapters.guard import RandomGuard, build, check_settings, untouched
from spa.envs.seeded import NOISE_STREAM, WORLD_STREAM, Outcome, SeededEnv, one_line, one_of

MAX_ACTION = 1000  # characters; anything longer is no move
VIEWS = ("auto", "board", "history", "last")
SETTINGS = ("view", "actions", "max_steps")
MOVES = ("up", "down", "left", "right")
PEGS = ("A B", "A C", "B A", "B C", "C A", "C B")  # from one of three to another
_BIG = 500  # a container with more entries is a word list or such, which no move changes


class Reply(NamedTuple):
    """A game's answer to a move, or its opening."""

    board: str | None  # the board as it is now; None where it has none
    message: str  # what happened
    reward: float = 0.0
    over: bool = False
    won: bool = False
    valid: bool = True


class ForeignGame(SeededEnv):
    """A game of another library as a world.

    The game draws from a global random state of its own (``RandomGuard``), seeded by the world's seed and, with the option
    ``noise_seed``, anew after the start. A move is played on a copy of the game, which takes its place if the move was valid: so
    an invalid move, or one that makes the game raise, changes nothing.

    Args:
        name: the library's name of the game; with ``prefix`` before it, it begins ``info["content"]``.
        view: what the state is. ``"board"``: the board as it is now. ``"history"``: all moves and what the game said to each.
            ``"last"``: what it said last. ``"auto"``: the board where the game shows one, else the history.
        actions: the names of all actions, where they are not free text.
        max_steps: moves after which an episode is cut off.
        settings: keyword arguments of the game.

    Raises:
        ValueError: the library is not installed, there is no such game or setting, the game refuses one, or data is missing.
    """

    prefix: ClassVar[str] = ""  # of the full name
    listed: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # actions of games that have few, by the name of their class

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
        super().__init__(state_format="grid", max_steps=max_steps, render_mode="ansi")
        self.name = world = f"{self.prefix}:{name}"
        self.view = one_of("view", view, VIEWS, of=world)
        if isinstance(actions, str) or not all(isinstance(name, str) and name.strip() for name in actions or ()):
            raise ValueError(f"actions of {world} must be a list of names, got {actions!r}")
        self.actions = tuple(actions or ())
        self._guard = RandomGuard()
        self._game: Any = None
        self._history: list[str] = []
        self._board: str | None = None
        self._won = self._over = False
        make = self._find(name)
        settings.pop("render_mode", None)
        self._game = build(world, make, {})  # its class says which settings there are
        check_settings(world, settings, type(self._game), SETTINGS)
        if settings:
            self._game = build(world, make, settings)
        self.actions = self.actions or self.listed.get(type(self._game).__name__, ())

    @abstractmethod
    def _find(self, name: str) -> Callable[..., Any]:
        """What makes the game of this name; raises ValueError where the library has none."""

    @abstractmethod
    def _open(self, seed: int) -> tuple[str, Reply]:
        """Starts ``self._game`` with a seed below 2**31; returns the rules and what it shows first."""

    @abstractmethod
    def _move(self, game: Any, action: str) -> Reply:
        """Plays one move; whatever it raises makes the move invalid."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts a new game; raises ValueError for an unknown option."""
        started = super().reset(seed=seed, options=options)
        if (options or {}).get("noise_seed") is not None:
            self._guard.seed(_derive(self._noise_seed, NOISE_STREAM))
        return started

    def render(self) -> str:
        """The true state, as ``view`` says."""
        if self._board is not None and self.view in ("auto", "board"):
            return self._board
        shown = self._history[-1:] if self.view == "last" else self._history
        return "\n".join(shown) or "No moves yet."

    def _make(self, world_seed: int) -> None:
        self._guard.seed(_derive(world_seed, WORLD_STREAM))
        try:
            with untouched(), self._guard:
                self.rules, reply = self._open(world_seed % 2**31)
        except Exception as error:
            raise ValueError(f"{self.name} cannot be started: {one_line(error)}") from error
        self.rules = self.rules.strip()
        self._board, self._history = reply.board, [reply.message.strip()] if reply.message.strip() else []
        self._won = self._over = False

    def _play(self, action: str) -> Outcome | None:
        action = action.strip()
        if self.actions:
            index = self.action_index(action)
            if index is None:
                return None
            action = self.actions[index]
        if not action or len(action) > MAX_ACTION:
            return None
        game, guard, before = copy_game(self._game), self._guard.fork(), self.render()
        try:
            with guard:
                reply = self._move(game, action)
        except Exception:  # the game cannot handle the move
            return None
        if not reply.valid:
            return None
        self._game, self._guard = game, guard
        self._over, self._won = reply.over, reply.won
        message = reply.message.strip()
        self._history = [*self._history, f"> {action}\n{message}" if message else f"> {action}"]
        self._board = reply.board
        if reply.over and reply.board is not None and message:
            self._board = f"{reply.board}\n{message}"
        return Outcome(reply.reward, self.render() != before, reply.over)

    def _success(self) -> bool:
        return self._won

    def _finished(self) -> bool:
        return self._over

    def _problem(self) -> str:
        return f"{digest(self._game)}"


def _derive(seed: int, stream: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1, np.uint64)[0])


def copy_game(game: Any) -> Any:
    """A deep copy that shares word lists and the like."""
    return copy.deepcopy(game, {id(value): value for value in vars(game).values() if _is_big(value)})


def _is_big(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return len(value) > _BIG
    return hasattr(value, "__dict__") and any(_is_big(part) for part in vars(value).values())


def digest(game: Any, without: frozenset[str] = frozenset()) -> str:
    """Sixteen hexadecimal digits of a hash of the game's data, independent of the order of sets."""
    data = {name: _plain(value) for name, value in vars(game).items() if name not in without and not _is_big(value)}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth > 20 or isinstance(value, (type, re.Pattern)) or callable(value):
        return type(value).__name__
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        items = [[json.dumps(_plain(key, depth + 1)), _plain(one, depth + 1)] for key, one in value.items()]
        return sorted(items, key=lambda item: str(item[0]))
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_plain(one, depth + 1), sort_keys=True) for one in value)
    if isinstance(value, (list, tuple, deque)):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__dict__"):
        return [type(value).__name__, _plain(vars(value), depth + 1)]
    return type(value).__name__
