"""Self-play towards moves that were not made before."""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spa.agent.episode import Episode
from spa.agent.random_engine import RandomEngine, random_responder
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource
from spa.cli.app import main
from spa.config.load import load_config
from spa.config.schema import AgentConfig, EnvConfig, SamplingConfig
from spa.data.transitions import Transition, transitions_of
from spa.sft.explore import play_exploring, way_to_untried
from spa.sft.warmup import random_episodes
from tests.agent.test_broken_worlds import FORKS
from tests.scripted import CHAT, lake_task

ENDS = 5


class Corridor:
    """Doors 0 to ``ENDS``, of which the last ends the episode; the world of seed 1 breaks behind door 2."""

    actions: tuple[str, ...] = ("on", "back")

    def __init__(self, dies: bool = False) -> None:
        self.dies = dies

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.seed, self.at = seed, 0
        return f"world {seed}, door 0", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.at = self.at + 1 if action == "on" else max(0, self.at - 1)
        if self.seed == 1 and self.at > 2:
            if self.dies:
                os._exit(3)
            raise RuntimeError("the floor is gone")
        return f"world {self.seed}, door {self.at}", 0.0, self.at == ENDS, False, {}


def corridor(**env: Any) -> Task:
    config = EnvConfig(id=f"{__name__}:Corridor", tag="Corridor", **{"max_turns": 10, "max_actions_per_turn": 1, **env})
    return Task(config, AgentConfig(style="terse", window=1))


def moves(episodes: list[Episode]) -> Counter[tuple[str, str]]:
    return Counter(
        (move.state, move.action) for episode in episodes for turn in episode.turns for move in transitions_of(turn)
    )


def led(state: str, action: str, to: str, *, ended: bool = False) -> Transition:
    return Transition(state, action, to, 0.0, ended)


CHAIN = {
    "a": {"x": led("a", "x", "a"), "y": led("a", "y", "b")},
    "b": {"x": led("b", "x", "c"), "y": led("b", "y", "a")},
    "d": {"x": led("d", "x", "won", ended=True), "y": led("d", "y", "a")},
}


@pytest.mark.parametrize(
    ("state", "limit", "wanted"),
    [
        ("c", 1, [["x"], ["y"]]),  # a state that was never left
        ("b", 2, [["x", "x"], ["x", "y"]]),
        ("a", 3, [["y", "x", "x"], ["y", "x", "y"]]),
        ("a", 2, [[]]),  # too far away
        ("d", 4, [["y", "y", "x", "x"], ["y", "y", "x", "y"]]),  # not through the end, after which nothing can be tried
        ("d", 3, [[]]),
        ("c", 0, [[]]),
    ],
)
def test_the_shortest_known_way_to_an_untried_action(state: str, limit: int, wanted: list[list[str]]) -> None:
    draws = np.random.default_rng(0)
    found = [way_to_untried(CHAIN, state, ("x", "y"), limit, draws) for _ in range(40)]
    assert sorted({tuple(way) for way in found}) == sorted(tuple(way) for way in wanted)


def test_equally_short_ways_are_taken_by_chance() -> None:
    known = {"a": {"x": led("a", "x", "b"), "y": led("a", "y", "c")}}
    draws = np.random.default_rng(0)
    assert {way_to_untried(known, "a", ("x", "y"), 2, draws)[0] for _ in range(40)} == {"x", "y"}


def test_nothing_is_made_twice_before_everything_is_made_once() -> None:
    # One at each of five doors and back from it are ten moves; a way to a door repeats what leads there.
    episodes = play_exploring(corridor(), [World(0, "w0")], seed=3, group_size=8)
    made = moves(episodes)
    assert len(made) == 2 * ENDS
    assert made == moves(play_exploring(corridor(), [World(0, "w0")], seed=3, group_size=8))
    first = moves(episodes[:3])
    assert len(first) == 2 * ENDS  # random play needs more: see the next test
    assert all(episode.status in ("completed", "truncated") for episode in episodes)


def test_it_makes_more_distinct_moves_than_random_play() -> None:
    task = lake_task(window=1, max_turns=10, max_actions_per_turn=1)
    worlds = WorldSource(task, "train", 0).take(12)
    random = RandomEngine(CHAT, random_responder(task))
    made = [moves(play_exploring(task, worlds, seed=seed, group_size=4)) for seed in range(3)]
    blind = [moves(rollout(random, CHAT, task, worlds, SamplingConfig(), seed=seed, group_size=4)) for seed in range(3)]
    assert min(map(len, made)) > 1.2 * max(map(len, blind))


def test_the_last_turn_explores_too() -> None:
    task = lake_task(window=1, max_turns=1, max_actions_per_turn=1)
    made = moves(play_exploring(task, [World(seed, f"w{seed}") for seed in range(4)], seed=0, group_size=4))
    assert len(made) == made.total() == 16, "each of the four actions once"


@pytest.mark.parametrize("prompt", ["world_model", "base"])
def test_turns_of_several_actions_have_the_format(prompt: str) -> None:
    task = lake_task(window=1, max_turns=3, max_actions_per_turn=4)
    task = Task(task.env, AgentConfig(style="paper", prompt=prompt, window=1))
    episodes = play_exploring(task, WorldSource(task, "train", 0).take(4), seed=0, group_size=4)
    turns = [turn for episode in episodes for turn in episode.turns]
    assert all(turn.format_ok and not turn.penalty for turn in turns)
    assert {len(turn.actions) for turn in turns} == {1, 2, 3, 4}


@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=FORKS)])
def test_a_world_that_fails_ends_its_own_episodes(processes: int) -> None:
    ended: list[tuple[int, int]] = []
    episodes = play_exploring(
        corridor(max_turns=4, processes=processes, settings={"dies": bool(processes)}),
        [World(seed, f"w{seed}") for seed in range(3)],
        seed=0,
        group_size=4,
        on_turn=lambda episode, over: ended.append((episode.group, episode.member)) if over else None,
    )
    assert [(episode.group, episode.member) for episode in episodes] == ended
    failed = [episode for episode in episodes if episode.status == "error"]
    assert [episode.group for episode in failed] == [1], "what made it fail is not tried again"
    assert ("its process died" if processes else "the floor is gone") in failed[0].error


def test_a_world_without_listed_actions() -> None:
    task = Task(load_config("countdown").env, AgentConfig(style="terse", window=1))
    episodes = play_exploring(task, WorldSource(task, "train", 0).take(3), seed=0, group_size=2)
    assert all(turn.format_ok and turn.executed for episode in episodes for turn in episode.turns)


def generate(out: Path, *more: str) -> dict[str, Any]:
    sizes = ["selfplay.groups=40", "selfplay.group_size=2", "env.max_turns=3", "selfplay.policy=explore"]
    assert main(["generate", "frozen_lake", *sizes, *more, "--out", str(out)]) == 0
    return json.loads((out / "selfplay" / "stats.json").read_text())


def test_stage_1_goes_on_where_it_was_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = generate(tmp_path / "whole")
    assert (whole["episodes"], whole["kept"]) == (80, 1.0)
    calls: list[int] = []

    def stop_in_the_second(task: Task, worlds: list[World], **rest: Any) -> list[Episode]:
        calls.append(len(worlds))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return play_exploring(task, worlds, **rest)

    out = tmp_path / "cut"
    monkeypatch.setattr("spa.sft.selfplay.play_exploring", stop_in_the_second)
    arguments = ["generate", "frozen_lake", "selfplay.groups=40", "selfplay.group_size=2", "env.max_turns=3"]
    assert main([*arguments, "selfplay.policy=explore", "--out", str(out)]) == 130
    assert generate(out, "--resume") == whole
    assert calls == [32, 8, 8]
    for name in ("train.parquet", "val.parquet", "episodes.jsonl"):
        assert (out / "selfplay" / name).read_bytes() == (tmp_path / "whole" / "selfplay" / name).read_bytes()


def test_what_it_cannot_do_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for settings, said in (
        (["selfplay.states=belief"], "selfplay.states=belief keeps the states that a model wrote"),
        ([f"env.id={__name__}:Free", "env.settings={}"], r"random play (selfplay.policy=explore): "),
    ):
        out = tmp_path / "out"
        assert main(["generate", "frozen_lake", "selfplay.policy=explore", *settings, "--out", str(out)]) == 2
        assert said in capsys.readouterr().err
        assert not out.exists()


class Free(Corridor):
    """Free text, and no random actions."""

    actions = ()


class Houses(Corridor):
    """A house's doors have names of their own."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.actions = (f"on {seed}", f"back {seed}")
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return super().step(action.split()[0])


def test_each_worlds_own_actions() -> None:
    config = EnvConfig(id=f"{__name__}:Houses", tag="Houses", max_turns=10, max_actions_per_turn=3)
    task = Task(config, AgentConfig(style="terse", window=1))
    episodes = play_exploring(task, [World(seed, f"w{seed}") for seed in (2, 3)], seed=0, group_size=2)
    for episode in episodes:
        assert {action.split()[1] for turn in episode.turns for action in turn.executed} == {str(episode.seed)}
        assert all(turn.executed == turn.actions[: len(turn.executed)] and turn.executed for turn in episode.turns)


@FORKS
def test_random_play_for_examples_survives_a_world_that_dies() -> None:
    task = corridor(processes=1, settings={"dies": True}, max_failed=1.0)
    played = islice(random_episodes(task, [World(seed, f"w{seed}") for seed in range(2)], seed=0), 24)
    assert {episode.status for episode in played} <= {"completed", "truncated"}
