"""One process at a time writes a run folder, and a killed one does not keep the next out."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import spa
from spa.agent.episode_store import EpisodeStore
from spa.common import lock
from spa.common.files import append
from spa.common.lock import NAME, check_free, locked
from spa.engines.processes import can_fork
from spa.planning.journal import Journal
from spa.runs.metrics import MetricsLog

HOLD = "import sys, time; from pathlib import Path; from spa.common.lock import locked\n"
HOLD += "with locked(Path(sys.argv[1])):\n    {more}\n    print('held', flush=True); time.sleep(60)\n"


def start(folder: Path, more: str = "pass") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(spa.__file__).parents[1])}
    command = [sys.executable, "-c", HOLD.format(more=more), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """In a run folder of others: to a file of the user's."""
    mine = tmp_path / "mine"
    mine.write_text("no line's end")
    for name in (NAME, "metrics.jsonl", "episodes.partial.jsonl", "answers.jsonl"):
        (tmp_path / name).symlink_to(mine)
    journal = Journal(tmp_path / "answers.jsonl", "model")
    for write in (
        lambda: check_free(tmp_path),
        lambda: locked(tmp_path).__enter__(),
        lambda: MetricsLog(tmp_path / "metrics.jsonl"),
        lambda: EpisodeStore(tmp_path / "episodes.partial.jsonl"),
        lambda: append(tmp_path / "metrics.jsonl", "more"),
        lambda: journal.replay([]),
    ):
        with pytest.raises(ValueError, match="is a symbolic link, through which nothing is written"):
            write()
    assert mine.read_text() == "no line's end"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes the folder ``run``."""
    process = start(tmp_path / "run")
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_told_who_writes(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    who = rf"run is being written by process {other.pid} on {socket.gethostname()} since 20\d\d-\S+ \S+; wait or give another"
    with pytest.raises(ValueError, match=who):
        check_free(tmp_path / "run")
    with pytest.raises(ValueError, match=who), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "run" / NAME).is_file()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path, other: subprocess.Popen[str], capsys) -> None:
    other.kill()
    other.wait()
    check_free(tmp_path / "run")
    with locked(tmp_path / "run"):
        note = capsys.readouterr().err
    assert f"process {other.pid} on" in note and "ended without finishing" in note
    assert note.count("\n") == 1
    assert not (tmp_path / "run" / NAME).exists()


def _is_held(folder: Path) -> bool:
    try:
        check_free(folder)
    except ValueError:
        return True
    return False


@pytest.mark.skipif(not can_fork(), reason="no forks here")
def test_forks_of_a_killed_process_do_not_hold_it(tmp_path: Path) -> None:
    more = "import os\n    if not os.fork(): time.sleep(60)"
    process = start(tmp_path / "run", more)
    (fork,) = (int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    try:
        with pytest.raises(ValueError, match="being written"):
            check_free(tmp_path / "run")
        process.kill()
        process.wait()
        os.kill(fork, 0)  # it lives on
        deadline = time.monotonic() + 30
        while _is_held(tmp_path / "run") and time.monotonic() < deadline:
            time.sleep(0.05)  # on a busy machine the fork may not have run at all yet
        check_free(tmp_path / "run")
    finally:
        os.kill(fork, signal.SIGKILL)


def test_it_ends_with_the_block_also_on_errors(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "deep" / "run"
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), locked(folder):
            raise error
        assert list(folder.iterdir()) == []
    with locked(folder):
        with pytest.raises(ValueError, match=f"by process {os.getpid()} on"), locked(folder):
            pass
        assert (folder / NAME).is_file()
    assert capsys.readouterr().err == "", "nothing was killed"


def test_asking_writes_nothing(tmp_path: Path) -> None:
    check_free(tmp_path / "none")
    check_free(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_its_holder_just_removed_is_no_lock(tmp_path: Path, monkeypatch) -> None:
    """Who opened the file before its holder removed it holds nothing."""
    original, calls = lock._lock, []

    def late(descriptor: int, folder: Path) -> bool:
        if not calls:
            (folder / NAME).unlink()
        calls.append(descriptor)
        return original(descriptor, folder)

    monkeypatch.setattr(lock, "_lock", late)
    with locked(tmp_path):
        assert len(calls) == 2
        assert (tmp_path / NAME).is_file()


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch, capsys) -> None:
    import fcntl

    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locked(tmp_path):
        assert "no locks" in capsys.readouterr().err
