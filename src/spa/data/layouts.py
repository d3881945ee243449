"""File layouts of self-play data: ours, the published ones and those of other trainers.

* ``spa``: the published columns ``data_source``, ``prompt`` (messages), ``response``, ``ability``, ``reward_model``,
  ``extra_info``, and ``messages``.
* ``spa-json``: the same with ``prompt`` as a JSON string, as in the published Sudoku set, and without ``messages``.
* ``messages``: the single column ``messages``, TRL's conversational language modelling.
* ``prompt-completion``: ``prompt`` and ``completion``, both messages; TRL then trains only the completion.
* ``verl``: ``data_source``, ``prompt``, ``ability``, ``reward_model``, ``extra_info`` with ``index`` and ``split``, and
  ``messages`` for its multi-turn SFT.

Files are Parquet or, by suffix, JSON lines. Prompts and responses survive every conversion, our fields of ``extra_info``
only those between ``spa``, ``spa-json`` and ``verl``. Other columns and fields of foreign files are dropped.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spa.common.files import atomic_file
from spa.common.names import choose
from spa.data.ground_truth import Row
from spa.engines.base import Message, content_text
from spa.envs.tables import data_file
from spa.envs.tables import read_rows as read_records

SUFFIXES = (".parquet", ".jsonl")
# How these layouts are recognised, in this order.
ACCEPTED = "prompt and response, or prompt and completion, or messages"

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_REWARD = pa.struct([("style", pa.string()), ("ground_truth", pa.string())])
_EXTRA = [
    ("seed", pa.int64()),
    ("group", pa.int64()),
    ("member", pa.int64()),
    ("turn", pa.int64()),
    ("content", pa.string()),
    ("original_response", pa.string()),
    ("executed", pa.list_(pa.string())),
    ("outcome", pa.string()),
    ("format_ok", pa.bool_()),
    ("success", pa.bool_()),
]


_COMMON = {
    "data_source": pa.string(),
    "prompt": _MESSAGES,
    "response": pa.string(),
    "ability": pa.string(),
    "reward_model": _REWARD,
    "extra_info": pa.struct(_EXTRA),
    "messages": _MESSAGES,
    "completion": _MESSAGES,
}
_PUBLISHED = ("data_source", "prompt", "response", "ability", "reward_model", "extra_info")
# The columns of each layout, in order, and the types that are not the common ones.
_COLUMNS: dict[str, tuple[tuple[str, ...], dict[str, pa.DataType]]] = {
    "spa": ((*_PUBLISHED, "messages"), {}),
    "spa-json": (_PUBLISHED, {"prompt": pa.string()}),
    "messages": (("messages",), {}),
    "prompt-completion": (("prompt", "completion"), {}),
    "verl": (
        ("data_source", "prompt", "ability", "reward_model", "extra_info", "messages"),
        {"extra_info": pa.struct([("index", pa.int64()), ("split", pa.string()), *_EXTRA])},
    ),
}
LAYOUTS = tuple(_COLUMNS)
SCHEMAS = {
    layout: pa.schema([(name, (_COMMON | types)[name]) for name in names])
    for layout, (names, types) in _COLUMNS.items()
}


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a data file; ValueError if it is none of ``SUFFIXES``."""
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in {' or '.join(SUFFIXES)}")
    return suffix


def write_rows(path: str | os.PathLike[str], rows: Sequence[Row], layout: str = "spa", *, split: str = "train") -> None:
    """Writes rows, atomically: an interrupted write leaves the old file or none.

    Raises:
        ValueError: unknown layout or suffix.
    """
    choose("layout", layout, LAYOUTS)
    suffix = check_suffix(path)
    records = [_record(row, layout, index, split) for index, row in enumerate(rows)]
    with atomic_file(path) as temporary:
        if suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(records, schema=SCHEMAS[layout]), temporary)
        else:
            with open(temporary, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _record(row: Row, layout: str, index: int, split: str) -> dict[str, Any]:
    answer = [{"role": "assistant", "content": row.response}]
    extra = {name: row.extra.get(name) for name, _ in _EXTRA}
    if layout == "verl":
        extra = {"index": index, "split": row.extra.get("split") or split, **extra}
    record: dict[str, Any] = {
        "data_source": row.task,
        "prompt": json.dumps(row.prompt, ensure_ascii=False) if layout == "spa-json" else row.prompt,
        "response": row.response,
        "ability": "bfs",  # constant, as in the original's data
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": extra,
        "messages": [*row.prompt, *answer],
        "completion": answer,
    }
    return {name: record[name] for name in SCHEMAS[layout].names}


def data_files(data: Path) -> tuple[Path, Path | None]:
    """The training file and the validation file (if any) of ``data``.

    ``data`` is a single file, a folder of stage 1 or of the original code, or a run folder (its shared stage 1, or its only one).

    Raises:
        ValueError: none is there, or several.
    """
    if data.is_file():
        return data, None
    own = sorted(data.glob("selfplay-*"))
    for places in ([data], [data / "selfplay"], own):
        found = [
            (place / f"{prefix}train.parquet", place / f"{prefix}val.parquet")
            for place in places
            for prefix in ("", "wm_")
            if (place / f"{prefix}train.parquet").is_file()
        ]
        if places is own and len(found) > 1:
            raise ValueError(
                f"{data} has several stages 1; give one: {', '.join(str(train.parent) for train, _ in found)}"
            )
        if found:
            train, val = found[0]
            return train, val if val.is_file() else None
    lacks = "holds no train.parquet" if data.exists() else "does not exist"
    raise ValueError(f"no training data: {data} {lacks}; run `spa generate` first or set sft.data")


def read_rows(path: str | os.PathLike[str]) -> tuple[list[Row], Counter[str], str]:
    """Rows of a data file in any layout, counts of skipped rows by reason, and the layout.

    Raises:
        ValueError: no such file, another suffix, a damaged or empty file, or columns of no layout (listed with the accepted ones).
    """
    path = data_file(str(path))
    records = [record for _, record in read_records(path, optional=_COMMON)]
    columns = pq.read_schema(path).names if path.suffix == ".parquet" else list(dict.fromkeys(chain(*records)))
    if not columns:
        raise ValueError(f"{path} is empty")
    layout, read = _recognise(path, columns, records[0] if records else {})
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    for record in records:
        row = read(record)
        if isinstance(row, Row):
            rows.append(row)
        else:
            skipped[row] += 1
    return rows, skipped, layout


Read = Callable[[dict[str, Any]], "Row | str"]


def _recognise(path: Path, columns: Sequence[str], first: dict[str, Any]) -> tuple[str, Read]:
    names = set(columns)
    if {"prompt", "response"} <= names:
        # Published sets have no messages; their prompt is a list or a string.
        text = isinstance(first["prompt"], str) if first.get("prompt") else "messages" not in names
        return ("spa-json" if text else "spa"), _read_prompt_response
    if {"prompt", "completion"} <= names:
        return "prompt-completion", _read_prompt_completion
    if "messages" in names:
        return ("verl" if "reward_model" in names else "messages"), _read_messages
    missing = "response" if "prompt" in names else "prompt"
    raise ValueError(f"{path} has no column {missing}; it has {', '.join(columns) or 'none'}. It needs {ACCEPTED}")


def _read_prompt_response(record: dict[str, Any]) -> Row | str:
    if record.get("prompt") is None and record.get("response") is None and record.get("messages"):
        return _read_messages(record)  # of a set that was put together from several
    return _row(record, messages_of(record.get("prompt")), record.get("response"))


def _read_prompt_completion(record: dict[str, Any]) -> Row | str:
    completion = record.get("completion")
    if not isinstance(completion, str):
        answer = messages_of(completion)
        completion = answer[0]["content"] if answer and len(answer) == 1 and answer[0]["role"] == "assistant" else None
    return _row(record, messages_of(record.get("prompt")), completion)


def _read_messages(record: dict[str, Any]) -> Row | str:
    messages = messages_of(record.get("messages"))
    if messages is None:
        return "messages is not a list of messages"
    if messages[-1]["role"] != "assistant" or len(messages) < 2:
        return "no response"
    return _row(record, messages[:-1], messages[-1]["content"])


def _row(record: dict[str, Any], prompt: list[Message] | None, response: Any) -> Row | str:
    """A row, or the reason why it is skipped."""
    if prompt is None:
        return "prompt is not a list of messages"
    if not isinstance(response, str) or not response.strip():
        return "no response"
    row = Row(str(record.get("data_source") or ""), prompt, response, known_extra(record.get("extra_info")))
    try:  # JSON can contain lone surrogates, which neither tokenizers nor UTF-8 accept
        json.dumps([row.task, prompt, response, row.extra], ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return "text that is not valid Unicode"
    return row


def known_extra(extra: Any) -> dict[str, Any]:
    """Our fields of an ``extra_info``; fields of the same name but another type are ignored."""
    if not isinstance(extra, dict):
        return {}
    fields = {}
    for name, kind in [*_EXTRA, ("split", pa.string())]:
        value = extra.get(name)
        if pa.types.is_boolean(kind) and value in (0, 1):  # floats if pandas wrote the file
            value = bool(value)
        elif pa.types.is_int64(kind) and isinstance(value, float) and value.is_integer():
            value = int(value)
        if name in extra and (value is None or _fits(value, kind)):
            fields[name] = value
    return fields


def _fits(value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(isinstance(part, str) for part in value)
    if pa.types.is_int64(kind):
        return type(value) is int and -(2**63) <= value < 2**63
    return isinstance(value, bool if pa.types.is_boolean(kind) else str)


def messages_of(value: Any) -> list[Message] | None:
    """A list of messages with text, given as such or as JSON; None if it is not one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):  # also of a number with thousands of digits
            return None
    if not isinstance(value, list) or not value:
        return None
    messages = []
    for message in value:
        if not isinstance(message, dict):
            return None
        role, content = message.get("role"), content_text(message.get("content"))
        if not isinstance(role, str) or content is None:
            return None
        messages.append({"role": role, "content": content})
    return messages
