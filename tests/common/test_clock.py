"""The time of a stage: its own, by the wall and in processor time, without what is only measured."""

import json
import time
from pathlib import Path

import pytest

from spa.agent.episode import Episode
from spa.agent.episode_store import EpisodeStore
from spa.common import clock
from spa.common.checkpoints import checkpoint_folder
from spa.common.clock import Elapsed, measuring, training_time, work_stored
from spa.common.files import atomic_folder
from spa.common.manifest import write_manifest
from spa.config.schema import Config
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
    save_checkpoint(tmp_path / "two", 1)
    again = Stage(tmp_path / "two", "two", resume=True)
    now.append(Elapsed(13, 9))
    again.finish({})
    expected = {"seconds": 13, "cpu_seconds": 9} if again.resume else {"seconds": 3, "cpu_seconds": 1}
    assert again.resume
    assert expected.items() <= (read_done(tmp_path / "two") or {}).items()


def save_checkpoint(stage: Path, step: int) -> None:
    with atomic_folder(checkpoint_folder(stage, step)) as folder:
        (folder / "trainer_state.pt").touch()
        write_manifest(folder)


def interrupted_training(folder: Path, now: list[Elapsed], seconds: int) -> None:
    """Ten steps of a second each are begun; a checkpoint is saved at the fifth."""
    stage = Stage(folder, "SFT", resume=False)
    with stage.metrics(Config()) as log:
        for step in range(1, seconds + 1):
            now.append(now[-1] + Elapsed(1, 1))
            log(step, {})
            if step == 5:
                save_checkpoint(folder, 5)
                work_stored()
        raise KeyboardInterrupt


def test_steps_after_the_last_checkpoint_count_once(now: list[Elapsed], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_training(tmp_path / "sft", now, seconds=9)
    again = Stage(tmp_path / "sft", "SFT", resume=True)
    now.append(now[-1] + Elapsed(5, 5))
    again.finish({})
    assert (read_done(tmp_path / "sft") or {})["seconds"] == 10


def test_stored_episodes_count_with_their_time(now: list[Elapsed], tmp_path: Path) -> None:
    stage = Stage(tmp_path / "selfplay", "self-play", resume=False, keep=True)
    with stage.storing_time():
        now.append(Elapsed(7, 6))
        EpisodeStore(tmp_path / "selfplay" / "episodes.partial.jsonl").add([Episode("Frozen", 1, 0, 0)])
        now.append(Elapsed(9, 8))  # and is killed
    again = Stage(tmp_path / "selfplay", "self-play", resume=True, keep=True)
    now.append(Elapsed(12, 10))
    again.finish({})
    expected = {"seconds": 10, "cpu_seconds": 8}
    assert expected.items() <= (read_done(tmp_path / "selfplay") or {}).items()
    EpisodeStore(tmp_path / "other.jsonl").add([Episode("Frozen", 1, 0, 0)])  # in no stage: nobody's time


def test_processor_time_is_not_that_of_the_wall() -> None:
    begun = training_time()
    time.sleep(0.05)
    elapsed = training_time() - begun
    assert elapsed.wall >= 0.05 and elapsed.cpu <= elapsed.wall
