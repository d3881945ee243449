"""``spa bench``, with the benchmarks replaced by one that prints known numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spa import cli_bench
from spa.cli import main
from spa.cli_bench import BENCHMARKS, benchmarks_folder

FAKE = """
import json, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
peers = {peer: {"per_second": rate, "lowest": rate - 1, "highest": rate + 1} for peer, rate in (("spa", 30), ("peer", 10))}
kinds = {"short": {"peers": peers}}
open(arguments["--json"], "w").write(json.dumps({"machine": {"threads": int(arguments["--threads"])}, "results": kinds}))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name in BENCHMARKS:
        (tmp_path / f"{name}.py").write_text(FAKE)
    monkeypatch.setattr(cli_bench, "benchmarks_folder", lambda: tmp_path)
    return tmp_path


def test_one_table_of_ratios_and_the_numbers_as_json(folder, tmp_path, capsys) -> None:
    path = tmp_path / "out.json"
    assert main(["bench", "rollout", "ppo", "--repeats", "2", "--threads", "3", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("rollout", "ppo"))]
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        ("rollout", "spa", "1.00x"),
        ("rollout", "peer", "3.00x"),
        ("ppo", "spa", "1.00x"),
        ("ppo", "peer", "3.00x"),
    ]
    written = json.loads(path.read_text())
    assert written["machine"] == {"threads": 3}
    assert "torch" in written["versions"]
    assert written["ppo"]["short"]["peers"]["peer"]["per_second"] == 10


def test_a_benchmark_without_peers_is_kept_and_left_out_of_the_table(folder, tmp_path, capsys) -> None:
    (folder / "growth.py").write_text(FAKE.replace('"results": kinds', '"results": [{"seconds": 1.5}]'))
    path = tmp_path / "out.json"
    assert main(["bench", "growth", "rollout", "--json", str(path)]) == 0
    assert not any(line.startswith("growth") for line in capsys.readouterr().out.splitlines())
    assert json.loads(path.read_text())["growth"] == [{"seconds": 1.5}]


def test_mistakes_are_one_line(folder, capsys, monkeypatch) -> None:
    assert main(["bench", "rolout"]) == 2
    assert "Did you mean 'rollout'?" in capsys.readouterr().err
    (folder / "sft.py").write_text("raise SystemExit(3)")
    assert main(["bench", "sft"]) == 2
    assert "the benchmark sft failed (exit code 3)" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(cli_bench, "__file__", "/nowhere/src/spa/cli_bench.py")
    assert main(["bench"]) == 2
    assert "needs the repository" in capsys.readouterr().err


def test_the_repository_has_all_of_them() -> None:
    assert all((benchmarks_folder() / f"{name}.py").is_file() for name in BENCHMARKS)
