"""One stage of a run: its folder, completion marker and metrics."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spa.common.checkpoints import latest_checkpoint, remove_later
from spa.common.clock import Elapsed, storing_time, training_time
from spa.common.files import atomic_folder, atomic_write, expanded, remove_folder
from spa.common.manifest import damage, say
from spa.common.progress import duration, note
from spa.common.secrets import redact, shown
from spa.config.schema import Config
from spa.runs.metrics import MetricsLog
from spa.runs.record import DONE, PLAYED, SECONDS, damaged_files, model_in, read_done, unfinished_work, write_record
from spa.runs.trackers import make_trackers
from spa.scale import ranks

_LOST = 1.0  # seconds of an interrupted stage that may go uncounted: a write takes milliseconds, and episodes end by the thousand


def model_of(path: str, setting: str = "ppo.start") -> str:
    """The model of a checkpoint folder or hub name (itself), or of a finished or interrupted stage's folder.

    Raises:
        ValueError: the folder is none of these.
    """
    folder = expanded(path)
    if not folder.is_dir() or (folder / "config.json").is_file():
        return path
    done = read_done(folder)
    if done is not None and "model" in done:
        return str(model_in(folder, done))
    checkpoint = latest_checkpoint(folder)
    if checkpoint is None:
        raise ValueError(
            f"{setting}={path} holds no model: give a checkpoint (.../global_step_N) or the folder of a stage (.../sft, .../ppo)"
        )
    return str(checkpoint[1])


def reopen_as(source: Path, folder: Path) -> None:
    """Copies a finished stage to ``folder`` as an unfinished one, so that it can be resumed; elapsed time carries over."""
    done = read_done(source)
    assert done is not None, f"{source} is not finished"
    with atomic_folder(folder) as partial:
        shutil.copytree(source, partial, ignore=shutil.ignore_patterns(DONE), dirs_exist_ok=True)
        atomic_write(partial / SECONDS, json.dumps(Elapsed.from_record(done).record()))


def reopen_episodes(folder: Path) -> None:
    """Turns a finished stage 1 into an interrupted one that has played all its episodes; elapsed time carries over."""
    done = read_done(folder)
    assert done is not None, f"{folder} is not finished"
    if (episodes := folder / "episodes.jsonl").is_file():
        # Killed here, the stage is still finished: its episodes must still be there.
        partial = folder / f"{PLAYED}.partial"
        partial.unlink(missing_ok=True)
        try:
            partial.hardlink_to(episodes)
        except OSError:  # a file system without hard links
            shutil.copyfile(episodes, partial)
        partial.replace(folder / PLAYED)
    atomic_write(folder / SECONDS, json.dumps(Elapsed.from_record(done).record()))
    (folder / DONE).unlink()


def _whole_record(folder: Path, remake: bool) -> tuple[dict[str, Any] | None, bool]:
    """The record of a finished stage, or None if it must go on because something is damaged, and whether it must start again.

    The damage is said. What is left is an unfinished stage.
    """
    try:
        done = read_done(folder)
    except ValueError as error:
        say(f"{error}")
        (folder / DONE).unlink()
        return None, False
    if done is None:
        return None, False
    lines, model = damaged_files(folder, done), str(done.get("model"))
    product = folder / model if model.startswith("checkpoints/") else None
    broken = [] if product is None else damage(product) if product.is_dir() else [f"{product} is missing"]
    kept = "" if remake else "; it can be made again only with the whole stage, and stays as it is"
    for line in [*broken, *(f"{line}{kept}" for line in lines)]:
        say(line)
    if product is not None and broken:  # trained on from a later one, the best would never be made again
        remove_later(product)
    again = remake and bool(lines)
    if not (again or broken):
        return done, False
    atomic_write(folder / SECONDS, json.dumps(Elapsed.from_record(done).record()))
    (folder / DONE).unlink()
    return None, again


def _clear(folder: Path) -> None:
    """Deletes what a finished stage no longer needs."""
    for path in unfinished_work(folder):
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink(missing_ok=True)


class Stage:
    """A stage about to run in ``folder``.

    With ``resume``, a finished stage is skipped (``finished``), and an unfinished one continues from its last checkpoint, or
    starts again if it has none. Without it, files of an earlier attempt are removed. With ``resume``, ``keep``
    preserves files of an attempt without a checkpoint, for a stage that can use them.

    Damage in a finished stage is named. If it is in the record or in the model that the stage gives, the stage continues from its
    newest whole checkpoint before that; if it is in other files, the stage runs again with ``remake``, and without it they stay as
    they are.

    Times are measured by ``spa.common.clock``, which excludes validation. ``seconds.json`` holds the time up to the last
    checkpoint or other stored work: a resumed stage adds its own to it.
    """

    def __init__(self, folder: Path, title: str, resume: bool, *, keep: bool = False, remake: bool = False) -> None:
        self.folder = folder
        self.title = title
        ranks.set_place(title)
        self.finished, self.resume = ranks.on_main(lambda: self._open(resume, keep, remake))
        self.started = training_time()

    def _open(self, resume: bool, keep: bool, remake: bool) -> tuple[bool, bool]:
        """Prepares the folder; returns ``finished`` and ``resume``."""
        folder, title = self.folder, self.title
        done, again = _whole_record(folder, remake) if resume else (None, False)
        if done is not None:
            _clear(folder)  # it may have been killed right after it had finished
            note(f"{title}: done before ({folder}), skipped")
            return True, True
        checkpoint = latest_checkpoint(folder) if resume else None
        if checkpoint:
            note(f"{title}: resuming from {checkpoint[1]}")
        elif folder.exists() and (again or not (resume and keep)):
            remove_folder(folder)
        self.before = self._elapsed_before(checkpoint is not None or (resume and keep))
        folder.mkdir(parents=True, exist_ok=True)
        return False, checkpoint is not None

    def _elapsed_before(self, continued: bool) -> Elapsed:
        path = self.folder / SECONDS
        if not continued or not path.is_file():
            return Elapsed()
        try:
            return Elapsed.from_record(json.loads(path.read_bytes()))
        except (ValueError, LookupError, TypeError):
            say(f"{path} is damaged: the time of the stage counts from here")
            return Elapsed()

    def _elapsed(self) -> Elapsed:
        return self.before + (training_time() - self.started)

    @contextmanager
    def storing_time(self) -> Iterator[None]:
        """In the block, the time so far is written down whenever work is stored (``work_stored``)."""
        if not ranks.is_main():
            yield
            return
        stored = -math.inf

        def store() -> None:
            nonlocal stored
            elapsed = self._elapsed()
            if elapsed.wall - stored >= _LOST:
                stored = elapsed.wall
                atomic_write(self.folder / SECONDS, json.dumps(elapsed.record()))

        with storing_time(store):
            yield

    @contextmanager
    def metrics(self, cfg: Config) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
        """A function that logs (step, metrics), on the main rank; on resume, steps after the checkpoint's are dropped.

        In the block the time is stored, as in ``storing_time``.
        """
        if not ranks.is_main():
            yield lambda step, metrics: None
            return
        name = redact(f"{cfg.name}, {self.title}")
        checkpoint = latest_checkpoint(self.folder) if self.resume else None
        step = checkpoint[0] if checkpoint else None
        trackers = make_trackers(cfg.report.trackers, self.folder, name, shown(cfg), resumed_at=step)
        with MetricsLog(self.folder / "metrics.jsonl", trackers) as log, self.storing_time():
            if step is not None:
                log.truncate_after(step)
            yield log.log

    def complete(self, work: Callable[[], Mapping[str, Any]]) -> None:
        """Does all the work of a stage without steps, and finishes it with the result."""
        with self.storing_time():
            result = work()
        self.finish(result)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Marks the stage as finished and reports how long it took."""
        others = sum(ranks.gather((training_time() - self.started).cpu)[1:])
        ranks.on_main(lambda: self._finish(result, others))

    def _finish(self, result: Mapping[str, Any], others: float) -> None:
        """``others``: CPU seconds of the other ranks."""
        elapsed = self._elapsed() + Elapsed(cpu=others)
        atomic_write(self.folder / DONE, write_record(self.folder, {**elapsed.record(), **result}))
        _clear(self.folder)
        note(f"{self.title}: {duration(elapsed.wall)}")
