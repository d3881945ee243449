"""Isolates other libraries from the global random state, and checks their names and settings."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from spa.envs.seeded import did_you_mean, one_line, parameters_of

PATIENCE = 60.0  # seconds in a block, after which its world is taken to hang if another waits
_lock, _since = threading.RLock(), 0.0


class RandomGuard:
    """A private copy of the global random state (``random`` and ``numpy.random``).

    Inside ``with guard:`` the global state is the guard's and continues from the previous such block. Outside it is as if the block
    had drawn nothing. So a world that draws from the global state depends on its own seed alone, also while
    others play in between; of several threads one at a time is in such a block.
    """

    def __init__(self, seed: int = 0) -> None:
        self._others: list[tuple[Any, tuple[Any, Any]]] = []  # locks and states
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Restarts from a seed (a non-negative int of any size)."""
        python, legacy = (int(word) for word in np.random.SeedSequence(seed).generate_state(2))
        self._own: tuple[Any, Any] = (random.Random(python).getstate(), np.random.RandomState(legacy).get_state())

    def fork(self) -> RandomGuard:
        """An independent copy of this guard."""
        other = RandomGuard()
        other._own = self._own
        return other

    def __enter__(self) -> RandomGuard:
        held = _locked()
        self._others.append((held, _get_state()))
        _set_state(self._own)
        return self

    def __exit__(self, *error: object) -> None:
        held, state = self._others.pop()
        self._own = _get_state()
        _set_state(state)
        held.release()


def _locked() -> Any:
    """The lock of the process, acquired; a new one where a world hangs that holds it.

    A world that was left behind and ends while another is in its block may leave the wrong output and random state.
    """
    global _lock, _since
    while not (lock := _lock).acquire(timeout=min(1.0, PATIENCE)):
        if lock is _lock and time.monotonic() > _since + PATIENCE:
            _lock, _since = threading.RLock(), time.monotonic()
    _since = time.monotonic()
    return lock


def _get_state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


def import_library(module: str, extra: str) -> ModuleType:
    """Imports an optional library without its prints, log settings and random draws.

    Raises:
        ValueError: it is not installed; the message names the extra.
    """
    if module in sys.modules:
        return sys.modules[module]
    top = module.partition(".")[0]
    try:
        with untouched():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != top:
            raise ValueError(f"{top} cannot be imported: {one_line(error)}") from error
        raise ValueError(f"{top} is not installed: pip install 'spa-agent[{extra}]'") from None


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Lets a library import or build something without changing what is global: random state, root logger, output."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with RandomGuard(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def build(world: str, make: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """``make(**settings)``, untouched.

    Raises:
        ValueError: whatever it raises, in one line; where word lists of nltk are missing, how to get them.
    """
    try:
        with untouched():
            return make(**settings)
    except Exception as error:
        if isinstance(error, LookupError) and "nltk" in str(error):
            how = "python -m nltk.downloader words averaged_perceptron_tagger_eng"
            raise ValueError(f"{world} needs word lists of nltk: {how}") from None
        raise ValueError(f"{world} cannot be made with these settings: {one_line(error)}") from error


def find_name(world: str, name: str, known: Iterable[str]) -> None:
    """Raises ValueError with the nearest known name, or how many there are, unless ``name`` is known."""
    names = list(known)
    if name in names:
        return
    prefix = world.partition(":")[0]
    hint = did_you_mean(world, [f"{prefix}:{one}" for one in names])
    if "Did you mean" not in hint and len(names) > 12:
        hint = f" Known: {', '.join(names[:12])} and {len(names) - 12} more."
    raise ValueError(f"unknown world {world!r}.{hint}")


def check_settings(world: str, settings: Iterable[str], make: Callable[..., Any], reserved: Iterable[str]) -> None:
    """Raises ValueError for a setting that is neither ``reserved`` for the adapter nor a named parameter of ``make``."""
    named = (name for name, one in parameters_of(make).items() if one.kind is not one.VAR_KEYWORD)
    known = [*reserved, *(name for name in named if name not in ("self", "render_mode"))]
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known) or " It has no settings."
            raise ValueError(f"unknown setting {name!r} of world {world!r}.{hint}")
