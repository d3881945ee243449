"""Lets anything with the shape of a text environment play as a ``TextEnv``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Space, Text

from spa.envs.base import Example, TextEnv
from spa.envs.check_texts import names_problem
from spa.envs.checked import checked_reset, checked_step
from spa.envs.spaces import AnyText


@runtime_checkable
class Playable(Protocol):
    """The least a world must have: Gymnasium's ``reset`` and ``step``, over strings."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]: ...

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]: ...


class AdaptedEnv(TextEnv):
    """A world that does not inherit from ``TextEnv``, completed with defaults.

    What the world does not say is filled in: ``valid`` whether it lists the action (if it lists any), ``effective`` whether the
    text changed, ``success`` whether the episode terminated with a positive reward, ``content`` the first state (in the format that
    ``plain`` has), ``render()`` the last state. Actions that it does not list are not passed on.
    ``says_success`` is whether the world itself has given ``success`` so far.
    ``rules``, ``instruction``, ``example``, ``actions``, ``symbols``, ``state_format`` and ``sample_action`` are the world's own
    where it has them.

    Args:
        env: the adapted world, kept as an attribute.
        plain: makes the same world in its own default ``state_format``, so that a world that names no ``content`` is in the same
            split in every format. It is reset whenever ``env`` is, but not for the option ``state``.

    Raises:
        ValueError: the world's actions or symbols are not text.
    """

    def __init__(self, env: Playable, plain: Callable[[], Playable] | None = None) -> None:
        self.env = env
        self._make_plain = plain
        self._plain: Playable | None = None
        inner = getattr(env, "unwrapped", env)
        space = getattr(inner, "action_space", None)
        if isinstance(space, Space) and not isinstance(space, Text) and not getattr(inner, "actions", None):
            raise ValueError(
                f"{type(inner).__name__}: actions are text, but its action_space is {space}: list their names in `actions` and "
                "translate them in step()"
            )
        if problem := names_problem(inner):
            raise ValueError(problem)
        self.rules = str(getattr(inner, "rules", None) or "")
        self.instruction = str(getattr(inner, "instruction", None) or "")
        example = getattr(inner, "example", None)
        self.example = Example(*example) if isinstance(example, tuple) else None
        self._take_names()
        self.state_format = str(getattr(inner, "state_format", None) or "grid")
        self.observation_space, self.action_space = AnyText(1_000_000), AnyText(1_000)
        self._state = ""
        self._fingerprint = ""
        self._running: bool | None = None
        self.says_success = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, info = checked_reset(self.env.reset(seed=seed, options=options), sys.maxsize)
        self._take_names()  # they may be this instance's own
        self._fingerprint = str(info["content"]) if "content" in info else self._plainly(seed, options)
        self._running = True
        self.says_success |= "success" in info
        return self._state, {"success": False, "valid": True, "effective": False, "content": self._fingerprint} | info

    def _take_names(self) -> None:
        inner = getattr(self.env, "unwrapped", self.env)
        self.actions = tuple(getattr(inner, "actions", None) or ())
        self.symbols = dict(getattr(inner, "symbols", None) or {})

    def _plainly(self, seed: int | None, options: dict[str, Any] | None) -> str:
        """The first state in the world's default format."""
        if self._make_plain is None or "state" in (options or {}):
            return self._state
        if self._plain is None:
            self._plain = self._make_plain()
        state, _ = checked_reset(self._plain.reset(seed=seed, options=options), sys.maxsize)
        return state

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise ResetNeeded(f"{type(self.env).__name__} must be reset before this step()")
        before = self._state
        if self.actions and action not in self.actions:
            info = {"success": False, "valid": False, "effective": False, "content": self._fingerprint}
            return before, 0.0, False, False, info
        self._state, reward, terminated, truncated, info = checked_step(self.env.step(action), sys.maxsize)
        self._running = not (terminated or truncated)
        self.says_success |= "success" in info
        defaults = {
            "success": terminated and reward > 0,
            "valid": True,
            "effective": self._state != before,
            "content": self._fingerprint,
        }
        return self._state, float(reward), terminated, truncated, defaults | info

    def render(self) -> str:
        return self._state

    def legal(self, state: str, before: str | None = None) -> bool | None:
        inner = getattr(self.env, "unwrapped", self.env)
        return inner.legal(state, before) if isinstance(inner, TextEnv) else None

    @property
    def num_cell_values(self) -> int | None:
        inner = getattr(self.env, "unwrapped", self.env)
        return inner.num_cell_values if isinstance(inner, TextEnv) else super().num_cell_values

    def sample_action(self, rng: np.random.Generator) -> str:
        sample = getattr(getattr(self.env, "unwrapped", self.env), "sample_action", None)
        return sample(rng) if callable(sample) else super().sample_action(rng)

    def close(self) -> None:
        for env in (self.env, self._plain):
            close = getattr(env, "close", None)
            if callable(close):
                close()
