"""What the report takes from a run folder."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from spa.config.load import load_config
from spa.report.collect import collect
from spa.report.html import render_report
from spa.runs.folder import RunFolder
from spa.runs.provenance import environment


def test_versions_and_machine_are_those_of_the_last_command(tmp_path: Path) -> None:
    RunFolder(tmp_path).open(load_config("sokoban"), "run", resume=False)
    data, here = collect(tmp_path), environment()
    assert data.versions["python"] == here["python"]
    assert data.versions["torch"] == metadata.version("torch")
    assert data.versions["transformers"] == metadata.version("transformers")
    machine = {"processor": here["cpu"], "cores": str(here["cpu_count"]), "system": here["platform"]}
    assert machine.items() <= data.machine.items()
    assert "pytest" in data.machine["command"]
    page = render_report(data)
    for shown in ("Versions", metadata.version("transformers"), "Machine", here["cpu"]):
        assert shown in page


def test_a_damaged_run_json_leaves_them_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path).open(load_config("sokoban"), "run", resume=False)
    folder.info_path.write_text("{torn")
    assert (collect(tmp_path).versions, collect(tmp_path).machine) == ({}, {})


def test_the_machine_is_the_one_that_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    for command, cores in (("generate", 64), ("sft", 64), ("eval spa", 96)):
        monkeypatch.setattr("spa.runs.provenance.usable_cores", lambda cores=cores: cores)
        folder.open(load_config("sokoban"), command, resume=False)
    monkeypatch.setattr("spa.runs.provenance.usable_cores", lambda: 2)
    assert collect(tmp_path).machine["cores"] == "64; 96"
