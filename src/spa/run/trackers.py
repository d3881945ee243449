"""Other places that metrics go to, by name; each package is imported only when its tracker is asked for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

PROJECT = "spa"


class Tracker(Protocol):
    """What ``MetricsLog`` asks of a tracker."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the finite numbers of one step."""

    def close(self) -> None:
        """Ends the run."""


class TensorBoard:
    """Event files in ``folder/tensorboard``."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        _import("tensorboard", "tensorboard")
        writer = _import("torch.utils.tensorboard", "tensorboard")
        self._writer = writer.SummaryWriter(log_dir=str(folder / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A Weights & Biases run; ``WANDB_*`` environment variables apply (``WANDB_MODE=offline`` needs no account)."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        wandb = _import("wandb", "wandb")
        folder.mkdir(parents=True, exist_ok=True)
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = wandb.init(project=project, name=name, dir=str(folder), config=dict(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A local Trackio project."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        self._trackio = _import("trackio", "trackio")
        self._trackio.init(project=PROJECT, name=name, config=dict(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._trackio.log(dict(metrics), step=step)

    def close(self) -> None:
        self._trackio.finish()


def make_trackers(
    names: Sequence[str], folder: str | os.PathLike[str], name: str, config: Mapping[str, Any] | None = None
) -> list[Tracker]:
    """Starts the trackers ``names``.

    Args:
        names: of ``tensorboard``, ``wandb``, ``trackio``.
        folder: where those that write files put them.
        name: what the run is called there.
        config: the resolved config as nested dictionaries.

    Raises:
        ValueError: a package is not installed (the message names the extra).
    """
    makers: dict[str, type[TensorBoard] | type[WandB] | type[Trackio]]
    makers = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
    return [makers[tracker](Path(folder), name, config or {}) for tracker in names]


def check_trackers(names: Iterable[str]) -> None:
    """Checks, without importing them, that the packages of trackers are there.

    Raises:
        ValueError: as ``make_trackers``.
    """
    for tracker in names:
        if tracker in sys.modules and sys.modules[tracker] is not None:
            continue
        spec = find_spec(tracker)
        if spec is None or spec.origin is None:  # a folder `wandb` of the working directory is no package
            raise ValueError(_missing(tracker))


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(_missing(extra)) from error


def _missing(extra: str) -> str:
    return f"report.trackers: {extra} is not installed; install it with: pip install 'spa-agent[{extra}]'"
