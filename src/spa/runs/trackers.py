"""Experiment trackers by name; each package is imported only when its tracker is used."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spa.common.tables import markdown_table

PROJECT = "spa"
Cell = str | float | bool


@dataclass(frozen=True)
class Tracker:
    """``log`` takes a step and its finite numbers, ``table`` a name, a header and rows; ``close`` ends the run."""

    log: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]
    table: Callable[[str, Sequence[str], Sequence[Sequence[Cell]]], None] = lambda name, header, rows: None


def _tensorboard(folder: Path, name: str, config: Mapping[str, Any]) -> Tracker:
    """Event files in ``folder/tensorboard``; tables and config as text."""
    _import("tensorboard", "tensorboard")
    module = _import("torch.utils.tensorboard", "tensorboard")
    writer = module.SummaryWriter(log_dir=str(folder / "tensorboard"))

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        lines = markdown_table(header, [[_short(cell) for cell in row] for row in rows])
        writer.add_text(title, "\n".join(lines))

    if config:
        writer.add_text("config", "    " + json.dumps(config, indent=1, default=str).replace("\n", "\n    "))
    return Tracker(log, writer.close, table)


def _wandb(folder: Path, name: str, config: Mapping[str, Any]) -> Tracker:
    """A Weights & Biases run; ``WANDB_*`` environment variables apply (``WANDB_MODE=offline`` needs no account)."""
    wandb = _import("wandb", "wandb")
    folder.mkdir(parents=True, exist_ok=True)
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    run = wandb.init(project=project, name=name, dir=str(folder), config=dict(config))

    def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        run.log({title: wandb.Table(columns=list(header), data=[list(row) for row in rows])})

    return Tracker(lambda step, metrics: run.log(dict(metrics), step=step), run.finish, table)


def _trackio(folder: Path, name: str, config: Mapping[str, Any]) -> Tracker:
    """A local Trackio project; it gets no tables."""
    trackio = _import("trackio", "trackio")
    trackio.init(project=PROJECT, name=name, config=dict(config))
    return Tracker(lambda step, metrics: trackio.log(dict(metrics), step=step), trackio.finish)


def make_trackers(
    names: Sequence[str], folder: str | os.PathLike[str], name: str, config: Mapping[str, Any] | None = None
) -> list[Tracker]:
    """Starts the trackers ``names``.

    Args:
        names: from ``tensorboard``, ``wandb``, ``trackio``.
        folder: for trackers that write files.
        name: the run's name in the trackers.
        config: the resolved config as nested dictionaries.

    Raises:
        ValueError: a package is not installed (the message names the extra).
    """
    makers = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}
    return [makers[tracker](Path(folder), name, config or {}) for tracker in names]


def check_trackers(names: Iterable[str]) -> None:
    """Checks, without importing them, that the trackers' packages are installed.

    Raises:
        ValueError: as ``make_trackers``.
    """
    for tracker in names:
        if tracker in sys.modules and sys.modules[tracker] is not None:
            continue
        spec = find_spec(tracker)
        if spec is None or spec.origin is None:  # a folder `wandb` in the working directory is not a package
            raise ValueError(_missing(tracker))


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
