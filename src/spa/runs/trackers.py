"""Experiment trackers by name; each package is imported only when its tracker is used."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from spa.common.clock import measuring
from spa.common.errors import first_line
from spa.common.files import atomic_write
from spa.common.progress import is_quiet, note
from spa.common.secrets import redact
from spa.common.tables import markdown_table
from spa.runs.record import run_around

PROJECT = "spa"
Cell = str | float | bool


@dataclass(frozen=True)
class Tracker:
    """``log`` takes a step and its finite numbers, ``table`` a name, a header and rows; ``close`` whether the work failed."""

    log: Callable[[int, Mapping[str, float]], object]
    close: Callable[[bool], object]
    table: Callable[[str, Sequence[str], Sequence[Sequence[Cell]]], object] = lambda name, header, rows: None


@dataclass(frozen=True)
class _Run:
    """What a tracker is told of a run: a folder for its files, a name, the name of the run's folder, the config, and the step of
    the checkpoint that it goes on from, if any."""

    folder: Path
    name: str
    group: str
    config: Mapping[str, Any]
    resumed_at: int | None


class Trackers:
    """Several trackers as one. One that raises is switched off with a note; ``metrics.jsonl`` has everything, and the run goes on.

    What they print goes to stderr, or nowhere with ``--quiet``. Their start and end do not count as a stage's time.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Tracker]] | None = None) -> None:
        self._trackers: dict[str, Tracker] = {}
        with measuring():
            for name, make in (makers or {}).items():
                with self._guarded(name):
                    self._trackers[name] = make()

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._each(lambda tracker: tracker.log(step, numbers))

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self._each(lambda tracker: tracker.table(title, header, rows))

    def close(self, failed: bool = False) -> None:
        with measuring():
            self._each(lambda tracker: tracker.close(failed))
        self._trackers = {}

    def _each(self, do: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                do(tracker)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        with redirect_stdout(io.StringIO() if is_quiet() else sys.stderr):
            try:
                yield
            except Exception as error:  # theirs are of many types
                self._trackers.pop(name, None)
                note(
                    f"report.trackers: {name} failed and is switched off ({type(error).__name__}: {redact(first_line(error))})"
                )


def _tensorboard(run: _Run) -> Tracker:
    """Event files in ``folder/tensorboard``; tables and config as text."""
    module = _import("torch.utils.tensorboard", "tensorboard")
    purge = None if run.resumed_at is None else run.resumed_at + 1
    writer = module.SummaryWriter(log_dir=str(run.folder / "tensorboard"), purge_step=purge)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        lines = markdown_table(header, [[_short(cell) for cell in row] for row in rows])
        writer.add_text(title, "\n".join(lines))

    if run.config:
        writer.add_text("config", "    " + json.dumps(run.config, indent=1, default=str).replace("\n", "\n    "))
    return Tracker(log, lambda failed: writer.close(), table)


def _wandb(run: _Run) -> Tracker:
    """A Weights & Biases run; ``WANDB_*`` environment variables apply (``WANDB_MODE=offline`` needs no account).

    Its id is stored, so that a resumed stage goes on with the same run; steps that it has already are ignored there.
    """
    wandb = _import("wandb", "wandb")
    stored = run.folder / "wandb" / "spa-run-id"
    stored.parent.mkdir(parents=True, exist_ok=True)
    if not stored.is_file():
        atomic_write(stored, uuid4().hex)
    opened = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.name,
        group=run.group,
        id=stored.read_text(encoding="utf-8"),
        resume="allow",
        dir=str(run.folder),
        config=dict(run.config),
        settings={"silent": is_quiet()},
    )

    def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        opened.log({title: wandb.Table(columns=list(header), data=[list(row) for row in rows])})

    return Tracker(
        lambda step, metrics: opened.log(dict(metrics), step=step),
        lambda failed: opened.finish(exit_code=int(failed)),
        table,
    )


def _trackio(run: _Run) -> Tracker:
    """A local Trackio project; it gets no tables."""
    trackio = _import("trackio", "trackio")
    resume = "never" if run.resumed_at is None else "allow"
    trackio.init(project=PROJECT, name=run.name, group=run.group, config=dict(run.config), resume=resume)
    return Tracker(lambda step, metrics: trackio.log(dict(metrics), step=step), lambda failed: trackio.finish())


def make_trackers(
    names: Sequence[str],
    folder: str | os.PathLike[str],
    name: str,
    config: Mapping[str, Any] | None = None,
    *,
    resumed_at: int | None = None,
) -> Trackers:
    """Starts the trackers ``names``; a note says which could not be started.

    Args:
        names: from ``TRACKERS``.
        folder: for trackers that write files; the name of the run's folder, which this or an outer one is, precedes ``name``.
        name: what it is in the run, such as a stage.
        config: the resolved config as nested dictionaries.
        resumed_at: the step of the checkpoint that training goes on from.
    """
    around = run_around(Path(folder).absolute())
    group = redact(around.name) if around else ""
    run = _Run(Path(folder), f"{group}: {name}" if group else name, group, config or {}, resumed_at)
    return Trackers({tracker: partial(TRACKERS[tracker], run) for tracker in names})


def check_trackers(names: Iterable[str]) -> None:
    """Checks that the trackers' packages are installed, without importing them, and that wandb need not ask for a key.

    Raises:
        ValueError: one is not (the message names the extra), or there is no key.
    """
    for tracker in names:
        if tracker not in sys.modules or sys.modules[tracker] is None:
            spec = find_spec(tracker)
            if spec is None or spec.origin is None:  # a folder `wandb` in the working directory is not a package
                raise ValueError(_missing(tracker))
        if tracker == "wandb" and os.environ.get("WANDB_MODE", "online") in ("online", "shared"):
            with suppress(TypeError):  # older versions know no ``prompt``
                if not _import("wandb", "wandb").login(prompt=False, verify=False):
                    raise ValueError(
                        "report.trackers: wandb has no API key: run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline"
                    )


def _short(cell: Cell) -> str:
    text = f"{cell:.4g}" if isinstance(cell, float) else str(cell)
    return " ".join(text.replace("|", "/").split())[:200]


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(_missing(extra)) from error


def _missing(extra: str) -> str:
    return f"report.trackers: {extra} is not installed; install it with: pip install 'spa-agent[{extra}]'"


# The names are also those of the packages and of the extras.
TRACKERS: dict[str, Callable[[_Run], Tracker]] = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}
