"""What the trackers get of evaluations and of the comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spa.agent.episode import Episode, Turn
from spa.config.load import load_config
from spa.evaluate.samples import SAMPLES, write_samples
from spa.evaluate.summary import EvalResult
from spa.report.track import track_comparison, track_evaluation
from spa.runs.trackers import Tracker, Trackers, make_trackers

CFG = load_config("frozen_lake", ["report.trackers=[wandb]", "variants=[vanilla]"])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []

    def make(names: list[str], folder: Path, name: str, config: Mapping[str, Any]) -> Trackers:
        made.append(("start", name, config["name"]))
        tracker = Tracker(
            lambda *a: made.append(("log", *a)),
            lambda failed: made.append(("close", failed)),
            lambda *a: made.append(a),
        )
        return Trackers({"mine": lambda: tracker})

    monkeypatch.setattr("spa.report.track.make_trackers", make)
    return made


def evaluation(out: Path, variant: str, won: bool) -> Path:
    folder = out / "variants" / variant / "eval"
    turns = [Turn(0, "P_", "u", "<answer>Up", executed=["Up"], reward=1.0)]
    episodes = [Episode("FrozenLake", seed, seed, turns=turns, success=won) for seed in range(3)]
    EvalResult.from_episodes(variant, episodes, [1], 10).write(folder / "result.json")
    write_samples(folder / SAMPLES, episodes)
    return folder


def test_an_evaluation(tmp_path: Path, calls: list[tuple[Any, ...]]) -> None:
    track_evaluation(CFG, "vanilla", evaluation(tmp_path, "vanilla", True))
    start, log, table, close = calls
    assert start == ("start", "frozen_lake, evaluation, vanilla", "frozen_lake")
    assert log[1] == 0
    assert log[2]["eval/pass@1"] == 1.0
    assert table[0] == "eval/episodes"
    assert dict(zip(table[1], table[2][2], strict=True)) == {
        "seed": 2,
        "member": 0,
        "success": True,
        "status": "completed",
        "reward": 1.0,
        "turns": 1,
        "actions": "Up",
        "last response": "<answer>Up",
    }
    assert close == ("close", False)


def test_the_comparison(tmp_path: Path, calls: list[tuple[Any, ...]]) -> None:
    evaluation(tmp_path, "base", False)
    evaluation(tmp_path, "vanilla", True)
    stored = tmp_path / "variants" / "vanilla" / "eval" / "result.json"
    planned = json.loads(stored.read_text()) | {"name": "vanilla+lookahead"}
    stored.with_name("planner.json").write_text(json.dumps(planned))
    track_comparison(CFG, tmp_path)
    _, log, table, _ = calls
    assert log[2] == {"comparison/base": 0.0, "comparison/vanilla": 1.0, "comparison/vanilla+lookahead": 1.0}
    assert table[1][:2] == ("variant", "Pass@1")
    assert [row[0] for row in table[2]] == ["base", "vanilla", "vanilla+lookahead"]


def test_nothing_to_compare(tmp_path: Path, calls: list[tuple[Any, ...]]) -> None:
    track_comparison(CFG, tmp_path)
    assert calls == []


def test_a_resumed_log_keeps_the_checkpoints_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    writer = SimpleNamespace(SummaryWriter=lambda **given: made.append(given) or SimpleNamespace(close=lambda: None))
    monkeypatch.setattr("spa.runs.trackers._import", lambda module, extra: writer)
    for step in (None, 0, 20):
        make_trackers(["tensorboard"], tmp_path, "PPO", resumed_at=step).close()
    assert [each["purge_step"] for each in made] == [None, 1, 21]
