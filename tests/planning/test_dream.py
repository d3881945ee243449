"""Imagined worlds: they play what was imagined, and count for nothing that is real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymnasium.error import ResetNeeded

from spa.agent.policy import Policy, make_task
from spa.agent.task import Task
from spa.agent.worlds import WorldSource, split_of
from spa.config.fields import Prompt, StateFormat
from spa.config.load import load_config
from spa.config.schema import CurriculumConfig, PlannerConfig
from spa.envs.frozen_lake.world import FrozenLake
from spa.planning import dream as module
from spa.planning.dream import FILE, ImaginedWorld, dream
from spa.planning.play import search_all
from spa.planning.search import Imagined, Move
from spa.planning.world_model import Headers
from spa.rl.curriculum import Curriculum, is_real, training_tasks
from spa.rl.trainer import PPOTrainer
from tests.planning.tools import MOVES, Asked, oracle
from tests.scripted import Scripted, tiny_config

LAKE = {"size": 4, "p": 0.8, "is_slippery": False}
WORLDS = [
    {"start": "P_G", "moves": {"P_G": {"Right": ["_PG", 0.0, False]}, "_PG": {"Right": ["__√", 1.0, True]}}},
    {"start": "PO_", "moves": {"PO_": {"Right": ["_X_", 0.0, True], "Left": ["PO_", 0.0, False]}}},
]


class Told(FrozenLake):
    """Has its rules from ``reset`` on."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.instruction = "The ice is thin."
        return super().reset(seed=seed, options=options)


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / FILE).write_text(json.dumps(WORLDS))
    return str(tmp_path / FILE)


def test_it_plays_what_was_imagined(path: str) -> None:
    env = ImaginedWorld(path, "frozen_lake", LAKE)
    assert tuple(env.actions) == ("Left", "Down", "Right", "Up")
    state, info = env.reset(seed=0)
    assert (state, info["content"], info["split"]) == ("P_G", "P_G", "train")
    assert env.step("Right")[:4] == ("_PG", 0.0, False, False)
    after, reward, terminated, truncated, info = env.step("Right")
    assert (after, reward, terminated, truncated, info["success"]) == ("__√", 1.0, True, False, True)
    with pytest.raises(ResetNeeded):
        env.step("Right")
    state, _ = env.reset(seed=3)  # two worlds: the second
    assert state == "PO_"
    assert env.step("Right")[4]["success"] is False


def test_a_move_that_was_not_imagined_cuts_the_episode_off(path: str) -> None:
    env = ImaginedWorld(path, "frozen_lake", LAKE)
    env.reset(seed=0)
    state, reward, terminated, truncated, info = env.step("fly")
    assert (state, reward, terminated, truncated, info["valid"]) == ("P_G", 0.0, False, False, False)
    assert env.step("Up")[:4] == ("P_G", 0.0, False, True)


def test_names_that_a_world_gives_at_reset_are_known(path: str) -> None:
    env = ImaginedWorld(path, "tests.planning.test_dream:Late", LAKE)
    assert tuple(env.actions) == ("Left", "Down", "Right", "Up")


class Late(FrozenLake):
    """Has its actions from ``reset`` on."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.names, self.actions = self.actions, ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.actions = self.names
        return super().reset(seed=seed, options=options)


def test_a_file_that_was_made_again_is_read_again(path: str) -> None:
    assert ImaginedWorld(path, "frozen_lake", LAKE).reset(seed=0)[0] == "P_G"
    Path(path).write_text(json.dumps(WORLDS[1:]))
    assert ImaginedWorld(path, "frozen_lake", LAKE).reset(seed=0)[0] == "PO_"


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(ValueError, match="cannot read imagined worlds"):
        ImaginedWorld("nowhere.json", "frozen_lake", LAKE)


class Corridor:
    """Answers of a corridor of four cells, in which Left is never believed."""

    def ask(self, questions: list[Move], headers: list[Headers]) -> list[tuple[Imagined, ...]]:
        return [self._answer(int(question.state), question.action) for question in questions]

    def _answer(self, place: int, action: str) -> tuple[Imagined, ...]:
        if action == "Left":
            return (Imagined("nonsense", 9.0, True, 0.01),)
        return (Imagined(str(place + 1), float(place == 2), place == 2, 0.9),)


def test_everything_within_reach_is_written_down() -> None:
    searches = [dream("0", ["Left", "Right"], PlannerConfig(), depth, 10) for depth in (2, 9)]
    near, all_of_it = search_all(Corridor(), searches, [Headers()] * 2)  # type: ignore[arg-type]
    assert near == {"0": {"Right": ("1", 0.0, False)}, "1": {"Right": ("2", 0.0, False)}}
    assert all_of_it == {**near, "2": {"Right": ("3", 1.0, True)}}


def test_the_curriculum_mixes_real_and_imagined_worlds(path: str) -> None:
    cfg = load_config("frozen_lake", ["curriculum.imagined=0.25"])
    assert [is_real(task) for task in training_tasks(cfg)] == [True]  # not there yet
    cfg.curriculum.imagined_file = path
    tasks = training_tasks(cfg, state_format="grid")
    assert [is_real(task) for task in tasks] == [True, False]
    batch = dict(Curriculum(cfg, tasks).take(8))
    assert {index: len(worlds) for index, worlds in batch.items()} == {0: 6, 1: 2}


@pytest.mark.parametrize("world", ["frozen_lake", f"{Told.__module__}:Told"])
@pytest.mark.parametrize("prompt", ["base", "world_model"])
@pytest.mark.parametrize("state_format", ["grid", "coordinates"])
def test_imagined_worlds_are_put_in_the_words_of_the_real_one(
    path: str, world: str, prompt: Prompt, state_format: StateFormat
) -> None:
    settings = ["curriculum.imagined=0.5", "agent.style=paper", "agent.action_sep=;", f"env.id={world}"]
    cfg = load_config("frozen_lake", settings)
    cfg.env.instruction = None
    cfg.curriculum.imagined_file = path
    real, imagined = training_tasks(cfg, state_format=state_format, prompt=prompt)
    headers = []
    for task in (real, imagined):
        env = task.make_env()
        env.reset(seed=0)
        headers.append(task.header(env))
    assert headers[0] == headers[1]
    assert world == "frozen_lake" or "The ice is thin." in headers[0]


class Recorded(Asked):
    """Knows the true lakes; proposes every action."""

    def __init__(self, policy: Any, task: Task, **settings: Any) -> None:
        super().__init__(oracle(task).answer, (), lambda choice: dict.fromkeys(MOVES, 0.25))
        self.task = task
        self.shown: list[Headers] = []
        made.append(self)

    def headers(self, env: Any) -> Headers:
        return Headers(self.task.header(env))

    def ask(self, questions: Any, headers: Any = ()) -> list[Any]:
        self.shown += headers
        return super().ask(questions, headers)


made: list[Recorded] = []


def test_starts_are_imagined_from_the_prompts_of_their_worlds(monkeypatch: Any, tmp_path: Path) -> None:
    cfg = tiny_config()
    cfg.env.id, cfg.agent.style = f"{Told.__module__}:Told", "paper"
    cfg.curriculum.imagined_worlds, cfg.planner.depth = 2, 3
    made.clear()
    monkeypatch.setattr(module, "WorldModel", Recorded)
    assert module.imagine_worlds(cfg, tmp_path, model="builtin:tiny")["imagined"] == 2
    (model,) = made
    assert all("The ice is thin." in shown.base for shown in model.shown)
    assert [choice.actions_left for choice in model.choices if choice.state in starts(tmp_path)] == [10, 10]
    assert {choice.actions_left for choice in model.choices} == {10, 9, 8}, "not what is left of the depth"


def starts(out: Path) -> list[str]:
    return [world["start"] for world in json.loads((out / FILE).read_text())]


def test_it_excludes_other_curricula() -> None:
    with pytest.raises(ValueError, match="excludes"):
        load_config("frozen_lake", ["curriculum.imagined=0.5", "curriculum.levels=[{size: 3}]"])


def test_worlds_of_the_file_are_found_by_seed(path: str) -> None:
    cfg = load_config("frozen_lake", ["curriculum.imagined=0.5"])
    cfg.curriculum.imagined_file = path
    task = training_tasks(cfg, state_format="grid")[1]
    first, second, *more = [world.content for world in WorldSource(task, "train", 0).take(6)]
    assert first != second and more == [first, second] * 2, (
        "each in its turn, whichever split its start would hash into"
    )


def trainer_of(path: str, out: Path, **ppo: Any) -> PPOTrainer:
    """Half of its four worlds are imagined."""
    config = tiny_config(steps=1, val_every=0, groups=4, **ppo)
    config.curriculum = CurriculumConfig(imagined=0.5, imagined_file=path)
    return PPOTrainer(config, Policy.load(config), make_task(config), out, lambda *row: None)


def test_the_trainer_plays_real_and_imagined_worlds(path: str, tmp_path: Path) -> None:
    trainer = trainer_of(path, tmp_path)
    config = trainer.config
    assert [is_real(task) for task in trainer.curriculum.tasks] == [True, False]
    trainer.train()
    real = WorldSource(make_task(config), "train", config.seeds.train).take(2)
    assert trainer.played == {world.content: world.symmetry for world in real}, "imagined worlds are not counted"


def test_what_was_imagined_is_no_action_in_the_world_and_no_truth_to_learn(path: str, tmp_path: Path) -> None:
    trainer = trainer_of(path, tmp_path, world_model_coef=1.0, world_model_fraction=1.0)
    trainer.policy.engine = Scripted(lambda i: "go</think><answer>Right</answer>")
    batch = trainer._play(0)
    real, imagined = ([e for e, index in zip(*batch[:2], strict=True) if index == task] for task in (0, 1))
    assert trainer._world_model_examples(real, [0] * len(real), 1)
    assert not trainer._world_model_examples(imagined, [1] * len(imagined), 1)
    trainer._play = lambda seed: batch
    trainer.train()
    lived, dreamt = (sum(len(turn.executed) for e in episodes for turn in e.turns) for episodes in (real, imagined))
    assert trainer.actions == lived and dreamt > 0


def test_only_training_worlds_are_imagined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "search_all", lambda model, searches, headers, max_tokens: [{} for _ in searches])
    cfg = tiny_config()
    cfg.curriculum.imagined_worlds = 12
    record = module.imagine_worlds(cfg, tmp_path, model="builtin:tiny")
    (split,) = record["worlds"]
    assert {split_of(key) for key in record["worlds"][split]} == {"train"} == {split}
