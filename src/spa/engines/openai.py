"""Any server with an OpenAI-compatible chat API: OpenAI's, vLLM's, llama.cpp's, Ollama's, ..."""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from spa.common.limits import OneThread, TimeLimit
from spa.common.secrets import learn, redact
from spa.common.typed import Object, parse
from spa.config.schema import EngineConfig, SamplingConfig
from spa.engines.base import Message, Refused, Reply, RequestFailed, ServerError, check_engine, content_text
from spa.engines.http import BadReply, bounded_client

BACKOFF = 1.0  # seconds before the first retry, doubled for each further one
LONGEST_BACKOFF = 60.0
LONGEST_WAIT = 600.0  # seconds: a longer Retry-After fails the request
DEAD = 8  # minimum number of consecutive failed requests before the server counts as down
_RETRY_STATUS = (408, 409, 429)  # and 5xx
_UNFIT_STATUS = (400, 413, 422)  # one conversation is too long or filtered, or no request fits
_LENGTH = ("length", "max_tokens", "model_length")
_ABORTED = ("error", "abort", "aborted", "cancelled")  # finish reasons of a reply that is not whole


class _TryAgain(Exception):
    """A request that may succeed if retried after at least ``wait`` seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(redact(reason))
        self.wait = wait


class OpenAIEngine:
    """Replies to conversations through the ``openai`` client; usable from ``workers`` threads at once.

    Secrets are redacted from replies and errors (``spa.common.secrets``): some servers echo the key.

    Raises:
        ValueError: a setting or the package ``openai`` is missing, or the key is invalid.
    """

    def __init__(self, config: EngineConfig) -> None:
        check_engine(config)
        import openai

        self.config = config
        self.workers, self.episode_timeout = config.concurrency, config.episode_timeout
        self.name = redact(f"{config.model} at {config.base_url}")
        learn(config.api_key_env)
        key = os.environ.get(config.api_key_env, "").strip()
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ValueError(
                f"the environment variable {config.api_key_env} holds no valid key: a header must be printable ASCII without spaces"
            )
        self._api: Any = openai
        self._client = openai.OpenAI(
            base_url=config.base_url,
            api_key=key or "none",
            timeout=config.timeout,
            max_retries=0,  # retries are ours
            # Prompts and key go only where the config says.
            http_client=bounded_client(openai.DefaultHttpxClient, config.max_reply_bytes, config.timeout, key),
        )
        self._limiter = _Limiter(config.requests_per_minute)
        self._lock = threading.Lock()
        self._failures = 0  # requests that failed after all retries since the last success
        self._refused: set[str] = set()  # messages refused since then: those of a group begin alike and count once
        self._limit = "max_tokens"  # OpenAI's newer models accept only max_completion_tokens

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
        """The response to a conversation; see ``ChatEngine``."""
        jitter = random.Random(seed)
        reason, empty = "", 0  # replies without text, which a server that honours seeds would repeat
        for attempt in range(self.config.retries + 1):
            self._limiter.wait(stop)
            if attempt and time.monotonic() > deadline:
                reason = reason or f"more than engine.episode_timeout={self.episode_timeout:g} seconds"
                break
            try:
                reply = self._ask(self._request(messages, sampling, forced, seed + empty))
                if not reply.text.strip() and attempt < self.config.retries:
                    empty += 1
                    continue
            except Refused as error:
                self._count_failure(str(error), messages[-1]["content"])  # the members' examples may differ
                raise
            except _TryAgain as error:
                reason = str(error)
                if error.wait > min(LONGEST_WAIT, deadline - time.monotonic()):
                    break
                if attempt < self.config.retries:
                    backoff = min(LONGEST_BACKOFF, BACKOFF * 2**attempt) * jitter.uniform(0.5, 1.0)
                    _sleep(max(backoff, error.wait), stop)
                continue
            with self._lock:
                self._failures = 0
                self._refused.clear()
            if (begun := self._begun(forced)) and not reply.text.startswith(forced):
                reply = Reply(begun + reply.text, reply.finish_reason)
            return reply
        self._count_failure(reason)
        raise RequestFailed(redact(f"{reason} (engine.base_url={self.config.base_url})"))

    def _begun(self, forced: str) -> str:
        """What the server is to continue."""
        return (self.config.prefill_text or forced) if self.config.prefill else ""

    def _request(self, messages: Sequence[Message], sampling: SamplingConfig, forced: str, seed: int) -> dict[str, Any]:
        extra: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
        said = list(messages)
        if begun := self._begun(forced):
            said.append({"role": "assistant", "content": begun})
            extra |= {"continue_final_message": True, "add_generation_prompt": False}
        return {
            "model": self.config.model,
            "messages": said,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._limit: sampling.max_tokens,
            "seed": seed,
            "extra_body": extra or None,
        }

    def _ask(self, request: dict[str, Any]) -> Reply:
        """One attempt.

        Raises:
            _TryAgain: no connection, a timeout, an overloaded or broken server, or a malformed reply.
            Refused: the server rejects this conversation, as it seems.
            ServerError: it would reject every other, too.
        """
        create = self._client.chat.completions.with_raw_response.create
        try:
            # The client's timeout is that of each read: a trickle of headers would never end.
            body = OneThread().run(lambda: create(**request).content, self.config.timeout)
        except (self._api.APITimeoutError, TimeLimit) as error:
            raise _TryAgain(f"no complete reply within {self.config.timeout:g} s") from error
        except BadReply as error:
            raise _TryAgain(str(error)) from error
        except self._api.APIConnectionError as error:  # older clients wrap every exception
            if isinstance(error.__cause__, BadReply):
                raise _TryAgain(str(error.__cause__)) from error
            raise _TryAgain(f"{error} ({error.__cause__ or type(error).__name__})") from error
        except self._api.APIStatusError as error:
            text = error.response.text
            what = f"HTTP {error.status_code}: {_said(text)}"
            if error.status_code in _RETRY_STATUS or error.status_code >= 500:
                raise _TryAgain(what, _retry_after(error.response.headers.get("retry-after"))) from error
            if "max_tokens" in request and "max_completion_tokens" in text:
                self._limit = "max_completion_tokens"
                others = {name: value for name, value in request.items() if name != "max_tokens"}
                return self._ask({**others, self._limit: request["max_tokens"]})
            if error.status_code in _UNFIT_STATUS:
                raise Refused(what) from error
            where = f"the server at {self.config.base_url}"
            if error.response.has_redirect_location:
                to = redact(error.response.headers["location"])[:300]
                raise ServerError(redact(f"{where} redirects to {to}: set engine.base_url to that address")) from error
            raise ServerError(redact(f"{where} refused model {self.config.model!r}: {what}")) from error
        except Exception as error:  # of the client, at what the server sent
            raise _TryAgain(f"{type(error).__name__}: {error}") from error
        return _read(body)

    def _count_failure(self, reason: str, refused: str = "") -> None:
        with self._lock:
            self._failures += not refused
            self._refused |= {refused} - {""}
            failures = self._failures + len(self._refused)
        if failures >= max(DEAD, self.workers):
            raise ServerError(
                f"the server at {self.config.base_url} gave no usable answer to {failures} requests in a row (last: {reason})"
            )


class _Limiter:
    """Rate limiter: spaces request starts evenly across all threads."""

    def __init__(self, per_minute: int) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self, stop: threading.Event) -> None:
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self._gap
        _sleep(start - now, stop)


def _sleep(seconds: float, stop: threading.Event) -> None:
    if stop.wait(seconds) if seconds > 0 else stop.is_set():
        raise RequestFailed("cancelled")


def _read(body: bytes) -> Reply:
    """Parses a reply from a response body; garbage is retried."""
    try:
        choice = json.loads(body)["choices"][0]  # not parse(): JSON can contain lone surrogates, replaced below
        content, reason = choice["message"]["content"], choice.get("finish_reason")
        # null: the budget ended in a thought that the server keeps to itself.
        text = "" if content is None and isinstance(reason, str) else content_text(content)
        if not isinstance(reason, str):  # it may be nested deeper than repr() goes
            reason = type(reason).__name__
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        start = redact(body[:2000].decode(errors="replace"))[:60]
        raise _TryAgain(f"not a chat completion: {' '.join(start.split())!r}") from error
    shown, reason = redact(reason)[:60], reason.lower()
    if text is None or reason in _ABORTED:
        raise _TryAgain(f"a reply without text, or a part of one (finish_reason {shown!r})")
    if reason == "content_filter":
        raise Refused("the server's filter cut the reply (finish_reason 'content_filter')")
    text = redact(text).encode(errors="replace").decode()
    return Reply(text, "length" if reason in _LENGTH else "stop")


def _retry_after(value: str | None) -> float:
    """Seconds to wait according to a Retry-After header, which is a number of seconds or a date."""
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # not a date, or one without a time zone or too far off
        return 0.0


def _said(text: str) -> str:
    """The message in the body of an error reply, as one line."""
    try:
        data: Any = parse(Object, text)
        while isinstance(data, dict):
            said = (data.get(key) for key in ("error", "message", "detail"))
            data = next((each for each in said if each and isinstance(each, str | dict | list)), str(data))
        text = str(data)
    except ValueError:
        pass
    return (redact(text).strip().splitlines() or ["no reason given"])[0][:300]
