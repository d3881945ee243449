"""Seeds whose training failed stay in the tables of ``spa reproduce``, and no claim rests on the others."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from spa.cli import main
from spa.common.lock import locked
from spa.config.load import to_yaml
from spa.reproduce.numbers_file import from_json, join, to_json
from spa.reproduce.page import write_reproduction
from spa.reproduce.results import collect_cells
from spa.reproduce.scale import Cell, cells, load_scale
from spa.reproduce.table import markdown
from tests.test_reproduce import WORLDS, result, rows_of, scale_file

SILENT = "the policy has collapsed: for 5 steps it is silent (step 9)"
LOST = "training diverged at step 3: the policy loss is nan"
SPA_FAILED = f"ValueError: variant spa was not evaluated: {SILENT}; the last good checkpoint is /home/me/step_4. Lower ppo.actor_lr"


def a_run(folder: Path, error: str | None, lost: tuple[str, ...] = ()) -> Cell:
    """A run whose last command ended with ``error``; None if it recorded no end. The variants ``lost`` have no result."""
    seed = int(folder.name.removeprefix("seed-"))
    for variant, wins in (("base", 1), ("vanilla", 2), ("spa", 5)):
        if variant not in lost:
            result(folder, variant, [wins + seed % 2] * (WORLDS - WORLDS // 12) + [0] * (WORLDS // 12))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("variants: [vanilla, spa]\n")
    end = {} if error is None else {"ended": "2026-01-01T00:00:00+00:00"} | ({"error": error} if error else {})
    (folder / "run.json").write_text(json.dumps({"commands": [{"command": "run", **end}]}))
    return Cell("lake", seed, "frozen_lake", (), folder, ("vanilla", "spa", "se"))


def configured(scale: str, out: Path) -> None:
    """The runs get the configs of the scale's."""
    for cell in cells(load_scale(scale), out):
        (cell.folder / "config.yaml").write_text(to_yaml(cell.load()))


@pytest.fixture
def scale(tmp_path: Path) -> str:
    return scale_file(tmp_path, worlds={"lake": {"config": "frozen_lake"}}, seeds=[0, 1, 2])


def runs(out: Path, error: str | None, *lost: str) -> list[Cell]:
    """Two whole seeds, and a third between them that is not."""
    return [
        a_run(out / "lake" / "seed-0", ""),
        a_run(out / "lake" / "seed-1", error, lost),
        a_run(out / "lake" / "seed-2", ""),
    ]


def test_a_seed_that_failed_is_in_every_output(tmp_path: Path, scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    runs(tmp_path, SPA_FAILED, "spa")
    configured(scale, tmp_path)
    assert main(["reproduce", "--scale", scale, "--out", str(tmp_path), "--table"]) == 0
    text = (tmp_path / "table.md").read_text()
    by_seed = {name: cells[2] for name, cells in rows_of(text)[2:5]}
    assert by_seed == {"base": "11.5, 22.9, 11.5", "vanilla": "22.9, 34.4, 22.9", "spa": "57.3, -, 57.3"}
    scores, _, rest = text.partition(f"\n\nspa failed in seed 1: {SILENT}.\n\n")
    assert scores.splitlines()[-1].startswith("| spa") and rest.startswith("| Pass@1 minus that of")
    assert f"spa failed in seed 1: {SILENT}." in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    assert main(["reproduce", "--scale", scale, "--numbers", str(tmp_path / "numbers.json")]) == 0
    assert capsys.readouterr().out.rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize(("lost", "claim"), [((), "better than both"), (("spa",), ""), (("vanilla",), "")])
def test_no_claim_rests_on_the_seeds_that_did_not_fail(
    tmp_path: Path, scale: str, lost: tuple[str], claim: str
) -> None:
    error = f"ValueError: variant {lost[0]} was not evaluated: {SILENT}" if lost else ""
    text = markdown(load_scale(scale), collect_cells(runs(tmp_path, error, *lost)))
    conclusion = next(line for line in text.splitlines() if line.startswith("- spa"))
    assert conclusion.rpartition(": ")[2] == f"{claim or f'no claim, since seeds of {lost[0]} failed'}."


@pytest.mark.parametrize(
    "error", [None, "", "KeyboardInterrupt: ", "Terminated: ", SPA_FAILED.replace(" spa ", " se ")]
)
def test_a_seed_without_a_result_did_not_fail_unless_its_run_says_so(
    tmp_path: Path, scale: str, error: str | None
) -> None:
    cells = runs(tmp_path, error, "spa")
    with locked(cells[1].folder) if error is None else nullcontext():  # it goes on
        numbers = collect_cells(cells)
    assert numbers["lake"]["spa"].failed == {} and numbers["lake"]["spa"].seeds == [0, 2]
    text = markdown(load_scale(scale), numbers)
    assert "spa failed" not in text and "57.3, -, 57.3" in text


def test_a_killed_run_recorded_no_end_and_counts_as_failed(tmp_path: Path, scale: str) -> None:
    numbers = collect_cells(runs(tmp_path, None, "spa"))
    assert [numbers["lake"][name].failed for name in ("vanilla", "spa")] == [{}, {1: "the run was killed"}]
    text = markdown(load_scale(scale), numbers)
    assert "no claim, since seeds of spa failed." in text and "spa failed in seed 1: the run was killed." in text
    not_begun = Cell("lake", 4, "frozen_lake", (), tmp_path / "lake" / "seed-4", ("vanilla", "spa", "se"))
    cells = [a_run(tmp_path / "b" / "seed-0", ""), not_begun]
    assert collect_cells(cells)["lake"]["spa"].failed == {}


def test_each_variant_has_its_own_reason_and_a_crash_is_that_of_all_that_it_ended(tmp_path: Path) -> None:
    both = f"{SPA_FAILED}; variant vanilla was not evaluated: {LOST}; no checkpoint from before is kept"
    variants = collect_cells(runs(tmp_path / "a", both, "vanilla", "spa"))["lake"]
    assert [variants[name].failed for name in ("base", "vanilla", "spa")] == [{}, {1: LOST}, {1: SILENT}]
    alike = f"{SPA_FAILED}; variant vanilla was not evaluated: as spa"
    variants = collect_cells(runs(tmp_path / "d", alike, "vanilla", "spa"))["lake"]
    assert [variants[name].failed for name in ("vanilla", "spa")] == [{1: SILENT}, {1: SILENT}]
    crash = "OutOfMemoryError: CUDA out of memory"
    variants = collect_cells(runs(tmp_path / "b", crash, "vanilla", "spa"))["lake"]
    assert [variants[name].failed for name in ("base", "vanilla", "spa")] == [{}, {1: crash}, {1: crash}]
    assert "se" not in variants, "that run was not to have it"
    crashed = collect_cells([a_run(tmp_path / "c" / "seed-0", crash, ("base", "vanilla", "spa"))])
    assert crashed == {"lake": {}}, "nothing is finished"


def test_a_variant_that_failed_in_all_seeds(tmp_path: Path, scale: str) -> None:
    cells = [a_run(tmp_path / f"seed-{seed}", SPA_FAILED, ("spa",)) for seed in (0, 1)]
    numbers = collect_cells(cells)
    again = from_json(to_json(numbers))
    assert again["lake"]["spa"] == numbers["lake"]["spa"]
    text = markdown(load_scale(scale), numbers)
    assert ["-", "-", "-, -"] in [cells[:3] for title, cells in rows_of(text) if title == "spa"]
    assert f"spa failed in seeds 0, 1: {SILENT}." in text
    assert "better" not in text
    page = write_reproduction(load_scale(scale), numbers, tmp_path / "page.html").read_text()
    assert f"spa failed in seeds 0, 1: {SILENT}." in page


def test_joined_files_keep_failures_that_neither_has_a_result_for(tmp_path: Path) -> None:
    failed = [collect_cells([a_run(tmp_path / f"seed-{seed}", SPA_FAILED, ("spa",))]) for seed in (0, 1)]
    later = collect_cells([a_run(tmp_path / "later" / "seed-1", "")])
    for numbers in (join(join(*failed), later), join(later, join(*failed))):
        assert numbers["lake"]["spa"].seeds == [1] and numbers["lake"]["spa"].failed == {0: SILENT}
        assert numbers["lake"]["base"].seeds == [0, 1]
