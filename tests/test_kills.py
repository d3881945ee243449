"""A run that is killed anywhere and resumed writes down what an uninterrupted one does, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spa.cli import main
from spa.runs.metrics import MetricsLog, read_metrics
from spa.runs.stage import Stage
from tests.test_pipeline import SMALL, snapshot

SETTINGS = [
    *SMALL,
    "variants=[vanilla]",
    "selfplay.groups=2",
    "sft.batch_size=2",
    "sft.log_every=1",
    "sft.save_every=2",
]
SETTINGS += ["sft.eval_every=2", "sft.eval_worlds=1", "ppo.save_every=1", "ppo.val_worlds=1"]
Command = Callable[..., int]


def killed_after(patch: pytest.MonkeyPatch, calls: int | None) -> None:
    """The process ends right after so many lines of metrics, or (None) when the stage would mark itself as finished."""
    log = MetricsLog.log

    def kill(self: MetricsLog, step: int, metrics: Mapping[str, Any]) -> None:
        nonlocal calls
        log(self, step, metrics)
        assert calls is not None
        calls -= 1
        if not calls:
            raise KeyboardInterrupt

    def no_finish(self: Stage, result: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt

    if calls is None:
        patch.setattr(Stage, "finish", no_finish)
    else:
        patch.setattr(MetricsLog, "log", kill)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "run"
    assert main(["generate", "frozen_lake", "--out", str(out), *SETTINGS, "--quiet"]) == 0
    return out / "selfplay"


@pytest.fixture(scope="module", params=["sft", "ppo", "ppo of no step"])
def command(request: pytest.FixtureRequest, data: Path) -> Command:
    name, _, rest = request.param.partition(" ")
    more = ["ppo.steps=0"] if rest else []

    def call(out: Path, *argv: str) -> int:
        return main([name, "frozen_lake", "--out", str(out), *SETTINGS, f"sft.data={data}", *more, *argv, "--quiet"])

    return call


@pytest.fixture(scope="module")
def whole(command: Command, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The uninterrupted run, and how many lines of metrics it has."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert command(out) == 0
    (path,) = out.rglob("metrics.jsonl")
    return out, len(read_metrics(path))


@pytest.mark.slow
def test_metrics_are_those_of_an_uninterrupted_run(
    command: Command, whole: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, lines = whole
    for calls in [*range(1, lines + 1), None]:
        out = tmp_path / str(calls)
        with monkeypatch.context() as patch:
            killed_after(patch, calls)
            assert command(out) == 130
        stage = next(out.rglob("metrics.jsonl")).parent
        assert (stage / "seconds.json").is_file() == (stage / "checkpoints").is_dir(), "the time up to the checkpoint"
        assert command(out, "--resume") == 0
        assert snapshot(out) == snapshot(expected), f"killed after line {calls} of {lines}"
