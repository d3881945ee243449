"""Mixtures and levels: who is dealt when, from which split, and that a resume deals on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.agent.policy import make_task
from spa.agent.worlds import split_of
from spa.cli import main
from spa.config.load import env_block, load_config
from spa.config.schema import Config, CurriculumConfig, VariantConfig
from spa.config.variants import source_config
from spa.dry_run import imports
from spa.preflight import check_tasks
from spa.rl.curriculum import Curriculum, check_training_worlds, task_labels, training_tasks
from tests.scripted import tiny_config

EXAMPLES = Path(__file__).parents[2] / "examples"
LEVELS = [{"size": 2, "p": 0.9}, {"size": 3}]


def curriculum(cfg: Config) -> Curriculum:
    return Curriculum(cfg, training_tasks(cfg))


def leveled(**more: object) -> Config:
    cfg = tiny_config()
    cfg.curriculum = CurriculumConfig(levels=LEVELS, **{"threshold": 0.5, "window": 2, **more})
    return cfg


def mixed(**weights: float) -> Config:
    cfg = tiny_config()
    cfg.curriculum.mixture = weights
    return cfg


def counts(one: Curriculum, groups: int) -> dict[int, int]:
    return {index: len(worlds) for index, worlds in one.take(groups)}


def test_without_one_the_runs_own_world_is_played() -> None:
    cfg = tiny_config()
    one = curriculum(cfg)
    ((index, worlds),) = one.take(5)
    assert (index, len(worlds)) == (0, 5)
    assert one.tasks == [make_task(cfg)]
    one.observe({0: 1.0})
    assert one.level == 0


def test_levels_are_the_runs_world_with_other_settings_and_end_with_it() -> None:
    cfg = leveled()
    tasks = training_tasks(cfg)
    assert [task.env.settings["size"] for task in tasks] == [2, 3, 4]
    assert tasks[-1] == make_task(cfg)
    assert not any(task.env.settings["is_slippery"] for task in tasks)


def test_a_level_is_left_once_it_is_mastered() -> None:
    one = curriculum(leveled())
    seen = []
    for success in (1.0, 0.0, 0.9, 0.9, 0.4, 0.7, 1.0, 1.0):
        seen.append(one.level)
        assert set(counts(one, 4)) == {one.level}
        one.observe({one.level: success})
    assert seen == [0, 0, 1, 1, 2, 2, 2, 2]  # means of two steps: .5, then .9; the last level stays


def test_rehearsal_keeps_earlier_levels() -> None:
    one = curriculum(leveled(rehearsal=0.5, window=1))
    for dealt in ({0: 8}, {0: 4, 1: 4}, {0: 2, 1: 2, 2: 4}):
        assert counts(one, 8) == dealt, "from the first step of a level on, whatever was dealt before"
        one.observe({one.level: 1.0})


@pytest.mark.slow
@given(st.lists(st.floats(0.1, 5), min_size=2, max_size=2), st.lists(st.integers(1, 9), min_size=1, max_size=6))
@settings(max_examples=20)
def test_shares_of_a_mixture_are_exact_in_the_long_run(weights: list[float], steps: list[int]) -> None:
    one = curriculum(mixed(frozen_lake=weights[0], sudoku=weights[1]))
    for groups in steps:
        before = list(one.dealt)
        dealt = counts(one, groups)
        assert sum(dealt.values()) == groups
        assert [one.dealt[i] - before[i] for i in (0, 1)] == [dealt.get(0, 0), dealt.get(1, 0)]
    total = sum(steps)
    for number, weight in zip(one.dealt, weights, strict=True):
        assert abs(number - total * weight / sum(weights)) < 1


def test_the_runs_own_world_keeps_its_settings_in_a_mixture() -> None:
    mixture = "curriculum.mixture={sokoban: 1, frozen_lake_slippery: 1, frozen_lake: 1}"
    changes = ["name=lakes", "env.max_turns=7", "env.settings.size=5", "env.disjoint=seed", "env.step_timeout=9"]
    cfg = load_config("frozen_lake", [mixture, *changes])
    *others, own = [task.env for task in training_tasks(cfg)]
    assert own == cfg.env
    for name, env in zip(("sokoban", "frozen_lake_slippery"), others, strict=True):
        assert env == replace(env_block(name), step_timeout=9.0, disjoint="seed")


def test_worlds_of_a_mixture_are_otherwise_as_packaged() -> None:
    names = ["sokoban_easy", "bandit", "frozen_lake"]  # the first has the id and tag of the run's own
    cfg = load_config("sokoban", [f"curriculum.mixture={{{', '.join(f'{name}: 1' for name in names)}}}"])
    assert [task.env for task in training_tasks(cfg)] == [env_block(name) for name in names]


def test_files_of_the_runs_class_with_other_settings_are_worlds_of_their_own(tmp_path, monkeypatch) -> None:
    """Trained on easy vaults, evaluated on hard ones."""
    monkeypatch.syspath_prepend(EXAMPLES)
    files = {wheels: tmp_path / f"wheels_{wheels}.yaml" for wheels in (2, 3, 5)}
    for wheels, file in files.items():
        file.write_text(f"env: {{id: 'vault:Vault', tag: Vault, settings: {{wheels: {wheels}}}}}")
    for mixed in ([2, 3], [2], [2, 5]):
        mixture = f"curriculum.mixture={{{', '.join(f'{files[wheels]}: 1' for wheels in mixed)}}}"
        cfg = load_config(str(files[5]), [mixture, "env.max_turns=4"])
        tasks = training_tasks(cfg)
        assert [task.env.settings["wheels"] for task in tasks] == mixed
        assert [task.env == cfg.env for task in tasks] == [wheels == 5 for wheels in mixed]


def test_levels_that_training_never_came_to_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    cfg = load_config(
        "frozen_lake", ["curriculum.levels=[{size: 3}]", "curriculum.window=1", "curriculum.threshold=0.5"]
    )
    one = curriculum(cfg)
    one.observe({0: 0.4})
    one.say_left()
    assert "training stayed at level 1 of 2 and never played the run's own world" in capsys.readouterr().err
    one.observe({0: 0.6})
    one.say_left()
    curriculum(load_config("frozen_lake", [])).say_left()
    assert not capsys.readouterr().err


def test_a_mixture_takes_config_files_and_worlds_by_id(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)
    hard = tmp_path / "hard_vault.yaml"
    hard.write_text("env: {id: 'vault:Vault', settings: {wheels: 5}, max_turns: 6}")
    mixture = f"curriculum.mixture={{{hard}: 1, vault.yaml: 2, vault\\:Vault: 1, frozen_lake: 1}}"
    cfg = load_config("vault.yaml", [mixture, "env.max_turns=3"])
    tasks = training_tasks(cfg)
    assert tasks[1].env == cfg.env and cfg.env.max_turns == 3  # the run's own
    assert (tasks[0].env.settings, tasks[0].env.max_turns, tasks[2].env.id) == ({"wheels": 5}, 6, "vault:Vault")
    assert tasks[3].env == env_block("frozen_lake")
    assert task_labels(cfg, tasks) == ["hard_vault", "vault", "vault:Vault", "FrozenLake"]
    before = Curriculum(cfg, tasks)
    before.take(6)
    after = Curriculum(replace(cfg, env=replace(cfg.env, step_timeout=7.0)), training_tasks(cfg))
    after.load_state(json.loads(json.dumps(before.state())))
    assert after.state() == before.state()
    hard.write_text("env: {id: 'vault:Vault', settings: {wheels: 6}, max_turns: 6}")
    with pytest.raises(ValueError, match=r"hard_vault\.yaml, or the order of the worlds, has changed since the"):
        curriculum(cfg).load_state(before.state())


@pytest.mark.parametrize(
    ("mixture", "labels"),
    [
        ({"sokoban_easy": 1, "frozen_lake": 1}, ["sokoban_easy", "FrozenLake"]),  # the run's own is not among them
        ({"sokoban_easy": 1, "sokoban": 1}, ["sokoban_easy", "sokoban"]),
        ({"sokoban": 1, "frozen_lake": 1}, ["SimpleSokoban", "FrozenLake"]),
        ({"a/vault.yaml": 1, "b/vault.yaml": 1, "hard.yaml": 1}, ["a/vault", "b/vault", "hard"]),
    ],
)
def test_labels_tell_all_worlds_of_a_mixture_apart(tmp_path, monkeypatch, mixture, labels) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    for number, name in enumerate(each for each in mixture if each.endswith(".yaml")):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(f"env: {{id: 'vault:Vault', settings: {{wheels: {number + 3}}}}}")
    cfg = load_config("sokoban")
    cfg.curriculum.mixture = mixture
    assert task_labels(cfg, training_tasks(cfg)) == labels


def test_a_file_named_like_a_packaged_world_has_a_label_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("frozen_lake.yaml").write_text("env: {id: frozen_lake, tag: FrozenLake}")
    cfg = load_config("sokoban")
    cfg.curriculum.mixture = {"frozen_lake": 1, "frozen_lake.yaml": 1}
    assert task_labels(cfg, training_tasks(cfg)) == ["frozen_lake", "frozen_lake.yaml"]


@pytest.mark.parametrize(("own", "whole"), [("symmetry", "symmetry"), ("content", "content"), ("seed", "seed")])
def test_no_test_world_is_trained_on_through_another_config_of_the_same_world(tmp_path, own, whole) -> None:
    """Each way to tell worlds apart puts other worlds into the test: a mixture and a source have the run's."""
    other = tmp_path / "other.yaml"
    other.write_text("env: {id: frozen_lake, settings: {size: 4, is_slippery: true}}")
    cfg = load_config(
        "frozen_lake", ["env.step_timeout=7", f"env.disjoint={own}", f"curriculum.mixture={{{other}: 1, sokoban: 1}}"]
    )
    assert training_tasks(cfg)[0].env.disjoint == whole
    source = source_config(cfg, VariantConfig(name="v", source={"env": str(other)}))
    assert source.env.disjoint == whole and source.env.step_timeout == 7
    other.write_text("env: {id: frozen_lake, disjoint: seed}")
    assert training_tasks(cfg)[0].env.disjoint == "seed", "what a config asks for"


def test_the_success_that_decides_on_the_next_level_is_logged() -> None:
    one = curriculum(leveled())
    assert one.metrics({0: 0.25}, ["a", "a", "a"]) == {"curriculum/level": 0.0, "curriculum/success": 0.25}
    assert one.metrics({}, ["a", "a", "a"]) == {"curriculum/level": 0.0}
    assert curriculum(mixed(frozen_lake=1, sokoban=1)).metrics({1: 0.5}, ["a", "b"]) == {"train/b/success": 0.5}


def test_a_world_of_a_mixture_with_too_few_instances_is_refused_beforehand(monkeypatch) -> None:
    monkeypatch.setattr("spa.agent.worlds._SECONDS", 60)  # on a busy machine, too
    lone = "{frozen_lake: 1, gym\\:FrozenLake-v1: 1}"  # the same lake whatever the seed
    found = r"gym:FrozenLake-v1.*only 0 distinct worlds for split 'train'.* env.disjoint=seed in the config file of that world"
    with pytest.raises(ValueError, match=found):
        check_training_worlds([load_config("frozen_lake", [f"curriculum.mixture={lone}"])])


def test_every_world_is_of_the_training_split_and_none_comes_twice_in_a_row() -> None:
    one = curriculum(mixed(frozen_lake=1, frozen_lake_6x6=2))
    worlds = [(index, world) for _ in range(3) for index, batch in one.take(6) for world in batch]
    assert {split_of(world.content) for _, world in worlds} == {"train"}
    assert len({(index, world.seed) for index, world in worlds}) == 18


def test_a_resumed_curriculum_deals_on() -> None:
    whole, cut = curriculum(leveled(rehearsal=0.3)), curriculum(leveled(rehearsal=0.3))
    for success in (1.0, 1.0, 0.2):
        for one in (whole, cut):
            one.take(5)
            one.observe({one.level: success})
    again = curriculum(leveled(rehearsal=0.3))
    again.load_state(json.loads(json.dumps(cut.state())))
    assert again.take(7) == whole.take(7)
    for one in (whole, again):
        one.observe({one.level: 0.9})
    assert again.state() == whole.state()


@pytest.mark.parametrize(
    "settings_, message",
    [
        (["curriculum.mixture={frozen_lake: 1}", "curriculum.levels=[{size: 3}]"], "exclude each other"),
        (["curriculum.mixture={frozen_lake: 0}"], r"curriculum\.mixture\.frozen_lake must be a number, more than 0"),
        (["curriculum.threshold=0"], r"curriculum\.threshold must be a number, more than 0"),
        (["curriculum.rehearsal=0.95"], r"curriculum\.rehearsal must be a number from 0 to 0\.9"),
        (["curriculum.window=0"], r"curriculum\.window must be a whole number, 1 or more"),
    ],
)
def test_mistakes_in_values(settings_: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config("frozen_lake", settings_)


@pytest.mark.parametrize(
    "setting, message",
    [
        ("curriculum.mixture={frozen_lak: 1}", "unknown config 'frozen_lak'.*Did you mean 'frozen_lake'"),
        ("curriculum.mixture={no/vault.yaml: 1}", "no config file"),
        ("curriculum.levels=[{siz: 3}]", "unknown setting 'siz'"),
    ],
)
def test_mistakes_in_names_are_found_before_anything_is_written(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_tasks(load_config("frozen_lake", [setting]), [VariantConfig("vanilla")])


def test_the_actions_of_every_world_are_looked_at_and_its_module_is_named(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("odd_world.py").write_text(
        "from spa.envs import TextEnv\nclass Odd(TextEnv):\n    actions = ('go||East',)\n"
        "    def reset(self, *, seed=None, options=None):\n        return f's{seed}', {'content': str(seed)}\n"
    )
    mixture = "curriculum.mixture={frozen_lake: 1, odd_world\\:Odd: 1}"
    with pytest.raises(ValueError, match=r"go\|\|East"):
        check_tasks(load_config("frozen_lake", [mixture]), [VariantConfig("vanilla")])
    assert main(["run", "frozen_lake", mixture, "--dry-run"]) == 2
    assert imports(load_config("frozen_lake", [mixture]), []) == [
        "imports: odd_world (curriculum.mixture odd_world:Odd)"
    ]
