"""Rows of a data file: Parquet, JSON (an array of objects) or JSON lines. Errors name file, row and reason."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from spa.common.errors import error_message
from spa.common.files import expanded
from spa.envs.seeded import did_you_mean

SUFFIXES = (".parquet", ".jsonl", ".json")

Row = tuple[str, dict[str, Any]]
"""Where it stands (``"data.jsonl, line 3"``), and its columns."""


def data_file(path: str | Path) -> Path:
    """The path of a data file that exists; otherwise ValueError."""
    file = expanded(path)
    if not file.is_file():
        raise ValueError(f"there is no data file {path}")
    if file.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a data file must end in {', '.join(SUFFIXES)}")
    return file


def version(path: Path) -> tuple[str, int, int]:
    """What a cache of a file's content may be keyed by."""
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


def read_rows(path: Path, columns: Sequence[str] = (), optional: Collection[str] | None = None) -> Iterator[Row]:
    """The rows of a file, with at least ``columns`` and those of the ``optional`` ones (None: all) that are there.

    Raises:
        ValueError: a file that cannot be read, a row that is no object, a column that is missing.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path, columns, optional)
        return
    for where, row in entries(path):
        if not isinstance(row, dict):
            raise ValueError(f"{where}: a row must be a JSON object, not {type(row).__name__}")
        _check_columns(where, columns, row)
        yield where, row


def _check_columns(where: str, columns: Sequence[str], present: Collection[str]) -> None:
    for column in columns:
        if column not in present:
            raise ValueError(f"{where}: there is no column {column!r}.{did_you_mean(column, map(str, present))}")


def _parquet(path: Path, columns: Sequence[str], optional: Collection[str] | None) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            present = file.schema_arrow.names
            _check_columns(str(path), columns, present)
            wanted = None if optional is None else [*columns, *(name for name in optional if name in present)]
            rows = (row for batch in file.iter_batches(columns=wanted) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error_message(error)}") from None


def entries(path: Path) -> Iterator[tuple[str, Any]]:
    """The entries of a JSON array, or of a file with one a line, gzipped or not; with each where it stands."""
    text = _text(path)
    if text.lstrip()[:1] == "[":
        for number, entry in enumerate(_parse(text, path), 1):
            yield f"{path}, row {number}", entry
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield f"{path}, line {number}", _parse(line, path, number)


def read_json(path: Path) -> Any:
    """The value of a JSON file, gzipped or not; otherwise ValueError."""
    return _parse(_text(path), path)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _parse(text: str, path: Path, first_line: int = 1) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = first_line + getattr(error, "lineno", 1) - 1
        raise ValueError(f"{path}, line {line} cannot be read as JSON: {getattr(error, 'msg', error)}") from None
