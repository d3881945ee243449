"""Reading a response: the think, observation, prediction and answer spans and the actions. Imports no torch.

Nothing a model writes is evaluated; a response that does not match is data (``format_ok`` False), not an exception.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

PROMPT_MODES: tuple[str, ...] = ("base", "world_model")

Span = tuple[int, int]
"""Half-open character range into the response text."""

_THINK_ANSWER = re.compile(r"<think>(?P<think>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(?P<answer>.*?)</answer>", re.DOTALL)
_OBSERVATION = re.compile(r"<observation>(?P<body>.*?)</observation>", re.DOTALL | re.IGNORECASE)
_PREDICTION = re.compile(r"<prediction>(?P<body>.*?)</prediction>", re.DOTALL | re.IGNORECASE)
_MARKUP = re.compile(r"</?(?:think|answer|observation|prediction)>|<\|[^|<>]{1,40}\|>", re.IGNORECASE)


@dataclass(frozen=True)
class Parsed:
    """What a response says.

    Attributes:
        format_ok: the response has the structure that the prompt mode asks for.
        actions: actions in order, at most ``max_actions``; empty if the format is wrong.
        extra_actions: how many more the answer names.
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


def split_actions(answer: str, action_sep: str = "||") -> tuple[str, ...]:
    """Actions of an answer's body: markup removed, split at ``action_sep``, empty ones dropped."""
    parts = (part.strip() for part in _MARKUP.sub("", answer).split(action_sep))
    return tuple(part for part in parts if part)


def parse_response(
    text: str, mode: str = "base", *, think: bool = True, action_sep: str = "||", max_actions: int = 5
) -> Parsed:
    """Parses a whole response, the forced first tag included.

    ``base`` searches ``<think>…</think>``, optional white space, ``<answer>…</answer>`` (both lazy: a stray inner
    ``</think>`` is tolerated, text between the two spans is not). ``world_model`` also requires, inside the think block,
    an observation before a prediction. Where the whole pattern does not match, there are no actions; spans that
    can be found are reported all the same. Observation and prediction are read in both modes, since a model may write them
    by habit.

    Raises:
        ValueError: ``mode`` is not one of ``PROMPT_MODES``.
    """
    if mode not in PROMPT_MODES:
        raise ValueError(f"unknown prompt mode {mode!r}; choose one of {', '.join(PROMPT_MODES)}")
    spans: dict[str, Span] = {}
    observation = prediction = None
    match = (_THINK_ANSWER if think else _ANSWER).search(text)
    if think:
        start = text.find("<think>")
        if match:
            think_span = (match.start(), match.end("think") + len("</think>"))
        elif start >= 0:
            end = text.find("</think>", start)
            think_span = (start, end + len("</think>") if end >= 0 else len(text))
        else:
            think_span = (0, 0)
        if think_span[1]:
            spans["think"] = think_span
            obs = _OBSERVATION.search(text, *think_span)
            if obs:
                observation, spans["observation"] = obs["body"], obs.span("body")
            pred = _PREDICTION.search(text, obs.end() if obs else think_span[0], think_span[1])
            if pred:
                prediction, spans["prediction"] = pred["body"], pred.span("body")
    answer = match or _ANSWER.search(text)
    if answer:
        spans["answer"] = (answer.start("answer") - len("<answer>"), answer.end("answer") + len("</answer>"))
    ok = match is not None
    if ok and think and mode == "world_model":
        ok = observation is not None and prediction is not None
    named = split_actions(match["answer"], action_sep) if ok and match else ()
    actions = named[:max_actions]
    return Parsed(ok, actions, len(named) - len(actions), observation, prediction, spans)


def replace_spans(text: str, replacements: Sequence[tuple[Span, str]]) -> str:
    """Replaces character ranges by literal strings (no templates: a state may hold digits and backslashes).

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


def match_action(action: str, names: Sequence[str]) -> str | None:
    """The world's own spelling of ``action``: exact match after lower-casing; without names, the string itself."""
    if not names:
        return action
    wanted = action.lower()
    return next((name for name in names if name.lower() == wanted), None)
