"""The text of exceptions, on one line."""

from __future__ import annotations


def error_message(error: BaseException) -> str:
    """Its whole text, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of its text, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
