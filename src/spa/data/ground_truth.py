"""Converts episodes to rows of stage 1: states written by the model are replaced with the true ones.

Replacement is by character span, not by regex template: a state may start with digits or contain backslashes. The layout's white
space around a body is kept, which preserves both the tiny model's bare layout and the paper's spaced one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from spa.agent.episode import Episode, Turn
from spa.agent.response import STATE_TAGS, TAG, Span, first_pair, pairs, parse_response, replace_spans
from spa.engines.base import Message
from spa.envs.states import within

_LOWER_TAG = re.compile(TAG.pattern)


@dataclass
class Row:
    """One assistant turn: the messages before it and the response, with all other facts in ``extra``."""

    task: str
    prompt: list[Message]
    response: str
    extra: dict[str, Any] = field(default_factory=dict)


def body_spans(text: str, tag: str, state: str | None = "", other: str = "") -> list[Span]:
    """Character ranges of the bodies of all ``tag`` pairs, without the layout's white space around ``state`` (see ``within``, also
    for ``other``; an empty body gives an empty range). None is any state, with its own white space: newlines alone are the
    layout's."""
    spans = []
    for pair in pairs(text, tag):
        start, end = pair.body
        body = text[start:end]
        if body.strip():
            first, last = within(body, body.strip("\n") if state is None else state, other)
            start, end = start + first, start + last
        spans.append((start, end))
    return spans


def ground_truth(turn: Turn) -> str:
    """The response with the true state in every observation and the true next state in every prediction.

    The next state is the one after all *executed* actions; in the last turn it is the true final state. A response
    without tags is returned unchanged.
    """
    text = turn.response
    now, then = turn.state, turn.next_state
    truths = [(span, now) for span in body_spans(text, "observation", now, then)]
    truths += [(span, then) for span in body_spans(text, "prediction", then, now)]
    return replace_spans(text, without_overlaps(truths))


def _to_answer(response: str) -> str:
    """A response up to the end of its answer: the end of the turn is learnt there, not where text after it was cut off."""
    answer = parse_response(response).spans.get("answer")
    return response[: answer[1]] if answer else response


def without_overlaps(replacements: Iterable[tuple[Span, str]]) -> list[tuple[Span, str]]:
    """Replacements in order; of nested or overlapping ones the earlier."""
    chosen: list[tuple[Span, str]] = []
    for span, text in sorted(replacements, key=lambda item: item[0]):
        if not chosen or span[0] >= chosen[-1][0][1]:
            chosen.append((span, text))
    return chosen


def rows_of(episode: Episode, *, system: str | None, window: int, states: str = "truth") -> list[Row]:
    """One row per turn of an episode, in order; responses end with their answer.

    With ``window=0`` a row's prompt contains all earlier turns with their *corrected* responses (as in the original
    data); with ``window=1`` it is the turn's own user message. ``system`` is the task's: where it has none, the template of the
    model that is trained adds its own, not that of the model that played.

    Raises:
        ValueError: ``window`` above 1.
    """
    if window not in (0, 1):
        raise ValueError(f"stage 1 makes rows for agent.window=0 or 1, not {window}")
    head: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    history: list[Message] = list(head)
    rows = []
    for turn in episode.turns:
        user: Message = {"role": "user", "content": turn.user}
        prompt = [*head, user] if window == 1 else [*history, user]
        response = _to_answer(turn.response if states == "belief" else ground_truth(turn))
        extra = {**facts(episode, turn), "original_response": turn.response}
        rows.append(Row(episode.task, [dict(message) for message in prompt], response, extra))
        history += [user, {"role": "assistant", "content": response}]
    return rows


def facts(episode: Episode, turn: Turn) -> dict[str, Any]:
    """What ``Row.extra`` says of a turn."""
    return {
        "seed": episode.seed,
        "group": episode.group,
        "member": episode.member,
        "turn": turn.index,
        "content": episode.content,
        "executed": list(turn.executed),
        "format_ok": turn.format_ok,
        "success": episode.success,
    }


def shuffle_states(episodes: Sequence[Episode], seed: int) -> list[Episode]:
    """Copies with states and next states replaced by those of independently drawn turns: same format, no information about
    dynamics (control). Prompts and model output are unchanged."""
    turns = [turn for episode in episodes for turn in episode.turns]
    rng = np.random.default_rng(seed)
    before, after = rng.permutation(len(turns)), rng.permutation(len(turns))
    others = iter(
        replace(turn, state=turns[b].state, next_state=turns[a].next_state)
        for turn, b, a in zip(turns, before, after, strict=True)
    )
    return [replace(episode, turns=[next(others) for _ in episode.turns]) for episode in episodes]


def is_move(row: Row) -> bool:
    """Whether a row is a transition (``selfplay.rows=transitions``)."""
    return row.extra.get("outcome") is not None


def answers_plainly(rows: Sequence[Row]) -> list[bool]:
    """Which rows of a data set of transitions answer the plain prompt (``selfplay.plain_rows``), and so need no state: those
    without an outcome."""
    moves = [is_move(row) for row in rows]
    return [any(moves) and not move for move in moves]


def row_rejection(row: Row) -> str | None:
    """Why the tag filter drops a row, or None if it keeps it.

    The original response decides: if its tags overlap, the correction may erase one of them and leave a model-written state
    that looks true. The corrected response must pass, too, since a true state may contain tags. Third-party rows without
    ``original_response`` are judged by ``response``.
    """
    original = row.extra.get("original_response")
    if original and (reason := rejection(original)):
        return reason
    reason = rejection(row.response)
    return f"{reason}: the world's states contain tags of the format" if original and reason else reason


def rejection(response: str) -> str | None:
    """Why the original's tag filter drops a response, or None if it keeps it.

    Kept: a ``<think>…</think>`` that begins before an ``<answer>…</answer>`` and contains at least one observation and one
    prediction, the first observation first. The answer's content is ignored. Stricter than the original, the filter also drops
    overlapping, nested or unclosed tags in the think block, and a tag inside a state anywhere else, since it would be ambiguous
    which text to replace; and what ``parse_response`` reads no action from, such as tags in capitals: none was executed, so that
    the true next state would teach that the actions named change nothing.
    """
    text = response.lower()
    think = first_pair(text, "think")
    if not think:
        return "no think block"
    answer = first_pair(text, "answer")
    if not answer:
        return "no answer"
    if answer.span < think.span:
        return "answer before think"
    observation = first_pair(text, "observation", *think.body)
    prediction = first_pair(text, "prediction", *think.body)
    if not observation:
        return "no observation"
    if not prediction:
        return "no prediction"
    if prediction.span < observation.span:
        return "prediction before observation"
    if any(f"<{tag}>" in text[slice(*answer.body)] for tag in STATE_TAGS):  # a state would be written into the actions
        return "crossing tags"
    if not (_well_formed(text[slice(*think.body)]) and _replaceable(response)):
        return "crossing tags"
    return None if parse_response(response, "world_model").format_ok else "wrong format"


def _well_formed(think: str) -> bool:
    """Whether every state tag is closed before the next one opens, and no other tag occurs."""
    open_tag = ""
    for match in _LOWER_TAG.finditer(think):
        closing, tag = match[0][1] == "/", match[0].strip("</>")
        if tag in ("answer", "think") or ((tag != open_tag) if closing else open_tag):
            return False
        open_tag = "" if closing else tag
    return not open_tag


def _replaceable(response: str) -> bool:
    """Whether no state contains a tag, so that ``ground_truth`` replaces them all."""
    return not any(TAG.search(response, *pair.body) for tag in STATE_TAGS for pair in pairs(response, tag))


def deduplicate(rows: Iterable[Row]) -> list[Row]:
    """Keeps the first of all rows with the same prompt and response."""
    seen = set()
    unique = []
    for row in rows:
        key = (tuple((m["role"], m["content"]) for m in row.prompt), row.response)
        if key not in seen:
            seen.add(key)
            unique.append(row)
    return unique
