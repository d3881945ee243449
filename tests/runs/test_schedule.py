"""The stages of a run under one clock, and the time left of all of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from spa.common.progress import progress, set_outlook
from spa.config.load import load_config
from spa.config.variants import variants_of
from spa.runs.schedule import Planned, Schedule, planned_stages


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    yield
    set_outlook(None)


def schedule(out: Path, clock: Clock) -> Schedule:
    sizes = {
        "sft": ("SFT", 10),
        "a/ppo": ("PPO", 100),
        "a/eval": ("eval", 8),
        "b/ppo": ("PPO", 50),
        "b/eval": ("eval", 8),
    }
    return Schedule([Planned(out / name, name, kind, size) for name, (kind, size) in sizes.items()], clock)


def run(stages: Schedule, out: Path, clock: Clock, name: str, seconds: float) -> None:
    stages.begin(out / name)
    (out / name).mkdir(parents=True)
    clock.now += seconds
    (out / name / "done.json").touch()


def test_the_time_left_is_said_once_every_kind_to_come_has_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    stages = schedule(tmp_path, clock)
    run(stages, tmp_path, clock, "sft", 185)
    run(stages, tmp_path, clock, "a/ppo", 1200)
    run(stages, tmp_path, clock, "a/eval", 120)
    run(stages, tmp_path, clock, "b/ppo", 300)
    stages.begin(tmp_path / "b/eval")
    assert capsys.readouterr().err.splitlines() == [
        "[1/5] sft",
        "[2/5] a/ppo, 3 min 05 s since the start",
        "[3/5] a/eval, 23 min 05 s since the start",
        "[4/5] b/ppo, 25 min 05 s since the start, ~12 min left of the run",
        "[5/5] b/eval, 30 min 05 s since the start, ~2 min left of the run",
    ]


def test_the_bar_of_ppo_counts_for_what_is_left_of_it_and_of_its_kind(tmp_path: Path) -> None:
    clock = Clock()
    stages = schedule(tmp_path, clock)
    run(stages, tmp_path, clock, "a/eval", 120)
    stages.begin(tmp_path / "a/ppo")
    # Half of it takes 300 s: then its evaluation, as before, PPO of half its size and another evaluation.
    assert stages.outlook("a/ppo", (300.0, 0.5)) == f"~{(300 + 300 + 120) // 60} min left"
    assert stages.outlook("playing", (300.0, 0.5)) == "", "the bar of a part says nothing of the stage"
    with stages:
        out = io.StringIO()
        with progress(4, "a/ppo", file=out, clock=clock) as bar:
            for _ in range(4):
                clock.now += 150
                bar.advance()
    lines = out.getvalue().splitlines()
    assert lines[1] == "a/ppo: 2/4 (50%), 5 min 00 s, 5 min 00 s left, run ~12 min left"
    assert "run" not in lines[-1].split("a/ppo")[1]


def test_what_was_done_before_is_neither_counted_nor_measured(tmp_path: Path) -> None:
    clock = Clock()
    for name in ("sft", "a/ppo", "a/eval"):
        run(schedule(tmp_path, clock), tmp_path, clock, name, 0)
    stages = schedule(tmp_path, clock)
    for name in ("sft", "a/ppo", "a/eval"):
        stages.begin(tmp_path / name)
    stages.begin(tmp_path / "b/ppo")
    assert stages.outlook("b/ppo", (60.0, 0.5)) == ""
    (tmp_path / "b/eval").mkdir(parents=True)
    (tmp_path / "b/eval" / "done.json").touch()
    assert stages.outlook("b/ppo", (60.0, 0.5)) == "~1 min left"


def test_sizes_are_those_of_the_config(tmp_path: Path) -> None:
    settings = ["variants=[vanilla,spa]", "ppo.steps=20", "ppo.groups=4", "ppo.group_size=2", "eval.worlds=5"]
    cfg = load_config(
        "frozen_lake",
        [*settings, "eval.samples=3", "eval.ks=[1]", "sft.epochs=2", "selfplay.groups=7", "selfplay.group_size=3"],
    )
    variants = variants_of(cfg)
    stages = planned_stages(cfg, tmp_path, variants)
    assert [(stage.title, stage.size) for stage in stages[:5]] == [
        ("selfplay", 21),
        ("sft", 42),
        ("evaluation, variant base", 15),
        ("PPO, variant vanilla", 160),
        ("evaluation, variant vanilla", 15),
    ]
