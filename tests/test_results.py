"""The published tables are what the stored numbers give."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from spa.reproduce.page import figure_files
from spa.reproduce.scale import load_scale
from spa.reproduce.stored import read_numbers
from spa.reproduce.table import markdown

DOCS = Path(__file__).parents[1] / "docs"
# docs/results/FILE.json -> the scale whose `spa reproduce --scale SCALE --numbers FILE` prints its table
SCALES = {
    "frozen_lake": "hours",
    "main": "main",
    "longer_practice": str(DOCS / "scales" / "longer-practice.yaml"),
    "planning_worlds": str(DOCS / "scales" / "planning-worlds.yaml"),
}
ROWS = {  # of the overview -> file and world
    "FrozenLake 4x4": ("main", "frozen_lake"),
    "Sokoban, eight moves": ("main", "sokoban"),
    "Sudoku 4x4": ("main", "sudoku"),
    "FrozenLake 4x4, five actions a turn": ("planning_worlds", "frozen_lake_five_actions"),
    "FrozenLake 5x5": ("longer_practice", "frozen_lake_5x5"),
    "FrozenLake 6x6": ("planning_worlds", "frozen_lake_6x6"),
    "FrozenLake 4x4, slippery": ("planning_worlds", "frozen_lake_slippery"),
    "Sokoban, two boxes": ("planning_worlds", "sokoban_2_boxes"),
}


FIGURES = {  # of docs/images -> file and variants
    f"{world}-{axis}.svg": (file, variants)
    for file, world, variants in (
        ("main", "frozen_lake", "vanilla_longer,se,spa_plan"),
        ("main", "sokoban", "vanilla_longer,spa_plan"),
        ("longer_practice", "frozen_lake_5x5", "vanilla_longer,spa_plan"),
    )
    for axis in ("cpu_time", "actions")
}


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


@pytest.mark.parametrize("page", [DOCS / "results.md", DOCS.parent / "README.md"], ids=lambda page: page.name)
def test_the_overview_has_the_means_of_the_stored_numbers(page: Path) -> None:
    """Its columns are named after variants."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| world |"))
    header, *rows = [
        [cell.strip(" *`") for cell in line.strip("|").split("|")]
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
        if "---" not in line
    ]
    columns = header[header.index("seeds") + 1 :]
    shown = {}
    for title, *cells in rows:
        file, world = ROWS[title]
        scale = load_scale(SCALES[file])
        numbers = read_numbers([DOCS / "results" / f"{file}.json"], scale)[world]
        assert cells[0] == str(max(len(entry.seeds) for entry in numbers.values()))
        for name, cell in zip(columns, cells[1:], strict=True):
            entry = numbers.get(name)
            shown[title, name] = cell, f"{100 * entry.passes[1].mean:.1f}" if entry else "-"
    assert {key: value for key, value in shown.items() if value[0] != value[1]} == {}
    assert page.name == "README.md" or {row[0] for row in rows} == set(ROWS)


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_are_drawn_from_the_stored_numbers(name: str) -> None:
    """As CONTRIBUTING says: ``spa reproduce --scale SCALE --numbers FILE --variants VARIANTS --out FOLDER`` writes them."""
    file, variants = FIGURES[name]
    scale = load_scale(SCALES[file])
    scale.override("variants", variants.split(","))
    drawn = figure_files(read_numbers([DOCS / "results" / f"{file}.json"], scale))
    assert (DOCS / "images" / name).read_text(encoding="utf-8") == drawn[name]
