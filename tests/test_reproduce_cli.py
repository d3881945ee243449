"""``spa reproduce`` on runs that are there: which it shows, and beside what."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spa.cli import main
from spa.config.variants import variants_of
from spa.reproduce.bases import write_variants
from spa.reproduce.scale import cells, load_scale
from tests.test_failed_seeds import configured, runs
from tests.test_reproduce import rows_of, scale_file


@pytest.fixture
def scale(tmp_path: Path) -> str:
    runs(tmp_path, "")
    scale = scale_file(tmp_path, worlds={"lake": {"config": "frozen_lake"}}, seeds=[0, 1, 2])
    configured(scale, tmp_path)
    return scale


def test_differences_to_the_variants_named_on_the_command_line(
    scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "--scale", scale, "--table", "--out", str(tmp_path)]
    assert main(command) == 0
    header = next(cells for title, cells in rows_of(capsys.readouterr().out) if title == "Pass@1 minus that of")
    assert header == ["vanilla", "base"]
    assert main([*command, "--versus", "spa"]) == 0
    header = next(cells for title, cells in rows_of(capsys.readouterr().out) if title == "Pass@1 minus that of")
    assert "spa" in header
    assert main([*command, "--versus", "spaa"]) == 2
    assert "Did you mean 'spa'?" in capsys.readouterr().err
    assert main([*command, "--versus", "spa+lookhead"]) == 2
    assert "Did you mean 'lookahead'?" in capsys.readouterr().err
    for versus in ("spaa", "spa+lookhead"):
        scale_file(tmp_path, worlds={"lake": {"config": "frozen_lake"}}, versus=["base", "vanilla", versus])
        assert main(command) == 2
        assert "Did you mean '" in capsys.readouterr().err


def test_runs_of_another_scale_are_left_out(scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "--table", "--out", str(tmp_path), "--scale"]
    config = tmp_path / "lake" / "seed-1" / "config.yaml"
    config.write_text(re.sub(r"gamma: .*", "gamma: 0.5", config.read_text()))
    assert main([*command, scale]) == 0
    shown = capsys.readouterr()
    assert "seed-1 left out: it holds a run of other settings (" in shown.err and "seed-0" not in shown.err
    assert [len(cells[2].split(", ")) for name, cells in rows_of(shown.out)[2:5]] == [2, 2, 2]
    other = scale_file(tmp_path, worlds={"lake": {"config": "frozen_lake_5x5"}}, seeds=[0, 1, 2])
    assert main([*command, other]) == 2
    assert "nothing is finished" in capsys.readouterr().err


def test_a_scale_runs_in_any_folder_and_beside_the_variants_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "na ïve,(#)=x'y\\'"
    settings = {"state_format": "grid", "sft": False, "rl": True, "settings": {"ppo.steps": 3}}
    scale = scale_file(
        tmp_path, worlds={"lake": {"config": "frozen_lake"}}, own_variants={"own": settings}, variants=["own"]
    )
    loaded = load_scale(scale)
    write_variants(loaded, out)
    assert [variant.name for cell in cells(loaded, out) for variant in variants_of(cell.load())] == ["base", "own"] * 2
    (out / "variants" / "lake" / "own.yaml").write_text("{name: own, rl: true, continues: gone}")
    assert main(["reproduce", "--scale", scale, "--out", str(out), "--dry-run"]) == 0
