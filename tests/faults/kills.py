"""Runs that are killed again and again and resumed, compared with one that was left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.commands import RUN, Child, contents, damages, kill_at, on_operation, out

SEED = int(os.environ.get("FAULTS_SEED", "0"))


@dataclass
class Tally:
    """What became of the killed runs of one command."""

    kills: int = 0
    at_changes: int = 0  # of these: right before a change of the file system, the others after a random time
    runs: int = 0
    lost: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)
    litter: list[str] = field(default_factory=list)

    def line(self, title: str) -> str:
        return (
            f"{title}: {self.kills} kills ({self.kills - self.at_changes} at random times, {self.at_changes} before a change of "
            f"the file system) on {self.runs} runs: {len(self.lost)} lost, {len(self.unequal)} unequal files, "
            f"{len(self.litter)} left behind"
        )

    def wrong(self) -> list[str]:
        return [*self.lost, *self.unequal, *self.litter]


class Victim:
    """A command to kill, and what it makes where it is left alone.

    Args:
        argv: without ``--out``.
        before: a run folder with the stages before, or None.
        scratch: an empty folder.
    """

    def __init__(self, argv: Sequence[str], before: Path | None, scratch: Path) -> None:
        self.argv, self.before, self.scratch = argv, before, scratch
        whole, counter = self.copy("whole"), os.open(scratch / "changes", os.O_WRONLY | os.O_CREAT)
        child = Child(whole, *out(*argv), before=lambda: on_operation(lambda n: os.write(counter, b".")))
        assert child.wait() == 0, child.output
        self.seconds, self.changes = child.seconds(), os.fstat(counter).st_size
        os.close(counter)
        self.expected = contents(whole / RUN)

    def copy(self, name: str) -> Path:
        """A working directory with the run folder as the command finds it."""
        folder = self.scratch / name
        folder.mkdir()
        if self.before is not None:
            shutil.copytree(self.before, folder / RUN)
        return folder

    def kill(self, kills: int, most: int, seed: int) -> Tally:
        """Kills it ``kills`` times, a run at most ``most`` times before it may finish.

        Every other kill takes the whole session, as a batch system's does; the rest the main process alone.
        """
        tally, rng = Tally(), random.Random(seed)
        while tally.kills < kills:
            folder = self.copy(f"run-{tally.runs}")
            tally.runs += 1
            for _ in range(min(most, kills - tally.kills)):
                if not self._killed(folder, tally, rng):
                    break
            self._compare(folder, tally)
            shutil.rmtree(folder)
        return tally

    def _killed(self, folder: Path, tally: Tally, rng: random.Random) -> bool:
        """Starts or resumes and kills; False if it ended before."""
        at, moment, group = rng.random() < 0.5, rng.uniform(0, self.seconds), rng.random() < 0.5
        number = rng.randint(1, self.changes)
        child = Child(folder, *out(*self.argv, resume=True), before=lambda: kill_at(number) if at else None)
        while (ended := child.ended()) is None:
            if not at and child.seconds() >= moment:
                try:
                    (os.killpg if group else os.kill)(child.pid, signal.SIGKILL)
                except ProcessLookupError:  # so young that it has no session of its own yet
                    os.kill(child.pid, signal.SIGKILL)
                ended = child.wait()
                break
            time.sleep(0.01)
        if ended == -signal.SIGKILL:
            tally.kills, tally.at_changes = tally.kills + 1, tally.at_changes + at
            tally.litter += [f"process {pid} of {self.argv[0]} lives on" for pid in child.left()]
            return True
        if ended != 0:
            tally.lost.append(f"{folder}: exit {ended}: {child.output}")
        return False

    def _compare(self, folder: Path, tally: Tally) -> None:
        child = Child(folder, *out(*self.argv, resume=True))
        if (code := child.wait()) != 0:
            tally.lost.append(f"{folder}: exit {code}: {child.output}")
            return
        unequal, litter = self.differences(folder)
        tally.unequal += unequal
        tally.litter += litter

    def differences(self, folder: Path) -> tuple[list[str], list[str]]:
        """Files of ``folder/run`` that are not as expected, and what should not be there."""
        found = contents(folder / RUN)
        unequal = [f"{folder}/{name}" for name in self.expected if found.get(name) != self.expected[name]]
        litter = [f"{folder}/{name}" for name in found if name not in self.expected]
        beside = [str(path) for path in folder.iterdir() if path.name != RUN]
        return unequal + damages(folder / RUN), litter + beside
