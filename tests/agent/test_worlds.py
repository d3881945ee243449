"""Which worlds are played where: their own splits, what keeps splits apart, and what each run draws for itself."""

from __future__ import annotations

import math
import pickle
import random
import re
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spa.agent.policy import make_task
from spa.agent.task import Task
from spa.agent.worlds import SPLITS, World, WorldSource, check_enough, content_key, overlaps, split_of
from spa.cli import main
from spa.config.load import load_config
from spa.config.schema import AgentConfig, EnvConfig, SeedConfig
from spa.config.seeds import SEEDS_OF_A_RUN, first_seed
from spa.envs import make_env
from tests.scripted import lake_task


class Numbers:
    """Every seed is another world; its last digit says which split of a data set it is from."""

    def __init__(self, splits: str = "test val train train train train train train train train") -> None:
        self.splits = splits.split()

    def reset(self, *, seed=None, options=None):
        info = {"content": f"number {seed}"}
        if self.splits:
            info["split"] = self.splits[seed % 10]
        return f"state {seed}", info

    def step(self, action):
        return "state", 0.0, False, False, {}


def task(disjoint: str = "content", **settings: object) -> Task:
    return Task(EnvConfig(id=f"{__name__}:Numbers", tag="N", settings=settings, disjoint=disjoint), AgentConfig())


class Drawn:
    """Writes its number down, in one format with words; names no content unless told to, and then as it is written."""

    def __init__(self, state_format: str = "grid", named: bool = False) -> None:
        self.state_format, self.named = state_format, named

    def reset(self, *, seed=None, options=None):
        number = int(np.random.default_rng(seed).integers(400))
        state = str(number) if self.state_format == "grid" else f"{number}\nThe number is {number}."
        return state, {"content": state} if self.named else {}

    def step(self, action):
        return "done", 1.0, True, False, {}


@pytest.mark.parametrize("first_seed", [0, 1000])
@pytest.mark.parametrize("split", SPLITS)
def test_a_world_that_names_no_content_is_in_one_split_in_all_formats(split: str, first_seed: int) -> None:
    def worlds(state_format: str) -> list[World]:
        env = EnvConfig(id=f"{__name__}:Drawn", tag="D", state_format=state_format)
        return WorldSource(Task(env, AgentConfig()), split, first_seed).take(20)

    assert worlds("grid") == worlds("coordinates")
    assert worlds("grid")[0].content == content_key(str(Drawn().reset(seed=worlds("grid")[0].seed)[0]))


def test_a_world_without_content_goes_on_without_a_seed_as_its_other_formats_do() -> None:
    plain, worded = (make_env(f"{__name__}:Again", state_format=name) for name in ("grid", "coordinates"))
    for options in ({"seed": 3}, {}, {}, {"seed": 1}, {}):
        assert plain.reset(**options)[1]["content"] == worded.reset(**options)[1]["content"]
    assert pickle.loads(pickle.dumps(worded)).reset(seed=3)[1] == plain.reset(seed=3)[1]


class Again(Drawn):
    """Draws on."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        return super().reset(seed=int(self.rng.integers(1000)))


def test_a_world_is_played_in_its_own_split() -> None:
    taken = {split: WorldSource(task(), split, 0).take(100) for split in SPLITS}
    digits = {split: {world.seed % 10 for world in worlds} for split, worlds in taken.items()}
    assert digits["test"] == {0}
    assert digits["val"] == {1}
    assert digits["train"] == digits["selfplay"] == set(range(2, 10))
    assert [world.seed for world in taken["test"]] == list(range(0, 1000, 10))  # none is left out


def test_worlds_for_training_are_divided_one_to_two() -> None:
    seeds = {
        split: {world.seed for world in WorldSource(task(), split, 0).take(2000)} for split in ("selfplay", "train")
    }
    assert not seeds["selfplay"] & seeds["train"]
    keys = [content_key(f"number {number}") for number in range(20_000)]
    share = sum(split_of(key, "train") == "selfplay" for key in keys) / len(keys)
    assert share == pytest.approx(1 / 3, abs=0.01)
    # What is not used in one of them is used in the other.
    assert {split_of(key, "train") for key in keys} == {"selfplay", "train"}


def test_without_a_split_of_its_own_the_hash_decides() -> None:
    for world in WorldSource(task(splits=""), "test", 0).take(50):
        assert split_of(world.content) == "test"


def test_seeds_alone_keep_no_splits_apart() -> None:
    assert [world.seed for world in WorldSource(task("seed"), "test", 5).take(4)] == [5, 6, 7, 8]


def test_a_split_of_another_name() -> None:
    with pytest.raises(ValueError, match=r"unknown split of a world 'valid'; .* Did you mean 'val'"):
        WorldSource(task(splits="valid " * 10), "val", 0).take(1)


@pytest.mark.parametrize(
    "env",
    [
        "sokoban_easy",
        pytest.param("sokoban_hard", marks=pytest.mark.slow),
        "sokoban_grid_vocab",
        "frozen_lake",
        "frozen_lake_5x5",
    ],
)
def test_splits_share_no_rotation_and_no_mirror_image(env: str) -> None:
    """What the packaged configs say, checked on pictures turned here: numpy knows nothing of ours."""
    task = make_task(load_config(env))
    images = {}
    for i, name in enumerate(["test", "val", "selfplay", "train"]):
        images[name] = set()
        for world in WorldSource(task, name, 10**9 * i).take(40):
            content = task.make_env().reset(seed=world.seed)[1]["content"]
            grid = np.array([list(row) for row in content.split("\n")[1:]])
            turned = [np.rot90(side, turns) for side in (grid, np.fliplr(grid)) for turns in range(4)]
            images[name] |= {"\n".join("".join(row) for row in picture) for picture in turned}
    assert set(overlaps(images).values()) == {0}


def test_rotations_and_mirror_images_are_one_world_and_no_others() -> None:
    env = make_env("sokoban")
    level = ["######", "#P_###", "#_X__#", "##__O#", "#_____", "######"]
    level[4] = "#____#"
    grid = np.array([list(row) for row in level])
    pictures = [np.rot90(side, turns) for side in (grid, np.fliplr(grid)) for turns in range(4)]
    infos = [env.reset(options={"state": "\n".join("".join(row) for row in picture)})[1] for picture in pictures]
    assert len({info["content"] for info in infos}) == 8
    assert len({info["symmetry"] for info in infos}) == 1
    assert env.step("Down")[4]["symmetry"] == infos[0]["symmetry"], "of the problem, not of the state"
    other = grid.copy()
    other[4, 4], other[3, 4] = "O", "_"
    assert env.reset(options={"state": "\n".join("".join(row) for row in other)})[1]["symmetry"] != infos[0]["symmetry"]


def test_distinct_worlds_are_no_rotations_of_each_other() -> None:
    lake = lake_task(disjoint="symmetry", settings={"size": 3, "p": 0.8, "is_slippery": False})
    plain, unique = (WorldSource(lake, "test", 0, unique=unique).take(12) for unique in (False, True))
    assert len({world.symmetry for world in plain}) < 12 == len({world.symmetry for world in unique})


def test_a_world_without_symmetries_is_kept_apart_by_content() -> None:
    sources = [WorldSource(task(disjoint, splits=""), "test", 0) for disjoint in ("content", "symmetry")]
    assert sources[0].take(20) == sources[1].take(20)


def test_each_run_has_its_own_worlds_for_self_play_and_training_and_all_share_the_others() -> None:
    task = make_task(load_config("frozen_lake"))
    taken = {}
    for run in (0, 1, 2, 41):
        for split in SPLITS:
            worlds = WorldSource(task, split, first_seed(SeedConfig(run=run), split)).take(30)
            taken[run, split] = {world.seed for world in worlds}
    for split in ("test", "val"):
        assert len({frozenset(taken[run, split]) for run in (0, 1, 2, 41)}) == 1
    for split in ("selfplay", "train"):
        assert len(set().union(*(taken[run, split] for run in (0, 1, 2, 41)))) == 4 * 30


@given(st.sets(st.integers(0, 10**6), min_size=2, max_size=20))
def test_runs_begin_apart_within_their_range(runs: set[int]) -> None:
    starts = sorted(first_seed(SeedConfig(run=run), "train") for run in runs)
    assert starts[0] >= 3 * 10**9
    assert starts[-1] + SEEDS_OF_A_RUN <= 4 * 10**9
    assert min(b - a for a, b in pairwise(starts)) > 100


class Few:
    """Some worlds, which seeds share."""

    resets = 0

    def __init__(self, count: int) -> None:
        self.count = count

    def reset(self, *, seed=None, options=None):
        type(self).resets += 1
        return f"world {seed % self.count}", {}

    def step(self, action):
        return "state", 0.0, False, False, {}


def few(count: int, disjoint: str = "content") -> Task:
    Few.resets = 0
    return Task(EnvConfig(id=f"{__name__}:Few", tag="F", settings={"count": count}, disjoint=disjoint), AgentConfig())


def test_too_few_worlds_are_refused_after_a_short_look() -> None:
    for counts in ({"test": 1, "val": 1}, {"test": 20}):
        with pytest.raises(
            ValueError, match=r"gave only \d distinct worlds for split '(test|val)' \((1|20) asked for\)"
        ):
            check_enough(few(1 if len(counts) == 2 else 20), counts, 0)
        assert Few.resets <= 500
    check_enough(few(20), {"test": 1}, 0)


class Late(Few):
    """Some worlds, drawn by seed: the last of them comes late."""

    def reset(self, *, seed=None, options=None):
        return f"world {random.Random(seed).randrange(self.count)}", {}


def test_worlds_of_which_the_last_comes_late_are_refused_too() -> None:
    env = EnvConfig(id=f"{__name__}:Late", tag="L", settings={"count": 48})
    with pytest.raises(ValueError, match="gave only 9 distinct worlds"):
        check_enough(Task(env, AgentConfig()), {"test": 500}, 0)
    env.settings = {"count": 200}  # 500 looks have not seen all
    with pytest.raises(
        ValueError, match=r"gave only (3\d|4\d) distinct worlds for split 'test' \(500 asked for by eval.worlds\)"
    ):
        check_enough(Task(env, AgentConfig()), {"test": 500}, 0, {"test": "eval.worlds"})
    env.settings = {"count": 5000}  # too many to see all
    check_enough(Task(env, AgentConfig()), {"test": 5000}, 0)


class Rare(Few):
    """Worlds each a little rarer than the one before: every doubling of the looks gives as many new ones."""

    def reset(self, *, seed=None, options=None):
        return f"world {int(math.exp(random.Random(seed).random() * math.log(self.count)))}", {}


def test_worlds_that_get_fewer_are_refused_before_all_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the 2,000 looks of two seconds."""
    clock = count()
    monkeypatch.setattr("spa.agent.worlds.time", SimpleNamespace(monotonic=lambda: next(clock) / 1000))
    env = EnvConfig(id=f"{__name__}:Late", tag="L", settings={"count": 600})
    with pytest.raises(ValueError, match=r"gave only \d\d distinct worlds for split 'test' \(128 asked for\)"):
        check_enough(Task(env, AgentConfig()), {"test": 128}, 0)
    check_enough(Task(env, AgentConfig()), {"test": 80}, 0)
    check_enough(Task(env, AgentConfig()), {"test": 110}, 0)  # of which 99 were seen: not clearly too many
    rare = EnvConfig(id=f"{__name__}:Rare", tag="R", settings={"count": 100_000})
    check_enough(Task(rare, AgentConfig()), {"test": 500}, 0)


def test_where_worlds_are_many_or_need_not_differ_few_are_looked_at() -> None:
    check_enough(few(10**9), {"test": 10**6}, 0)
    assert Few.resets <= 64
    check_enough(few(300), {"test": 10**6}, 0)
    assert Few.resets <= 64, "so many are for the search itself"
    check_enough(few(1, "seed"), {"test": 128}, 0)
    assert Few.resets == 1, "that one can be reset is enough"


def test_a_long_search_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("spa.agent.worlds.INTERVAL", 0.0)
    monkeypatch.setattr("spa.agent.worlds._GIVE_UP", 50)
    with pytest.raises(ValueError, match=r"gave only 0 distinct worlds .* asked for\): choose larger worlds"):
        WorldSource(few(1), "val", 0, unique=True).take(3)
    assert "worlds for split 'val': 0/3, 9 seeds looked at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "split", "setting"),
    [
        (["run", "variants=[plan]", "practice.worlds=300"], "selfplay", "practice.worlds"),
        (["run", "variants=[spa_dream]", "curriculum.imagined_worlds=100"], "train", "curriculum.imagined_worlds"),
        (["run", "variants=[spa]", "sft.eval_worlds=100"], "val", "sft.eval_worlds"),
        (["run", "variants=[vanilla]", "sft.eval_worlds=100"], "", ""),  # which has no stage 2
        (["run", "variants=[search]", "practice.worlds=300"], "", ""),  # nor practice
        (["run", "variants=[plan]", "practice.worlds=9"], "", ""),
    ],
)
def test_worlds_of_every_later_stage_are_counted(capsys, command: list[str], split: str, setting: str) -> None:
    world = [f"env.id={__name__}:Few", "env.settings={count: 40}", "env.tag=F", "planner.proposals=8"]
    least = ["sft.eval_worlds=1", "ppo.val_worlds=1", "eval.worlds=1"]
    assert main([command[0], "frozen_lake", *world, *least, *command[1:], "--dry-run"]) == (2 if split else 0)
    error = capsys.readouterr().err
    if split:
        assert re.search(
            rf"distinct worlds for split '{split}' \(100 asked for by {setting}\)(: | and .*: )ask for fewer", error
        )


def test_a_run_is_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = [f"env.id={__name__}:Few", "env.settings={count: 3}", "env.tag=F", "env.state_format=grid"]
    assert main(["run", "frozen_lake", *world, "variants=[vanilla]", "--out", str(tmp_path / "run")]) == 2
    assert "distinct worlds for split 'test'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
