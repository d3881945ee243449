"""Ctrl-C and SIGTERM at any time: the exit code of each, one line that says how to resume, and that line is right."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import spa
from tests.faults.commands import RUN, SMALL, SPLIT, STAGES, Child, catches, out
from tests.faults.kills import SEED, Victim

pytestmark = [pytest.mark.faults, pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")]

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
WORDS = {signal.SIGTERM: "Terminated.", signal.SIGINT: "Interrupted."}
AGAIN = "Nothing was written: give the same command again"
CONTINUE = "Continue with: spa "


def how_to_resume(output: str, number: signal.Signals, argv: list[str]) -> list[str]:
    """The arguments that the one line of output says to continue with; those given, if nothing was written."""
    (line,) = output.splitlines()
    word, _, how = line.partition(" ")
    assert word == WORDS[number]
    if how in ("", AGAIN):
        return argv
    assert how.startswith(CONTINUE), line
    return [*shlex.split(how.removeprefix(CONTINUE)), "--quiet"]


@pytest.mark.parametrize("stage", STAGES)
def test_interrupted_runs_say_how_to_resume_and_come_out_the_same(
    before: dict[str, Path], tmp_path: Path, figure: Callable[[str], None], stage: str
) -> None:
    settings = [*STAGES[stage], *SMALL, *(SPLIT if stage == "eval" else [])]
    victim = Victim(settings, before.get(stage), tmp_path)
    rng = random.Random(SEED)
    signals = runs = 0
    while signals < 4:
        folder, argv = victim.copy(f"run-{runs}"), out(*settings)
        runs += 1
        for _ in range(3):
            child, number = Child(folder, *argv), rng.choice(list(CODES))
            while not catches(child.pid, signal.SIGTERM):
                assert child.ended() is None, child.output
                time.sleep(0.001)
            moment = child.seconds() + rng.uniform(0, victim.seconds)
            while (ended := child.ended()) is None and child.seconds() < moment:
                time.sleep(0.01)
            if ended is None:
                os.kill(child.pid, number)
                ended = child.wait()
            if ended == 0:  # it was at its end
                break
            assert ended == CODES[number], child.output
            signals += 1
            argv = how_to_resume(child.output, number, argv)
            assert child.left() == []
            assert not (folder / RUN / "run.lock").exists()
        else:
            child = Child(folder, *argv)
            assert child.wait() == 0, child.output
        assert victim.differences(folder) == ([], []), argv
        shutil.rmtree(folder)
    figure(f"{stage}: {signals} SIGTERM or SIGINT at random times on {runs} runs: all resumed as told, 0 unequal files")


def test_a_program_of_its_own(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """With its start, in which packages are imported for seconds, and its end."""
    rng, environment = random.Random(SEED), {**os.environ, "PYTHONPATH": str(Path(spa.__file__).parents[1])}
    argv = out("generate", *SMALL)

    def begin(folder: Path) -> subprocess.Popen[str]:
        folder.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "spa", *argv],
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        )
        while not catches(process.pid, signal.SIGTERM):
            time.sleep(0.001)
        return process

    whole, began = begin(tmp_path / "whole"), time.monotonic()
    assert whole.wait(timeout=60) == 0
    lasts = 0.7 * (time.monotonic() - began)  # one that goes on has less to do
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        process = begin(tmp_path / "stopped")
        time.sleep(rng.uniform(0, lasts))
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        # Python ends itself with SIGINT where that interrupted an import's exec: a shell reads 130 either way.
        assert process.returncode in (CODES[number], -number), output
        argv = how_to_resume(output, number, argv)
    figure("python -m spa: 4 SIGTERM or SIGINT during its start: exit 143 or 130, one line")
