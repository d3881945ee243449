"""What a planner will ask, without a model: the counts of a model that answers as the world does."""

from __future__ import annotations

import dataclasses

import pytest

from spa.agent.worlds import World
from spa.config.schema import PlannerConfig
from spa.planning.forecast import Forecast
from spa.planning.play import play_with_planner
from spa.planning.world_model import WorldModel
from tests.planning.tools import TrueEngine, player_of
from tests.scripted import CHAT, lake_task, tiny_config

WORLDS = [World(seed, f"w{seed}") for seed in range(6)]


@pytest.mark.parametrize("style", ["terse", "paper"])
def test_questions_and_tokens_are_those_of_a_model_that_is_right(style: str) -> None:
    task = lake_task(1, style=style)
    config = PlannerConfig(depth=4)
    cfg = dataclasses.replace(tiny_config(), planner=config)
    model, forecast = WorldModel(player_of(TrueEngine(task)), task), Forecast(cfg, task, CHAT)
    for asked in (model, forecast):
        play_with_planner(asked, task, WORLDS, "lookahead", config, seed=0)
    assert forecast.usage.questions == model.usage.questions > 100
    assert forecast.usage.cached == model.usage.cached
    assert forecast.usage.tokens_read == pytest.approx(model.usage.tokens_read, rel=0.15)
    assert forecast.usage.tokens_written == pytest.approx(model.usage.tokens_written, rel=0.15)


def test_samples_are_counted_and_read_the_whole_question() -> None:
    task = lake_task(1, settings={"size": 4, "is_slippery": True})
    usages = []
    for samples in (4, 8):
        config = PlannerConfig(depth=1, samples=samples)
        forecast = Forecast(dataclasses.replace(tiny_config(), planner=config), task, CHAT)
        play_with_planner(
            forecast,
            dataclasses.replace(task, env=dataclasses.replace(task.env, max_turns=1)),
            WORLDS,
            "lookahead",
            config,
            seed=0,
        )
        usages.append(forecast.usage)
    assert [usage.questions for usage in usages] == [len(WORLDS) * 4 * 4, len(WORLDS) * 4 * 8]
    assert usages[1].tokens_read == 2 * usages[0].tokens_read


def test_proposals_of_random_actions_stand_for_the_policy() -> None:
    config = PlannerConfig(simulations=4, proposals=3, depth=3)
    task = lake_task(1)
    forecast = Forecast(dataclasses.replace(tiny_config(), planner=config), task, CHAT)
    play_with_planner(forecast, task, WORLDS[:2], "mcts", config, seed=0)
    assert forecast.usage.questions > 2 * 4
