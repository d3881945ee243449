"""The published tables, overviews and figures are what scripts/publish_results.py makes from the stored numbers."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from spa.cli import main
from spa.reproduce.numbers_file import to_json
from spa.reproduce.results import Numbers

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SCRIPT = ROOT / "scripts" / "publish_results.py"
PUBLISH: dict[str, Any] = runpy.run_path(str(SCRIPT))


def test_every_file_has_a_scale() -> None:
    assert {path.stem for path in (DOCS / "results").glob("*.json")} == set(PUBLISH["SCALES"])


@pytest.mark.parametrize("file", PUBLISH["SCALES"])
def test_one_page_has_the_table_and_the_verdict_of_the_stored_numbers(file: str) -> None:
    pages = [page.read_text(encoding="utf-8") for page in PUBLISH["TABLES"]]
    shown = PUBLISH["blocks"](file)
    assert shown
    assert all("| variant" in block for block in shown.values())
    assert {world: sum(block in page for page in pages) for world, block in shown.items()} == dict.fromkeys(shown, 1)


@pytest.mark.parametrize("file", PUBLISH["SCALES"])
def test_what_a_file_says_of_its_numbers_is_computed_from_them(file: str) -> None:
    published, computed = (
        (DOCS / "results" / f"{file}.json").read_text(encoding="utf-8"),
        to_json(PUBLISH["stored"](file)[1]),
    )
    decimals = r"-?\d+\.\d+(?:e-\d+)?"
    assert re.sub(decimals, "", published) == re.sub(decimals, "", computed) + "\n"
    values = [[float(value) for value in re.findall(decimals, text)] for text in (published, computed)]
    assert values[0] == pytest.approx(values[1], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("page", PUBLISH["OVERVIEWS"], ids=lambda page: page.name)
def test_the_overview_has_the_means_of_the_stored_numbers(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert PUBLISH["overview"](text) == text
    spoilt = re.sub(r"(\n\| FrozenLake 4x4 \| \d+ \| )[\d.]+", r"\g<1>99.9", text)
    assert spoilt != text
    assert PUBLISH["overview"](spoilt) == text
    row = next(line for line in text.splitlines() if line.startswith("| FrozenLake 4x4 | 10 | "))
    assert "| 100.0 (3) |" in row, "of search, which fewer seeds have"
    assert page.name == "README.md" or all(f"\n| {title} |" in text for title in PUBLISH["ROWS"])


@pytest.mark.parametrize("name", PUBLISH["FIGURES"])
def test_the_figures_are_drawn_from_the_stored_numbers(name: str) -> None:
    assert (DOCS / "images" / name).read_text(encoding="utf-8") == PUBLISH["figure"](name)


def test_differences_to_a_planner_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "--scale", "main", "--worlds", "sokoban", "--numbers", str(DOCS / "results" / "main.json")]
    assert main([*command, "--versus", "plan,search+lookahead"]) == 0
    header = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| Pass@1 minus"))
    assert [cell.strip() for cell in header.split("|")[-3:-1]] == ["plan", "search+lookahead"]


@pytest.fixture
def copy(tmp_path: Path) -> dict[str, Any]:
    """The script in a copy of the pages."""
    for part in ("docs/results", "docs/scales", "docs/images"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for part in ("docs/results.md", "README.md", "scripts/publish_results.py", "examples/vault_scale.yaml"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / part, tmp_path / part)
    return runpy.run_path(str(tmp_path / "scripts" / "publish_results.py"))


@pytest.fixture
def publish(copy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def run(new: Numbers, *options: str) -> None:
        (tmp_path / "numbers.json").write_text(to_json(new), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["publish_results.py", "main", str(tmp_path / "numbers.json"), *options])
        copy["main"]()

    return run


def never_won(*names: str, seeds: Sequence[int] = (410, 411, 412)) -> Numbers:
    """New numbers of variants in Sokoban."""
    numbers = deepcopy(PUBLISH["stored"]("main")[1]["sokoban"])
    for name in names:
        numbers[name].successes = {seed: [0] * len(numbers[name].successes[seed]) for seed in seeds}
    return {"sokoban": {name: numbers[name] for name in names}}


def test_variants_measured_again_replace_the_old_ones_everywhere(
    copy: dict[str, Any], publish: Callable[..., None], tmp_path: Path
) -> None:
    """The other worlds and variants stay as they are."""
    before = PUBLISH["blocks"]("main")
    publish(never_won("plan", "plan+lookahead"), "--replace", "plan")

    pages = "".join(page.read_text(encoding="utf-8") for page in copy["TABLES"])
    blocks = copy["blocks"]("main")
    assert all(block in pages for block in blocks.values())
    assert before["sokoban"] not in pages
    assert {world for world, block in before.items() if block == blocks[world]} == {"frozen_lake", "sudoku"}
    numbers = copy["stored"]("main")[1]["sokoban"]
    assert {name for name, entry in numbers.items() if entry.passes[1].mean == 0} == {"plan", "plan+lookahead"}
    assert list(numbers) == list(PUBLISH["stored"]("main")[1]["sokoban"]), "the rows keep their places"
    row = next(
        line for line in (tmp_path / "README.md").read_text(encoding="utf-8").splitlines() if "| Sokoban" in line
    )
    assert " 0.0 (3) |" in row, "of three seeds, fewer than the others"
    assert (tmp_path / "docs/images/sokoban-actions.svg").read_text(encoding="utf-8") == PUBLISH["figure"](
        "sokoban-actions.svg"
    )


@pytest.mark.slow
def test_nothing_old_of_a_variant_measured_again_is_kept(
    copy: dict[str, Any], publish: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its planner played with the old weights; worlds without new numbers keep theirs."""
    seeds = PUBLISH["stored"]("main")[1]["sokoban"]["plan"].seeds
    publish(never_won("plan", seeds=seeds[:2]), "--replace", "plan")
    numbers = copy["stored"]("main")[1]
    assert numbers["sokoban"]["plan"].seeds == seeds[:2] and "plan+lookahead" not in numbers["sokoban"]
    assert "spa_plan+lookahead" in numbers["sokoban"] and "plan+lookahead" in numbers["frozen_lake"]
    printed = capsys.readouterr().out
    for name, dropped in (("plan", seeds[2:]), ("plan+lookahead", seeds)):
        assert f"sokoban, {name}: dropped without new numbers: seeds {', '.join(map(str, dropped))}\n" in printed


def test_numbers_that_cannot_be_computed_leave_the_file_as_it_was(publish: Callable[..., None], tmp_path: Path) -> None:
    """Other samples than those of the variants that stay."""
    path = tmp_path / "docs" / "results" / "main.json"
    before = path.read_text(encoding="utf-8")
    numbers = never_won("plan", "plan+lookahead")
    numbers["sokoban"]["plan"].samples = 8
    with pytest.raises(SystemExit, match="not all evaluated on the same worlds with as many samples"):
        publish(numbers, "--replace", "plan")
    assert path.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("world", "name", "replace", "message"),
    [
        ("sokoban", "plan", "plann", r"unknown variant of the new numbers 'plann'; .* Did you mean 'plan'\?"),
        ("sokoban", "plan", "plan,se", "unknown variant of the new numbers 'se'"),
        ("sokoban", "mine", "", "unknown variant of sokoban in scale main 'mine'"),
        ("sokoban", "mine+lookahead", "mine", "unknown variant of sokoban in scale main 'mine'"),
        ("sokobann", "plan", "", r"unknown world of scale main 'sokobann'; .* Did you mean 'sokoban'\?"),
    ],
)
def test_numbers_that_no_table_would_show_are_refused(
    copy: dict[str, Any], publish: Callable[..., None], world: str, name: str, replace: str, message: str
) -> None:
    new = {world: {name: PUBLISH["stored"]("main")[1]["sokoban"]["plan"]}}
    stored = copy["DOCS"] / "results" / "main.json"
    before = stored.read_bytes()
    with pytest.raises(SystemExit, match=f"^Error: {message}[^\n]*$"):
        publish(new, "--replace", replace)
    assert stored.read_bytes() == before
