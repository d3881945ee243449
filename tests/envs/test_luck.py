"""Chance after ``reset``: worlds whose noise ignores ``noise_seed`` are found; where no pair is met again nothing is claimed."""

from __future__ import annotations

import numpy as np
import pytest

from spa.diagnose.advice import hidden_part
from spa.envs import TextEnv
from spa.envs.check import check_world
from spa.envs.check_markov import ignores_noise_seed, outcomes
from spa.envs.registry import make_env


class Coin(TextEnv):
    """One toss of a numbered coin, from ``np_random``."""

    rules, actions = "Toss the coin.", ("Left", "Right")
    numbers = 10**9

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.side = int(self.np_random.integers(self.numbers)), ""
        return self.render(), self.info()

    def step(self, action):
        self.side = self.toss()
        return self.render(), float(self.side == "heads"), True, False, self.info()

    def toss(self):
        return "heads" if self.np_random.random() < 0.5 else "tails"

    def render(self):
        return f"coin {self.number} {self.side}".strip()

    def info(self):
        return {"success": self.side == "heads", "valid": True, "effective": True, "content": f"coin {self.number}"}


class Lucky(Coin):
    """The same with the noise of the option."""

    def reset(self, *, seed=None, options=None):
        returned = super().reset(seed=seed)
        if (noise_seed := (options or {}).get("noise_seed")) is not None:
            self.np_random = np.random.default_rng(noise_seed)
        return returned


class Sure(Coin):
    def toss(self):
        return "heads" if self.number % 2 else "tails"


class Few(Sure):
    numbers = 3


@pytest.mark.parametrize(
    ("world", "ignores", "kind", "advice"),
    [
        (Coin, True, "chance", "chance decides"),
        (Lucky, False, "chance", "chance decides"),
        (Sure, False, "unknown", "see for yourself"),
        (Few, False, "certain", "predictions can be exact"),
    ],
)
def test_luck(world, ignores, kind, advice) -> None:
    assert ignores_noise_seed(world) == ignores
    found = outcomes(world, 40)
    assert found.kind == kind
    assert ("no pairs" in found.text) == (world is not Few)
    assert advice in hidden_part(found)[1]
    warnings = [one.problem for one in check_world(world, seeds=2, episodes=10) if "noise_seed" in one.question]
    assert [("ignores noise_seed: reseed it in reset()" in text) for text in warnings] == [ignores]


@pytest.mark.parametrize("name", ["frozen_lake", "gym:FrozenLake", "gym:CliffWalking"])
def test_worlds_that_come_with_us_or_are_adapted_take_it(name: str) -> None:
    assert not ignores_noise_seed(lambda: make_env(name, is_slippery=True))
