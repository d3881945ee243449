"""Statistics of a self-play data set: counts, lengths, formats, actions, duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from spa.agent.chat import Chat
from spa.agent.response import parse_response
from spa.common.tables import text_table
from spa.common.text import clean
from spa.data.encode import encode_row, mask_states
from spa.data.ground_truth import Row, answers_plainly, body_spans, deduplicate, row_rejection
from spa.envs.states import exact

Stats = dict[str, Any]
_BY_TASK = ("rows", "episodes", "worlds", "format_rate", "success", "changed")
_LONGEST = 40  # maximum characters of a printed name


def describe(
    rows: Sequence[Row], chat: Chat | None = None, *, loss: str = "think_answer", max_length: int = 2048
) -> Stats:
    """JSON-serialisable statistics of rows; keys that cannot be computed are absent.

    ``rows``; ``tasks`` (rows by ``data_source``) and, if there are several, ``by_task`` (for each: rows, episodes, worlds,
    format_rate, success, changed); ``episodes``, ``worlds`` (by seed, group and member; by content);
    ``turns_per_episode`` and ``rows_per_world`` (min, median, max); ``format_rate`` and ``rejections`` (by the tag filter,
    without the ``plain_rows``); ``actions`` (how often each was executed) and ``actions_per_turn`` (number of turns by action
    count); ``success`` (share of successful episodes, by their last row); ``changed`` (share of the rows whose prediction
    differs from their observation); ``duplicates``. With ``chat`` also ``tokens`` (of ``prompt``, ``response`` and ``row``:
    min, median, p95, max, total), ``trained`` (share of the tokens under ``loss``), ``over_max_length`` and ``not_encodable``
    (by reason).
    """
    stats: Stats = {"rows": len(rows), "tasks": dict(Counter(row.task for row in rows).most_common())}
    stats |= _episodes(rows) | _worlds(rows) | _responses(rows) | _actions(rows)
    stats["duplicates"] = len(rows) - len(deduplicate(rows))
    if len(stats["tasks"]) > 1:
        stats["by_task"] = {task: _of_task([row for row in rows if row.task == task]) for task in stats["tasks"]}
    if chat is not None:
        stats |= _lengths(rows, chat, loss, max_length)
    return stats


def _of_task(rows: Sequence[Row]) -> Stats:
    stats = {"rows": len(rows)} | _episodes(rows) | _worlds(rows) | _responses(rows)
    return {name: stats[name] for name in _BY_TASK if name in stats}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": float(min(values)), "median": float(np.median(values)), "max": float(max(values))}


def _episodes(rows: Sequence[Row]) -> Stats:
    keys = [tuple(row.extra.get(name) for name in ("seed", "group", "member")) for row in rows]
    if not rows or any(None in key for key in keys):
        return {}
    turns = Counter(keys)
    stats: Stats = {"episodes": len(turns), "turns_per_episode": _spread(list(turns.values()))}
    outcomes = {
        key: row.extra["success"] for key, row in zip(keys, rows, strict=True) if row.extra.get("success") is not None
    }
    if outcomes:
        stats["success"] = sum(map(bool, outcomes.values())) / len(outcomes)
    return stats


def _worlds(rows: Sequence[Row]) -> Stats:
    contents = Counter(row.extra.get("content") for row in rows)
    if not rows or None in contents:
        return {}
    return {"worlds": len(contents), "rows_per_world": _spread(list(contents.values()))}


def _responses(rows: Sequence[Row]) -> Stats:
    if not rows:
        return {}
    tagged = [row for row, plain in zip(rows, answers_plainly(rows), strict=True) if not plain]
    reasons = Counter(reason for row in tagged if (reason := row_rejection(row)) is not None)
    stats: Stats = {"format_rate": 1 - sum(reasons.values()) / len(tagged), "rejections": dict(reasons.most_common())}
    if len(tagged) < len(rows):
        stats["plain_rows"] = len(rows) - len(tagged)
    pairs = [(_first(row.response, "observation"), _first(row.response, "prediction")) for row in rows]
    complete = [(now, then) for now, then in pairs if now is not None and then is not None]
    if complete:
        # The format has a space on one side of the prediction, and on both of the observation.
        same = sum(exact(now, then) or exact(then, now) for now, then in complete)
        stats["changed"] = 1 - same / len(complete)
    return stats


def _first(response: str, tag: str) -> str | None:
    spans = body_spans(response, tag, None)
    return response[slice(*spans[0])] if spans else None


def _actions(rows: Sequence[Row]) -> Stats:
    executed = [row.extra.get("executed") for row in rows]
    if not rows or any(actions is None for actions in executed):
        # Third-party data has only the written actions.
        executed = [list(parse_response(row.response).actions) for row in rows]
    names = Counter(str(action) for actions in executed for action in actions or [])
    counts = Counter(len(actions or []) for actions in executed)
    return {
        "actions": dict(names.most_common()),
        "actions_per_turn": {str(count): number for count, number in sorted(counts.items())},
    }


def _lengths(rows: Sequence[Row], chat: Chat, loss: str, max_length: int) -> Stats:
    lengths: dict[str, list[int]] = {"prompt": [], "response": [], "row": []}
    trained = over = 0
    failed: Counter[str] = Counter()
    for row in rows:
        try:
            example = encode_row(row, chat, loss=loss)
        except ValueError as error:
            failed[str(error)] += 1
            continue
        response = mask_states(row.response) if loss == "masked" else row.response
        prompt = len(example.ids) - len(chat.encode_response(response).ids) - 1
        for name, length in zip(lengths, (prompt, len(example.ids) - prompt, len(example.ids)), strict=True):
            lengths[name].append(length)
        trained += len(example.positions)
        over += len(example.ids) > max_length
    stats: Stats = {"max_length": max_length, "over_max_length": over, "not_encodable": dict(failed)}
    if lengths["row"]:
        stats["tokens"] = {
            name: {**_spread(values), "p95": float(np.percentile(values, 95)), "total": sum(values)}
            for name, values in lengths.items()
        }
        stats["trained"] = trained / sum(lengths["row"])
    return stats


def render_stats(stats: Stats) -> str:
    """The statistics as lines of text; names may be model output, so terminal control characters are removed."""
    lines: list[str] = []

    def add(name: str, value: object) -> None:
        lines.append(f"{name:<20}{value}")

    def spread(values: dict[str, float]) -> str:
        return f"{values['min']:g} to {values['max']:g}, median {values['median']:g}"

    def counts(values: dict[str, int], most: int = 12) -> str:
        shown = [f"{_name(name)} {number}" for name, number in list(values.items())[:most]]
        return ", ".join([*shown, *(["..."] if len(values) > most else [])]) or "none"

    add("rows", stats["rows"])
    add("by task", counts(stats["tasks"]))
    lines.extend(_table(stats.get("by_task", {})))
    for name, detail in (("episodes", "turns_per_episode"), ("worlds", "rows_per_world")):
        if name in stats:
            add(name, f"{stats[name]} ({spread(stats[detail])} rows each)")
    if "success" in stats:
        add("won", f"{stats['success']:.1%} of the episodes")
    if "format_rate" in stats:
        add("format", f"{stats['format_rate']:.1%} keep to it; others: {counts(stats['rejections'])}")
    if "plain_rows" in stats:
        add("plain rows", f"{stats['plain_rows']}: answers to the plain prompt, not counted above")
    if "changed" in stats:
        add("state changed", f"in {stats['changed']:.1%} of the rows with observation and prediction")
    add("actions", counts(stats["actions"]))
    add("actions per turn", counts(stats["actions_per_turn"]))
    add("duplicates", stats["duplicates"])
    for name, values in stats.get("tokens", {}).items():
        add(f"tokens, {name}", f"{spread(values)}, 95% up to {values['p95']:g}, {values['total']} in all")
    if "trained" in stats:
        add("trained", f"{stats['trained']:.1%} of the tokens")
    if "max_length" in stats:
        add(f"over {stats['max_length']} tokens", f"{stats['over_max_length']} rows")
        if stats["not_encodable"]:
            add("cannot be encoded", counts(stats["not_encodable"]))
    return "\n".join(lines)


def _name(name: str) -> str:
    text = " ".join(clean(name).split())
    return (text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…") or "(none)"


def _table(tasks: dict[str, Stats]) -> list[str]:
    """A header, a rule and one line per task; empty without tasks."""
    rows = []
    for task, values in tasks.items():
        shown = [values.get(name) for name in _BY_TASK]
        texts = ["-" if v is None else f"{v:.1%}" if isinstance(v, float) else str(v) for v in shown]
        rows.append([_name(task), *texts])
    return text_table(["", *_BY_TASK], rows) if rows else []
