"""Converts messages to tokens, append-only: every segment is tokenised exactly once.

A conversation is a chain of segments: the opening (system message, first user message and generation prompt), then
repeatedly a response (sampled ids, or text in SFT), the tokens that close it, and the next user message with its
generation prompt. The segments are cut out of the tokenizer's chat template. A template that rewrites earlier turns
(Qwen3's drops past thinking) is therefore refused.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from spa.agent.response import TAG, Span, forced_tag, tagged
from spa.common.sequences import common_length

_REMEMBERED = 4096  # user messages whose ids are cached
_LEAD, _SPACE = "\x01", "\u2581"  # a character that no token joins to others; SentencePiece's space
_PROBE_ANSWER = tagged("think", "probe") + tagged("answer", "probe")


class TemplateError(ValueError):
    """The chat template cannot be used append-only."""


@dataclass(frozen=True)
class EncodedResponse:
    """``ids`` of a response text; ``offsets[i]`` is the character range of token i in the text;
    ``num_forced`` leading tokens belong to the forced tag."""

    ids: list[int]
    offsets: list[Span]
    num_forced: int


class Chat:
    """Chat tokens for one tokenizer.

    Args:
        tokenizer: a Hugging Face *fast* tokenizer with a chat template.
        forced: the tag that every response starts with (``forced_tag``). The harness inserts as much of it as the next
            characters leave alone: attributes ``forced`` and ``forced_ids``.

    ``default_system`` is the system message that the template inserts into a conversation without one, or None. Where the template
    has no place for a system message (Gemma), it begins the first user message. The template's control tokens in messages and
    responses are ordinary text.

    Raises:
        TemplateError: no template, or one whose rendering of n messages is not a prefix of that of n+1.
        ValueError: the tokenizer is not a fast one (no character offsets).
    """

    def __init__(self, tokenizer: Any, forced: str = forced_tag(True)) -> None:
        self.tokenizer = tokenizer
        if not tokenizer.is_fast:
            raise ValueError(
                f"the tokenizer of {tokenizer.name_or_path!r} is not a fast one, and SFT masks need its character offsets: "
                "convert it to tokenizer.json"
            )
        if not getattr(tokenizer, "chat_template", None):
            raise TemplateError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; use an instruction-tuned checkpoint "
                "or put a chat_template into its tokenizer_config.json"
            )
        first = tokenizer.convert_ids_to_tokens(tokenizer.encode("a", add_special_tokens=False)[:1])
        # Some put a space before a text (Llama 2's; ByteLevel with add_prefix_space), and a conversation is encoded in pieces.
        self._lead = _LEAD if first[0].startswith((_SPACE, "\u0120")) else ""
        self._lead_ids: list[int] = tokenizer.encode(self._lead, add_special_tokens=False)
        # Perhaps with the space.
        self._decoded_lead = str(tokenizer.decode(self._lead_ids, clean_up_tokenization_spaces=False))
        added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
        names = dict.fromkeys([*tokenizer.all_special_tokens, *added])
        control = [name for name in names if len(name) > 1 and not TAG.search(name)]
        # Reasoning models have <think> as a special token.
        self._unwritten = {tokenizer.convert_tokens_to_ids(name) for name in names if not TAG.search(name)}
        self._control = re.compile("|".join(map(re.escape, control)) or r"(?!)")
        self.forced, self.forced_ids = self._boundary(forced)
        self._closing = self._check_template()
        self._has_system, self.default_system = self._system()
        closing_ids = self.encode(self._closing)
        if not closing_ids:
            raise TemplateError(
                "the chat template puts nothing after an assistant message, so a response could not end"
            )
        self.closing_ids = closing_ids
        if closing_ids[0] not in tokenizer.all_special_ids and not tokenizer.added_tokens_decoder.get(closing_ids[0]):
            raise TemplateError(
                f"the chat template of {tokenizer.name_or_path!r} ends an assistant message with ordinary text "
                f"({self._closing!r}), at which every response would be cut: put the end-of-text token "
                f"({tokenizer.eos_token}) after assistant messages in chat_template"
            )
        stop = {closing_ids[0], tokenizer.eos_token_id}
        self.stop_ids: frozenset[int] = frozenset(i for i in stop if i is not None)
        # Worlds of a group share their opening, and states recur.
        self._opening = lru_cache(_REMEMBERED)(self._encode_opening)
        self._following = lru_cache(_REMEMBERED)(self._encode_following)
        self._unsettled = lru_cache(_REMEMBERED)(self._count_unsettled)

    def encode(self, text: str, *, opening: bool = False) -> list[int]:
        """Ids of a text that follows other text (``opening``: of the first), without added special tokens."""
        if opening:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return list(self.tokenizer.encode(self._lead + text, add_special_tokens=False)[len(self._lead_ids) :])

    def decode(self, ids: list[int]) -> str:
        """Text of response ids, without the end-of-turn and other special tokens, except tags."""
        written = [*self._lead_ids, *(i for i in ids if i not in self._unwritten)]
        return str(self.tokenizer.decode(written, clean_up_tokenization_spaces=False)).removeprefix(self._decoded_lead)

    def _render(self, messages: list[dict[str, str]], generate: bool = False) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
        assert isinstance(text, str)
        return text

    def _boundary(self, tag: str) -> tuple[str, list[int]]:
        """The beginning of a tag, and its ids, that no following character changes.

        Many tokenizers merge the end of ``<think>`` with what follows, as in ``><``. Had the whole tag been forced, the model
        could not write that token, and would take the ``>`` for a sign that no tag follows.
        """
        whole = ids = self.encode(tag)
        for character in string.printable:
            longer = self.encode(tag + character)
            while ids != longer[: len(ids)]:
                ids = ids[:-1]
        text = self.decode(ids)
        return (text, ids) if text and tag.startswith(text) else (tag, whole)

    def _system(self) -> tuple[bool, str | None]:
        """Whether the template takes a system message, and the one that it inserts where there is none."""
        user = {"role": "user", "content": "probe one"}
        try:
            text = self._render([{"role": "system", "content": "probe two"}, user])
        except Exception:  # jinja errors: the template has no system messages
            return False, None
        before, found, after = text.partition("probe two")
        text = self._render([user])
        inserted = text[len(before) : len(text) - len(after)]
        return bool(found), inserted if found and inserted and text == before + inserted + after else None

    def _check_template(self) -> str:
        """Checks prefix preservation over two turns; returns the text that closes an assistant message."""
        messages = [
            {"role": "user", "content": "probe one"},
            {"role": "assistant", "content": _PROBE_ANSWER},
            {"role": "user", "content": "probe two"},
            {"role": "assistant", "content": _PROBE_ANSWER},
            {"role": "user", "content": "probe three"},
        ]
        try:
            full = self._render(messages, generate=True)
            closings = set()
            for n in (1, 3):
                asked = self._render(messages[:n], generate=True)
                answered = self._render(messages[: n + 1])
                if not (full.startswith(asked) and full.startswith(answered)):
                    raise TemplateError(
                        f"the chat template of {self.tokenizer.name_or_path!r} does not keep earlier turns as they were "
                        "(its rendering of n messages is no prefix of that of n+1; Qwen3-style templates drop past "
                        "thinking). Token ids could not be append-only: use a prefix-preserving template"
                    )
                if not answered.startswith(asked + _PROBE_ANSWER):
                    raise TemplateError(
                        f"the chat template of {self.tokenizer.name_or_path!r} does not put an assistant's text right "
                        "after the generation prompt, so sampled tokens could not stay where they were sampled"
                    )
                closings.add(answered[len(asked) + len(_PROBE_ANSWER) :])
        except TemplateError:
            raise
        except Exception as error:  # jinja errors
            raise TemplateError(f"the chat template failed on a plain conversation: {error}") from error
        assert len(closings) == 1, closings
        return closings.pop()

    def opening_text(self, system: str | None, user: str) -> str:
        """System message, first user message and generation prompt as rendered by the template."""
        return self._render(self.messages(system, user), generate=True)

    def messages(self, system: str | None, user: str) -> list[dict[str, str]]:
        """The first messages of a conversation, as the template takes them."""
        if system is None or not self._has_system:
            return [{"role": "user", "content": user if system is None else f"{system}\n\n{user}"}]
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    def opening(self, system: str | None, user: str, shots: Sequence[Mapping[str, str]] = ()) -> list[int]:
        """Ids of ``opening_text``, with examples before the first user message.

        Args:
            shots: messages of user and assistant in turns, tokenised as turns that were played.
        """
        return list(self._opening(system, user, *(message["content"] for message in shots)))

    def _encode_opening(self, system: str | None, user: str, *shots: str) -> tuple[int, ...]:
        users = [*shots[::2], user]
        ids = self._encode_around(self.opening_text(system, users[0]), system or "", users[0], opening=True)
        for response, following in zip(shots[1::2], users[1:], strict=True):
            answered = self.response_ids(response)
            ids += [*answered, *self.closing(answered), *self.following(following)]
        return tuple(ids)

    def following(self, user: str) -> list[int]:
        """Ids of a later user message and the generation prompt, to be appended to a closed response."""
        return list(self._following(user))

    def _encode_following(self, user: str) -> tuple[int, ...]:
        head = [{"role": "user", "content": "probe one"}, {"role": "assistant", "content": _PROBE_ANSWER}]
        before = self._render(head)
        after = self._render([*head, {"role": "user", "content": user}], generate=True)
        return tuple(self._encode_around(after[len(before) :], user))

    def _encode_around(self, rendered: str, *messages: str, opening: bool = False) -> list[int]:
        """Ids of a rendered text, in which messages may contain control tokens as text; ``opening``: no text is before it."""
        messages = tuple(filter(None, map(str.strip, messages)))
        if not any(map(self._control.search, messages)):
            return self.encode(rendered, opening=opening)
        ids: list[int] = []
        for message in messages:
            before, found, rendered = rendered.partition(message)
            if not found:
                raise TemplateError("the chat template changes a message with control tokens in it")
            ids += [*self.encode(before, opening=opening and not ids), *self._encode_text(message)]
        return [*ids, *self.encode(rendered)]

    def _encode_text(self, text: str) -> list[int]:
        """Ids of a text in which control tokens are spelled out."""
        return [i for part in self._spelled(text) for i in self.encode(part)]

    def _spelled(self, text: str) -> list[str]:
        """``text``, cut after the first character of each control token in it."""
        cuts = [0, *(match.start() + 1 for match in self._control.finditer(text)), len(text)]
        return [text[start:end] for start, end in pairwise(cuts)]

    def closing(self, response_ids: list[int]) -> list[int]:
        """Ids to append after a response: the end-of-turn token unless it was sampled, and separators."""
        ended = bool(response_ids) and response_ids[-1] == self.closing_ids[0]
        return self.closing_ids[1:] if ended else self.closing_ids

    def response_ids(self, text: str) -> list[int]:
        """The ids of ``encode_response`` without offsets, in half the time."""
        start = len(self.forced) if self.forced and text.startswith(self.forced) else 0
        if self._control.search(text):
            return [*(self.forced_ids if start else ()), *self._encode_text(text[start:])]
        rest = self.tokenizer.backend_tokenizer.encode(self._lead + text[start:], add_special_tokens=False).ids
        return [*(self.forced_ids if start else ()), *rest[len(self._lead_ids) :]]

    def encode_response(self, text: str) -> EncodedResponse:
        """Tokenises a response text as a rollout does: first the forced tag, then the rest."""
        num_forced = start = 0
        ids: list[int] = []
        offsets: list[Span] = []
        if self.forced and text.startswith(self.forced):
            start = len(self.forced)
            ids += self.forced_ids
            offsets += [(0, start)] * len(self.forced_ids)
            num_forced = len(self.forced_ids)
        for part in self._spelled(text[start:]):
            encoded = self.tokenizer(self._lead + part, add_special_tokens=False, return_offsets_mapping=True)
            lead, moved = len(self._lead_ids), start - len(self._lead)
            ids += encoded["input_ids"][lead:]
            offsets += [(a + moved, b + moved) for a, b in encoded["offset_mapping"][lead:]]
            start += len(part)
        return EncodedResponse(ids, offsets, num_forced)

    def unfinished(self, text: str, following: Iterable[str]) -> tuple[list[int], str]:
        """Ids for a model that is to continue the beginning of a response, and the end of ``text`` that they leave to it.

        Many tokenizers merge the end of a question with its answer, as in ``>-``. After the whole question the model would have to
        write what it never saw in training, so the question ends before the first token that one of the texts ``following``
        changes; the answer must begin with the rest (token healing).
        """
        tail = text[max(0, text.rfind("<")) :]
        unsettled = max((self._unsettled(tail, answer) for answer in following), default=0)
        if not unsettled:
            return self.response_ids(text), ""
        encoded = self.encode_response(text)
        settled = sum(high <= len(text) - unsettled for _, high in encoded.offsets)
        return encoded.ids[:settled], text[encoded.offsets[settled - 1][1] if settled else 0 :]

    def _count_unsettled(self, tail: str, following: str) -> int:
        """How many characters at the end of ``tail`` are in tokens that ``following`` changes."""
        ids = self.encode(tail)
        settled = common_length(ids, self.encode(tail + following))
        return 0 if settled == len(ids) else len(tail) - len(self.decode(ids[:settled]))

    def continuations(
        self, context: Sequence[int], prefix: str, rests: Sequence[str]
    ) -> list[tuple[list[int], list[int]]]:
        """Ids of ``context`` + ``prefix`` + each of ``rests``, and the positions to be scored.

        These are the tokens of ``rests``, and those at the end of ``prefix`` that one of them changes: sums over all of them can be
        compared.
        """
        before = self.encode_response(prefix)
        wholes = [self.encode_response(prefix + rest).ids for rest in rests]
        start = len(context) + max(before.num_forced, min(common_length(before.ids, whole) for whole in wholes))
        return [([*context, *ids], [*range(start, len(context) + len(ids))]) for ids in wholes]
