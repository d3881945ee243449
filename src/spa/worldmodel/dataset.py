"""The parquet files of stage 1: the original's columns, plus ``messages`` for other trainers."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spa.worldmodel.groundtruth import Message, Row

REQUIRED = ("prompt", "response")
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", _MESSAGES),
        ("response", pa.string()),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("seed", pa.int64()),
                    ("group", pa.int64()),
                    ("member", pa.int64()),
                    ("turn", pa.int64()),
                    ("content", pa.string()),
                    ("original_response", pa.string()),
                    ("executed", pa.list_(pa.string())),
                    ("format_ok", pa.bool_()),
                    ("success", pa.bool_()),
                ]
            ),
        ),
        ("messages", _MESSAGES),
    ]
)


def split_rows(rows: Sequence[Row], val_fraction: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Training and validation rows; all rows of one world go to the same side, whatever their number.

    At least one world stays on the training side, and one goes to validation where there are two and the fraction is not 0.

    Raises:
        ValueError: ``val_fraction`` is not in [0, 1).
    """
    if not 0 <= val_fraction < 1:
        raise ValueError(f"selfplay.val_fraction must be in [0, 1), not {val_fraction}")
    worlds = sorted({str(row.extra.get("content")) for row in rows})
    order = np.random.default_rng(np.random.SeedSequence([seed, 0x5EED])).permutation(len(worlds))
    count = min(len(worlds) - 1, max(1, round(val_fraction * len(worlds)))) if val_fraction and len(worlds) > 1 else 0
    held = {worlds[i] for i in order[:count]}
    train = [row for row in rows if str(row.extra.get("content")) not in held]
    return train, [row for row in rows if str(row.extra.get("content")) in held]


def write_rows(path: str | os.PathLike[str], rows: Sequence[Row]) -> None:
    """Writes rows as parquet, atomically."""
    records = [
        {
            "data_source": row.task,
            "prompt": row.prompt,
            "response": row.response,
            "ability": "bfs",  # constant, as in the original's data
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": row.extra,
            "messages": [*row.prompt, {"role": "assistant", "content": row.response}],
        }
        for row in rows
    ]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        pq.write_table(pa.Table.from_pylist(records, schema=_SCHEMA), temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_rows(path: str | os.PathLike[str]) -> tuple[list[Row], Counter[str]]:
    """Rows of a parquet file, ours or a published SPA data set, and the reasons why others were skipped, counted.

    ``prompt`` may be a list of messages or a JSON string of one (as in the published Sudoku set).

    Raises:
        ValueError: no such file, not a parquet file, or a column is missing (named, with those present).
    """
    if not Path(path).is_file():
        raise ValueError(f"no data file {path}")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable parquet file: {str(error).splitlines()[0]}") from error
    missing = [name for name in REQUIRED if name not in table.column_names]
    if missing:
        raise ValueError(f"{path} has no column {', '.join(missing)}; it has {', '.join(table.column_names)}")
    rows, skipped = [], Counter[str]()
    for record in table.to_pylist():
        prompt = _messages(record["prompt"])
        response = record["response"]
        if prompt is None:
            skipped["prompt is not a list of messages"] += 1
        elif not isinstance(response, str) or not response.strip():
            skipped["no response"] += 1
        else:
            extra = record.get("extra_info")
            rows.append(
                Row(str(record.get("data_source") or ""), prompt, response, extra if isinstance(extra, dict) else {})
            )
    return rows, skipped


def _messages(value: Any) -> list[Message] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, list) or not value:
        return None
    messages = []
    for message in value:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            return None
        messages.append({"role": message["role"], "content": message["content"]})
    return messages
