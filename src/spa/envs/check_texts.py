"""Whether a world's texts can stand in prompts and answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

CLOSE = "</"  # ends an answer of a world model, so that no state may contain it


TAGS = ("think", "observation", "prediction", "answer")

TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})>", re.IGNORECASE)
"""Any tag of the responses."""

NONSENSE = (
    "no such action \\1 || ?",
    "",
    " \n\t ",
    "%s {0} {x!r} $(x) `x`",
    "<answer>]]}}</answer>",
    "\x00\x1b[31m\ud800\u202e",
    "\u0663 \u2167 \U0001d7dc \u2705 e\u0301" * 3,
    "-1",
    "9" * 5000,
    "([{" * 7000,
    "None",
)
"""What a model may write instead of an action."""


def names_problem(world: Any) -> str:
    """Why a world's ``actions`` or ``symbols`` are no names, in a line; empty if they are."""
    actions, symbols = (getattr(world, name, None) for name in ("actions", "symbols"))
    if actions is not None and not (
        isinstance(actions, Sequence) and not isinstance(actions, str) and all(map(_is_name, actions))
    ):
        return f"{type(world).__name__}.actions must be a list or tuple of texts, as in ['Open'], not {actions!r:.60}"
    if symbols is not None and not (
        isinstance(symbols, Mapping) and all(isinstance(text, str) for item in symbols.items() for text in item)
    ):
        return f"{type(world).__name__}.symbols must map texts to texts, as in {{'P': 'player'}}, not {symbols!r:.60}"
    return ""


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
