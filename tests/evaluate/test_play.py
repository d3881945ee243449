"""The model that an evaluation loads is closed in every rank, also where the evaluation fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spa.agent.episode import Episode, Turn
from spa.agent.policy import Policy, counter
from spa.agent.worlds import World, split_of
from spa.common.progress import progress
from spa.config.load import load_variant
from spa.config.schema import EnvConfig, EvalConfig, SeedConfig
from spa.config.seeds import EVAL
from spa.evaluate import play, probe
from tests.scripted import LAKE, tiny_config


@pytest.mark.parametrize("how", ["main rank", "other rank", "every episode fails"])
def test_the_model_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    closed: list[Policy] = []
    monkeypatch.setattr(Policy, "close", lambda policy: closed.append(policy))
    monkeypatch.setattr(play.ranks, "is_main", lambda: how != "other rank")
    cfg = tiny_config()
    cfg.eval = EvalConfig(worlds=2, samples=1, ks=[1], world_model_worlds=0)
    if how == "every episode fails":

        def fails(*_: object, **__: object) -> list[object]:
            raise ValueError("every episode failed")

        monkeypatch.setattr(play, "play_chunks", fails)
        with pytest.raises(ValueError, match="every episode failed"):
            play.evaluate_model(cfg, load_variant("vanilla"), None, tmp_path)
    else:
        play.evaluate_model(cfg, load_variant("vanilla"), None, tmp_path)
        assert (tmp_path / "result.json").is_file() == (how == "main rank")
    assert len(closed) == 1


def test_worlds_of_each_chunk_are_played_with_a_seed_of_their_own() -> None:
    played: list[tuple[list[int], int]] = []

    def chunk(worlds: list[World], seed: int, *_: object) -> list[Episode]:
        played.append(([world.seed for world in worlds], seed))
        return [Episode("T", world.seed, group) for group, world in enumerate(worlds)]

    worlds = [World(seed, str(seed)) for seed in range(5)]
    episodes = play.in_chunks(chunk, worlds, 1, 0, 5, "test", None, size=2, max_failed=1.0)
    assert [(episode.seed, episode.group) for episode in episodes] == [(group, group) for group in range(5)]
    assert [seeds for seeds, _ in played] == [[0, 1], [2, 3], [4]]
    assert len({seed for _, seed in played}) == 3


def test_a_bar_counts_turns_one_by_one_or_with_a_whole_episode() -> None:
    turns = [Turn(index, "", "", "", "") for index in range(3)]
    with progress(2, "playing") as bar:
        count = counter(bar)
        for number in (1, 2):
            count(Episode("T", 0, 0, turns=turns[:number]), number == 2)
        count(Episode("T", 1, 1, turns=turns), True)
    assert (bar.done, bar.values["turns"]) == (2, 5)


def test_no_world_is_evaluated_twice(tmp_path: Path) -> None:
    cfg = tiny_config()
    cfg.env = EnvConfig(**{**vars(LAKE), "settings": {"size": 3, "p": 0.9, "is_slippery": False}})
    cfg.eval = EvalConfig(worlds=8, samples=1, ks=[1], world_model_worlds=0)
    record = play.evaluate_model(cfg, load_variant("vanilla"), None, tmp_path)
    assert len(record["worlds"]["test"]) == 8


def test_an_episode_of_each_world_is_kept_to_look_at(tmp_path: Path) -> None:
    cfg = tiny_config()
    cfg.eval = EvalConfig(worlds=3, samples=2, ks=[1], world_model_worlds=0)
    play.evaluate_model(cfg, load_variant("vanilla"), None, tmp_path)
    shown = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert [(each["group"], each["member"]) for each in shown] == [(0, 0), (1, 0), (2, 0)]


def test_each_run_draws_its_own_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []

    def played(policy, task, worlds, samples, run, purpose, *_) -> list[Episode]:
        given.append((run, purpose))
        return [Episode("T", world.seed, group, content=world.content) for group, world in enumerate(worlds)]

    monkeypatch.setattr(play, "play_chunks", played)
    cfg = tiny_config()
    cfg.seeds = SeedConfig(run=7)
    cfg.eval = EvalConfig(worlds=2, samples=1, ks=[1], world_model_worlds=0)
    play.evaluate_model(cfg, load_variant("vanilla"), None, tmp_path)
    assert given == [(7, EVAL)]


def test_the_world_model_is_probed_in_validation_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    class Played:
        def play(self, task, worlds, **_) -> list[Episode]:
            played.extend(worlds)
            return [Episode("T", world.seed, group) for group, world in enumerate(worlds)]

    monkeypatch.setattr(probe, "measure_episodes", lambda *_: {})
    cfg = tiny_config()
    probe.probe_world_model(cfg, Played(), state_format="grid", worlds=12, seed=0)
    assert {split_of(world.content) for world in played} == {"val"} and len({world.content for world in played}) == 12
    assert all(world.seed >= cfg.seeds.val for world in played)
