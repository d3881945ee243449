"""A whole run on two ranks writes the files of a run in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spa.agent.episode import read_episodes
from spa.cli import main
from spa.runs.metrics import read_metrics
from tests.test_pipeline import SMALL

pytestmark = pytest.mark.scale
SETTINGS = [*SMALL, "variants=[vanilla,spa]"]


def files(out: Path) -> set[str]:
    """Names in a run folder, without the trainer's state, which ranks write in parts."""
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    return {name for name in names if "trainer_state" not in name}


def tokens(path: Path) -> list[Any]:
    return [[(each.ids, each.mask) for each in episode.sequences] for episode in read_episodes(path)]


def assert_same_run(many: Path, one: Path, apart: tuple[str, ...] = ("time", "second")) -> None:
    """Same files and episodes; logged values, except those with ``apart`` in their names, within 1e-5."""
    assert files(many) == files(one)
    for path in one.rglob("*.jsonl"):
        other = many / path.relative_to(one)
        if "episodes" in str(path):
            assert tokens(other) == tokens(path), path
    for path in one.rglob("metrics.jsonl"):
        rows, others = read_metrics(path), read_metrics(many / path.relative_to(one))
        for row, other in zip(rows, others, strict=True):
            assert row.keys() == other.keys()
            for name in row:
                if not any(part in name for part in apart):
                    assert other[name] == pytest.approx(row[name], rel=1e-5, abs=5e-7), (path, row["step"], name)
    for path in one.rglob("result.json"):
        a, b = (json.loads((root / path.relative_to(one)).read_text()) for root in (one, many))
        assert a["worlds"] == b["worlds"]
        assert b["metrics"] == {name: pytest.approx(value, rel=1e-5, abs=5e-7) for name, value in a["metrics"].items()}


def test_two_ranks_are_one_process(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["run", "frozen_lake", *SETTINGS, "--quiet", "--out", str(one)]) == 0
    command = ["run", "frozen_lake", *SETTINGS, "launcher=torchrun", "nproc=2", "--quiet", "--out", str(two)]
    assert main(command) == 0
    assert_same_run(two, one)
