"""``metrics.jsonl``: one JSON object per line, ``step`` and ``time`` first. Imports no torch."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spa.common.files import append, atomic_write, no_link
from spa.common.typed import Scalars, parse
from spa.runs.trackers import Trackers


class MetricsLog:
    """Appends metrics to a JSONL file, flushed line by line, and passes them on to trackers.

    A last line truncated by a crash is dropped when the log is opened.

    Args:
        path: the file; its folder is created when the first line is written.
        trackers: further destinations (see ``spa.runs.trackers``).
    """

    def __init__(self, path: str | os.PathLike[str], trackers: Trackers | None = None) -> None:
        self.path = Path(path)
        self.trackers = trackers or Trackers()
        self._repair()

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes one line. Values may be numbers, NumPy or torch scalars, strings, booleans or None.

        Non-finite values are written as null, so the file stays valid JSON.
        """
        values = {name: _plain(value) for name, value in metrics.items()}
        line = json.dumps(
            {"step": int(step), "time": round(time.time(), 3), **values}, allow_nan=False, ensure_ascii=False
        )
        append(self.path, line + "\n")
        numbers = {name: float(v) for name, v in values.items() if isinstance(v, (int, float))}
        self.trackers.log(int(step), numbers)

    def truncate_after(self, step: int) -> int:
        """Atomically drops lines logged after the checkpoint of ``step``; returns their number.

        A trainer logs a step once and then saves, so later steps and a second line of the same step (the measurement at the
        end of stage 2) come after the checkpoint.
        """
        records = read_metrics(self.path)
        end = next(
            (i + (r.get("step", 0) == step) for i, r in enumerate(records) if r.get("step", 0) >= step), len(records)
        )
        if end < len(records):
            atomic_write(self.path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records[:end]))
        return len(records) - end

    def close(self, failed: bool = False) -> None:
        """Closes the trackers."""
        self.trackers.close(failed)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def _repair(self) -> None:
        if not self.path.is_file():
            return
        text = self.path.read_bytes()
        end = text.rfind(b"\n") + 1
        if end == len(text):
            return
        try:  # a complete object that lacks only its newline is kept
            whole = isinstance(json.loads(text[end:]), dict)
        except ValueError:
            whole = False
        with open(self.path, "r+b", opener=no_link) as file:
            if whole:
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
            else:
                file.truncate(end)


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a metrics file, in order; none if there is no file. A truncated last line is omitted.

    Raises:
        ValueError: another line is not a JSON object (the message names it).
    """
    file = Path(path)
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse(Scalars, line)
            if type(record.get("step", 0)) is not int:
                raise ValueError("step is not a whole number")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(
                f"{path}, line {number} is damaged: {error}; delete the line to go on without it"
            ) from error
        records.append(record)
    return records


def _plain(value: Any) -> Any:
    """A JSON value: scalars of other libraries become floats, non-finite numbers None."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    if type(value) is int:
        return value
    number = float(value.item() if hasattr(value, "item") else value)
    return number if math.isfinite(number) else None
