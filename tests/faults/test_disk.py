"""Where nothing can be written a command ends with one line that names the path, and goes on once there is room."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.faults.commands import RUN, SMALL, STAGES, Child, contents, kill_at, on_operation, out
from tests.faults.disk import fill, full_from, obey_permissions
from tests.faults.kills import SEED, Victim

pytestmark = [pytest.mark.faults, pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux")]

# What is about to be written when the disk is full, and the bytes that a file may still have.
WRITES: dict[str, list[tuple[str, int]]] = {
    "generate": [
        *(("run.lock", 0), ("config.yaml", 0), ("run.json", 0), ("episodes.partial.jsonl", 3000)),
        *((".episodes.jsonl", 5000), (".train.parquet", 2000), (".val.parquet", 0), (".stats.json", 0), (".done.json", 0)),
    ],
    "sft": [
        *(("run.json", 0), ("metrics.jsonl", 100), (".global_step_1", 0), ("seconds.json", 0), (".global_step_2", 10_000)),
        *((".global_step_2", 1_000_000), ("trainer_state.pt", 2_000_000), ("trainer_state.pt", 0), ("manifest.json", 0)),
        (".done.json", 0),
    ],
    "ppo": [
        *(("probe.jsonl", 0), ("metrics.jsonl", 100), (".step_000001", 0), (".global_step_1", 1_000_000)),
        *(("trainer_state.pt", 10_000), (".step_000003", 4000), (".done.json", 0)),
    ],
    "eval": [
        *(("partial.jsonl", 3000), (".result.json", 0), (".episodes.jsonl", 100), ("samples.jsonl.gz", 100), (".done.json", 0)),
        ("run.json", 0),
    ],
}  # fmt: skip


def one_line(child: Child) -> str:
    """The error: one line that names a path of the run folder."""
    line = child.output.rstrip("\n")
    assert line.startswith("Error: [Errno ") and "\n" not in line, line
    assert f"{RUN}/" in line or line.endswith(f"{RUN}'"), line
    assert ".tmp" not in line, line
    return line


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk(before: dict[str, Path], tmp_path: Path, figure: Callable[[str], None], stage: str) -> None:
    """One run per stage in which each write fails in turn, and then some at random."""
    victim, rng = Victim([*STAGES[stage], *SMALL], before.get(stage), tmp_path), random.Random(SEED)
    folder = victim.copy("full")
    for name, limit in WRITES[stage]:
        child = Child(folder, *out(*victim.argv, resume=True), before=lambda n=name, k=limit: full_from(n, k))
        assert child.wait() == 2, (name, child.output)
        one_line(child)
    random_ones = 0
    for _ in range(5):
        number = rng.randint(1, victim.changes)
        child = Child(
            folder,
            *out(*victim.argv, resume=True),
            before=lambda number=number: on_operation(lambda n: fill() if n == number else None),
        )
        code = child.wait()
        if code == 0:
            break
        assert code == 2, child.output
        one_line(child)
        random_ones += 1
    child = Child(folder, *out(*victim.argv, resume=True))
    assert child.wait() == 0, child.output
    assert victim.differences(folder) == ([], [])
    figure(
        f"{stage}: the disk full at {len(WRITES[stage])} kinds of writes and {random_ones} random ones: one line each, resumed, "
        "0 unequal files"
    )


COMMANDS = {
    "rows": (
        ["data", "convert", f"{RUN}/selfplay/train.parquet", "--to", "messages", "--out", "x.parquet"],
        "x.parquet",
    ),
    "report": (["report", RUN], "report.html"),
    "export": (["export", RUN, "--to", "model"], "model"),
    "data": (["data", "export", f"{RUN}/selfplay", "--format", "verifiers", "--out", "rows.jsonl"], "rows.jsonl"),
}


@pytest.mark.parametrize("what", COMMANDS)
def test_a_full_disk_or_read_only_folder_elsewhere(before: dict[str, Path], tmp_path: Path, what: str) -> None:
    argv, path = COMMANDS[what]
    shutil.copytree(before["eval"], tmp_path / RUN)
    whole = contents(tmp_path / RUN)
    child = Child(tmp_path, *argv, before=lambda: full_from(f".{path}"))
    assert child.wait() == 2, child.output
    (line,) = child.output.splitlines()
    assert line.startswith("Error: [Errno 27]")
    assert path in line
    assert ".tmp" not in line
    (tmp_path / RUN).chmod(0o555)
    tmp_path.chmod(0o555)
    child = Child(tmp_path, *argv, before=obey_permissions)
    code = child.wait()
    tmp_path.chmod(0o755)
    (tmp_path / RUN).chmod(0o755)
    assert code == 2, child.output
    (line,) = child.output.splitlines()
    assert line.startswith("Error: [Errno 13] Permission denied: ")
    assert path in line
    assert contents(tmp_path / RUN) == whole
    child = Child(tmp_path, *argv)
    assert child.wait() == 0, child.output


@pytest.mark.parametrize("stage", STAGES)
def test_a_read_only_folder(before: dict[str, Path], tmp_path: Path, figure: Callable[[str], None], stage: str) -> None:
    victim = Victim([*STAGES[stage], *SMALL], before.get(stage), tmp_path)
    folder = victim.copy("read-only")
    (folder / RUN).mkdir(exist_ok=True)
    sealed = [path for path in [folder, *folder.rglob("*")] if path.is_dir()]
    for path in sealed:
        path.chmod(0o555)
    argv = out(*victim.argv, resume=True)
    child = Child(folder, *argv, before=obey_permissions)
    code = child.wait()
    for path in sealed:
        path.chmod(0o755)
    assert code == 2, child.output
    assert "Permission denied" in one_line(child)
    child = Child(folder, *argv)
    assert child.wait() == 0, child.output
    assert victim.differences(folder) == ([], [])
    figure(f"{stage}: a read-only folder: one line, resumed, 0 unequal files")


def jumping_clock() -> None:
    """``time.time`` goes an hour back and a day on by turns, and starts a year ago."""
    true, calls = time.time, count()
    time.time = lambda: true() - 365 * 86400 + (86400 if next(calls) % 2 else -3600)


@pytest.mark.parametrize("stage", STAGES)
def test_a_clock_that_jumps(before: dict[str, Path], tmp_path: Path, figure: Callable[[str], None], stage: str) -> None:
    victim = Victim([*STAGES[stage], *SMALL], before.get(stage), tmp_path)
    folder, argv = victim.copy("clock"), out(*victim.argv, resume=True)
    child = Child(folder, *argv, before=lambda: kill_at(victim.changes // 2))
    assert child.wait() == -9, child.output
    for path in folder.rglob("*"):  # written ten years from now
        os.utime(path, (time.time() + 10 * 365 * 86400,) * 2)
    child = Child(folder, *argv, before=jumping_clock)
    assert child.wait() == 0, child.output
    assert victim.differences(folder) == ([], [])
    figure(f"{stage}: killed, its files from the future, its clock jumping: 0 unequal files")
