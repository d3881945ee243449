"""The published tables are what the stored numbers give."""

from __future__ import annotations

from pathlib import Path

import pytest

from spa.reproduce.scale import load_scale
from spa.reproduce.stored import read_numbers
from spa.reproduce.table import markdown

DOCS = Path(__file__).parents[1] / "docs"
# docs/results/FILE.json -> the scale whose `spa reproduce --scale SCALE --numbers FILE` prints its table
SCALES = {"frozen_lake": "hours", "main": "main"}


def test_every_file_has_a_scale() -> None:
    assert {path.stem for path in (DOCS / "results").glob("*.json")} == set(SCALES)


@pytest.mark.parametrize("name", SCALES)
def test_the_page_has_the_table_and_the_verdict_of_the_stored_numbers(name: str) -> None:
    scale = load_scale(SCALES[name])
    page = (DOCS / "results.md").read_text(encoding="utf-8").splitlines()
    printed = markdown(scale, read_numbers([DOCS / "results" / f"{name}.json"], scale)).splitlines()
    first = next(i for i, line in enumerate(printed) if line.startswith("## "))
    shown = [line for line in printed[first:-1] if line and not line.startswith("## ")]
    assert shown
    assert [line for line in shown if line not in page] == []
