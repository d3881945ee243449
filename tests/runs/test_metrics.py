"""metrics.jsonl after crashes, with odd numbers, and the trackers behind it."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.runs.metrics import MetricsLog, read_metrics
from spa.runs.trackers import make_trackers


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def log(self, step: int, metrics: Any) -> None:
        self.calls.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed += 1


def test_lines_are_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "metrics.jsonl"
    log = MetricsLog(path)
    values = {
        "a": np.float32(0.5),
        "n": np.int64(3),
        "nan": float("nan"),
        "inf": np.inf,
        "word": "√",
        "on": np.bool_(True),
    }
    log.log(np.int64(2), values)  # type: ignore[arg-type]
    record = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(name))
    assert list(record)[:2] == ["step", "time"]
    del record["time"]
    assert record == {"step": 2, "a": 0.5, "n": 3.0, "nan": None, "inf": None, "word": "√", "on": True}


def test_torch_scalars(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    MetricsLog(tmp_path / "m").log(0, {"loss": torch.tensor(0.25, requires_grad=True), "k": torch.tensor(4)})
    assert [read_metrics(tmp_path / "m")[0][key] for key in ("loss", "k")] == [0.25, 4.0]


def test_no_file_no_records(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none") == []
    assert MetricsLog(tmp_path / "none").truncate_after(3) == 0
    assert not (tmp_path / "none").exists()


def test_truncate_after_drops_later_steps_only(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m")
    for step in (0, 1, 2, 3):
        log.log(step, {"x": step})
    first = (tmp_path / "m").read_text().splitlines()[:2]
    assert log.truncate_after(1) == 2
    assert (tmp_path / "m").read_text().splitlines() == first
    log.log(2, {"x": 9})
    assert [record["step"] for record in read_metrics(tmp_path / "m")] == [0, 1, 2]
    assert log.truncate_after(7) == 0


def test_truncate_after_drops_what_came_after_the_checkpoint_of_the_same_step(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m")
    for step in (0, 2, 2):
        log.log(step, {"x": step})
    assert log.truncate_after(1) == 2, "a step between two that were logged"
    for step in (2, 2):
        log.log(step, {"x": step})
    assert log.truncate_after(2) == 1
    assert [record["step"] for record in read_metrics(tmp_path / "m")] == [0, 2]


@pytest.mark.parametrize("tear", ['{"step": 2, "ti', '{"step": 2', '"step"', "√"[:1]])
def test_a_torn_last_line_is_dropped(tmp_path: Path, tear: str) -> None:
    path = tmp_path / "m"
    MetricsLog(path).log(1, {"x": 1})
    with open(path, "a", encoding="utf-8") as file:
        file.write(tear)
    assert [record["step"] for record in read_metrics(path)] == [1]
    MetricsLog(path).log(2, {"x": 2})
    assert [record["step"] for record in read_metrics(path)] == [1, 2]


def test_a_whole_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_text('{"step": 1}\n{"step": 2}')
    MetricsLog(path).log(3, {})
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3]


@settings(max_examples=30)
@given(cut=st.integers(0, 200))
def test_any_cut_leaves_a_readable_prefix(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "m"
    log = MetricsLog(path)
    for step in range(4):
        log.log(step, {"note": "√\\"})
    path.write_bytes(path.read_bytes()[:cut])
    MetricsLog(path).log(9, {})
    steps = [record["step"] for record in read_metrics(path)]
    assert steps == [*range(len(steps) - 1), 9]


def test_a_damaged_middle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step": 1}\noops\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 2 is damaged"):
        read_metrics(tmp_path / "m")


def test_trackers_get_the_finite_numbers(tmp_path: Path) -> None:
    tracker = Recorder()
    with MetricsLog(tmp_path / "m", [tracker]) as log:
        log.log(4, {"a": 1, "b": float("nan"), "c": "text", "d": 2.5})
    assert tracker.calls == [(4, {"a": 1.0, "d": 2.5})]
    assert tracker.closed == 1


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"{name} is not installed; .*spa-agent\[{name}\]"):
        make_trackers([name], tmp_path, "run", {})


def test_wandb_and_trackio_are_called_as_they_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    run = types.SimpleNamespace(
        log=lambda metrics, step: calls.append(("wandb.log", (metrics, step))),
        finish=lambda: calls.append(("wandb.finish", None)),
    )
    wandb: Any = types.ModuleType("wandb")
    wandb.init = lambda **kwargs: calls.append(("wandb.init", kwargs["config"])) or run
    trackio: Any = types.ModuleType("trackio")
    trackio.init = lambda **kwargs: calls.append(("trackio.init", kwargs["name"]))
    trackio.log = lambda metrics, step: calls.append(("trackio.log", (metrics, step)))
    trackio.finish = lambda: calls.append(("trackio.finish", None))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    with MetricsLog(tmp_path / "m", make_trackers(["wandb", "trackio"], tmp_path, "mine", {"k": 1})) as log:
        log.log(3, {"x": 0.5})
    assert calls == [
        ("wandb.init", {"k": 1}),
        ("trackio.init", "mine"),
        ("wandb.log", ({"x": 0.5}, 3)),
        ("trackio.log", ({"x": 0.5}, 3)),
        ("wandb.finish", None),
        ("trackio.finish", None),
    ]
