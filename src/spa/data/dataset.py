"""Data files of stage 1: splits rows by world, writes and reads them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import numpy as np

from spa.data.ground_truth import Row
from spa.data.layouts import read_layout, write_layout


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


def write_rows(path: str | os.PathLike[str], rows: Sequence[Row]) -> None:
    """Writes rows in the layout ``spa``, atomically."""
    write_layout(path, rows, "spa")


def read_rows(path: str | os.PathLike[str]) -> tuple[list[Row], Counter[str]]:
    """Rows of a data file in any layout (see ``spa.data.layouts``), and counts of skipped rows by reason.

    Raises:
        ValueError: as ``read_layout``.
    """
    rows, skipped, _ = read_layout(path)
    return rows, skipped
