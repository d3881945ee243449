"""Selects self-play rows for training (tag filter, success, deduplication, balancing: each a setting) and splits them by world."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from statistics import median

import numpy as np

from spa.config.schema import SelfPlayConfig
from spa.data.ground_truth import Row, answers_plainly, deduplicate, row_rejection
from spa.data.transitions import each_move_once

_CLASS: dict[str, tuple[str, Callable[[Row], Hashable]]] = {
    "actions": ("executed", lambda row: len(row.extra["executed"])),
    "turn": ("turn", lambda row: row.extra["turn"]),
    "success": ("success", lambda row: bool(row.extra["success"])),
}
_STREAM = 0xBA1A


def select_rows(rows: Sequence[Row], play: SelfPlayConfig, seed: int) -> tuple[list[Row], Counter[str]]:
    """The rows kept by ``play``'s settings, and counts of dropped rows by reason.

    In this order: ``filter`` (the reasons of ``row_rejection``), ``success_only``, ``deduplicate`` (of transitions each move once,
    and these first), ``balance``. Balancing samples without replacement to cap each class at the median class size
    (rounded up), reproducibly for a ``seed``.

    Raises:
        ValueError: rows lack the column that a setting needs, or unknown balance.
    """
    reasons: Counter[str] = Counter()  # += drops zero counts
    remaining = list(rows)
    if play.filter:
        plainly = answers_plainly(remaining)
        rejections = [
            (row, None if plain else row_rejection(row)) for row, plain in zip(remaining, plainly, strict=True)
        ]
        reasons.update(reason for _, reason in rejections if reason is not None)
        remaining = [row for row, reason in rejections if reason is None]
    if play.success_only:
        _need(remaining, "success", "success_only")
        won = [row for row in remaining if row.extra["success"]]
        reasons += Counter({"not won": len(remaining) - len(won)})
        remaining = won
    if play.deduplicate:
        unique = deduplicate(each_move_once(remaining))
        reasons += Counter({"duplicate": len(remaining) - len(unique)})
        remaining = unique
    if play.balance != "none":
        even = balanced(remaining, play.balance, seed)
        reasons += Counter({f"balanced by {play.balance}": len(remaining) - len(even)})
        remaining = even
    return remaining, reasons


def balanced(rows: Sequence[Row], by: str, seed: int) -> list[Row]:
    """The rows left, in order, after capping each class of ``by`` at the median class size (rounded up).

    Raises:
        ValueError: rows lack the column that ``by`` needs.
    """
    column, class_of = _CLASS[by]
    _need(rows, column, f"balance={by}")
    classes: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        classes[class_of(row)].append(index)
    if not classes:
        return []
    # For an even number, the mean of the middle two: the larger one would leave two classes unchanged.
    most = math.ceil(median(len(members) for members in classes.values()))
    rng = np.random.default_rng(np.random.SeedSequence([seed, _STREAM]))
    chosen: list[int] = []
    for _, members in sorted(classes.items(), key=lambda item: str(item[0])):
        chosen += [members[int(i)] for i in rng.permutation(len(members))[:most]]
    return [rows[index] for index in sorted(chosen)]


def split_rows(rows: Sequence[Row], val_fraction: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Training and validation rows; all rows of a world go to the same split.

    Training gets at least one world; validation gets at least one if there are two and the fraction is not 0.
    """
    worlds = sorted({str(row.extra.get("content")) for row in rows})
    order = np.random.default_rng(np.random.SeedSequence([seed, 0x5EED])).permutation(len(worlds))
    count = min(len(worlds) - 1, max(1, round(val_fraction * len(worlds)))) if val_fraction and len(worlds) > 1 else 0
    held = {worlds[i] for i in order[:count]}
    train = [row for row in rows if str(row.extra.get("content")) not in held]
    return train, [row for row in rows if str(row.extra.get("content")) in held]


def _need(rows: Sequence[Row], column: str, setting: str) -> None:
    missing = next((row for row in rows if row.extra.get(column) is None), None)
    if missing is not None:
        present = ", ".join(sorted(name for name, value in missing.extra.items() if value is not None)) or "nothing"
        raise ValueError(f"{setting} needs {column!r} in a row's extra_info, which has {present}")
