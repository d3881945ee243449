"""Normalised scores and the reward for an accurate world model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spa.agent.episode import Episode, Turn
from spa.config.schema import PPOConfig
from spa.rl.rewards import Reward, normalize, state_match, training_reward

GRID = "PO_\n_G_\n___"
WRONG = "PO_\n_G_\n__G"


def scored(*scores: tuple[str, int, float]) -> tuple[list[Reward], list[Episode]]:
    """Rewards and episodes of (task, group, score)."""
    return [Reward([s], s) for _, _, s in scores], [Episode(task, 0, group) for task, group, _ in scores]


BATCH = [("A", 0, 1.0), ("A", 0, 3.0), ("A", 1, 5.0), ("A", 1, 5.0), ("B", 2, 0.0), ("B", 2, 10.0), ("B", 3, 7.0)]


@pytest.mark.parametrize("by", ["state", "inductive", "batch"])
@pytest.mark.parametrize("method", ["identity", "mean", "mean_std", "asym_clip"])
def test_normalisation_equals_a_loop(by: str, method: str) -> None:
    got = [reward.score for reward in normalize(*scored(*BATCH), method, by)]
    for (task, group, score), value in zip(BATCH, got, strict=True):
        same = {
            "state": [s for t, g, s in BATCH if (t, g) == (task, group)],
            "inductive": [s for t, _, s in BATCH if t == task],
            "batch": [s for *_, s in BATCH],
        }[by]
        mean = sum(same) / len(same)
        if method == "identity" or len(same) == 1:
            expected = score
        elif method == "mean":
            expected = score - mean
        else:
            std = (sum((s - mean) ** 2 for s in same) / (len(same) - 1)) ** 0.5
            expected = 0.0 if std == 0 else (score - mean) / (std + 1e-6)
            if method == "asym_clip":
                expected = min(max(expected, -1.0), 3.0)
        assert value == pytest.approx(expected, abs=1e-9)


def test_one_bad_episode_among_many_is_clipped_and_one_good_one_less() -> None:
    down = scored(*[("A", 0, 1.0)] * 15, ("A", 0, -9.0))
    up = scored(*[("A", 0, 0.0)] * 15, ("A", 0, 9.0))
    assert normalize(*down, "asym_clip", "batch")[-1].score == -1
    assert normalize(*up, "asym_clip", "batch")[-1].score == 3


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_mean_and_deviation(scores: list[float]) -> None:
    got = np.array([r.score for r in normalize(*scored(*[("A", 0, s) for s in scores]), "mean_std", "state")])
    assert got.mean() == pytest.approx(0, abs=1e-6)
    if np.std(scores, ddof=1) > 1e-3:
        assert got.std(ddof=1) == pytest.approx(1, abs=1e-2)


def turn(observation: str | None, prediction: str | None, after: str = WRONG) -> Turn:
    return Turn(0, GRID, "", "", after, observation=observation, prediction=prediction, reward=1.0, penalty=-0.25)


@pytest.mark.parametrize(
    ("written", "truth", "before", "rule", "expected"),
    [
        (GRID, GRID, "", "exact", 1),
        (f"\n{GRID} ", GRID, "", "exact", 1),
        (WRONG, GRID, "", "exact", 0),
        (None, GRID, "", "exact", 0),
        (WRONG, GRID, "", "cells", 8 / 9),
        ("", GRID, "", "cells", 0),
        (GRID, WRONG, GRID, "changed", 0),  # a copy of the old state earns nothing
        (WRONG, WRONG, GRID, "changed", 1),
        (GRID, GRID, GRID, "changed", 1),  # nothing changed: exact
        ("some words", "some words", "other words", "cells", 1),  # no grid: exact
    ],
)
def test_state_match(written, truth: str, before: str, rule: str, expected: float) -> None:
    assert state_match(written, truth, before, rule) == pytest.approx(expected)


def test_a_turns_reward_has_all_its_parts() -> None:
    one = Episode("T", 0, 0, turns=[turn(GRID, WRONG), turn(WRONG, WRONG), turn(None, GRID)])
    plain = training_reward(one, PPOConfig())
    assert plain.turns == [0.75, 0.75, 0.75]
    assert plain.score == one.score == pytest.approx(2.25)
    config = PPOConfig(observation_reward=0.5, prediction_reward=2.0)
    assert training_reward(one, config).turns == pytest.approx([0.75 + 0.5 + 2.0, 0.75 + 2.0, 0.75])
    cells = PPOConfig(observation_reward=0.9, state_match="cells")
    assert training_reward(one, cells).turns == pytest.approx([0.75 + 0.9, 0.75 + 0.8, 0.75])
    changed = PPOConfig(observation_reward=0.9, prediction_reward=1.0, state_match="changed")
    assert training_reward(one, changed).turns == pytest.approx([0.75 + 0.9 + 1, 0.75 + 0.8 + 1, 0.75])
    assert [t.reward for t in one.turns] == [1.0] * 3  # what the world gave and the model is shown stays
