"""Variants and settings of planning: what is refused, what is shared, where it is."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from spa.cli import main
from spa.config.load import load_config, load_variant
from spa.config.schema import Config, VariantConfig
from spa.config.variants import (
    check_variants,
    practice_folder,
    selfplay_folder,
    sft_folder,
    source_config,
    variant_config,
    variants_of,
)
from spa.envs.frozen_lake.world import FrozenLake

OUT = Path("run")
PLANS: dict[str, Any] = {"selfplay.rows": "transitions", "selfplay.state_format": "grid"}


@cache
def run_config(*settings: str) -> Config:
    """A run's config; nothing that reads it changes it."""
    return load_config("frozen_lake", settings)


def test_practice_needs_the_world_model_of_stage_2(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("practice: true\nsettings: {selfplay.rows: transitions}\n")
    with pytest.raises(
        ValueError, match=r"variant mine practises in the world model of stage 2: practice needs sft: true"
    ):
        load_variant(str(path))
    path.write_text("practice: true\nsft: true\nsettings: {selfplay.rows: transitions}\n")
    assert load_variant(str(path)).practice


class Tagged(FrozenLake):
    """Its states look like closing tags."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        state, info = super().reset(seed=seed, options=options)
        return f"{state}\n</lake>", info


@pytest.mark.parametrize("variant", ["search", "plan", "spa_dream"])
def test_states_that_would_end_an_answer_are_refused(variant: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", "frozen_lake", f"env.id={__name__}:Tagged", "--dry-run"]
    assert main([*given, f"variants=[{variant}]"]) == 2
    message = f"variant {variant}: this world's states contain '</', at which a planner stops reading an answer"
    assert message in capsys.readouterr().err
    assert main([*given, "variants=[spa]"]) == 0


@pytest.mark.parametrize("settings", [{}, {"selfplay.rows": "written"}])
def test_practice_needs_rows_of_transitions(settings: dict[str, Any]) -> None:
    mine = VariantConfig("mine", sft=True, practice=True, settings=settings)
    with pytest.raises(ValueError, match=r"variant mine practises, .* set selfplay\.rows=transitions"):
        check_variants(run_config(), [mine])
    check_variants(run_config(), [dataclasses.replace(mine, practice=False)])
    check_variants(run_config(), [dataclasses.replace(mine, settings={"selfplay.rows": "transitions"})])
    check_variants(run_config("selfplay.rows=transitions"), [dataclasses.replace(mine, settings={})])


def pair(second: dict[str, Any], **variant: Any) -> list[VariantConfig]:
    first = VariantConfig("a", sft=True, practice=True, shares="both", settings=dict(PLANS))
    return [first, dataclasses.replace(first, name="b", settings={**PLANS, **second}, **variant)]


@pytest.mark.parametrize(
    "setting",
    [
        {"selfplay.groups": 3},
        {"sft.epochs": 7},
        {"sft.lr": 0.5},
        {"model.dtype": "bfloat16"},
        {"practice.rounds": 2},
        {"planner.depth": 3},
    ],
)
def test_variants_that_share_their_stages_make_the_same_stages(setting: dict[str, Any]) -> None:
    cfg = run_config()
    (name,) = setting
    with pytest.raises(ValueError, match=rf"variants a and b share stages 1 and 2 \('both'\) but not .* \({name}\)"):
        check_variants(cfg, pair(setting))
    check_variants(cfg, pair(setting, shares="own"))


def test_variants_that_share_their_stages_may_differ_after_them() -> None:
    cfg = run_config()
    check_variants(cfg, pair({"ppo.actor_lr": 1e-3, "ppo.steps": 5, "eval.worlds": 9}, rl=False))
    check_variants(cfg, pair({}, state_format="coordinates"))


def test_the_source_of_an_variant_counts_too() -> None:
    with pytest.raises(ValueError, match=r"share stages 1 and 2 .*sft\.epochs"):
        check_variants(run_config(), pair({}, source={"sft.epochs": 9}))


def test_the_packaged_variants_share_stages_and_practice() -> None:
    cfg = load_config("frozen_lake", ["variants=[plan,spa_plan,search,simulator]"])
    _, plan, spa_plan, search, bound = variants_of(cfg)
    assert (plan.rl, spa_plan.rl, search.rl) == (False, True, False)
    assert (plan.practice, spa_plan.practice, search.practice) == (True, True, False)
    assert variant_config(cfg, bound).planner.model == "simulator"
    for variant in (plan, spa_plan, search, bound):
        assert sft_folder(OUT, variant) == OUT / "sft-plan"
        assert selfplay_folder(OUT, variant) == OUT / "selfplay-plan"
        assert source_config(cfg, variant).selfplay.rows == "transitions"
        assert variant_config(cfg, variant).agent.planner == "lookahead"
    assert practice_folder(OUT, plan) == practice_folder(OUT, spa_plan) == OUT / "practice-plan"
    assert source_config(cfg, plan) == source_config(cfg, spa_plan)


def test_the_control_shares_nothing_with_what_it_controls() -> None:
    cfg = load_config("frozen_lake", ["variants=[plan,spa_plan,plan_shuffled,spa_plan_shuffled]"])
    _, plan, after, control, control_after = variants_of(cfg)
    assert (after.rl, control_after.rl) == (True, True)
    for folder in (sft_folder, selfplay_folder, practice_folder):
        assert folder(OUT, plan) == folder(OUT, after) != folder(OUT, control) == folder(OUT, control_after)
    differing = {**dict(after.settings), "selfplay.states": "shuffled"}
    assert dict(control_after.settings) == differing, "the control differs in the states alone"


def test_an_variant_without_a_name_to_share_has_its_own_stages() -> None:
    variant = VariantConfig("mine", sft=True, practice=True, settings=PLANS)
    assert [f(OUT, variant).name for f in (selfplay_folder, sft_folder)] == ["selfplay-mine", "sft-mine"]
    assert practice_folder(OUT, variant) == OUT / "practice-mine"
    plain = VariantConfig("other", sft=True, practice=True, settings={"planner.depth": 3, "practice.rounds": 2})
    assert (selfplay_folder(OUT, plain), sft_folder(OUT, plain)) == (OUT / "selfplay", OUT / "sft")


@pytest.mark.parametrize("changed", [{"practice": True}, {"shares": "other"}])
def test_an_variant_that_continues_another_practised_as_that_did(changed: dict[str, Any]) -> None:
    cfg = run_config("ppo.steps=5")
    first = VariantConfig("a", sft=True, settings=PLANS)
    longer = dataclasses.replace(first, name="b", continues="a", settings={**PLANS, "ppo.steps": 9})
    check_variants(cfg, [first, longer])
    with pytest.raises(ValueError, match=rf"can differ from it in ppo\.steps alone, not in {next(iter(changed))}"):
        check_variants(cfg, [first, dataclasses.replace(longer, **changed)])


@pytest.mark.parametrize(
    "setting, message",
    [
        ("agent.planner=look", r"agent\.planner must be one of none, lookahead, beam, mcts"),
        ("selfplay.rows=moves", r"selfplay\.rows must be one of written, transitions"),
        ("planner.depth=0", r"planner\.depth must be a whole number, 1 or more"),
        ("planner.min_probability=1.5", r"planner\.min_probability must be a number from 0 to 1"),
        ("practice.rounds=0", r"practice\.rounds must be a whole number, 1 or more"),
    ],
)
def test_settings_that_mean_nothing_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config("frozen_lake", [setting])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["frozen_lake", "agent.planner=beam"], "planner.width=16"),
        (["sudoku", "agent.planner=lookahead"], "planner.proposals=8"),
        (["frozen_lake", "agent.planner=best_of_n"], "a model that practised with practice.values above 0"),
        (
            ["frozen_lake", "agent.planner=mcts", "planner.values=true"],
            "a model that practised with practice.values above 0",
        ),
    ],
)
def test_a_planner_that_could_not_play_is_refused_before_anything(given: list[str], message: str, capsys) -> None:
    assert main(["eval", *given, "--variant", "base", "--dry-run"]) == 2
    assert message in capsys.readouterr().err
    assert (
        main(
            [
                "eval",
                *given,
                "planner.width=4",
                "planner.proposals=4",
                "practice.values=1",
                "--variant",
                "base",
                "--dry-run",
            ]
        )
        == 0
    )


def test_practice_where_nothing_could_be_imagined_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "state_format: grid\nsft: true\npractice: true\nrl: false\n"
        "settings: {selfplay.rows: transitions, selfplay.prompt: base, selfplay.filter: false, selfplay.state_format: grid}\n"
    )
    command = ["run", "sudoku", "model=tiny", f"variants=[{tmp_path}/mine.yaml]", "--dry-run"]
    assert main(command) == 2
    assert "planner.proposals=8" in capsys.readouterr().err
    assert main([*command, "planner.proposals=4"]) == 0


def test_the_plan_names_the_planner_that_evaluation_plays_with(capsys: pytest.CaptureFixture[str]) -> None:
    for settings, told in (([], False), (["agent.planner=beam", "planner.width=4", "planner.depth=3"], True)):
        assert main(["run", "frozen_lake", "model=tiny", "variants=[vanilla]", *settings, "--dry-run"]) == 0
        said = "# eval vanilla: each test world once more with beam, 3 actions deep (beyond the paper)\n"
        assert (said in capsys.readouterr().out) == told
