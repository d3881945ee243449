"""One stage of a run: its folder, its mark of completion, its metrics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spa.common.checkpoints import latest_checkpoint
from spa.common.clock import Spent, training_time
from spa.common.files import atomic_write, remove_folder, sweep
from spa.common.progress import duration, note
from spa.common.secrets import redact, shown
from spa.config.schema import Config
from spa.run.metrics import MetricsLog
from spa.run.trackers import Tracker, make_trackers


def read_done(folder: Path) -> dict[str, Any] | None:
    """What a finished stage recorded (``seconds``, ``cpu_seconds`` and its own results), or None if it has not finished."""
    path = folder / "done.json"
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to run the stage again") from error
    return data if isinstance(data, dict) else None


def model_of(path: str, setting: str = "ppo.start") -> str:
    """The model of a checkpoint folder or hub name (itself), or of the folder of a finished or an interrupted stage.

    Raises:
        ValueError: a folder that is none of these.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir() or (folder / "config.json").is_file():
        return path
    done = read_done(folder)
    if done is not None and "model" in done:
        return str(folder / str(done["model"]))
    found = latest_checkpoint(folder)
    if found is None:
        raise ValueError(
            f"{setting}={path} holds no model: give a checkpoint (.../global_step_N) or the folder of a stage (.../sft, .../ppo)"
        )
    return str(found[1])


def reopen_as(source: Path, folder: Path) -> None:
    """Copies a finished stage to ``folder`` as one that was stopped at its end: it can be gone on with, its time counted in."""
    done = read_done(source)
    assert done is not None, f"{source} is not finished"
    half = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source, half, ignore=shutil.ignore_patterns("done.json"))
    atomic_write(half / "seconds.json", json.dumps(Spent.of(done).record()))
    shutil.rmtree(folder, ignore_errors=True)
    half.rename(folder)


class Stage:
    """A stage about to run in ``folder``.

    With ``resume`` a finished stage says that it is skipped (``finished``), and an unfinished one goes on from its last
    checkpoint if it has one and starts anew if not; without, what an earlier try left there is removed. ``keep`` leaves what an
    unfinished try left there, for a stage that knows what to do with it.

    Its time is that of ``spa.common.clock``: without validation.
    """

    def __init__(self, folder: Path, title: str, resume: bool, *, keep: bool = False) -> None:
        self.folder = folder
        self.title = title
        sweep(folder)
        done = read_done(folder) if resume else None
        self.finished = done is not None
        if done is not None:
            note(f"{title}: done before ({folder}), skipped")
            self.resume = True
            return
        found = latest_checkpoint(folder) if resume else None
        self.resume = found is not None
        if found:
            note(f"{title}: resuming from {found[1]}")
        elif folder.exists() and not (resume and keep):
            remove_folder(folder)
        self.started = training_time()
        self.before = self._spent_before()
        folder.mkdir(parents=True, exist_ok=True)

    def _spent_before(self) -> Spent:
        path = self.folder / "seconds.json"
        return Spent.of(json.loads(path.read_text())) if self.resume and path.is_file() else Spent()

    def _spent(self) -> Spent:
        return self.before + (training_time() - self.started)

    def _trackers(self, cfg: Config) -> list[Tracker]:
        return make_trackers(cfg.report.trackers, self.folder, redact(f"{cfg.name}, {self.title}"), shown(cfg))

    @contextmanager
    def metrics(self, cfg: Config) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
        """A function that logs (step, metrics) of this stage; on resume, later steps than the checkpoint's are dropped."""
        log = MetricsLog(self.folder / "metrics.jsonl", self._trackers(cfg))
        found = latest_checkpoint(self.folder)
        if self.resume and found:
            log.truncate_after(found[0])

        def write(step: int, metrics: Mapping[str, float]) -> None:
            log.log(step, metrics)
            atomic_write(self.folder / "seconds.json", json.dumps(self._spent().record()))

        try:
            yield write
        finally:
            log.close()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Marks the stage as finished and says how long it took."""
        spent = self._spent()
        atomic_write(self.folder / "done.json", json.dumps({**spent.record(), **result}, indent=1) + "\n")
        (self.folder / "seconds.json").unlink(missing_ok=True)
        note(f"{self.title}: {duration(spent.wall)}")
