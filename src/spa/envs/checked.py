"""What a world may return, and what becomes of a world that does anything else: a ``WorldError``. Imports no torch."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np

from spa.common.limits import OneThread, TimeLimit, limited
from spa.common.progress import note
from spa.envs.base import Example, TextEnv
from spa.envs.seeded import one_line

T = TypeVar("T")

MAX_REWARD = 1e6  # a larger one is a defect, and its square would drown every other in an update
MAX_CHARS = 100_000  # of a state, without another limit


class WorldError(ValueError):
    """A world failed or broke the contract; the message is one line and valid Unicode.

    Its cause is what the world raised (``SystemExit``, too), None where it returned something wrong or did not end in time.
    """

    @property
    def raised(self) -> bool:
        """Whether the world raised an exception, which may be its way not to accept a state or an action."""
        return isinstance(self.__cause__, Exception)

    @property
    def refused(self) -> bool:
        """Whether the world said by a ValueError that it does not accept a state or an action, and is still in order."""
        return isinstance(self.__cause__, ValueError)


class Step(NamedTuple):
    """What a world returned from ``step``, checked and as plain data (see ``checked_step``)."""

    state: str
    reward: int | float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def guarded(do: Callable[[], T], what: str, seconds: float = 0.0, thread: OneThread | None = None) -> T:
    """``do()``, a call of a world's code, for at most ``seconds`` (0: no limit), as ``limited``.

    A working directory that it changes is set back: paths of a run may be relative.

    Raises:
        WorldError: it raised anything but Ctrl-C, ``SystemExit`` included, or took too long; ``what`` begins the message.
    """
    here = _directory()
    try:
        return limited(do, seconds, thread)
    except KeyboardInterrupt:
        raise
    except TimeLimit:
        raise WorldError(f"{what}: no end within {seconds:g} seconds (env.step_timeout)") from None
    except WorldError as error:
        raise WorldError(f"{what}: {error}") from None
    except BaseException as error:
        raise WorldError(f"{what}: {_describe(error)}") from error
    finally:
        if here and _directory() != here:
            os.chdir(here)


def _directory() -> str:
    """The working directory; empty where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _own(name: str, check: Callable[[Any], Any] = lambda value: value) -> Any:
    """An attribute of the world itself."""
    return property(lambda self: self.call(name, lambda world: check(getattr(world, name))))


class CheckedEnv(TextEnv):
    """A world, made when it is first used. Whatever goes wrong in a call of its code is a ``WorldError``.

    A world that failed, other than by refusing a state or an action, is closed, and the next ``reset`` makes another.

    Args:
        make: makes the world.
        seconds: for each call of its code, after which it has failed; 0 = no limit.
        max_chars: of a state.
    """

    rules: str = _own("rules", lambda text: _text(text, MAX_CHARS, "the rules"))
    instruction: str = _own("instruction", lambda text: _text(text, MAX_CHARS, "the instruction"))
    example: Example | None = _own("example")
    actions: Sequence[str] = _own("actions", lambda names: tuple(_text(name, MAX_CHARS, "an action") for name in names))
    symbols: Mapping[str, str] = _own(
        "symbols",
        lambda names: {
            _text(a, MAX_CHARS, "a symbol"): _text(b, MAX_CHARS, "a symbol's name") for a, b in names.items()
        },
    )
    state_format: str = _own("state_format")
    num_cell_values: int | None = _own("num_cell_values")

    def __init__(self, make: Callable[[], TextEnv], seconds: float = 0.0, max_chars: int = MAX_CHARS) -> None:
        self.env: TextEnv | None = None
        self._make, self._seconds, self._max_chars = make, seconds, max_chars
        self._cannot_tell = False
        self._thread = OneThread()

    def call(self, what: str, do: Callable[[TextEnv], T]) -> T:
        """``do(world)``. Raises ``WorldError``, whose message begins with ``what``."""
        if (world := self.env) is None:
            self.env = world = guarded(self._make, "constructor", self._seconds, self._thread)
        try:
            return guarded(lambda: do(world), what, self._seconds, self._thread)
        except WorldError as error:
            if not error.refused:
                with suppress(WorldError):
                    self.close()
            raise

    @property
    def unwrapped(self) -> Any:
        return self.call("unwrapped", lambda world: world.unwrapped)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return self.call("reset", lambda world: checked_reset(world.reset(seed=seed, options=options), self._max_chars))

    def step(self, action: str) -> Step:
        def step(world: TextEnv) -> Step:
            result = checked_step(world.step(action), self._max_chars)
            if "success" not in result.info:  # or the world would never be won
                raise WorldError("info of step() has no 'success', which says whether the goal is reached now")
            return result

        return self.call("step", step)

    def render(self) -> Any:
        """The world's picture: text, or pixels that no model reads."""

        def render(world: TextEnv) -> Any:
            picture: Any = world.render()
            return checked_state(picture, self._max_chars) if isinstance(picture, str) else picture

        return self.call("render", render)

    def legal(self, state: str, before: str | None = None) -> bool | None:
        """As the world says; None, and it is not asked again, once it has failed to."""
        if self._cannot_tell:
            return None
        try:
            verdict = self.call("legal", lambda world: world.legal(state, before))
            return None if verdict is None else _flag(verdict, "legal()")
        except WorldError as error:
            self._cannot_tell = True
            note(f"whether states are legal is not known: {error}")
            return None

    def random_action(self, rng: np.random.Generator) -> str | None:
        """As ``sample_action``; None where the world has no random actions."""
        try:
            return self.sample_action(rng)
        except WorldError as error:
            if error.refused:
                return None
            raise

    def sample_action(self, rng: np.random.Generator) -> str:
        return self.call("sample_action", lambda world: _text(world.sample_action(rng), MAX_CHARS, "an action"))

    def close(self) -> None:
        world, self.env = self.env, None
        if world is not None:
            guarded(world.close, "close", self._seconds, self._thread)


def checked_reset(returned: Any, max_chars: int = MAX_CHARS) -> tuple[str, dict[str, Any]]:
    """State and info that ``reset`` returned.

    Raises:
        WorldError: they are not of the types of ``checked_step``.
    """
    state, info = _unpacked(returned, "reset", "state, info")
    return checked_state(state, max_chars), _info(info, max_chars)


def checked_step(returned: Any, max_chars: int = MAX_CHARS) -> Step:
    """What ``step`` returned.

    Raises:
        WorldError: the state is not text, has lone surrogates or more than ``max_chars`` characters; the reward is not a finite
            real number (NumPy's and tensors with one element are) up to ``MAX_REWARD``; a flag is not true or false; info is
            not a mapping from texts, or has an integer of more than 64 bits.
    """
    state, reward, terminated, truncated, info = _unpacked(
        returned, "step", "state, reward, terminated, truncated, info"
    )
    return Step(
        checked_state(state, max_chars),
        checked_reward(reward),
        _flag(terminated, "terminated"),
        _flag(truncated, "truncated"),
        _info(info, max_chars),
    )


def checked_state(state: Any, max_chars: int = MAX_CHARS) -> str:
    return _text(state, max_chars, "a state")


def checked_reward(reward: Any) -> int | float:
    value = _scalar(reward)
    if isinstance(value, bool):
        value = int(value)
    if not isinstance(value, (int, float)):
        if not isinstance(value, numbers.Real):
            raise WorldError(f"the reward must be a number, not {_shown(reward)}")
        return checked_reward(float(value))
    if not -MAX_REWARD <= value <= MAX_REWARD:
        raise WorldError(f"the reward must be a finite number of at most {MAX_REWARD:g}, not {_shown(value)}")
    return value


def _text(value: Any, max_chars: int, what: str) -> str:
    if not isinstance(value, str):
        raise WorldError(f"{what} must be text, not {_shown(value)}")
    text = str.__str__(value)
    if len(text) > max_chars:
        raise WorldError(f"{what} has {len(text)} characters, more than env.max_state_chars={max_chars}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise WorldError(f"{what} is not valid Unicode: a lone surrogate at character {error.start}") from None
    return text


def _flag(value: Any, name: str) -> bool:
    flag = _scalar(value)
    if not isinstance(flag, (bool, int)) or flag not in (0, 1):
        raise WorldError(f"{name} must be true or false, not {_shown(value)}")
    return bool(flag)


def _info(info: Any, max_chars: int) -> dict[str, Any]:
    """As a plain dictionary; numbers of other libraries as Python's, None for those that are not finite."""
    if not isinstance(info, Mapping):
        raise WorldError(f"info must be a mapping, not {_shown(info)}")
    plain: dict[str, Any] = {}
    for key, value in dict(info).items():
        name = _text(key, max_chars, "a key of info")
        value = _scalar(value)
        where = f"info[{name[:40]!r}]"
        if isinstance(value, int) and value.bit_length() > 64:
            raise WorldError(f"{where} has {value.bit_length()} bits, more than 64: files and logs cannot hold it")
        if name in ("content", "symmetry", "split") and value is not None:  # what tells worlds apart is text
            value = str(value)
        if isinstance(value, float) and not math.isfinite(value):
            value = None  # files are JSON
        plain[name] = _text(value, max_chars, where) if isinstance(value, str) else value
    if "success" in plain:
        plain["success"] = _flag(plain["success"], "info['success']")
    return plain


def _unpacked(returned: Any, method: str, names: str) -> tuple[Any, ...]:
    wanted = names.count(",") + 1
    if not isinstance(returned, (tuple, list)):
        raise WorldError(f"{method}() must return {names}, not {_shown(returned)}")
    if len(returned) != wanted:
        raise WorldError(f"{method}() must return {wanted} values ({names}), not {len(returned)}")
    return tuple(returned)


def _scalar(value: Any) -> Any:
    """The Python number of one of its subclasses, of NumPy, or of an array or tensor with one element and no dimension."""
    if isinstance(value, np.generic) or (hasattr(value, "item") and getattr(value, "shape", None) == ()):
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def _shown(value: Any) -> str:
    """A value in a message: short, and safe even where its ``repr`` is not."""
    try:
        text = repr(value) if value is None or isinstance(value, (str, bool, int, float, complex)) else ""
    except Exception:  # an int with too many digits
        text = ""
    name = type(value).__name__
    return _clean(text[:60] if text else f"an object of type {name}")


def _describe(error: BaseException) -> str:
    try:
        return _clean(one_line(error))
    except BaseException:  # its own text fails
        return type(error).__name__


def _clean(text: str) -> str:
    return text.encode(errors="replace").decode()
