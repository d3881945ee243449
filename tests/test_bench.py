"""``make bench``, with the benchmarks replaced by one that prints known numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ("rollout", "sft", "ppo", "step", "worlds", "growth", "memory")

FAKE = """
import json, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
peers = {peer: {"per_second": rate, "lowest": rate - 1, "highest": rate + 1} for peer, rate in (("spa", 30), ("peer", 10))}
kinds = {"short": {"peers": peers}}
open(arguments["--json"], "w").write(json.dumps({"machine": {"threads": int(arguments["--threads"])}, "results": kinds}))
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    shutil.copy(ROOT / "benchmarks" / "__main__.py", folder)
    for name in BENCHMARKS:
        (folder / f"{name}.py").write_text(FAKE)
    return folder


def bench(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})


def test_one_table_of_ratios_and_the_numbers_as_json(folder, tmp_path) -> None:
    path = tmp_path / "out.json"
    lines = bench(folder, "rollout", "ppo", "--repeats", 2, "--threads", 3, "--json", path).stdout.splitlines()
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


def test_a_benchmark_without_peers_is_kept_and_left_out_of_the_table(folder, tmp_path) -> None:
    (folder / "growth.py").write_text(FAKE.replace('"results": kinds', '"results": [{"seconds": 1.5}]'))
    path = tmp_path / "out.json"
    done = bench(folder, "growth", "rollout", "--json", path)
    assert not any(line.startswith("growth") for line in done.stdout.splitlines())
    assert json.loads(path.read_text())["growth"] == [{"seconds": 1.5}]


def test_mistakes_are_one_line(folder) -> None:
    done = bench(folder, "rolout")
    assert done.returncode == 1
    assert "Did you mean 'rollout'?" in done.stderr
    assert "Traceback" not in done.stderr
    (folder / "sft.py").write_text("raise SystemExit(3)")
    done = bench(folder, "sft")
    assert done.returncode == 1
    assert "the benchmark sft failed (exit code 3)" in done.stderr


def test_the_repository_has_all_of_them() -> None:
    assert all((ROOT / "benchmarks" / f"{name}.py").is_file() for name in BENCHMARKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rollout", "sft", "ppo", "step", "worlds"])
def test_our_contestants_run(name: str, tmp_path) -> None:
    options = {"sft": ["--steps", "1", "--step-tokens", "1024"]}.get(name, [])
    sets = [] if name == "worlds" else ["--sets", "short"]
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--repeats", "1", "--threads", "1", *sets]
    command += ["--peers", "spa", *options, "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert all(kind["peers"]["spa"]["per_second"] > 0 for kind in results.values())
