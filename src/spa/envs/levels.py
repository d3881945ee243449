"""Levels, maps and boards as text, or files of them: splits text into instances, whose rows each world parses itself.

A file is plain UTF-8 text. A blank line, or one that starts with ``;`` (Boxoban's headers), ends an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from spa.common.files import expanded

Instance = TypeVar("Instance")
Parse = Callable[..., Instance]  # (rows, *settings) -> instance
IsWhole = Callable[[str], bool]


class BadRow(ValueError):
    """What is wrong with an instance, and in which of its rows, counted from 0. Readers say which line that is."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def read_level(text: object, what: str, parse: Parse[Instance], *settings: object) -> Instance:
    """The one instance that ``text`` holds.

    Args:
        what: how the user calls it: ``level``, ``map``, ``board``.
        parse: makes an instance from its rows and ``settings``; raises ``BadRow``.

    Raises:
        ValueError: it is no text, holds none or several, or is malformed; the message names line and reason.
    """
    if not isinstance(text, str):
        raise ValueError(f"a {what} must be text, rows joined by newlines, got {type(text).__name__}")
    instances = _read(text, what, parse, settings, None)
    if len(instances) != 1:
        raise ValueError(f"a {what} must be one instance, got {len(instances)} (a blank line or one with ';' ends one)")
    return instances[0]


def read_levels(
    path: str | Path, parse: Parse[Instance], *settings: object, whole: IsWhole | None = None
) -> tuple[Instance, ...]:
    """All instances of a file, in order. Read once as long as the file does not change.

    Args:
        parse: makes an instance from its rows and ``settings``; raises ``BadRow``.
        whole: whether a line is an instance by itself; None where none is.

    Raises:
        ValueError: there is no such file, it is no text, holds no instance, or a malformed one; the message names file,
            line and reason.
    """
    if not isinstance(path, (str, Path)):
        raise ValueError(f"levels must be the path of a file, got {path!r}")
    path = expanded(path)
    if not path.is_file():
        raise ValueError(f"levels: {path} is a folder; give a file" if path.is_dir() else f"levels: no file {path}")
    stamp = path.stat()
    return _read_file(path.resolve(), str(path), stamp.st_mtime_ns, stamp.st_size, parse, settings, whole)


@lru_cache(16)
def _read_file(
    path: Path,
    shown: str,
    changed: int,
    size: int,
    parse: Parse[Instance],
    settings: tuple[object, ...],
    whole: IsWhole | None,
) -> tuple[Instance, ...]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ValueError(f"{shown}, line {line}: not UTF-8 text") from None
    instances = _read(text, shown, parse, settings, whole)
    if not instances:
        raise ValueError(f"{shown} holds no instance")
    return tuple(instances)


def _read(
    text: str, where: str, parse: Parse[Instance], settings: tuple[object, ...], whole: IsWhole | None
) -> list[Instance]:
    instances = []
    for first, rows in _blocks(text, whole):
        try:
            instances.append(parse(rows, *settings))
        except BadRow as error:
            raise ValueError(f"{where}, line {first + error.row}: {error}") from None
    return instances


def _blocks(text: str, whole: IsWhole | None) -> Iterator[tuple[int, list[str]]]:
    """The number of the first line, counted from 1, and the rows of every instance."""
    rows: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        line = line.rstrip("\r ")
        ends = not line or line.lstrip().startswith(";")
        alone = not ends and whole is not None and whole(line)
        if rows and (ends or alone):
            yield number - len(rows), rows
            rows = []
        if alone:
            yield number, [line]
        elif not ends:
            rows.append(line)
