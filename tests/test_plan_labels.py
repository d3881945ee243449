"""scripts/plan_labels.py judges taught actions by the true world."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from spa.envs import make_env

JUDGE_OF = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "plan_labels.py"))["judge_of"]


@pytest.mark.parametrize(
    ("state", "action", "verdict"),
    [
        ("P___\nO___\n____\n___G", "Right", "optimal"),
        ("____\nO___\n____\n__PG", "Right", "optimal"),
        ("P___\nO___\n____\n___G", "Up", "detour"),
        ("P___\nO___\n____\n___G", "Down", "dead end"),
        ("PO__\nO___\n____\n___G", "Right", "in an unsolvable state"),
        ("P_P_\nO___\n____\n___G", "Right", "no state of the world"),
        ("nonsense", "Right", "no state of the world"),
    ],
)
def test_an_action_is_held_against_the_true_world(state: str, action: str, verdict: str) -> None:
    env = make_env("frozen_lake", size=4, is_slippery=False)
    assert JUDGE_OF(env, tuple(env.actions))(state, action) == verdict
