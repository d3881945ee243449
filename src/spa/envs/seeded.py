"""Base class of the built-in worlds: seeding, step bookkeeping and checks of settings."""

from __future__ import annotations

import copy
import hashlib
import inspect
import sys
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.error import ResetNeeded

from spa.common.names import nearest
from spa.envs.base import STATE_FORMATS, TextEnv
from spa.envs.spaces import AnyText

# A world's seed feeds independent streams, told apart by the first entry of the spawn key.
WORLD_STREAM, NOISE_STREAM, POSITION_STREAM = 0, 1, 2
OPTIONS = ("noise_seed", "state")
_SPA = str(Path(__file__).parents[1])


class Outcome(NamedTuple):
    """What one understood and allowed action did."""

    reward: float
    effective: bool  # the state changed
    terminated: bool  # the task ended, won or lost


class SeededEnv(TextEnv):
    """A ``TextEnv`` that leaves to its subclass only how to make a world, move in it and write it down.

    ``self.np_random`` is used for exactly one draw per reset, the seed of the world. The world and the noise (slipping)
    come from two streams derived from that draw with numpy's ``SeedSequence``. So ``np_random`` is in the
    same state however long an episode was and whether a world was made or found in a cache, and ``reset()`` without a
    seed continues a reproducible sequence of worlds.

    ``options`` of ``reset``:

    * ``"state"``: the text of a state to start from, in the world's own symbols, with or without its coordinates.
      A state that is already finished may be loaded and rendered, but not stepped.
    * ``"noise_seed"``: a non-negative int; the noise then depends on it alone.
    * ``instance_option`` (``"level"``, ``"map"``, ``"board"``; where a world has one): the text of an instance to play.

    A world may also have a file of instances (``_levels``): seed ``s`` then plays number ``s`` of them, counted from 0 and
    starting over after the last, and ``reset()`` without a seed a random one.

    Actions that make no sense do not count toward ``max_steps``: they leave everything unchanged.
    """

    name: str = ""  # the first word of info["content"]
    instance_option: ClassVar[str] = ""  # the option of `reset` that takes an instance as text

    def __init__(self, *, state_format: str, max_steps: int | None, render_mode: str | None) -> None:
        self.observation_space, self.action_space = AnyText(1_000_000), AnyText(1_000)
        self.state_format = one_of("state_format", state_format, STATE_FORMATS)
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode must be {', '.join(map(repr, modes))} or None, got {render_mode!r}")
        self.render_mode = render_mode
        self.max_steps = None if max_steps is None else at_least("max_steps", max_steps, 1)
        self._levels: tuple[Any, ...] = ()
        self._running: bool | None = None  # None: never reset, or the last reset was refused
        self._steps = 0
        self._fingerprint = ""
        self._symmetric: dict[str, str] = {}
        self._noise_seed = 0
        self._noise: np.random.Generator | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts a new world. Returns its state and info; raises ValueError for an unknown option or a bad state."""
        options = dict(options or {})
        for key in options:
            one_of("option", key, filter(None, (*OPTIONS, self.instance_option)), of=type(self).__name__)
        state, instance = options.get("state"), options.get(self.instance_option)
        if state is not None and not isinstance(state, str):
            raise ValueError(f"a state must be text, got {type(state).__name__}")
        if state is not None and instance is not None:
            raise ValueError(f"give one of the options 'state' and {self.instance_option!r}, not both")
        noise_seed = options.get("noise_seed")
        if noise_seed is not None:
            noise_seed = at_least("noise_seed", noise_seed, 0)
        self._running = None  # a refused state or instance leaves no episode to go on with
        super().reset(seed=seed)
        # Drawn even where it is not needed, so that the sequence of worlds does not depend on the options. The raw
        # 64 bits, because numpy promises their stability across versions, which it does not for distributions.
        world_seed = int(self.np_random.bit_generator.random_raw())
        if state is not None:
            self._load(state)
        elif instance is not None:
            self._take_instance(self._read_instance(instance))
        elif self._levels:
            self._take_instance(self._levels[(world_seed if seed is None else seed) % len(self._levels)])
        else:
            self._make(world_seed)
        self._noise_seed = world_seed if noise_seed is None else noise_seed
        self._noise = None
        self._steps = 0
        self._fingerprint = f"{self.name} {self._problem()}"
        symmetry = self._symmetry()
        self._symmetric = {} if symmetry is None else {"symmetry": f"{self.name} {symmetry}"}
        self._running = not self._finished()
        return self.text(), self._info(valid=True, effective=False)

    def text(self) -> str:
        """The true state as text, whatever ``render_mode`` is."""
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays one primitive move. Raises ``gymnasium.error.ResetNeeded`` before the first reset and after the end."""
        if not self._running:
            raise ResetNeeded(
                f"{type(self).__name__} has no episode; call reset() first"
                if self._running is None
                else f"this {type(self).__name__} episode has ended; call reset() before the next step()"
            )
        outcome = self._play(action) if isinstance(action, str) else None
        if outcome is None:
            return self.text(), 0.0, False, False, self._info(valid=False, effective=False)
        self._steps += 1
        truncated = not outcome.terminated and self.max_steps is not None and self._steps >= self.max_steps
        self._running = not (outcome.terminated or truncated)
        info = self._info(valid=True, effective=outcome.effective)
        return self.text(), outcome.reward, outcome.terminated, truncated, info

    @property
    def noise(self) -> np.random.Generator:
        """The randomness after the initial state."""
        if self._noise is None:  # made on demand: most worlds never need it
            self._noise = generator(self._noise_seed, NOISE_STREAM)
        return self._noise

    def wrong_cells(self, count: int, state: str) -> list[int]:
        """For each of ``count`` cells another one, no two the same: what ``random_coordinates`` names instead.

        It depends on the episode and the true ``state`` alone, so a state that did not change is written as before.
        """
        words = np.frombuffer(hashlib.sha256(state.encode()).digest(), dtype="<u4")
        rng = generator([self._noise_seed, *(int(word) for word in words)], POSITION_STREAM)
        cells = list(range(count))
        # Sattolo's shuffle: one cycle through all cells, so none stays where it is.
        for last in range(count - 1, 0, -1):
            other = pick(rng.random(), last)
            cells[last], cells[other] = cells[other], cells[last]
        return cells

    def action_index(self, action: str) -> int | None:
        """The place of an action in ``actions``, whatever its case and the space around it; None where it is none."""
        wanted = action.strip().casefold()
        return next((index for index, name in enumerate(self.actions) if name.casefold() == wanted), None)

    def legal(self, state: str, before: str | None = None) -> bool | None:
        if type(self)._load is SeededEnv._load:
            return None
        try:
            twin = copy.copy(self)
            twin._load(state.strip())
        except Exception:  # a model may have written anything
            return False
        if before is None:
            return True
        try:
            earlier = copy.copy(self)
            earlier._load(before.strip())
        except Exception:
            return None
        return twin._keeps(earlier)

    def _info(self, *, valid: bool, effective: bool) -> dict[str, Any]:
        facts = {"success": self._success(), "valid": valid, "effective": effective, "content": self._fingerprint}
        return facts | self._symmetric

    def _finished(self) -> bool:
        """Whether the state is terminal. Worlds that can be lost override this."""
        return self._success()

    @abstractmethod
    def _make(self, world_seed: int) -> None:
        """Makes the world of this seed."""

    def _read_instance(self, text: Any) -> Any:
        """The instance of the option ``instance_option``; raises ValueError where it is none."""
        raise NotImplementedError

    def _take_instance(self, instance: Any) -> None:
        """Takes over an instance from ``_read_instance`` or ``_levels``."""
        raise NotImplementedError

    def _load(self, text: str) -> None:
        """Takes over a written state; raises ValueError where it is none. Worlds that can start from one override this."""
        raise ValueError(f"{self.name} cannot start from a given state")

    def _keeps(self, earlier: Any) -> bool:
        """Whether what no move can change is as in ``earlier``, an instance of this class with the same settings."""
        return True

    @abstractmethod
    def _play(self, action: str) -> Outcome | None:
        """Plays one action; None where it makes no sense, the state being unchanged."""

    @abstractmethod
    def _success(self) -> bool:
        """Whether the goal is reached now."""

    @abstractmethod
    def _problem(self) -> str:
        """Size and problem of the world just made, in a form that no setting of symbols changes."""

    def _symmetry(self) -> str | None:
        """The same for all worlds that are rotations or mirror images of each other; None where a world knows no symmetries."""
        return None


def generator(seed: int | list[int], *stream: int) -> np.random.Generator:
    """The generator of a stream of a seed."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=stream)))


def attempts(world_seed: int, limit: int) -> Iterator[np.random.Generator]:
    """Independent generators for the attempts to make the world of a seed: retries never reuse or hash a seed."""
    for attempt in range(limit):
        yield generator(world_seed, WORLD_STREAM, attempt)


def pick(uniform: float, count: int) -> int:
    """An index below ``count`` from a number in [0, 1)."""
    return int(uniform * count)


@lru_cache(64)
def parameters_of(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """A callable's parameters by name.

    Raises:
        TypeError, ValueError: it has no signature.
    """
    if sys.version_info >= (3, 14):  # it would evaluate annotations, and fail at names for type checkers alone
        from annotationlib import Format

        return inspect.signature(make, annotation_format=Format.FORWARDREF).parameters
    return inspect.signature(make).parameters


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` for the nearest known name, or a list of what is known where nothing is near."""
    names = list(known)
    if near := nearest(word, names):
        return f" Did you mean {near!r}?"
    return f" Known: {', '.join(names)}." if names else ""


def one_line(error: BaseException) -> str:
    """An exception in one line of bounded length: its type, its text and, if a user's file raised it, where."""
    text = " ".join(str(error).split())
    place = _place(error)
    return f"{type(error).__name__}{f': {text[:300]}' if text else ''}{f' ({place})' if place else ''}"


def _place(error: BaseException) -> str:
    """The last line of a user's file that led to an exception; "" if SPA's own code came after it."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        folders = Path(frame.filename).parts
        if "site-packages" not in folders and not frame.filename.startswith(("<", sys.base_prefix)):
            return "" if frame.filename.startswith(_SPA) else f"{Path(frame.filename).name}, line {frame.lineno}"
    return ""


def one_of(setting: str, value: Any, known: Iterable[str], of: str | None = None) -> str:
    """``value`` if it is one of the ``known``; otherwise ValueError with the nearest."""
    names = tuple(known)
    if isinstance(value, str) and value in names:
        return value
    where = f" of {of}" if of else ""
    hint = did_you_mean(str(value), names)
    raise ValueError(f"{setting}{where} must be one of {', '.join(map(repr, names))}, got {value!r}.{hint}".rstrip())


def at_least(setting: str, value: Any, minimum: int, maximum: float = inf) -> int:
    """``value`` as an int from ``minimum`` to ``maximum``; otherwise ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not minimum <= value <= maximum:
        raise ValueError(f"{setting} must be an integer{_bounds(minimum, maximum)}, got {value!r}")
    return int(value)


def real_number(setting: str, value: Any, minimum: float = -inf, maximum: float = inf) -> float:
    """``value`` as a finite float from ``minimum`` to ``maximum``; otherwise ValueError."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    if not is_number or not minimum <= value <= maximum:
        raise ValueError(f"{setting} must be a number{_bounds(minimum, maximum)}, got {value!r}")
    return float(value)


def _bounds(minimum: float, maximum: float) -> str:
    if maximum < inf:
        return f" from {minimum} to {maximum}"
    return f" of at least {minimum}" if minimum > -inf else ""
