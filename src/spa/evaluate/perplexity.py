"""Perplexity of a world's states under a model: how unfamiliar they are (paper, Table 1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from spa.agent.chat import Chat
from spa.agent.failures import Failures
from spa.agent.policy import Policy, make_task
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.common.names import choose
from spa.config.fields import StateFormat
from spa.config.schema import Config
from spa.scale import ranks

CONTEXTS = ("bare", "prompt")
FORMATS: tuple[StateFormat, ...] = ("grid", "coordinates")
_MOST_NATS = 700.0  # exp() of more overflows


class NothingToScore(ValueError):
    """The states are empty, or one token long where a first token has no context."""


@dataclass(frozen=True)
class StatePerplexity:
    """Perplexity of states under a model.

    ``perplexity`` is exp of the mean negative log-likelihood per token over all tokens of all states;
    ``bits_per_char`` does not depend on the tokenizer.
    """

    perplexity: float
    bits_per_char: float
    tokens_per_state: float
    states: int


def formats(task: Task) -> list[StateFormat]:
    """Those of ``FORMATS`` that the task's world supports; ``grid`` alone if it has its own format."""
    envs = {name: dataclasses.replace(task.env, state_format=name) for name in FORMATS}
    known = [name for name, env in envs.items() if dataclasses.replace(task, env=env).make_env().state_format == name]
    return known or ["grid"]


def random_guess(task: Task, vocabulary: int) -> float:
    """The perplexity of guessing each cell: its number of possible symbols, or the vocabulary's size for free text."""
    return float(task.make_env().num_cell_values or vocabulary)


def sample_states(task: Task, worlds: Sequence[World], *, seed: int, moves: int = 5) -> list[str]:
    """The first state of each world and the states after ``moves`` random moves; a state is listed once per visit.

    For a world without random moves (free text without ``sample_action``), only the first states; of one that fails, those
    before.
    """
    states: list[str] = []
    env = task.make_env()

    failures = Failures("random play", task.env.max_failed, len(worlds), unit="worlds")
    for world in worlds:
        rng = np.random.default_rng(np.random.SeedSequence([seed, world.seed]))
        with failures.alone(world.seed):
            state, _ = env.reset(seed=world.seed)
            states.append(state)
            for _ in range(moves):
                if (action := env.random_action(rng)) is None:
                    break
                state, _, terminated, truncated, _ = env.step(action)
                states.append(state)
                if terminated or truncated:
                    break
    failures.say()
    return states


def state_perplexity(
    model: Any, chat: Chat, task: Task, states: Sequence[str], *, context: str = "bare"
) -> StatePerplexity:
    """Perplexity of ``states`` as shown to the agent.

    Args:
        context: ``bare`` (the state alone, after the tokenizer's begin-of-text token; without such a token the state's first
            token is not scored) or ``prompt`` (in the first user message, of which only the state is scored).

    Raises:
        ValueError: unknown context, no states, or a chat template that changes its input.
        NothingToScore: no state has a token that can be scored.
    """
    from spa.models.score import Chosen, sum_logprobs

    choose("context", context, CONTEXTS)
    if not states:
        raise ValueError("no states to score")
    rows, characters = [], 0
    header = task.header(task.started_env()) if context == "prompt" else ""
    for state in states:
        ids, positions, length = _bare(chat, state) if context == "bare" else _prompted(chat, task, header, state)
        if positions:
            rows.append(Chosen(ids, positions))
            characters += length
    if not rows:
        raise NothingToScore("the states have no token that can be scored")
    nats, tokens = -math.fsum(sum_logprobs(model, rows)), sum(len(row.positions) for row in rows)
    return StatePerplexity(
        perplexity=math.exp(min(nats / tokens, _MOST_NATS)),
        bits_per_char=nats / math.log(2) / characters,
        tokens_per_state=tokens / len(rows),
        states=len(rows),
    )


def perplexity_by_format(
    cfg: Config, policy: Policy, task: Task, worlds: Sequence[World], *, seed: int, context: str = "bare"
) -> dict[str, StatePerplexity]:
    """``state_perplexity`` of the ``sample_states`` of ``worlds``, in each of ``formats(task)`` that has something to score."""
    scores: dict[str, StatePerplexity] = {}
    for state_format in ranks.on_main(lambda: formats(task)):
        shown = make_task(cfg, state_format=state_format)
        states = ranks.on_main(partial(sample_states, shown, worlds, seed=seed))
        with suppress(NothingToScore):
            scores[state_format] = state_perplexity(policy.model, policy.chat, shown, states, context=context)
    return scores


def _bare(chat: Chat, state: str) -> tuple[list[int], list[int], int]:
    """Ids, scored positions and the number of scored characters of a state alone."""
    encoded = chat.tokenizer(state, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
    begin = chat.tokenizer.bos_token_id
    if begin is not None:
        return [begin, *ids], list(range(1, len(ids) + 1)), len(state)
    return ids, list(range(1, len(ids))), len(state) - (offsets[0][1] if offsets else 0)


def _prompted(chat: Chat, task: Task, header: str, state: str) -> tuple[list[int], list[int], int]:
    """Like ``_bare`` for a state in the first user message, located by text offsets: tokens that cross its borders count."""
    user = header + task.turn_text(1, state, task.env.max_actions)
    place = len(header) + task.turn_text(1, "\0", task.env.max_actions).index("\0")
    text = chat.opening_text(task.system, user)
    # Some templates strip their input.
    at = text.rfind(user.strip())
    if at < 0:
        raise ValueError(
            "the chat template changes the user's text, so the state cannot be found in it; use context=bare"
        )
    start = at + place - (len(user) - len(user.lstrip()))
    end = start + len(state)
    encoded = chat.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    positions = [i for i, (low, high) in enumerate(encoded["offset_mapping"]) if low < end and start < high]
    # If a template begins with the state, its first token has no context.
    return list(encoded["input_ids"]), [i for i in positions if i > 0], len(state)
