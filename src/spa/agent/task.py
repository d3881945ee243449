"""A task: a world, its settings, its limits and its prompts. Imports no torch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from spa.agent.cold_start import ColdStart
from spa.agent.response import FORMATS, forced_tag
from spa.config.schema import AgentConfig, EnvConfig
from spa.envs import TextEnv, make_env
from spa.envs.checked import CheckedEnv, WorldError

SYSTEM = "You're a helpful assistant. "  # the trailing space is the original's


@dataclass(frozen=True)
class Task:
    """A world as presented to a model.

    Args:
        env: the world, its settings and limits.
        agent: prompt and history settings.
        max_tokens: the response length stated in prompts of style ``paper`` where ``env.response_hint`` is null.
        max_tokens_world_model: the same in world-model mode; None: ``max_tokens``.
        cold_start: examples shown and responses resampled in self-play.

    Raises:
        ValueError: unknown world or setting, or a world that cannot be made.
    """

    env: EnvConfig
    agent: AgentConfig = field(default_factory=AgentConfig)
    max_tokens: int = 400
    max_tokens_world_model: int | None = None
    cold_start: ColdStart = field(default_factory=ColdStart)

    def __post_init__(self) -> None:
        env = self.make_env()
        try:
            env.call("constructor", lambda world: world)
        except WorldError as error:
            if isinstance(error.__cause__, (ValueError, OSError, ImportError)):
                raise error.__cause__ from None
            raise ValueError(f"the world {self.env.id!r} cannot be made: {error}") from error
        with suppress(WorldError):  # told of where it is played
            env.close()

    @property
    def tag(self) -> str:
        return self.env.tag

    @property
    def forced(self) -> str:
        """The tag that every response is forced to start with."""
        return forced_tag(self.agent.think)

    def make_env(self) -> CheckedEnv:
        """A new world in the task's state format; a world without that setting has only one format."""
        return CheckedEnv(self._make_env, self.env.step_timeout, self.env.max_state_chars)

    def started_env(self) -> CheckedEnv:
        """``make_env``, reset with seed 0: some worlds name their actions only then. Where that fails, as it was made."""
        env = self.make_env()
        with suppress(WorldError):  # told of where it is played
            env.reset(seed=0)
        return env

    def _make_env(self) -> TextEnv:
        settings: dict[str, Any] = dict(self.env.settings)
        env = make_env(self.env.id, **settings)
        if env.state_format == self.env.state_format:
            return env
        if "state_format" in settings:
            raise ValueError(
                "env.settings.state_format: set env.state_format, selfplay.state_format or a variant's state_format instead"
            )
        try:
            formatted = make_env(self.env.id, **settings, state_format=self.env.state_format)
        except (ValueError, TypeError) as error:  # a TypeError where a constructor passes what it does not know on
            if "unknown setting 'state_format'" in str(error) or "argument 'state_format'" in str(error):
                return env
            raise
        env.close()  # it may hold a process or a socket
        return formatted

    @property
    def system(self) -> str | None:
        return SYSTEM if self.agent.style == "paper" else None

    @property
    def _format(self) -> str:
        return FORMATS[self.agent.style][self.agent.prompt if self.agent.think else "answer"]

    def header(self, env: TextEnv) -> str:
        """The text before the first turn: instruction, symbols and actions of this world instance."""
        if self.agent.style == "terse":
            return ""
        from spa.agent.prompt import instruction

        text = instruction(self.env, self.agent.prompt, env, self.agent.action_sep)
        if env.symbols:
            meaning = ", ".join(f"{symbol}: {name}" for symbol, name in env.symbols.items())
            text += f"\nThe meaning of each symbol in the state is:\n{meaning}"
        if env.actions:
            text += f"\nYour available actions are:\n{', '.join(env.actions)}"
            text += (
                f"\nYou can make up to {self.env.max_actions} actions, "
                f'separated by the action separator " {self.agent.action_sep} "\n'
            )
        return text

    def turn_text(self, number: int, state: str, actions_left: int) -> str:
        """The block that shows a state; ``number`` counts from 1 within the visible context."""
        if self.agent.style == "terse":
            return f"{state}\n{actions_left} left\n{self._format}"
        return (
            f"\nTurn {number}:\nState:\n{state}\nYou have {actions_left} actions left. "
            f"Always output: {self._format} with no extra text. Strictly follow this format. "
            f"Max response length: {self.stated_length} words (tokens).\n"
        )

    @property
    def stated_length(self) -> int:
        """The response length that prompts of style ``paper`` state in the task's mode."""
        limit = self.max_tokens_world_model if self.agent.prompt == "world_model" else None
        return self.env.response_hint or limit or self.max_tokens

    def reward_text(self, reward: float) -> str:
        """The reward of the last turn as shown to the model: the raw Python number, as in the original."""
        return "" if self.agent.style == "terse" else f"Reward:\n{reward}\n"
