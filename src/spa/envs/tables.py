"""Rows of a data file: Parquet, JSON (a list of objects) or JSONL. Mistakes name file, row and reason."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from spa.envs.seeded import did_you_mean

SUFFIXES = (".parquet", ".jsonl", ".json")

Row = tuple[str, dict[str, Any]]
"""Where it stands (``"data.jsonl, line 3"``), and its columns."""


def data_file(path: str) -> Path:
    """The path of a data file that exists; otherwise ValueError."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no data file {path}")
    if file.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a data file must end in {', '.join(SUFFIXES)}")
    return file


def version(path: Path) -> tuple[str, int, int]:
    """What a cache of a file's content may be keyed by."""
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


def read_rows(path: Path, columns: Sequence[str], optional: Collection[str] = ()) -> Iterator[Row]:
    """The rows of a file, with at least ``columns`` and those of the ``optional`` ones that are there.

    Raises:
        ValueError: a file that cannot be read, a row that is no object, a column that is missing.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path, columns, optional)
        return
    for where, row in _json(path) if path.suffix == ".json" else _jsonl(path):
        if not isinstance(row, dict):
            raise ValueError(f"{where}: must be an object with {', '.join(columns)}, not {type(row).__name__}")
        _check_columns(where, columns, row)
        yield where, row


def _check_columns(where: str, columns: Sequence[str], present: Collection[str]) -> None:
    for column in columns:
        if column not in present:
            raise ValueError(f"{where}: there is no column {column!r}.{did_you_mean(column, map(str, present))}")


def _parquet(path: Path, columns: Sequence[str], optional: Collection[str]) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            present = file.schema_arrow.names
            _check_columns(str(path), columns, present)
            number = 0
            for batch in file.iter_batches(columns=[*columns, *(name for name in optional if name in present)]):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from None


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(rows, list):
        raise ValueError(f"{path} must hold a list of objects, not {type(rows).__name__}")
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", row


def _jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{where} cannot be read as JSON: {error}") from None
                yield where, row
