"""Engines without a model: well-formed responses with random actions (the data of the paper's Table 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

import numpy as np

from spa.agent.chat import Chat
from spa.agent.response import tagged
from spa.agent.task import Task
from spa.config.schema import SamplingConfig
from spa.engines.base import Completion, Engine, Message, Reply
from spa.envs.checked import CheckedEnv, WorldError

THOUGHT = "I will push the box to the target."  # the paper's fixed thought, for Sokoban
PLAIN_THOUGHT = "I will try these actions."  # of other worlds
DRAWS = 10  # of a random action, as far as they fail


class RandomEngine(Engine):
    """Writes one response per context, ignoring the context.

    Args:
        respond: returns a whole response text, including the forced first tag.

    Log-probs are 0: the tokens are not sampled from a language model and must not be used for PPO.
    """

    def __init__(self, chat: Chat, respond: Callable[[np.random.Generator], str]) -> None:
        self.chat = chat
        self.respond = respond

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        """One complete response per context. ``sampling`` is ignored: a truncated response would contain no action."""
        return [completion_of(self.chat, self.respond(np.random.default_rng(stream))) for stream in streams]


def completion_of(chat: Chat, response: str) -> Completion:
    """A response that no model sampled: its log-probs are 0."""
    encoded = chat.encode_response(response)
    ids = [*encoded.ids[encoded.num_forced :], chat.closing_ids[0]]
    return Completion(ids, [0.0] * len(ids), "stop")


class RandomReplies:
    """The same for ``converse``, which needs no tokenizer."""

    workers = 1
    name = "random"
    episode_timeout = inf

    def __init__(self, respond: Callable[[np.random.Generator], str]) -> None:
        self.respond = respond

    def reply(self, messages: Sequence[Message], sampling: SamplingConfig, *, seed: int, **rest: object) -> Reply:
        """A whole response; only ``seed`` matters."""
        return Reply(self.respond(np.random.default_rng(seed)), "stop")


def fixed_thought(env: CheckedEnv) -> str:
    """What random play thinks in every turn: the paper's sentence where there are boxes."""
    return THOUGHT if "box" in env.symbols.values() else PLAIN_THOUGHT


def blank_response(task: Task, thought: str, actions: Sequence[str]) -> str:
    """A response in the format of the task's prompt mode, its observation and prediction left empty for the true states."""
    answer = tagged("answer", f" {task.agent.action_sep} ".join(actions))
    if not task.agent.think:
        return answer
    if task.agent.prompt == "world_model":
        return tagged("think", tagged("observation", "") + thought + tagged("prediction", "")) + answer
    return tagged("think", thought) + answer


def random_responder(task: Task, thought: str | None = None) -> Callable[[np.random.Generator], str]:
    """Uniformly random actions, one to ``env.max_actions_per_turn``, in the format of the task's prompt mode.

    Args:
        thought: in every response; None = ``fixed_thought``.

    Raises:
        ValueError: the world has free-text actions and no ``sample_action``.
        WorldError: it fails; the responder, if it does so ``DRAWS`` times in a row.
    """
    env = task.make_env()
    env.reset(seed=0)  # one world stands for all: actions are blind to the state
    env.sample_action(np.random.default_rng(0))
    words = fixed_thought(env) if thought is None else thought

    def draw(rng: np.random.Generator) -> str:
        for _ in range(DRAWS - 1):
            with suppress(WorldError):
                return env.sample_action(rng)
            env.reset(seed=0)  # a world that failed is made anew
        return env.sample_action(rng)

    def respond(rng: np.random.Generator) -> str:
        count = int(rng.integers(1, task.env.max_actions_per_turn + 1))
        return blank_response(task, words, [draw(rng) for _ in range(count)])

    return respond
