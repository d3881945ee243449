"""Names of actions in answers: how they are read, and whether an answer can name each of a world's. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spa.envs.check_texts import TAG

_MARKUP = re.compile(rf"{TAG.pattern}|<\|[^|<>]{{1,40}}\|>", re.IGNORECASE)


def split_actions(answer: str, action_sep: str = "||") -> tuple[str, ...]:
    """Actions of an answer's body: markup removed, split at ``action_sep``, empty ones dropped."""
    parts = (part.strip() for part in _MARKUP.sub("", answer).split(action_sep))
    return tuple(part for part in parts if part)


def match_action(action: str, names: Sequence[str]) -> str | None:
    """The world's own spelling of ``action``: as it is, else up to case and surrounding white space; without ``names``, the string
    itself."""
    if not names or action in names:
        return action
    wanted = action.lower()
    return next((name for name in names if name.strip().lower() == wanted), None)


def check_names(names: Sequence[str], action_sep: str) -> None:
    """Raises ValueError if an answer could not name one of the actions ``names``."""
    for name in names:
        if split_actions(name, action_sep) != (name.strip(),) or match_action(name.strip(), names) != name:
            raise ValueError(
                f"no answer can name the action {name!r}: an action needs a name of its own, with neither tags nor the "
                f"separator {action_sep!r} in it: rename it, or set agent.action_sep"
            )
