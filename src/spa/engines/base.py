"""Interfaces of inference engines, which know nothing about worlds and prompts. Imports no torch."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

from spa.common.errors import first_line
from spa.common.secrets import redact
from spa.config.schema import EngineConfig, SamplingConfig
from spa.engines.cooling import cooling
from spa.engines.draws import stream

K = TypeVar("K")
Message = dict[str, str]  # role and content


@dataclass(frozen=True)
class Completion:
    """Sampled ids (including a sampled stop token), their log-probs and the reason why sampling ended.

    ``logprobs[i]`` is log p(ids[i] | context, ids[:i]) under the model at the sampling temperature, before top-p and top-k.
    ``finish_reason`` is ``stop`` (a stop id was sampled) or ``length``.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: str


class BrokenModel(ValueError):
    """The model's logits are not finite: its weights are damaged or have diverged."""


def check_finite(logprob: float) -> None:
    if math.isnan(logprob):
        raise BrokenModel("the model's logits are not finite: its weights are damaged or have diverged in training")


@dataclass(frozen=True)
class Later:
    """A next context that ``then`` makes of the result of ``future``, once that is done (a world in a process of its own)."""

    future: Future[Any]
    then: Callable[[Any], Sequence[int] | None]

    def context(self) -> Sequence[int] | None:
        """Waits for it."""
        return self.then(self.future.result())


def arrived(later: list[tuple[K, Later]], *, idle: bool) -> list[tuple[K, Sequence[int]]]:
    """Takes what is done out of ``later``, and returns its contexts but for those of sessions that have ended; ``idle`` waits
    until something is done."""
    if later and idle:
        wait([each.future for _, each in later], return_when=FIRST_COMPLETED)
    asked = later[:]
    later.clear()
    contexts = []
    for key, each in asked:
        if not each.future.done():
            later.append((key, each))
        elif (context := each.context()) is not None:
            contexts.append((key, context))
    return contexts


OnCompletion = Callable[[int, Completion], Sequence[int] | Later | None]
"""Called with a session's number and its completion; returns the session's next context, or None at its end. A context may
have a temperature of its own (``cooling.Cooled``), or come ``Later``."""


class Engine:
    """Samples completions of token sequences. A subclass overrides ``complete`` or, if it can advance sessions independently,
    ``serve``. Samples depend on seed, session and turn alone, so that waves, processes and ranks may divide the sessions."""

    @property
    def context_length(self) -> int | None:
        """The tokens that the model can attend to, if that is known."""
        return None

    def has_room(self, context: Sequence[int], sampling: SamplingConfig) -> bool:
        """Whether the model can read a context and a response to it."""
        limit = self.context_length
        return limit is None or len(context) + sampling.max_tokens <= limit

    def generate(
        self, contexts: Sequence[Sequence[int]], sampling: SamplingConfig, *, stop_ids: frozenset[int], seed: int
    ) -> list[Completion]:
        """One completion per context, in order, each a session of one turn. Raises: as ``serve``."""
        out: dict[int, Completion] = {}
        self.serve(dict(enumerate(contexts)), sampling, stop_ids=stop_ids, seed=seed, on_completion=out.__setitem__)
        return [out[i] for i in range(len(contexts))]

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        """One completion per context, in order, each sampled from its own random stream (see ``draws``)."""
        raise NotImplementedError

    def serve(
        self,
        contexts: Mapping[int, Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        seed: int,
        on_completion: OnCompletion,
    ) -> None:
        """Continues sessions turn by turn, each until ``on_completion`` returns no next context.

        Args:
            contexts: first contexts by session number.

        The engine chooses the order of sessions; turns within a session stay in order. The same arguments, ``on_completion``
        results and weights give the same completions.
        """
        live = list(contexts.items())
        turn = 0
        while live:
            completions: dict[int, Completion] = {}
            for factor in sorted({cooling(context) for _, context in live}, reverse=True):
                asked = {session: context for session, context in live if cooling(context) == factor}
                adjusted = replace(sampling, temperature=factor * sampling.temperature)
                streams = [stream(seed, session, turn) for session in asked]
                texts = self.complete(list(asked.values()), adjusted, stop_ids=stop_ids, streams=streams)
                completions.update(zip(asked, texts, strict=True))
            answered = [(session, on_completion(session, completions[session])) for session, _ in live]
            following = [
                (session, later.context() if isinstance(later, Later) else later) for session, later in answered
            ]
            live = [(session, context) for session, context in following if context is not None]
            turn += 1

    def split(self, sampling: SamplingConfig, groups: int, group_size: int) -> int:
        """The number of processes to use at once, each with its own copy, for a rollout of ``groups`` groups."""
        return 1

    def alone(self, processes: int) -> AbstractContextManager[None]:
        """Context in which this process plays one of ``processes`` shares."""
        return nullcontext()

    def close(self) -> None:
        """Frees resources outside Python; the engine cannot be used afterwards."""


@dataclass(frozen=True)
class Reply:
    """A whole response, with the forced first tag if the engine can force one; ``finish_reason`` as in ``Completion``."""

    text: str
    finish_reason: str


class RequestFailed(Exception):
    """A request got no usable reply after all retries."""


class Refused(RequestFailed):
    """The server refuses this conversation, which may be too long or filtered: asking again would change nothing."""


class ServerError(ValueError):
    """The server refuses our requests or is down: continuing is pointless."""


def content_text(content: object) -> str | None:
    """The text of a chat message's content, which may be a list of text parts; None if it has anything else."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    ]
    return "".join(texts) if parts and len(texts) == len(parts) else None


class ChatEngine(Protocol):
    """Replies to conversations, from up to ``workers`` threads at once."""

    workers: int
    name: str  # of the model and its server
    episode_timeout: float  # seconds for all requests of an episode

    def reply(
        self,
        messages: Sequence[Message],
        sampling: SamplingConfig,
        *,
        forced: str,
        seed: int,
        stop: threading.Event,
        deadline: float = math.inf,
    ) -> Reply:
        """The next message of the assistant.

        Args:
            messages: the conversation; the last one is the user's.
            forced: the tag that the response must begin with.
            stop: once set, waits end and there are no more retries.
            deadline: in seconds of ``time.monotonic``; later there are no more retries.

        Raises:
            RequestFailed: no usable reply.
            ServerError: other requests would fail, too.
        """
        ...


def server(config: EngineConfig) -> str:
    """Who is asked, and with whose key: ``"gpt-4.1 at https://api.openai.com/v1 with the key of $OPENAI_API_KEY"``."""
    key = f" with the key of ${config.api_key_env}" if os.environ.get(config.api_key_env) else ""
    return redact(f"{config.model} at {config.base_url}{key}")


def _check_proxies() -> None:
    """Raises ValueError if a variable such as ``ALL_PROXY`` or ``SSL_CERT_FILE`` names what cannot be used."""
    import openai

    try:
        openai.DefaultHttpxClient().close()
    except OSError as error:
        names = "SSL_CERT_FILE, SSL_CERT_DIR"
        raise ValueError(f"certificates of the environment ({names}) cannot be read: {first_line(error)}") from error
    except Exception as error:  # an ImportError, a ValueError, or the client's own for an address that is none
        why = f"a proxy of the environment (ALL_PROXY, HTTP_PROXY, HTTPS_PROXY) cannot be used: {first_line(error)}"
        raise ValueError(why) from error


def check_engine(config: EngineConfig, *, trained: bool = False) -> None:
    """Checks, without loading a model, that an engine's package and settings are present and its proxy is usable.

    Args:
        trained: the engine plays while its model is trained.

    Raises:
        ValueError: they are not; the message says what to install or set.
    """
    if config.kind == "openai":
        for name in ("base_url", "model"):
            if not getattr(config, name):
                raise ValueError(f"engine=openai needs engine.{name}")
    if trained and config.kind == "vllm" and config.tensor_parallel > 1:
        raise ValueError("in training vLLM runs within the process that trains: set engine.tensor_parallel=1")
    if config.kind in ("vllm", "openai") and config.kind not in sys.modules and find_spec(config.kind) is None:
        raise ValueError(f"engine={config.kind} needs another package: pip install 'spa-agent[{config.kind}]'")
    if config.kind == "openai":
        _check_proxies()
