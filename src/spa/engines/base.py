"""The contracts of engines, which write the text: they know nothing of worlds and prompts. Imports no torch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import numpy as np

from spa.config.schema import EngineConfig, SamplingConfig

Message = dict[str, str]  # role and content


@dataclass(frozen=True)
class Completion:
    """Sampled ids (the stop token included, if one was sampled), their log-probs and why sampling ended.

    ``logprobs[i]`` is log p(ids[i] | context, ids[:i]) under the model at the sampling temperature, before top-p and top-k.
    ``finish_reason`` is ``stop`` (a stop id was sampled) or ``length``.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: str


class BrokenModel(ValueError):
    """The model's logits are not finite: its weights are damaged or have diverged."""


OnCompletion = Callable[[int, Completion], Sequence[int] | None]
"""Called with a session's number and its completion; returns the session's next context, or None at its end."""


class Engine(Protocol):
    """Writes the text of an agent: continues token sequences.

    An engine that can go on with one session while others wait has a method ``serve`` too, with the arguments of the
    function ``serve`` below.
    """

    def generate(
        self, contexts: Sequence[Sequence[int]], sampling: SamplingConfig, *, stop_ids: frozenset[int], seed: int
    ) -> list[Completion]:
        """One completion per context, in order. The same arguments and weights give the same completions."""
        ...


@runtime_checkable
class SplittingEngine(Protocol):
    """An engine that may play in several processes at once, each with a copy of it."""

    def split(self, sampling: SamplingConfig, groups: int, group_size: int) -> int:
        """In how many processes a rollout of so many groups should be played."""
        ...

    def alone(self, processes: int) -> AbstractContextManager[None]:
        """While this process plays one of so many shares."""
        ...


def serve(
    engine: Engine,
    contexts: Mapping[int, Sequence[int]],
    sampling: SamplingConfig,
    *,
    stop_ids: frozenset[int],
    seed: int,
    on_completion: OnCompletion,
) -> None:
    """Continues sessions turn by turn: each from its first context until ``on_completion`` has no next one for it.

    Args:
        contexts: the first ones, by the numbers of their sessions.

    The order in which sessions are answered is the engine's, that of a session's turns is kept. The same arguments, answers and
    weights give the same completions.
    """
    if hasattr(engine, "serve"):
        engine.serve(contexts, sampling, stop_ids=stop_ids, seed=seed, on_completion=on_completion)
        return
    # It knows only ``generate``: all live sessions one turn at a time.
    live = list(contexts.items())
    turn = 0
    while live:
        state = np.random.SeedSequence([seed, turn]).generate_state(1, np.uint64)[0]
        asked = [context for _, context in live]
        completions = engine.generate(asked, sampling, stop_ids=stop_ids, seed=int(state >> np.uint64(1)))
        following: list[tuple[int, Sequence[int]]] = []
        for (session, _), completion in zip(live, completions, strict=True):
            context = on_completion(session, completion)
            if context is not None:
                following.append((session, context))
        live = following
        turn += 1


@dataclass(frozen=True)
class Reply:
    """A whole response, with the forced first tag where the engine could force one; ``finish_reason`` as in ``Completion``."""

    text: str
    finish_reason: str


class RequestFailed(Exception):
    """A request got no usable answer, however often it was tried."""


class ServerError(ValueError):
    """The server refuses our requests, or is dead: there is no use in going on."""


class ChatEngine(Protocol):
    """Writes the text of an agent: answers conversations, from up to ``workers`` threads at once."""

    workers: int
    name: str  # of the model and where it is

    def reply(
        self, messages: Sequence[Message], sampling: SamplingConfig, *, forced: str, seed: int, stop: threading.Event
    ) -> Reply:
        """The next message of the assistant.

        Args:
            messages: the conversation; the last one is the user's.
            forced: the tag that the response is to begin with.
            stop: once it is set, waits end and nothing more is tried.

        Raises:
            RequestFailed: no usable answer.
            ServerError: there will be none to other requests either.
        """
        ...


def check_engine(config: EngineConfig) -> None:
    """Checks, without loading anything, that an engine has its package and its settings.

    Raises:
        ValueError: it has not; the message says what to install or to set.
    """
    if config.kind == "openai":
        for name in ("base_url", "model"):
            if not getattr(config, name):
                raise ValueError(f"engine=openai needs engine.{name}")
        if not str(config.base_url).startswith(("http://", "https://")):
            raise ValueError(f"engine.base_url must begin with http:// or https://, not be {config.base_url!r}")
    if config.kind != "transformers" and config.kind not in sys.modules and find_spec(config.kind) is None:
        raise ValueError(f"engine={config.kind} needs another package: pip install 'spa-agent[{config.kind}]'")
