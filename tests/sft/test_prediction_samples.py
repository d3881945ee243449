"""What stage 2 prints of the world model."""

from __future__ import annotations

import pytest

from spa.agent.episode import Episode, Turn
from spa.evaluate.world_model import world_model_metrics
from spa.sft.prediction_samples import Measured, shown
from spa.sft.stage2 import measure
from tests.scripted import tiny_config, tiny_policy


def measured(*turns: tuple[str, str | None, str]) -> Measured:
    """Of an episode of turns (state, prediction, next state)."""
    made = [
        Turn(i, state, "", "", came, prediction=prediction, executed=["Up"])
        for i, (state, prediction, came) in enumerate(turns)
    ]
    episode = Episode(task="Lake", seed=1, group=0, member=0, turns=made)
    return world_model_metrics([episode]), [episode]


def test_shares_and_the_first_prediction_of_a_change() -> None:
    before = measured(("_P", "_P", "_P"), ("_P", "PP", "P_"))
    after = measured(("_P", "P_\n", "P_"))
    assert shown(before, after).splitlines() == [
        "world model, predictions that are exact on validation worlds: 50.0% (0.0% of 1 that change the state) before SFT, "
        "100.0% (100.0% of 1 that change the state) after SFT",
        "  before SFT, Up (wrong):",
        "    state   predicted   actual",
        "    _P      PP          P_",
        "  after SFT, Up (right):",
        "    state   predicted   actual",
        "    _P      P_          P_",
    ]


def test_a_resumed_stage_and_a_model_without_predictions() -> None:
    assert shown(None, measured(("_P", None, "P_"))) == (
        "world model, predictions that are exact on validation worlds: none written after SFT"
    )
    assert shown(None, measured(("_P", "_P", "_P"))).splitlines()[0].endswith(": 100.0% after SFT")


def test_long_states_are_cut() -> None:
    page = "\n".join(f"line {i} {'x' * 200}" for i in range(100))
    lines = shown(None, measured((page, "short", page + "!"))).splitlines()
    assert len(lines) < 30 and max(map(len, lines)) < 200


@pytest.mark.parametrize(
    ("rows", "window", "seen"), [("written", None, 3), ("written", 0, 0), ("transitions", None, 1)]
)
def test_the_model_is_measured_with_the_history_of_its_rows(
    monkeypatch: pytest.MonkeyPatch, rows: str, window: int | None, seen: int
) -> None:
    cfg, windows = tiny_config(), []
    cfg.agent.window, cfg.selfplay.rows, cfg.sft.window = 3, rows, window
    monkeypatch.setattr(
        "spa.evaluate.probe.probe_world_model", lambda cfg, *_, **__: windows.append(cfg.agent.window) or ({}, [])
    )
    measure(cfg, tiny_policy())
    assert windows == [seen]
