"""The true world in the place of a world model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from spa.agent.task import Task
from spa.agent.worlds import World
from spa.cli import main
from spa.config.schema import AgentConfig, EnvConfig, PlannerConfig
from spa.envs import FrozenLake
from spa.evaluate.planned import evaluate_planner, imagination_metrics
from spa.planning.search import Imagined, Move
from spa.planning.simulator import Simulator
from tests.planning.tools import MOVES, player_of, start_of, true_moves
from tests.scripted import LAKE, Scripted, lake_task, tiny_config, tiny_policy

SILENT = player_of(Scripted(lambda number: ""))
WORLDS = [World(seed, f"w{seed}") for seed in range(6)]


@pytest.mark.parametrize("state_format", ["grid", "coordinates"])
def test_it_is_always_right(state_format: str) -> None:
    task = lake_task(1, state_format=state_format)
    look = true_moves(task)
    moves = [Move(start_of(task, world), action) for world in WORLDS for action in MOVES]
    answers = Simulator(SILENT, task).ask(moves)
    assert [(one.state, one.reward, one.ended) for (one,) in answers] == [look(move) for move in moves]
    honesty = imagination_metrics(Simulator(SILENT, task), task, WORLDS, depth=6, seed=1)
    assert {value for name, value in honesty.items() if name.endswith(("exact", "reward", "ended"))} == {1.0}
    honesty = imagination_metrics(Simulator(tiny_policy(), task), task, WORLDS, depth=1, seed=1)
    assert "imagination/depth_1/top1" not in honesty, "the model's likelihoods are not the simulator's"


def test_a_text_that_is_no_state_has_no_probability() -> None:
    assert Simulator(SILENT, lake_task(1)).ask([Move("no lake", "Up")]) == [(Imagined("no lake", 0.0, False, 0.0),)]


def test_a_state_in_which_the_world_has_ended_has_no_probability_and_is_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = lake_task(1)
    task = dataclasses.replace(task, env=dataclasses.replace(task.env, max_failed=0.0))
    look = true_moves(task)
    moves = [Move(start_of(task, world), action) for world in WORLDS for action in MOVES]
    over = [state for state, _, ended in map(look, moves) if ended]
    assert over
    for state in over:
        assert Simulator(SILENT, task).ask([Move(state, "Up")]) == [(Imagined(state, 0.0, False, 0.0),)]
    assert "failed" not in "".join(capsys.readouterr())


def test_where_chance_decides_it_is_drawn_by_the_question_and_the_run() -> None:
    task = lake_task(1, settings={"size": 4, "is_slippery": True})
    moves = [Move(start_of(task, world), action) for world in WORLDS for action in MOVES]
    found = Simulator(SILENT, task, samples=12).ask(moves)
    assert max(len({one.state for one in answers}) for answers in found) == 3
    assert found[3:9] == Simulator(SILENT, task, samples=12).ask(moves[3:9])
    assert found != Simulator(SILENT, task, samples=12, seed=1).ask(moves), "other runs, other luck"


def test_a_planner_with_it_is_the_upper_bound(tmp_path: Path) -> None:
    cfg = tiny_config()
    cfg = dataclasses.replace(
        cfg,
        agent=dataclasses.replace(cfg.agent, planner="lookahead"),
        planner=PlannerConfig(model="simulator"),
        eval=dataclasses.replace(cfg.eval, world_model_worlds=0, bootstrap=50),
    )
    result = evaluate_planner(cfg, "any", SILENT, lake_task(1), WORLDS, tmp_path)
    assert result.metrics["pass@1"] == 1.0
    assert result.metrics["planner/tokens_written"] == 0


class Forgetful(FrozenLake):
    """Starts where it likes, whatever it is asked."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)


class Stubborn(FrozenLake):
    """Always starts in the same place, where it also takes no other state."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=0)


class Strict(FrozenLake):
    """Takes no state."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options and "state" in options:
            raise KeyError("state")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("name", ["Forgetful", "Strict", "Stubborn"])
def test_a_world_that_takes_no_state_is_refused_before_anything(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    task = Task(EnvConfig(**{**vars(LAKE), "id": f"{__name__}:{name}"}), AgentConfig(style="terse", window=1))
    with pytest.raises(ValueError, match=r"planner\.model=simulator: this world cannot be set to a state"):
        Simulator(SILENT, task)
    given = [f"env.id={__name__}:{name}", "agent.planner=lookahead", "planner.model=simulator"]
    assert main(["eval", "frozen_lake", *given, "--variant", "base", "--dry-run"]) == 2
    assert "cannot be set to a state" in capsys.readouterr().err
