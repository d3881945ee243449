"""The time of a stage: its own, by the wall and in processor time, without what is only measured."""

import json
import time
from pathlib import Path

import pytest

from spa.common import clock
from spa.common.clock import Elapsed, measuring, training_time
from spa.runs.record import read_done
from spa.runs.stage import Stage, reopen_as


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[Elapsed]:
    """What the clock shows: the last entry."""
    shown = [Elapsed()]
    monkeypatch.setattr(clock, "_now", lambda: shown[-1])
    monkeypatch.setattr(clock, "_paused", Elapsed())
    return shown


def test_measuring_stops_the_clock(now: list[Elapsed]) -> None:
    begun = training_time()
    now.append(Elapsed(5, 4))
    with measuring():
        now.append(Elapsed(105, 54))
    now.append(Elapsed(107, 55))
    assert training_time() - begun == Elapsed(7, 5)


def test_a_resumed_stage_adds_up(now: list[Elapsed], tmp_path: Path) -> None:
    stage = Stage(tmp_path / "one", "one", resume=False)
    now.append(Elapsed(10, 8))
    stage.finish({"model": "m"})
    done = read_done(tmp_path / "one") or {}
    assert {key: done[key] for key in ("seconds", "cpu_seconds", "model")} == {
        "seconds": 10,
        "cpu_seconds": 8,
        "model": "m",
    }
    reopen_as(tmp_path / "one", tmp_path / "two")
    assert json.loads((tmp_path / "two" / "seconds.json").read_text()) == {"seconds": 10, "cpu_seconds": 8}
    (tmp_path / "two" / "checkpoints" / "global_step_1").mkdir(parents=True)
    (tmp_path / "two" / "checkpoints" / "global_step_1" / "trainer_state.pt").touch()
    again = Stage(tmp_path / "two", "two", resume=True)
    now.append(Elapsed(13, 9))
    again.finish({})
    expected = {"seconds": 13, "cpu_seconds": 9} if again.resume else {"seconds": 3, "cpu_seconds": 1}
    assert again.resume
    assert expected.items() <= (read_done(tmp_path / "two") or {}).items()


def test_processor_time_is_not_that_of_the_wall() -> None:
    begun = training_time()
    time.sleep(0.05)
    elapsed = training_time() - begun
    assert elapsed.wall >= 0.05 and elapsed.cpu <= elapsed.wall
