"""The published tables, overviews and figures are what scripts/publish_results.py makes from the stored numbers."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from spa.reproduce.stored import to_json

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SCRIPT = ROOT / "scripts" / "publish_results.py"
PUBLISH: dict[str, Any] = runpy.run_path(str(SCRIPT))


def test_every_file_has_a_scale() -> None:
    assert {path.stem for path in (DOCS / "results").glob("*.json")} == set(PUBLISH["SCALES"])


@pytest.mark.parametrize("file", PUBLISH["SCALES"])
def test_the_page_has_the_table_and_the_verdict_of_the_stored_numbers(file: str) -> None:
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    shown = PUBLISH["blocks"](file)
    assert shown
    assert all("| variant" in block for block in shown.values())
    assert [block for block in shown.values() if block not in page] == []


@pytest.mark.parametrize("page", PUBLISH["PAGES"], ids=lambda page: page.name)
def test_the_overview_has_the_means_of_the_stored_numbers(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert PUBLISH["overview"](text) == text
    spoilt = text.replace("| 18.1 |", "| 18.2 |")
    assert spoilt != text
    assert PUBLISH["overview"](spoilt) == text
    assert page.name == "README.md" or all(f"\n| {title} |" in text for title in PUBLISH["ROWS"])


@pytest.mark.parametrize("name", PUBLISH["FIGURES"])
def test_the_figures_are_drawn_from_the_stored_numbers(name: str) -> None:
    assert (DOCS / "images" / name).read_text(encoding="utf-8") == PUBLISH["figure"](name)


def test_variants_measured_again_replace_the_old_ones_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy of the pages; the other worlds and variants stay as they are."""
    for part in ("docs/results", "docs/scales", "docs/images"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for part in ("docs/results.md", "README.md", "scripts/publish_results.py"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / part, tmp_path / part)
    copy = runpy.run_path(str(tmp_path / "scripts" / "publish_results.py"))
    _, numbers = copy["stored"]("main")
    new = {"sokoban": {"plan": numbers["sokoban"]["plan"]}}
    entry = new["sokoban"]["plan"]
    entry.successes = {seed: [0] * len(row) for seed, row in entry.successes.items()}
    (tmp_path / "numbers.json").write_text(to_json(new), encoding="utf-8")
    before = PUBLISH["blocks"]("main")

    monkeypatch.setattr(
        sys, "argv", ["publish_results.py", "main", str(tmp_path / "numbers.json"), "--replace", "plan"]
    )
    copy["main"]()

    page = (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")
    blocks = copy["blocks"]("main")
    assert all(block in page for block in blocks.values())
    assert before["sokoban"] not in page
    assert {world for world, block in before.items() if block == blocks[world]} == {"frozen_lake", "sudoku"}
    assert copy["stored"]("main")[1]["sokoban"]["plan"].passes[1].mean == 0
    row = next(
        line for line in (tmp_path / "README.md").read_text(encoding="utf-8").splitlines() if "| Sokoban" in line
    )
    assert " 0.0 |" in row
    assert (tmp_path / "docs/images/sokoban-actions.svg").read_text(encoding="utf-8") == PUBLISH["figure"](
        "sokoban-actions.svg"
    )
