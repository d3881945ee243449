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

from spa.common.progress import set_quiet
from spa.config.overrides import choices
from spa.config.schema import Config
from spa.runs.metrics import MetricsLog, read_metrics
from spa.runs.trackers import TRACKERS, Tracker, Trackers, check_trackers, make_trackers


class Recorder:
    """A tracker; ``breaks``: the call that raises."""

    def __init__(self, breaks: str = "") -> None:
        self.breaks = breaks
        self.calls: list[tuple[Any, ...]] = []

    def _called(self, *call: Any) -> None:
        print("a tracker's own line")
        self.calls.append(call)
        if call[0] == self.breaks:
            raise RuntimeError("no connection")

    def trackers(self) -> Trackers:
        self._called("start")
        tracker = Tracker(
            lambda step, metrics: self._called("log", step, dict(metrics)),
            lambda failed: self._called("close", failed),
        )
        return Trackers({"mine": lambda: tracker})


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


def test_every_tracker_has_a_name_in_the_settings() -> None:
    assert set(TRACKERS) == set(choices(Config, "report.trackers"))


def test_trackers_get_the_finite_numbers_and_how_it_ended(tmp_path: Path) -> None:
    good, bad = Recorder(), Recorder()
    with MetricsLog(tmp_path / "m", good.trackers()) as log:
        log.log(4, {"a": 1, "b": float("nan"), "c": "text", "d": 2.5})
    assert good.calls == [("start",), ("log", 4, {"a": 1.0, "d": 2.5}), ("close", False)]
    with pytest.raises(KeyboardInterrupt), MetricsLog(tmp_path / "m", bad.trackers()):
        raise KeyboardInterrupt
    assert bad.calls[-1] == ("close", True)


@pytest.mark.parametrize("breaks", ["log", "close"])
def test_a_tracker_that_fails_ends_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], breaks: str) -> None:
    broken = Recorder(breaks)
    with MetricsLog(tmp_path / "m", broken.trackers()) as log:
        for step in (1, 2):
            log.log(step, {"x": 1})
    assert [record["step"] for record in read_metrics(tmp_path / "m")] == [1, 2]
    assert len(broken.calls) == {"log": 2, "close": 4}[breaks]
    said = capsys.readouterr().err
    assert said.count("report.trackers: mine failed and is switched off (RuntimeError: no connection)") == 1


def test_one_that_cannot_be_started_neither(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with MetricsLog(tmp_path / "m", make_trackers(["wandb"], tmp_path, "run", {})) as log:
        log.log(1, {"x": 1})
    assert "wandb is not installed" in capsys.readouterr().err


def test_what_trackers_print_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        set_quiet(quiet)
        trackers = Recorder().trackers()
        capsys.readouterr()
        trackers.close()
        out, err = capsys.readouterr()
        assert out == "" and ("own line" in err) != quiet


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("spa.runs.trackers.find_spec", lambda module: None)
    with pytest.raises(ValueError, match=rf"{name} is not installed; .*spa-agent\[{name}\]"):
        check_trackers([name])


def test_wandb_needs_a_key_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb: Any = types.ModuleType("wandb")
    wandb.login = lambda prompt, verify: False
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(ValueError, match="wandb has no API key: run `wandb login`, or set WANDB_API_KEY or WANDB_MODE"):
        check_trackers(["wandb"])
    wandb.login = lambda prompt, verify: True
    check_trackers(["wandb"])
    wandb.login = None
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_trackers(["wandb"])


@pytest.mark.integration
def test_a_resumed_tensorboard_has_no_step_twice(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for steps, resumed_at in (((1, 2, 3, 4, 5), None), ((4, 5, 6), 3)):
        trackers = make_trackers(["tensorboard"], tmp_path, "run", resumed_at=resumed_at)
        for step in steps:
            trackers.log(step, {"x": step})
        trackers.close()
    events = loader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("x")] == [1, 2, 3, 4, 5, 6]


def test_wandb_and_trackio_are_called_as_they_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    run = types.SimpleNamespace(
        log=lambda metrics, step: calls.append(("wandb.log", (metrics, step))),
        finish=lambda exit_code: calls.append(("wandb.finish", exit_code)),
    )
    wandb: Any = types.ModuleType("wandb")
    wandb.init = lambda **kwargs: calls.append(("wandb.init", kwargs)) or run
    trackio: Any = types.ModuleType("trackio")
    trackio.init = lambda **kwargs: calls.append(("trackio.init", kwargs["resume"]))
    trackio.log = lambda metrics, step: calls.append(("trackio.log", (metrics, step)))
    trackio.finish = lambda: calls.append(("trackio.finish", None))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    (tmp_path / "run.json").touch()
    stage = tmp_path / "ppo"
    for resumed_at in (None, 3):
        trackers = make_trackers(["wandb", "trackio"], stage, "mine", {"k": 1}, resumed_at=resumed_at)
        with MetricsLog(tmp_path / "m", trackers) as log:
            log.log(3, {"x": 0.5})
    (_, first), (_, second) = (call for call in calls if call[0] == "wandb.init")
    assert first == second
    assert first["config"] == {"k": 1} and first["resume"] == "allow" and first["id"]
    assert (first["group"], first["name"]) == (tmp_path.name, f"{tmp_path.name}: mine")
    assert [call for call in calls if call[0] != "wandb.init"] == [
        call
        for resume in ("never", "allow")
        for call in (
            ("trackio.init", resume),
            ("wandb.log", ({"x": 0.5}, 3)),
            ("trackio.log", ({"x": 0.5}, 3)),
            ("wandb.finish", 0),
            ("trackio.finish", None),
        )
    ]
