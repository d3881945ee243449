"""Random play draws its actions in one world for all, so they must not depend on the world."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spa.agent.random_engine import random_responder
from spa.agent.task import Task
from spa.config.schema import AgentConfig, EnvConfig
from spa.envs import FrozenLake
from spa.envs.check import check_world

QUESTION = "random actions do not depend on the world"


class Peeking(FrozenLake):
    """Draws an action from what is only there after a reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.favourite = ("Up", "Down", "Left", "Right")[(seed or 0) % 4]
        return super().reset(seed=seed, options=options)

    def sample_action(self, rng: np.random.Generator) -> str:
        return self.favourite


@pytest.mark.parametrize(("world", "warned"), [(FrozenLake, False), (Peeking, True)])
def test_a_check_tells(world: type[FrozenLake], warned: bool) -> None:
    findings = {finding.question: finding for finding in check_world(world, seeds=2, episodes=4)}
    assert findings[QUESTION].warning == warned
    assert not findings["the state says enough to predict the next one"].failed


def test_random_play_of_such_a_world_does_not_fail() -> None:
    task = Task(EnvConfig(id=f"{__name__}:Peeking", max_actions_per_turn=1), AgentConfig(style="terse"))
    assert "Up" in random_responder(task)(np.random.default_rng(0))
