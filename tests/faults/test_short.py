"""The part of the faults that ``make test`` has: one run killed, and a full disk under each library that writes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from spa.common.files import append, atomic_file, atomic_folder, atomic_write
from spa.common.lock import locked
from spa.common.signals import terminated_as_interrupted
from spa.config.schema import ModelConfig
from spa.engines.processes import in_processes
from spa.models.load import load_model, load_tokenizer, save_model
from tests.faults.commands import RUN, SMALL, Child, kill_at, living, out
from tests.faults.disk import fill
from tests.faults.kills import Victim

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux")

FEW = [*SMALL, "selfplay.groups=1", "env.max_turns=1"]


def write_parquet() -> None:
    with atomic_file("written") as temporary:
        pq.write_table(pa.table({"text": [str(n) for n in range(5000)]}), temporary)


def write_tokenizer() -> None:
    with atomic_folder("written") as temporary:
        tiny()[1].save_pretrained(temporary)


@cache
def tiny() -> tuple[Any, Any]:
    return load_model(ModelConfig(device="cpu")), load_tokenizer("builtin:tiny")


def write_model(state: dict[str, torch.Tensor]) -> None:
    save_model(*tiny(), "written", state)


def hold_lock() -> None:
    with locked(Path("written")):
        pass


WRITERS: dict[str, tuple[int, Callable[[], object]]] = {
    "text": (4000, lambda: atomic_write("written", "x" * 9000)),
    "a line": (10, lambda: append("written", "x" * 20)),
    "parquet": (4000, write_parquet),
    "a tokenizer": (10_000, write_tokenizer),
    "weights": (100_000, lambda: write_model({})),
    "the trainer's state": (2_000_000, lambda: write_model({"moment": torch.zeros(1_000_000)})),
    "the lock": (0, hold_lock),
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_is_one_error_with_the_path(tmp_path: Path, what: str) -> None:
    limit, write = WRITERS[what]
    tiny()  # once, not in each fork
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        try:
            os.chdir(tmp_path)
            fill(limit)
            write()
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader, encoding="utf-8") as file:
        message = file.read()
    assert message == f"OSError: [Errno 27] File too large: 'written{'/run.lock' if what == 'the lock' else ''}'"
    left = ["written"] if what in ("a line", "the lock") else []
    assert [path.name for path in tmp_path.rglob("*")] == left


def test_an_error_of_another_file_keeps_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), atomic_file(tmp_path / "written"):
        (tmp_path / "nowhere").read_bytes()
    with pytest.raises(ValueError, match="other"), atomic_folder(tmp_path / "written"):
        raise ValueError("other")


def test_a_killed_run_comes_out_the_same_and_is_swept(tmp_path: Path) -> None:
    victim = Victim(["generate", *FEW], None, tmp_path)
    folder = victim.copy("killed")
    child = Child(folder, *out(*victim.argv), before=lambda: kill_at(victim.changes // 2))
    assert child.wait() == -signal.SIGKILL, child.output
    assert (folder / RUN / "run.lock").is_file()
    (folder / RUN / ".run.json.left.tmp").touch()
    child = Child(folder, *out(*victim.argv, resume=True))
    assert child.wait() == 0, child.output
    assert victim.differences(folder) == ([], [])


def test_forks_end_with_their_killed_parent(tmp_path: Path) -> None:
    if not (pid := os.fork()):
        try:
            os.setsid()
            in_processes(lambda number: time.sleep(60), 3)
        finally:
            os._exit(0)
    while len(living(pid)) < 3:
        time.sleep(0.01)
    time.sleep(0.3)  # until they have asked for it
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 30
    while living(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert living(pid) == []


def test_a_block_within_another_leaves_the_signal_to_it() -> None:
    with terminated_as_interrupted():
        outer = signal.getsignal(signal.SIGTERM)
        with terminated_as_interrupted():
            assert signal.getsignal(signal.SIGTERM) is outer
        assert signal.getsignal(signal.SIGTERM) is outer
