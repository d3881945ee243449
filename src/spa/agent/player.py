"""A model that is ready to play: weights, tokenizer and chat, engine. Made once a stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.engines.base import Engine
from spa.runs.schema import Config, SamplingConfig


def make_task(config: Config, *, state_format: str | None = None, prompt: str | None = None) -> Task:
    """The config's task, with another state format or prompt mode if given.

    Raises:
        ValueError: as ``Task``.
    """
    env = dataclasses.replace(config.env, state_format=state_format or config.env.state_format)
    agent = dataclasses.replace(config.agent, prompt=prompt or config.agent.prompt)
    return Task(env, agent, config.sampling.max_tokens)


@dataclass
class Player:
    """``model`` is the torch module that training updates; ``engine`` plays with its current weights."""

    model: Any
    tokenizer: Any
    chat: Chat
    engine: Engine
    sampling: SamplingConfig

    @classmethod
    def load(cls, config: Config, path: str | None = None) -> Player:
        """Loads ``path`` (default: ``config.model.path``).

        Raises:
            ValueError: a folder that is no model, has no tokenizer, or a template that cannot be used.
        """
        from spa.engines.transformers import TransformersEngine, check_sampling
        from spa.models.load import load_model, load_tokenizer, set_threads

        check_sampling(config.sampling)
        set_threads(config.model)
        tokenizer = load_tokenizer(path or config.model.path)
        chat = Chat(tokenizer, forced="<think>" if config.agent.think else "<answer>")
        model = load_model(config.model, path)
        return cls(model, tokenizer, chat, TransformersEngine(model, tokenizer.pad_token_id), config.sampling)

    def play(
        self,
        task: Task,
        worlds: Sequence[World],
        *,
        samples: int,
        seed: int,
        temperature: float | None = None,
        on_turn: Callable[[int, int], None] | None = None,
    ) -> list[Episode]:
        """Plays every world ``samples`` times; see ``rollout``."""
        sampling = self.sampling
        if temperature is not None:
            sampling = dataclasses.replace(sampling, temperature=temperature)
        return rollout(self.engine, self.chat, task, worlds, sampling, seed=seed, group_size=samples, on_turn=on_turn)
