"""What variants change, and which data and models are their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spa.config.load import differences, load_config, load_variant, names_of
from spa.config.schema import VariantConfig
from spa.config.variants import (
    changes_nothing,
    check_variants,
    command_of,
    data_folder,
    overruled,
    own_steps,
    practice_folder,
    practice_variants,
    selfplay_folder,
    selfplay_variants,
    sft_folder,
    source_config,
    variant_config,
    variants_of,
)
from spa.dry_run import plan

TRANSFERS = ("easy_to_hard", "cross_complexity", "cross_world")
OUT = Path("run")
# variant -> the settings it changes for stages 1 and 2 of a sokoban run, and whether its self-play is its own
ABLATIONS = {
    "self_belief": ({"selfplay.states": "belief"}, True),
    "masked": ({"sft.loss": "masked"}, False),
    "shuffled": ({"selfplay.states": "shuffled"}, True),
    "imitation": ({"selfplay.prompt": "base", "selfplay.filter": False, "agent.prompt_after_sft": "base"}, True),
    "no_coordinates": ({"selfplay.state_format": "grid"}, True),
    "random_coordinates": ({"selfplay.state_format": "random_coordinates"}, True),
    "random_policy": ({"selfplay.policy": "random"}, True),
    "random_policy_1_epoch": ({"selfplay.policy": "random", "sft.epochs": 1}, True),
    "raw": ({"selfplay.filter": False}, True),
    "epochs_1": ({"sft.epochs": 1}, False),
    "epochs_2": ({"sft.epochs": 2}, False),
    "epochs_4": ({"sft.epochs": 4}, False),
}


def value(config, key: str):
    for name in key.split("."):
        config = getattr(config, name)
    return config


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_changes_what_it_says_and_nothing_else(name: str) -> None:
    cfg, variant = load_config("sokoban"), load_variant(name)
    changed, own_data = ABLATIONS[name]
    source = source_config(cfg, variant)
    assert {key: value(source, key) for key in differences(cfg, source)} == changed
    assert (variant.sft, variant.rl) == (True, True)
    assert sft_folder(OUT, variant) == OUT / f"sft-{name}"
    assert (selfplay_folder(OUT, variant) != OUT / "selfplay") == own_data


def test_the_ablations_of_states_are_played_in_their_format() -> None:
    formats = {
        name: load_variant(name).state_format for name in ("spa", "no_coordinates", "random_coordinates", "masked")
    }
    assert formats == {
        "spa": "coordinates",
        "no_coordinates": "grid",
        "random_coordinates": "random_coordinates",
        "masked": "coordinates",
    }


def test_every_variant_fits_some_config() -> None:
    configs = {
        "easy_to_hard": "frozen_lake_6x6",
        "cross_complexity": "sokoban_hard",
        "cross_world": "frozen_lake",
    }
    for name in names_of("variant"):
        cfg = load_config(configs.get(name, "sokoban"), [f"variants=[{name}]"])
        assert [variant.name for variant in variants_of(cfg)] == list(dict.fromkeys(["base", name]))


def test_transfer_takes_another_world_for_stages_1_and_2_only() -> None:
    cfg, variant = load_config("frozen_lake_6x6"), load_variant("easy_to_hard")
    assert source_config(cfg, variant).env.settings["size"] == 4
    assert variant_config(cfg, variant) == cfg
    lake, other = load_config("frozen_lake"), load_variant("cross_world")
    assert source_config(lake, other).env == load_config("sokoban").env
    assert variant_config(lake, other).env == lake.env
    rooms = source_config(load_config("sokoban_hard"), load_variant("cross_complexity")).env
    assert (rooms.settings["dim_room"], rooms.settings["num_boxes"]) == ([6, 6], 1)


def test_variants_share_the_runs_stages_unless_they_change_them() -> None:
    assert (
        sft_folder(OUT, None)
        == sft_folder(OUT, load_variant("spa"))
        == sft_folder(OUT, load_variant("sft"))
        == OUT / "sft"
    )
    shared = {selfplay_folder(OUT, load_variant(name)) for name in ("random_policy", "random_policy_1_epoch")}
    assert shared == {OUT / "selfplay-random_policy"}
    later = VariantConfig("fast", sft=True, settings={"ppo.actor_lr": 1e-3})
    assert (sft_folder(OUT, later), selfplay_folder(OUT, later)) == (OUT / "sft", OUT / "selfplay")
    assert variant_config(load_config("sokoban"), later).ppo.actor_lr == 1e-3
    mixed = VariantConfig("mixed", sft=True, settings={"curriculum.mixture": {"sokoban": 1.0, "frozen_lake": 1.0}})
    assert (sft_folder(OUT, mixed), selfplay_folder(OUT, mixed)) == (OUT / "sft", OUT / "selfplay")


def test_the_prompt_after_sft_is_that_of_variants_with_a_world_model() -> None:
    cfg = load_config("sokoban", ["agent.prompt_after_sft=world_model"])
    prompts = {
        name: variant_config(cfg, load_variant(name)).agent.prompt
        for name in names_of("variant")
        if name not in TRANSFERS
    }
    told = {name for name, prompt in prompts.items() if prompt == "world_model"}
    assert {"spa", "sft", "masked", "self_belief", "shuffled", "vagen"} <= told
    assert not told & {"base", "vanilla", "se", "imitation"}
    assert variant_config(load_config("sokoban"), load_variant("spa")).agent.prompt == "base"
    assert sft_folder(OUT, load_variant("spa")) == OUT / "sft"
    with pytest.raises(ValueError, match=r"agent\.prompt_after_sft must be one of same, base, world_model"):
        load_config("sokoban", ["agent.prompt_after_sft=plain"])


def test_an_variant_that_repeats_the_run_is_noticed() -> None:
    cfg = load_config("sokoban", ["sft.epochs=3"])
    assert changes_nothing(cfg, load_variant("epochs_3"))
    assert not changes_nothing(cfg, load_variant("epochs_2"))
    assert not changes_nothing(cfg, load_variant("spa"))


def test_two_variants_with_one_name_of_data_must_agree() -> None:
    cfg = load_config("sokoban")
    variants = [
        VariantConfig("a", sft=True, selfplay="mine", settings={"selfplay.groups": 3}),
        VariantConfig("b", sft=True, selfplay="mine", settings={"selfplay.groups": 4}),
    ]
    with pytest.raises(ValueError, match=r"variants a and b share.*'mine'.*selfplay\.groups"):
        check_variants(cfg, variants)
    with pytest.raises(ValueError, match="two variants are named 'a'"):
        check_variants(cfg, [variants[0], variants[0]])
    with pytest.raises(ValueError, match="two variants are named 'A': 'a' is the same folder on some disks"):
        check_variants(cfg, [variants[0], replace(variants[0], name="A")])


def test_the_history_in_rows_and_a_playing_planner_make_other_data() -> None:
    one_turn = VariantConfig("one_turn", sft=True, settings={"sft.window": 1})
    assert selfplay_folder(OUT, one_turn) == OUT / "selfplay-one_turn"
    nested = replace(one_turn, settings={"sft": {"window": 1}})
    assert selfplay_folder(OUT, nested) == OUT / "selfplay-one_turn"
    variants = [
        VariantConfig(name, sft=True, settings={"planner.depth": depth}) for name, depth in (("a", 2), ("b", 3))
    ]
    check_variants(load_config("sokoban"), variants)  # read in evaluation alone
    played = load_config("sokoban", ["selfplay.policy=planner", "agent.planner=lookahead"])
    with pytest.raises(ValueError, match=r"variants a and b share.*planner\.depth"):
        check_variants(played, variants)


def test_ones_own_variant_is_a_file(tmp_path) -> None:
    path = tmp_path / "gentle.yaml"
    path.write_text("sft: true\nstate_format: coordinates\nsettings: {sft.lr: 1.0e-5}\n")
    cfg = load_config("sokoban", [f"variants=[spa,{path}]"])
    base, spa, own = variants_of(cfg)
    assert [base.name, spa.name, own.name] == ["base", "spa", "gentle"]
    assert source_config(cfg, own).sft.lr == 1e-5


@pytest.mark.parametrize(
    "text, message",
    [
        ("settings: {sft.epoch: 1}", r"variant own: unknown setting 'sft.epoch'. Did you mean 'sft.epochs'"),
        ("settings: {sft.epochs: 0}", "variant own: sft.epochs must be a whole number, 1 or more, not 0"),
        ("settings: {sft.epochs: many}", "variant own: sft.epochs must be a whole number"),
        ("source: {env: sokobann}", "variant own: unknown config 'sokobann'.*Did you mean 'sokoban'"),
        ("sfft: true", "unknown setting 'sfft'"),
        ("name: ../up", "names a folder"),
        ("state_format: pixels", "state_format must be one of grid, coordinates"),
    ],
)
def test_what_is_wrong_with_an_variant_is_said_in_one_line(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ValueError, match=message) as error:
        variants_of(load_config("sokoban", [f"variants=[{path}]"]))
    assert "\n" not in str(error.value)


def test_missing_variant_file() -> None:
    with pytest.raises(ValueError, match=r"no variant file nowhere\.yaml"):
        variants_of(load_config("sokoban", ["variants=[nowhere.yaml]"]))


def test_settings_without_effect_in_a_variant_are_named() -> None:
    settings = ["agent.planner=mcts", "env.settings.size=5", "selfplay.state_format=grid", "ppo.steps=80"]
    settings += ["env.state_format=coordinates", "agent.window=3"]
    cfg = load_config("frozen_lake", settings)
    longer = VariantConfig(
        name="longer", state_format="coordinates", settings={"ppo.steps": 700, "env.settings": {"size": 3}}
    )
    variants = [load_variant("vanilla"), load_variant("plan"), longer]
    assert overruled(cfg, settings, variants) == [
        "env.state_format=coordinates has no effect in variant vanilla, which sets env.state_format=grid",
        "agent.planner=mcts has no effect in variant plan, which sets agent.planner=lookahead",
        "env.state_format=coordinates has no effect in variant plan, which sets env.state_format=grid",
        "agent.window=3 has no effect in variant plan, which sets agent.window=1",
        "env.settings.size=5 has no effect in variant longer, which sets env.settings.size=3",
        "ppo.steps=80 has no effect in variant longer, which sets ppo.steps=700",
    ]


def test_other_entries_of_a_dictionary_have_their_effect() -> None:
    settings = ["env.settings.size=6", "env.settings.p=0.7"]
    cfg, mine = load_config("frozen_lake", settings), VariantConfig(name="mine", settings={"env.settings.p": 0.9})
    assert overruled(cfg, settings, [mine]) == [
        "env.settings.p=0.7 has no effect in variant mine, which sets env.settings.p=0.9"
    ]


def test_settings_without_effect_in_stages_1_and_2_alone_are_named() -> None:
    settings = ["selfplay.groups=11", "sampling.temperature=0.5", "ppo.steps=80", "sft.lr=0.001"]
    cfg = load_config("frozen_lake", settings)
    mine = VariantConfig(name="mine", sft=True, rl=True, settings={"sft.lr": 0.002}, source={"selfplay.groups": 7})
    mine.source["sampling.temperature"] = 1.0
    assert overruled(cfg, settings, [mine]) == [
        "selfplay.groups=11 has no effect in stages 1 and 2 of variant mine, which set selfplay.groups=7",
        "sampling.temperature=0.5 has no effect in stages 1 and 2 of variant mine, which set sampling.temperature=1.0",
        "sft.lr=0.001 has no effect in variant mine, which sets sft.lr=0.002",
    ]
    assert overruled(cfg, settings[:1], [replace(mine, sft=False)]) == []


def test_a_practice_is_repeated_with_resume_alone() -> None:
    plan, after = load_variant("plan"), load_variant("spa_plan")
    assert practice_folder(OUT, plan) == practice_folder(OUT, after)
    assert command_of("practice", plan) == command_of("practice", after) == "practice plan"
    assert command_of("ppo", after) == "ppo spa_plan"


def test_a_variant_that_continues_another_is_checked_alone_too() -> None:
    cfg = load_config("frozen_lake", ["ppo.steps=20"])
    with pytest.raises(ValueError, match=r"differ from it in ppo\.steps alone, not in ppo\.actor_lr"):
        check_variants(
            cfg, [VariantConfig(name="long", continues="vanilla", settings={"ppo.steps": 30, "ppo.actor_lr": 0.5})]
        )
    with pytest.raises(ValueError, match=r"needs more than its 20 ppo\.steps"):
        check_variants(cfg, [VariantConfig(name="long", continues="vanilla")])
    long = VariantConfig(name="long", continues="vanilla", settings={"ppo.steps": 30})
    assert (own_steps(cfg, load_variant("vanilla")), own_steps(cfg, long)) == (20, 10)
    _, line = [line for line in plan(cfg, "run", [load_variant("vanilla"), long]) if " steps x " in line]
    assert line.startswith("ppo long: 10 steps x") and "from the last model of variant vanilla, " in line


def test_imagined_worlds_need_a_stage_2_that_can_imagine() -> None:
    for variant, *settings in (("vanilla",), ("spa",), ("spa_dream", "ppo.start=builtin:tiny")):
        cfg = load_config("frozen_lake", ["curriculum.imagined=0.5", *settings])
        with pytest.raises(ValueError, match=f"variant {variant} trains in worlds that its stage 2 imagines"):
            check_variants(cfg, [load_variant("base"), load_variant(variant)])
    cfg = load_config("frozen_lake", ["curriculum.imagined=0.5", "curriculum.imagined_file=worlds.json"])
    check_variants(cfg, [load_variant(name) for name in ("base", "vanilla", "spa_dream")])


def test_rounds_of_practice_need_states_that_the_plain_prompt_can_give() -> None:
    settings = {"selfplay.states": "belief", "selfplay.rows": "transitions", "practice.rounds": 2}
    with pytest.raises(ValueError, match=r"variant own plays between rounds .* practice\.rounds=1"):
        check_variants(load_config("sokoban"), [VariantConfig("own", sft=True, practice=True, settings=settings)])


def test_variants_that_share_practice_practise_once() -> None:
    cfg = load_config("frozen_lake")
    variants = [load_variant(name) for name in ("vanilla", "plan", "spa_plan", "plan_shuffled")]
    assert practice_variants(cfg, "run", variants) == [variants[1], variants[3]]
    assert practice_variants(cfg, "practice", variants[2:3]) == [variants[2]]
    assert practice_variants(cfg, "ppo", variants) == [], "stage 3 uses what was practised before"
    started = load_config("frozen_lake", ["ppo.start=builtin:tiny"])
    assert practice_variants(started, "run", variants[2:3]) == [], "it starts elsewhere"


def test_variants_that_share_imagined_worlds_imagine_as_many() -> None:
    cfg = load_config("frozen_lake")
    plan, dream = load_variant("plan"), load_variant("spa_dream")
    more = replace(dream, name="more", settings={**dream.settings, "curriculum.imagined_worlds": 900})
    check_variants(cfg, [plan, more])
    with pytest.raises(
        ValueError, match=r"spa_dream and more share .*\(curriculum\.imagined_worlds\).* another `shares`"
    ):
        check_variants(cfg, [plan, dream, more])
    check_variants(cfg, [plan, dream, replace(more, shares="more")])
    check_variants(cfg, [dream, replace(more, rl=False)])  # which imagines none


def test_the_runs_data_are_not_those_of_a_variant_with_a_stage_1_of_its_own() -> None:
    cfg, plan, spa = load_config("frozen_lake", ["sft.data=X"]), load_variant("plan"), load_variant("spa")
    assert [data_folder(cfg, each, OUT) for each in (None, spa, plan)] == [Path("X"), Path("X"), OUT / "selfplay-plan"]
    assert overruled(cfg, ["sft.data=X"], [load_variant("vanilla"), plan, spa]) == [
        "sft.data=X has no effect in variant plan, which has a stage 1 of its own"
    ]
    assert overruled(load_config("frozen_lake", ["sft.data=null"]), ["sft.data=null"], [plan]) == []


@pytest.mark.parametrize("block", ["settings", "source"])
def test_a_variant_may_bring_data_of_its_own(block: str) -> None:
    for run in (["sft.data=X"], []):
        cfg = load_config("frozen_lake", run)
        for variant in (load_variant("plan"), load_variant("spa")):
            own = replace(variant, **{block: {**getattr(variant, block), "sft.data": "Y"}})
            assert data_folder(cfg, own, OUT) == Path("Y")
            assert selfplay_variants(cfg, "run", [own]) == []
