"""A person plays turns of a model's episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.agent.policy import Policy, ServedPolicy
from spa.agent.random_engine import completion_of
from spa.agent.response import STATE_TAGS, tagged
from spa.agent.rollout import OnTurn
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import SamplingConfig
from spa.engines.base import Completion, Engine
from spa.envs.checked import WorldError

Ask = Callable[[str], str]
"""Given the state, returns a person's actions for the turn; empty lets the model play."""


class TakeOver(Engine):
    """An engine of one episode, which asks a person first; what is typed becomes the answer after ``thought``.

    Its log-probs are 0 where the model did not sample: such episodes must not be trained on. ``state`` is the present one.
    """

    def __init__(self, engine: Engine, chat: Chat, thought: str, ask: Ask, state: str) -> None:
        self.engine, self.chat, self.thought, self.ask, self.state = engine, chat, thought, ask, state

    @property
    def context_length(self) -> int | None:
        return self.engine.context_length

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        (context,), (stream,) = contexts, streams
        actions = self.ask(self.state)
        if not isinstance(actions, str):
            raise ValueError(
                f"take_over returns text, as a model would write it (several actions with agent.action_sep between), or '' to "
                f"let the model play; got {actions!r}"
            )
        if not actions:
            return self.engine.generate([context], sampling, stop_ids=stop_ids, seed=stream)
        return [completion_of(self.chat, self.thought + tagged("answer", actions))]


def play_with_person(
    policy: Policy, task: Task, worlds: Sequence[World], ask: Ask, *, seed: int, on_turn: OnTurn | None = None
) -> list[Episode]:
    """Plays one world after the other, once each; ``ask`` is called before every turn.

    Raises:
        ValueError: the policy is a chat server's.
    """
    if isinstance(policy, ServedPolicy):
        raise ValueError("--take-over needs a model that plays here: engine=transformers")
    states = "".join(tagged(tag, "") for tag in STATE_TAGS) if task.agent.prompt == "world_model" else ""
    thought = tagged("think", states) if task.agent.think else ""
    episodes = []
    for group, world in enumerate(worlds):
        state = ""
        with task.make_env() as env, suppress(WorldError):  # its episode has the error
            state, _ = env.reset(seed=world.seed, options={"noise_seed": world.noise_seed(0)})
        engine = TakeOver(policy.engine, policy.chat, thought, ask, state)

        def seen(episode: Episode, ended: bool, group: int = group, engine: TakeOver = engine) -> None:
            if episode.turns:  # none if the world fails at once
                engine.state = episode.turns[-1].next_state
            if on_turn:
                on_turn(replace(episode, group=group), ended)

        played = replace(policy, engine=engine).play(task, [world], samples=1, seed=seed, on_turn=seen)
        episodes += [replace(episode, group=group) for episode in played]
    return episodes
