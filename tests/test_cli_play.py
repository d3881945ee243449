"""``spa play``: a model at play, with what it imagined."""

from __future__ import annotations

import pytest

from spa.agent.episode import Episode, Turn
from spa.cli import main
from spa.cli.play import show_episode

LAKE = ["frozen_lake", "env.max_actions_per_turn=1", "env.max_turns=2"]


def turn(**fields: object) -> Turn:
    values = {"executed": ["Right"], "reward": 1.0, "rewards": [1.0], "ended": True} | fields
    return Turn(0, "P_\n_G", "", "", "_P\n_G", **values)  # type: ignore[arg-type]


def test_what_was_imagined_stands_beside_what_came() -> None:
    path = [{"action": "Right", "state": "_P\n_O", "reward": 0.5, "ended": False, "probability": 0.25}]
    text = show_episode(Episode("Lake", 7, 0, turns=[turn(imagined={"path": path})], success=True))
    assert "Turn 1: Right; reward 1. Planned: Right; expected now: reward 0.5, probability 0.25" in text
    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if "before" in line)
    assert [line.split() for line in lines[header : header + 3]] == [
        ["before", "imagined", "came"],
        ["P_", "_P", "_P"],
        ["_G", "_O", "_G"],
    ]
    assert "won after 1 actions, reward 1" in text


def test_without_a_planner_a_written_prediction_is_shown() -> None:
    text = show_episode(Episode("Lake", 7, 0, turns=[turn(prediction=" _P\n_G ")], success=False))
    assert "predicted" in text and "imagined" not in text and "not won" in text


def test_a_failed_episode_says_why() -> None:
    assert "failed: ValueError: gone" in show_episode(Episode("Lake", 7, 0, status="error", error="ValueError: gone"))


@pytest.mark.parametrize("planner", ["none", "lookahead"])
def test_the_command_plays_test_worlds(planner: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", *LAKE, f"agent.planner={planner}", "planner.depth=1", "--worlds", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("World ") == 2
    assert ("Planned:" in shown) == (planner == "lookahead")


def test_without_a_config_it_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "agent.planner=lookahead"]) == 2
    assert "spa play frozen_lake" in capsys.readouterr().err
