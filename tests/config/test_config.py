"""Composition, overrides and the messages for what is wrong in a config."""

from __future__ import annotations

from dataclasses import field, replace
from importlib.metadata import EntryPoint, EntryPoints
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass

from spa.config.explain import explain, markdown, readers
from spa.config.fields import STRICT, Count, Flag, Number
from spa.config.load import (
    ALIASES,
    differences,
    load_config,
    load_variant,
    names_of,
    to_yaml,
)
from spa.config.overrides import apply_overrides, from_mapping, setting_names
from spa.config.schema import SEED_RANGE, Config, PPOConfig, SeedConfig, VariantConfig
from spa.pretrain.train import PretrainConfig


@dataclass(config=STRICT)
class Knobs:
    weights: dict[str, Number] = field(default_factory=lambda: {"a": 1.0})
    anything: dict[str, object] = field(default_factory=dict)
    steps: Count = 3
    rate: Number = 0.5
    title: str = "x"
    note: str | None = None
    limit: int | None = None
    on: Flag = True
    sizes: list[int] = field(default_factory=lambda: [1])


@pytest.mark.slow
@pytest.mark.parametrize("name, model", list(zip(names_of("env") * 2, cycle(names_of("model")))))
def test_every_config_and_every_model_compose(name: str, model: str) -> None:
    config = load_config(name, [f"model={model}"])
    assert type(config) is Config
    assert type(config.ppo) is PPOConfig
    assert config.name == name
    assert (config.model.path == "builtin:tiny") == (model == "tiny")
    # A world's file scales rewards for the tiny model, whose critic shares its trunk.
    assert config.ppo.reward_scale == 1.0 or model == "tiny"


def test_the_papers_models_keep_the_papers_settings() -> None:
    config = load_config("sokoban", ["model=qwen2.5-1.5b"])
    assert config.ppo == PPOConfig()
    assert config.sft == replace(Config().sft, precision="bfloat16")
    assert config.agent.style == "paper"
    assert config.sampling.max_tokens == 400
    assert config.model.path == "Qwen/Qwen2.5-1.5B-Instruct"


def test_worlds_are_the_originals() -> None:
    sokoban, lake, sudoku = (load_config(name).env for name in ("sokoban", "frozen_lake", "sudoku"))
    assert (sokoban.id, sokoban.tag) == ("sokoban", "SimpleSokoban")
    assert sokoban.settings == {"dim_room": [6, 6], "num_boxes": 1, "max_steps": 100}
    assert (sokoban.max_turns, sokoban.max_actions_per_turn, sokoban.max_actions, sokoban.response_hint) == (
        5,
        5,
        10,
        100,
    )
    assert lake.settings == {"size": 4, "p": 0.8, "is_slippery": False}
    assert load_config("frozen_lake_slippery").env.settings["is_slippery"] is True
    assert (sudoku.settings["board_size"], sudoku.settings["difficulty"], sudoku.max_actions) == (4, "easy", 50)


@pytest.mark.parametrize("name", names_of("env"))
def test_worlds_accept_their_settings(name: str) -> None:
    from spa.envs import make_env

    env = load_config(name).env
    make_env(env.id, **env.settings).reset(seed=0)


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases_of_the_original(alias: str, name: str) -> None:
    assert load_config(alias) == load_config(name)
    assert load_config("sokoban", [f"env={alias}"]) == load_config(name)


def test_overrides_of_every_type() -> None:
    config = load_config(
        "frozen_lake",
        [
            "ppo.steps=5",
            "ppo.actor_lr=1e-5",
            "agent.think=false",
            "variants=[vanilla,se,spa]",
            "env.settings.size=6",
            "+env.settings.new={a: [1, 2]}",
            "env.response_hint=null",
            "ppo.betas=[0.8,0.9]",
            "model=builtin:tiny",
        ],
    )
    assert config.ppo.steps == 5
    assert config.ppo.actor_lr == 1e-5
    assert config.agent.think is False
    assert config.variants == ["vanilla", "se", "spa"]
    assert config.env.settings == {"size": 6, "p": 0.8, "is_slippery": False, "new": {"a": [1, 2]}}
    assert config.env.response_hint is None
    assert config.ppo.betas == [0.8, 0.9]


def test_later_overrides_win_and_groups_come_first() -> None:
    config = load_config("sokoban", ["ppo.steps=5", "ppo.steps=6", "model=qwen2.5-0.5b", "env=sudoku"])
    assert (config.ppo.steps, config.name) == (6, "sudoku")


@pytest.mark.parametrize("path", ["/some/dir", "org/name", "runs/x/checkpoints/global_step_5", "builtin:tiny"])
def test_model_as_a_checkpoint(path: str) -> None:
    config = load_config("sokoban", [f"model={path}"])
    assert config.model.path == path
    assert (config == load_config("sokoban")) == (path == "builtin:tiny")
    assert load_config("sokoban", [f"model.path={path}"]) == config


def test_model_as_an_existing_folder_without_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_config("sokoban", ["model=mine"]).model.path == "mine"


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("sokobn", [], "unknown config 'sokobn'; choose one of .* Did you mean 'sokoban'?"),
        ("sokoban", ["env=lake"], r"unknown config 'lake'; choose one of .*frozen_lake"),
        ("sokoban", ["model=qwen2.5-1.5"], r"unknown model .* hub name with a slash. Did you mean 'qwen2.5-1.5b'\?"),
        ("sokoban", ["ppo.stpes=1"], r"^unknown setting 'ppo.stpes'. Did you mean 'ppo.steps'\?$"),
        ("sokoban", ["actor_lr=1"], r"unknown setting 'actor_lr'. Did you mean 'ppo.actor_lr'\?"),
        ("sokoban", ["zzzz=1"], "unknown setting 'zzzz'. `spa config NAME` shows all"),
        ("sokoban", ["ppo.steps.more=1"], "unknown setting 'ppo.steps.more'"),
        ("sokoban", ["ppo.steps=many"], "^ppo.steps must be a whole number, 0 or more, not 'many'$"),
        ("sokoban", ["ppo.steps=1.5"], "ppo.steps must be a whole number, 0 or more, not 1.5"),
        ("sokoban", ["ppo.steps=true"], "ppo.steps must be a whole number, 0 or more, not True"),
        ("sokoban", ["ppo.steps="], "ppo.steps must be a whole number, 0 or more, not ''"),
        ("sokoban", ["ppo.steps=null"], "ppo.steps must be a whole number, 0 or more, not null"),
        ("sokoban", ["ppo.lam=nan"], "ppo.lam must be a number from 0 to 1, not nan"),
        ("sokoban", ["agent.think=1"], "agent.think must be true or false, not 1"),
        ("sokoban", ["env.response_hint=x"], "env.response_hint must be a whole number, 1 or more, or null, not 'x'"),
        ("sokoban", ["env.settings=3"], r"env.settings must be a mapping like \{a: 1\}, not 3"),
        ("sokoban", ["variants=spa"], r"variants must be a list like \[a,b\] that is not empty, not 'spa'"),
        ("sokoban", ["variants=vanilla,spa"], r"variants: write a list in brackets, as in variants=\[vanilla,spa\]"),
        ("sokoban", ["ppo.betas=[0.9,a]"], r"ppo.betas\[1\] must be a number from 0 to below 1, not 'a'"),
        ("sokoban", ["ppo.betas=[0.9"], "ppo.betas: cannot read the value"),
        ("sokoban", ["ppo=3"], "'ppo' is a group of settings; set one of them, as in ppo.steps="),
        ("sokoban", ["ppo.steps"], "settings are written key=value, not 'ppo.steps'"),
        ("sokoban", ["~env.settings.size="], "settings cannot be deleted"),
        ("sokoban", ["variants=[vanilla_longer]"], "write vanilla_longer.yaml .*continues: vanilla"),
        ("sokoban", ["variants=[vanila]"], "unknown variant 'vanila'; .*Did you mean 'vanilla'"),
        ("sokoban", ["variants=[]"], r"variants must be a list like \[a,b\] that is not empty, not \[\]"),
        ("sokoban", ["variants=[spa,spa]"], "variants names the same twice"),
        ("sokoban", ["ppo.steps=-1"], "^ppo.steps must be a whole number, 0 or more, not -1$"),
        ("sokoban", ["ppo.group_size=0"], "ppo.group_size must be a whole number, 1 or more, not 0"),
        ("sokoban", ["ppo.group_size=1", "ppo.filter=top_p"], "ppo.filter=top_p compares the episodes of a world"),
        (
            "sokoban",
            ["ppo.group_size=1", "ppo.dynamic_groups=2"],
            "ppo.dynamic_groups compares the episodes of a world",
        ),
        ("sokoban", ["ppo.use=best", "ppo.val_every=0"], "ppo.use=best needs validation: set ppo.val_every"),
        ("sokoban", ["ppo.filter_ratio=0"], "ppo.filter_ratio must be a number, more than 0 and at most 1, not 0"),
        ("sokoban", ["ppo.filter_ratio=1.1"], "ppo.filter_ratio must be a number, more than 0 and at most 1"),
        ("sokoban", ["ppo.gamma=2"], "ppo.gamma must be a number from 0 to 1, not 2"),
        ("sokoban", ["ppo.dual_clip=0.5"], r"ppo.dual_clip must be 0 \(off\) or more than 1"),
        ("sokoban", ["ppo.betas=[0.9]"], r"ppo.betas must be a list like \[a,b\] of 2 values"),
        ("sokoban", ["agent.format_penalty=0.1"], "agent.format_penalty must be a number, 0 or less, not 0.1"),
        ("sokoban", ["agent.style=papr"], "agent.style must be one of paper, terse, not 'papr'. Did you mean 'paper'"),
        (
            "sokoban",
            ["eval.samples=4"],
            r"eval.ks must be numbers from 1 to eval.samples \(4\), .*: set 'eval.ks=\[1\]'",
        ),
        ("sokoban", ["eval.samples=4", "eval.ks=[8]"], r"set 'eval.ks=\[4\]'"),
        ("sokoban", ["seeds.val=5"], r"seeds.test \(0\) and seeds.val \(5\) are closer than 1000000000"),
        ("sokoban", ["seeds.test=-1"], "seeds.test must be a whole number, 0 or more"),
        ("sokoban", ["report.trackers=[wandb,mlflow]"], r"report.trackers\[1\] must be .* not 'mlflow'"),
        ("sokoban", ["model.path="], "model.path must not be empty"),
        ("sokoban", [r"env.instruction=Solve ${\frac{1}{2}}$"], r"env.instruction: '\$\{' begins a reference such as"),
        ("no/such.yaml", [], "no config file no/such.yaml"),
        ("docs/scales", [], "docs/scales is a folder, not a config: a run is given with --out docs/scales"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(name: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_config(name, overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("low, high", [("test", "val"), ("val", "selfplay"), ("selfplay", "train")])
def test_splits_do_not_share_a_single_seed(low: str, high: str) -> None:
    first = {"test": 0, "val": SEED_RANGE, "selfplay": 2 * SEED_RANGE, "train": 3 * SEED_RANGE}
    SeedConfig(**first)
    with pytest.raises(ValueError, match=rf"seeds\.{low} .* and seeds\.{high} .* are closer than"):
        SeedConfig(**{**first, low: first[low] + 1})


@pytest.mark.parametrize("text", ["1e3", "1000", "1000.0"])
def test_whole_numbers_may_be_written_as_floats(text: str) -> None:
    steps = load_config("sokoban", [f"ppo.steps={text}"]).ppo.steps
    assert steps == 1000
    assert type(steps) is int


@pytest.mark.parametrize("text", ["Push (all) boxes, it's fun: a = b", "123", "true", "a,b", "null hypothesis", "${x}"])
def test_text_stands_as_written(text: str) -> None:
    assert load_config("sokoban", [f"env.instruction={text}"]).env.instruction == text


def test_quotes_around_text_are_not_text() -> None:
    assert load_config("sokoban", ["env.instruction='null'"]).env.instruction == "null"
    assert load_config("sokoban", ["env.instruction=null"]).env.instruction is None


def test_overrides_of_any_dataclass_leave_the_original_alone() -> None:
    knobs = Knobs()
    changed = apply_overrides(knobs, ["weights.b=2", "anything.x.y=[a,1]", "limit=7", "sizes=[3,4]", "rate=1"])
    assert knobs == Knobs()
    assert changed.weights == {"a": 1.0, "b": 2.0}
    assert changed.anything == {"x": {"y": ["a", 1]}}
    assert (changed.limit, changed.sizes, changed.rate) == (7, [3, 4], 1.0)
    with pytest.raises(ValueError, match=r"weights.b must be a number, not 'x'"):
        apply_overrides(knobs, ["weights.b=x"])


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(-1e6, 1e6), st.booleans(), st.lists(st.integers(0, 99), max_size=4))
def test_values_survive_being_written(steps: int, rate: float, on: bool, sizes: list[int]) -> None:
    written = [f"steps={steps}", f"rate={rate!r}", f"on={str(on).lower()}", f"sizes={sizes}"]
    assert apply_overrides(Knobs(), written) == Knobs(steps=steps, rate=rate, on=on, sizes=sizes)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model=qwen2.5-3b", "env.settings.x={a: 1}", "variants=[se]", "sft.data=a b"],
        [
            "name=12e4",
            "model.revision=1234e56",
            "env.settings={level: '1e3', other: '.5e-3', third: 1.5E+3, share: 1e-3}",
        ],
    ],
)
def test_yaml_round_trip(tmp_path: Path, overrides: list[str]) -> None:
    config = load_config("sudoku", overrides)
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(path) == config


def test_saved_config_with_another_world_does_not_inherit_settings(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: mine\nenv: {id: frozen_lake, settings: {size: 5}}\nppo: {steps: 7}\n", encoding="utf-8")
    config = load_config(path, ["ppo.groups=2"])
    assert config.env.settings == {"size": 5}
    assert (config.env.max_actions, config.ppo.steps, config.ppo.groups, config.ppo.critic) == (10, 7, 2, "head")
    assert load_config(path, ["model=qwen2.5-0.5b"]).model.path.startswith("Qwen/")


def test_a_dotted_setting_beside_its_block_counts(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "env.id: sokoban\nenv: {tag: Mine}\nmodel.path: /nowhere/x\nmodel: {threads: 2}\n", encoding="utf-8"
    )
    config = load_config(path)
    assert (config.env.id, config.env.settings, config.agent.style) == ("sokoban", {}, "paper"), "not the tiny model's"


@pytest.mark.parametrize("world", ["gym:ALE/Pong-v5", "my.package:my/Vault-v0"])
def test_a_worlds_id_with_a_namespace_is_no_file(world: str) -> None:
    assert load_config(world).env.id == world


def test_a_file_of_ones_own_lies_over_the_chosen_files(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "agent: {window: 0}\nsft: {lr: 5.0e-4}\nppo: {actor_lr: 1.0e-5, reward_scale: 0.5}\nenv: {response_hint: 77}\n",
        encoding="utf-8",
    )
    config = load_config(path, ["model=smollm2-135m"])
    assert (config.agent.window, config.sft.lr, config.env.response_hint) == (0, 5e-4, 77)
    assert (config.ppo.actor_lr, config.ppo.reward_scale, config.ppo.critic_lr) == (1e-5, 0.5, 5e-5)
    text = explain("sft.lr", str(path), ["model=smollm2-135m"])
    assert f"Set by: default < model/smollm2-135m < {path}\n" in text


def test_a_file_that_makes_a_choice_itself_gives_way_to_another(tmp_path: Path) -> None:
    """As a run's config, whose settings of a model are not another's."""
    path, chosen = tmp_path / "config.yaml", ["model=smollm2-135m", "algorithm=rloo", "env=frozen_lake"]
    path.write_text(to_yaml(load_config("sudoku", ["seeds.run=3"])), encoding="utf-8")
    config, other = load_config(path, chosen), load_config(None, chosen)
    assert (config.name, config.env, config.model, config.agent) == ("frozen_lake", other.env, other.model, other.agent)
    assert (config.sft.lr, config.ppo.actor_lr, config.ppo.estimator, config.seeds.run) == (1e-4, 5e-6, "rloo", 3)
    assert f" < {path} < model/smollm2-135m\n" in explain("sft.lr", str(path), chosen)
    path.write_text("name: mine\nmodel.path: org/name\nsft: {lr: 5.0e-4}\n", encoding="utf-8")
    config = load_config(path, chosen)
    assert (config.name, config.model.path, config.sft.lr) == ("mine", "cache:smollm2-135m", 1e-4)


def test_settings_may_mend_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("sampling: {stop: [</answer>]}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"c\.yaml: sampling\.stop cannot be used with engine=openai"):
        load_config(path, ["engine=openai"])
    assert load_config(path, ["engine=openai", "sampling.stop=[]"]).sampling.stop == []
    with pytest.raises(ValueError, match=r"^ppo\.steps must be a whole number"):
        load_config(path, ["ppo.steps=many"])


def test_a_world_of_ones_own_gets_its_own_names(tmp_path: Path) -> None:
    path = tmp_path / "house.yaml"
    path.write_text("env: {id: rooms.house:House}\n", encoding="utf-8")
    config = load_config(path)
    assert (config.name, config.env.tag) == ("house", "House")


def test_file_with_defaults_is_composed(tmp_path: Path) -> None:
    path = tmp_path / "it's mine, all.yaml"
    path.write_text(
        "defaults:\n  - base\n  - override env: frozen_lake\n  - override model: qwen2.5-0.5b\n  - _self_\n"
        "env: {settings: {size: 6}}\nppo: {steps: 200}\n",
        encoding="utf-8",
    )
    config = load_config(path)
    assert config.env.settings == {"size": 6, "p": 0.8, "is_slippery": False}
    assert (config.ppo.steps, config.agent.style) == (200, "paper")
    assert load_config(path, ["env=sudoku"]).env.id == "sudoku"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ppo: {stpes: 3}", "c.yaml: unknown setting 'ppo.stpes'. Did you mean 'ppo.steps'"),
        ("ppo: 3", "'ppo' is a group of settings"),
        ("- a\n- b", "must contain a mapping"),
        ("a: [1", "cannot read"),
        ("ppo: {steps: many}", "ppo.steps must be a whole number"),
        ("defaults: [base, {override env: nope}]", "nope"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_hydra_is_left_as_it_was() -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    load_config("sokoban")
    assert not GlobalHydra.instance().is_initialized()
    with initialize_config_dir(config_dir=str(Path(__file__).parent), version_base="1.3"):
        load_config("sokoban")
        assert GlobalHydra.instance().is_initialized()


def test_variants() -> None:
    assert load_variant("base") == VariantConfig("base", "grid", sft=False, rl=False)
    assert load_variant("vanilla") == VariantConfig("vanilla", "grid", sft=False, rl=True)
    assert load_variant("se") == VariantConfig("se", "coordinates", sft=False, rl=True)
    assert load_variant("spa") == VariantConfig("spa", "coordinates", sft=True, rl=True)
    with pytest.raises(ValueError, match="unknown variant 'vagenn'"):
        load_variant("vagenn")


def test_differences_name_the_keys() -> None:
    old = load_config("sokoban")
    new = load_config("sokoban", ["ppo.steps=1", "env.settings.num_boxes=2"])
    assert differences(old, new) == ["env.settings", "ppo.steps"]
    assert from_mapping(Config, {"ppo": {"steps": 1}}).ppo.steps == 1


def test_the_page_of_settings_is_up_to_date() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page.partition("-->\n")[2] == markdown(), "replace what follows the comment by `spa config --markdown`"


@pytest.mark.parametrize(
    ("name", "overrides", "variant", "key", "value", "sources", "reader"),
    [
        (None, [], None, "ppo.epochs", "2", "default < model/tiny", "spa.rl.update"),
        ("sudoku", ["model=qwen2.5-3b"], None, "ppo.epochs", "1", "default", "spa.rl.update"),
        (
            "_2_sokoban",
            ["algorithm=grpo"],
            None,
            "ppo.critic",
            "none",
            "default < model/tiny < algorithm/grpo",
            "spa.rl.critic",
        ),
        ("sokoban", ["engine=openai"], None, "engine.kind", "openai", "default < engine/openai", "spa.engines.base"),
        (
            "sokoban",
            ["env.settings.x={a: 1}"],
            None,
            "env.settings.x.a",
            "1",
            "default < command line",
            "spa.agent.task",
        ),
        ("sokoban", ["sft.lr=1"], "masked", "sft.loss", "masked", "default < variant masked", "spa.data.encode"),
        ("sokoban", [], "se", "env.state_format", "coordinates", "default < variant se", "spa.agent.policy"),
        (
            "sokoban",
            ["agent.prompt_after_sft=world_model"],
            "spa",
            "agent.prompt",
            "world_model",
            "default < agent.prompt_after_sft",
            "spa.agent.policy",
        ),
    ],
)
def test_explain(name, overrides, variant, key, value, sources, reader) -> None:
    text = explain(key, name, overrides, variant)
    assert text.startswith(f"{key} = {value}\n")
    assert f"Set by: {sources}\n" in text
    assert reader in text


def test_explain_names_files_of_your_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("ppo: {epochs: 3}\n", encoding="utf-8")
    assert f"default < model/tiny < {path}\n" in explain("ppo.epochs", str(path), [])
    path.write_text("defaults: [base, {override model: qwen2.5-0.5b}, _self_]\nppo: {epochs: 3}\n", encoding="utf-8")
    assert f"Set by: default < {path} < command line\n" in explain("ppo.epochs", str(path), ["ppo.epochs=4"])
    with pytest.raises(ValueError, match=r"unknown setting 'ppo.lr'. Did you mean 'ppo.actor_lr'\?"):
        explain("ppo.lr", str(path), [])


def test_every_setting_is_read() -> None:
    assert [name for name in setting_names(Config) if not readers(name)] == [], "nothing reads these settings"


def test_an_installed_world_is_not_yet_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = EntryPoints([EntryPoint("vault", "vault:Vault", "spa.envs")])
    monkeypatch.setattr("spa.config.load.entry_points", lambda group: installed)
    with pytest.raises(ValueError, match=r"'vault' is a world: name it in a config of yours, as env\.id"):
        load_config("vault", [])


@pytest.mark.parametrize("name", ["world_model_coef", "observation_reward", "prediction_reward"])
def test_rewards_for_states_need_the_block_that_they_are_in(name: str) -> None:
    with pytest.raises(ValueError, match=rf"ppo\.{name} .* needs agent\.think=true"):
        load_config("sokoban", ["agent.think=false", f"ppo.{name}=0.1"])


def test_files_that_are_odd_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text("env:\nenv.id: sokoban\n")
    assert load_config(path).env.id == "sokoban"
    path.write_text("a: &a {b: *a}\n")
    with pytest.raises(ValueError, match=f"cannot read {path}: .*recursi") as raised:
        load_config(path)
    assert "\n" not in str(raised.value)
    path.write_bytes("name: für\n".encode("latin-1"))
    with pytest.raises(ValueError, match=f"cannot read {path}: save it as UTF-8"):
        load_config(path)


def test_a_config_of_ones_own_that_is_named_nearly_right_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lights.yaml").write_text("env.id: sokoban\n")
    for name in ("lights", "lights.yml"):
        with pytest.raises(ValueError, match=r"Did you mean .*'lights\.yaml'"):
            load_config(name)
    with pytest.raises(ValueError, match=r"Did you mean .* One of the world's own is env\.settings\.presses"):
        load_config("lights.yaml", ["presses=4"])
    with pytest.raises(ValueError, match=r"unknown setting 'presses'\. (?!.*env\.settings)"):
        apply_overrides(PretrainConfig(), ["presses=4"])
