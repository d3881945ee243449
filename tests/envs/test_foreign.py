"""What ``spa env check`` says of worlds that know nothing of this package."""

from __future__ import annotations

from typing import Any

import pytest

from spa.envs import make_env
from spa.envs.adapter import AdaptedEnv
from spa.envs.check import Finding, each_finding

WON = "the world says which episodes are won"
SEEDS = "seeds and noise seeds up to 32 bits are taken"


class Survive:
    """Pays for each step until the fall: the last reward says nothing of success."""

    actions = ("left", "right")
    says: bool | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.seed, self.steps = seed or 0, 0
        return f"upright on pole {self.seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        fell = self.steps > 3
        info = {} if self.says is None or not fell else {"success": self.says}
        return f"{self.steps} steps on pole {self.seed}", 1.0, fell, False, info


class Honest(Survive):
    says = False


class Narrow(Honest):
    """An engine in C, whose seed is a signed number of 32 bits."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        if (seed or 0) >= 2**31:
            raise OverflowError("int too large")
        return super().reset(seed=seed, options=options)


def finding(name: str, question: str) -> Finding:
    name = f"{__name__}:{name}"
    return next(one for one in each_finding(lambda: make_env(name), episodes=20) if one.question == question)


def test_a_guessed_success_is_told() -> None:
    guessed = finding("Survive", WON)
    assert guessed.warning and "counts as won if it terminates with a positive reward" in guessed.problem
    assert finding("Honest", WON).ok


@pytest.mark.parametrize(("name", "taken"), [("Honest", True), ("Narrow", False)])
def test_seeds_as_large_as_those_of_training(name: str, taken: bool) -> None:
    asked = finding(name, SEEDS)
    assert asked.ok == taken and asked.failed != taken
    assert taken or ("reset(seed=4294967295" in asked.problem and "int too large" in asked.problem)


class Lottery:
    def reset(self, *, seed=None, options=None):
        return "a ticket", {}

    def step(self, action):
        return "over", float(action == "win"), True, False, {}


@pytest.mark.parametrize(("action", "won"), [("win", True), ("lose", False)])
def test_an_end_without_a_reward_is_no_success(action: str, won: bool) -> None:
    env = AdaptedEnv(Lottery())
    env.reset(seed=0)
    assert env.step(action)[4]["success"] is won
