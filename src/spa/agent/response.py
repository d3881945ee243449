"""The response format: its tags, parsing (spans and actions) and writing. Imports no torch.

Model output is never evaluated; a malformed response is data (``format_ok`` False), not an exception. Tags are searched
in one forward pass: a lazy ``.*?`` between two tags would take quadratic or cubic time if a model repeats a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spa.envs.actions import split_actions
from spa.envs.check_texts import TAG as TAG
from spa.envs.check_texts import TAGS as TAGS

STATE_TAGS: tuple[str, ...] = ("observation", "prediction")

# Format descriptions by prompt mode, and for responses without thinking; ``terse`` is for the tiny model.
FORMATS = {
    "paper": {
        "base": "<think> [Your thoughts] </think> <answer> [your answer] </answer>",
        "world_model": (
            "<think> <observation> [current state] </observation> [Your thoughts] "
            "<prediction> [next state]</prediction> </think> <answer> [your answer] </answer>"
        ),
        "answer": "<answer> [your answer] </answer>",
    },
    "terse": {
        "base": "<think><answer>",
        "world_model": "<think><observation><prediction><answer>",
        "answer": "<answer>",
    },
}

Span = tuple[int, int]
"""Half-open character range into the response text."""

STATE_TAG = re.compile(rf"</?(?:{'|'.join(STATE_TAGS)})>", re.IGNORECASE)
"""A state tag, case-insensitive."""

_THINK_TO_ANSWER = re.compile(r"</think>\s*+<answer>")
# Required tags are case-sensitive, state tags are not.
_CASE = {"think": re.NOFLAG, "answer": re.NOFLAG} | dict.fromkeys(STATE_TAGS, re.IGNORECASE)
_OPEN = {name: re.compile(f"<{name}>", case) for name, case in _CASE.items()}
_CLOSE = {name: re.compile(f"</{name}>", case) for name, case in _CASE.items()}


def opening(tag: str) -> str:
    return f"<{tag}>"


def closing(tag: str) -> str:
    return f"</{tag}>"


def tagged(tag: str, body: str, gap: str = "") -> str:
    """``<tag>body</tag>``, with ``gap`` on both sides of the body."""
    return f"<{tag}>{gap}{body}{gap}</{tag}>"


def forced_tag(think: bool) -> str:
    """The tag that every response is forced to start with."""
    return opening("think" if think else "answer")


class Pair(NamedTuple):
    """An opening and closing tag: the range with the tags, and the range between them."""

    span: Span
    body: Span


def first_pair(text: str, name: str, start: int = 0, end: int | None = None) -> Pair | None:
    """The first ``<name>`` and the first ``</name>`` after it in a range of ``text``; None if there is no such pair."""
    end = len(text) if end is None else end
    opening = _OPEN[name].search(text, start, end)
    closing = opening and _CLOSE[name].search(text, opening.end(), end)
    if not opening or not closing:
        return None  # a later <name> would have no </name> either
    return Pair((opening.start(), closing.end()), (opening.end(), closing.start()))


def pairs(text: str, name: str) -> Iterator[Pair]:
    """All non-overlapping pairs of a tag, in order."""
    pair = first_pair(text, name)
    while pair:
        yield pair
        pair = first_pair(text, name, pair.span[1])


@dataclass(frozen=True)
class Parsed:
    """A parsed response.

    Attributes:
        format_ok: the response has the structure required by the prompt mode.
        actions: actions in order, at most ``max_actions``; empty if the format is wrong.
        extra_actions: number of actions beyond ``max_actions``.
        observation: text inside the first ``<observation>`` of the think block, or None.
        prediction: text inside the first ``<prediction>`` of the think block, or None.
        spans: character ranges of ``think`` and ``answer`` (tags included) and of the bodies
            ``observation`` and ``prediction`` (tags excluded); a missing part has no entry.
    """

    format_ok: bool
    actions: tuple[str, ...] = ()
    extra_actions: int = 0
    observation: str | None = None
    prediction: str | None = None
    spans: dict[str, Span] = field(default_factory=dict)


def parse_response(
    text: str, mode: str = "base", *, think: bool = True, action_sep: str = "||", max_actions: int = 5
) -> Parsed:
    """Parses a whole response, including the forced first tag.

    ``base`` searches for ``<think>…</think>``, optional white space, ``<answer>…</answer>``, each as short as possible (a stray
    inner ``</think>`` is tolerated, text between the two spans is not). ``world_model`` also requires an observation before a
    prediction inside the think block. If the whole pattern does not match, there are no actions, but any spans found are
    still reported. Observation and prediction are read in both modes, since a model may write them out of habit.
    """
    spans: dict[str, Span] = {}
    observation = prediction = None
    whole = _think_and_answer(text) if think else None
    answer = whole[1] if whole else first_pair(text, "answer")
    if think:
        think_span = whole[0] if whole else _think_alone(text)
        if think_span[1]:
            spans["think"] = start, end = think_span
            if pair := first_pair(text, "observation", start, end):
                observation, spans["observation"] = text[slice(*pair.body)], pair.body
                start = pair.span[1]
            if pair := first_pair(text, "prediction", start, end):
                prediction, spans["prediction"] = text[slice(*pair.body)], pair.body
    if answer:
        spans["answer"] = answer.span
    ok = (whole if think else answer) is not None
    if ok and think and mode == "world_model":
        ok = observation is not None and prediction is not None
    named = split_actions(text[slice(*answer.body)], action_sep) if ok and answer else ()
    actions = named[:max_actions]
    return Parsed(ok, actions, len(named) - len(actions), observation, prediction, spans)


def _think_and_answer(text: str) -> tuple[Span, Pair] | None:
    """The think block, tags included, and the answer right after it; None if the text has no such structure.

    The block begins at the first ``<think>``: whatever follows a later one also follows the first.
    """
    start = text.find("<think>")
    middle = _THINK_TO_ANSWER.search(text, start + len("<think>")) if start >= 0 else None
    end = text.find("</answer>", middle.end()) if middle else -1
    if not middle or end < 0:
        return None
    think = (start, middle.start() + len("</think>"))
    return think, Pair((middle.end() - len("<answer>"), end + len("</answer>")), (middle.end(), end))


def _think_alone(text: str) -> Span:
    """The think block without an answer right after it, up to the end if unclosed; ``(0, 0)`` if there is none."""
    start = text.find("<think>")
    if start < 0:
        return 0, 0
    end = text.find("</think>", start)
    return start, end + len("</think>") if end >= 0 else len(text)


def replace_spans(text: str, replacements: Sequence[tuple[Span, str]]) -> str:
    """Replaces character ranges with literal strings (not regex templates: states may contain backslashes and digits).

    Raises:
        ValueError: two ranges overlap or one lies outside the text.
    """
    out, position = [], 0
    for (start, end), new in sorted(replacements, key=lambda item: item[0]):
        if start < position or end < start or end > len(text):
            raise ValueError(f"replacement ranges overlap or lie outside the text: {(start, end)}")
        out += [text[position:start], new]
        position = end
    return "".join([*out, text[position:]])
