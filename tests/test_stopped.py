"""A run in a process of its own: who else may write meanwhile, and how SIGTERM ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import spa
from spa.cli import main
from tests.test_pipeline import SMALL

LONG = ["generate", "frozen_lake", *SMALL, "model.threads=2", "sampling.processes=2", "selfplay.groups=5000"]


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("group", [True, False], ids=["the whole group", "the process alone"])
def test_a_run_is_written_by_one_process_and_ends_with_sigterm(tmp_path: Path, capsys, group: bool) -> None:
    out = tmp_path / "r"
    environment = {**os.environ, "PYTHONPATH": str(Path(spa.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "spa", *LONG, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        # Its first child is git, for the record of the command.
        wait_for(lambda: (out / "run.json").is_file() and children(process.pid), process)
        assert (out / "run.lock").is_file()
        files = sorted(out.rglob("*"))
        for more in ([], ["--resume"]):
            assert main([*LONG, "--out", str(out), "--quiet", *more]) == 2
            error = capsys.readouterr().err
            assert f"{out} is being written by process {process.pid} on " in error
            assert error.count("\n") == 1
        assert [path for path in files if path.exists()] == files
        assert main(["report", str(out)]) == 0
        forks = children(process.pid)
        for _ in range(2):  # as `timeout` does
            os.killpg(process.pid, signal.SIGTERM) if group else process.terminate()
        printed, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 143
    said = [line for line in errors.splitlines() if not line.startswith(("self-play", "spa "))]
    assert said == [f"Terminated. Continue with: spa generate --out {out} --resume"]
    assert printed == ""
    assert not any(alive(fork) for fork in forks)
    assert not (out / "run.lock").exists()
