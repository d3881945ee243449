"""Validation of names that users choose, with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(value: str, options: Iterable[str]) -> str | None:
    """The option probably meant by ``value``, whatever its case."""
    folded = {option.casefold(): option for option in options}
    close = difflib.get_close_matches(value.casefold(), list(folded), n=1)
    return folded[close[0]] if close else None


def choose(what: str, value: str, options: Iterable[str]) -> str:
    """``value`` if it is one of ``options``.

    Raises:
        ValueError: it is not; the message suggests the nearest option and lists all.
    """
    names = list(options)
    if value in names:
        return value
    near = nearest(value, names) if isinstance(value, str) else None
    hint = f" Did you mean {near!r}?" if near else ""
    if "." in what:
        raise ValueError(f"{what} must be one of {', '.join(names)}, not {value!r}.{hint}")
    raise ValueError(f"unknown {what} {value!r}; choose one of {', '.join(names)}.{hint}")
