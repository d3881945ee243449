"""How the check of a world names a problem, and ends calls that do not return."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from spa.common.limits import TimeLimit, limited

if TYPE_CHECKING:
    from spa.envs import TextEnv

T = TypeVar("T")

SECONDS = 120  # for a question, and until another process counts as hanging


class Problem(Exception):
    def __init__(self, text: str, *, warning: bool = False) -> None:
        super().__init__(text)
        self.warning = warning


def fail_if(failed: Any, problem: str, *, warning: bool = False) -> None:
    if failed:
        raise Problem(problem, warning=warning)


def check_type(value: Any, kind: type, what: str) -> None:
    name = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    fail_if(not isinstance(value, kind), f"{what} must be {kind.__name__}, not {name}")


def short(text: Any) -> str:
    """A text in printable ASCII, at most 60 characters."""
    shown = ascii(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


class Clock:
    """Ends calls of a world that do not return, and questions that take too long.

    Attributes:
        hung: whether a call did not return; later ones are then given a second.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.hung = False
        self.begin()

    def begin(self) -> None:
        """A question begins."""
        self._end = time.monotonic() + SECONDS

    def call(self, what: str, do: Callable[[], T]) -> T:
        """``do()``. Raises ``Problem`` where the time is up."""
        if time.monotonic() > self._end:
            raise Problem(f"not answered within {SECONDS} s: the world is too slow", warning=True)
        seconds = min(self.timeout, 1.0) if self.hung else self.timeout
        try:
            return limited(do, seconds)
        except TimeLimit:
            self.hung = True
            raise Problem(f"{what} did not return within {seconds:g} s") from None

    def limit(self, env: TextEnv) -> TextEnv:
        """The same instance; its ``reset`` and ``step`` are ended from now on."""
        for name in ("reset", "step"):
            with suppress(AttributeError):  # without a __dict__
                setattr(env, name, self._ended(name, getattr(env, name)))
        return env

    def _ended(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.call(name, lambda: method(*args, **kwargs))
