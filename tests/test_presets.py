"""What a model without a file in conf/model is trained with, and that it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spa.cli import main
from spa.config.explain import explain, value_of
from spa.config.load import differences, load_config, preset_of, to_yaml
from spa.config.overrides import setting_names
from spa.config.presets import SIZE_CLASSES, count_parameters, preset_for, size_in_name
from spa.config.schema import Config
from spa.models.folders import resolve_path
from tests.models.networks import network

SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
SIZES = {  # name: what its config.json says, parameters in millions
    "smollm2": (SMOLLM2, 134.5),
    "qwen2.5-0.5b": (
        SMOLLM2
        | {
            "model_type": "qwen2",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        },
        494.0,
    ),
}


def folder(path: Path, **changes: object) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(SMOLLM2 | changes))
    return str(path)


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes(name: str) -> None:
    config, millions = SIZES[name]
    assert count_parameters(config) == pytest.approx(millions * 1e6, rel=1e-3)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_exactly(tmp_path: Path, family: str, tied: bool) -> None:
    biased = {"llama": {"mlp_bias": True, "attention_bias": True}, "mistral": {"attention_bias": True}}.get(family, {})
    model = network(family, tie_word_embeddings=tied, **(biased if tied else {}))
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert count_parameters(config) == sum(p.numel() for p in model.parameters())


def test_other_families_are_counted_in_their_weights(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", model_type="other")
    save_file({"a": torch.zeros(4000, 3000), "b": torch.zeros(7)}, str(tmp_path / "m" / "model.safetensors"))
    preset = preset_for(path)
    assert "12 million parameters, other" in preset.reason
    assert preset.settings["sft"]["packing"] is preset.settings["ppo"]["packing"] is False


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7000),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 135),
        ("meta-llama/Llama-3.2-1B", 1000),
        ("org/Qwen2.5", None),
        ("org/name-4bit", None),
        ("7B/plain", None),
    ],
)
def test_size_in_a_name(name: str, millions: int | None) -> None:
    assert size_in_name(name) == (millions * 10**6 if millions else None)


@pytest.mark.parametrize(
    ("path", "row", "known"),
    [
        ("org/model-7B", "qwen2.5-1.5b-lora", "not on this disk, 7 billion by its name"),
        ("org/model-1.5b", "qwen2.5-1.5b", "not on this disk, 1.5 billion by its name"),
        ("org/model", "qwen2.5-1.5b", "not on this disk, no size in its name: a guess"),
    ],
)
def test_a_hub_name_that_is_not_downloaded(path: str, row: str, known: str) -> None:
    preset = preset_for(path)
    assert preset.name == row
    assert preset.reason.startswith(known)


def test_a_run_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert preset_for(str(tmp_path)).reason.startswith("no model in this folder, ")
    with pytest.raises(ValueError, match=r"no config\.json.*variants/VARIANT/ppo: this is a run's$"):
        resolve_path(str(tmp_path))


def test_rows_are_in_order_and_hold_known_settings() -> None:
    assert [row.below for row in SIZE_CLASSES] == sorted(row.below for row in SIZE_CLASSES)
    packaged = load_config("sokoban", ["model=qwen2.5-0.5b"])
    assert differences(packaged, load_config("sokoban", ["model=org/m-0.5b"])) == ["env.response_hint", "model.path"]
    for size in ("0.1b", "0.5b", "1.5b", "7b"):
        assert load_config("sokoban", [f"model=org/m-{size}"]).ppo.reward_scale == 1.0


@pytest.mark.parametrize("given", ["model={}", "model.path={}"])
@pytest.mark.parametrize("world", ["sokoban", "sudoku"])
def test_nothing_of_the_tiny_model_is_left(tmp_path: Path, given: str, world: str) -> None:
    path = folder(tmp_path / "m")
    config, tiny, default = load_config(world, [given.format(path)]), load_config(world), Config()
    preset = preset_for(path)
    assert preset.name == "smollm2-135m"
    for key in setting_names(Config):
        if key == "model.path" or value_of(tiny, key) == value_of(default, key) or key.startswith("env"):
            continue
        block, _, name = key.partition(".")
        if name in preset.settings.get(block, {}):
            assert value_of(config, key) == preset.settings[block][name]
        elif key != "name":
            assert value_of(config, key) == value_of(default, key), key
    assert config.ppo.actor_lr < 1e-5 < tiny.ppo.actor_lr


def test_a_checkpoint_of_the_tiny_model_has_its_settings(tmp_path: Path) -> None:
    network().config.save_pretrained(tmp_path)
    config = load_config("sokoban", [f"model={tmp_path}"])
    assert differences(load_config("sokoban"), config) == ["model.path"]


def test_a_chosen_model_file_stays(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    for name in ("tiny", "qwen2.5-1.5b"):
        config = load_config("sokoban", [f"model={name}", f"model={path}"])
        assert differences(load_config("sokoban", [f"model={name}"]), config) == ["model.path"]
        assert preset_of("sokoban", [f"model={name}", f"model={path}"]) is None
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"defaults: [base, {{override model: qwen2.5-0.5b}}, _self_]\nmodel: {{path: {path}}}\n")
    assert load_config(mine).sft.precision == "bfloat16"
    assert preset_of(mine, []) is None


@pytest.mark.parametrize("head", ["", "defaults: [base, {override env: sudoku}, _self_]\n"])
def test_a_file_of_ones_own_lies_over_the_preset(tmp_path: Path, head: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{head}model: {{path: {folder(tmp_path / 'm')}}}\nppo: {{critic_lr: 0.5}}\n")
    config = load_config(file, ["sft.lr=0.25"])
    assert (config.ppo.actor_lr, config.ppo.critic_lr, config.sft.lr) == (5e-6, 0.5, 0.25)
    assert config.ppo.steps == 20
    assert f"Set by: default < model/preset < {file}\n" in explain("ppo.critic_lr", str(file), [])


@pytest.mark.parametrize("world", ["gym:CartPole-v1", "mine.yaml"])
@pytest.mark.parametrize(
    "settings", [[], ["model=qwen2.5-0.5b"], ["model=org/model-7b"]], ids=["tiny", "file", "preset"]
)
def test_a_world_of_ones_own_has_all_settings_of_the_model_and_none_of_another_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str, settings: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("env: {id: 'gym:CartPole-v1', instruction: Balance.}\n")
    other = load_config("frozen_lake", settings)
    names = differences(other, load_config(world, settings))
    assert "env.id" in names
    assert [name for name in names if name != "name" and not name.startswith("env.")] == []
    assert load_config(world, [*settings, "env=frozen_lake"]) == other
    assert f"Set by: default < {world}\n" in explain("env.id", world, settings)


@pytest.mark.parametrize("command", ["eval", "play", "perplexity", "diagnose"])
def test_the_option_brings_the_preset_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    path = folder(tmp_path / "m")
    used = []

    def stop(cfg: Config, *_: object, **__: object) -> None:
        used.append(cfg)
        raise ValueError("far enough")

    for place in (
        "spa.pipeline.evaluate",
        "spa.agent.policy.Policy.load",
        "spa.cli.perplexity.measure",
        "spa.diagnose.measure.diagnose",
    ):
        monkeypatch.setattr(place, stop)
    out = ["--out", str(tmp_path / "out")] if command == "eval" else []
    assert main([command, "frozen_lake", "ppo.steps=7", "--model", path, *out]) == 2
    assert used == [load_config("frozen_lake", ["ppo.steps=7", f"model={path}"])]


def test_an_algorithm_lies_over_the_preset() -> None:
    config = load_config("sokoban", ["model=org/model-7b", "algorithm=grpo"])
    assert (config.ppo.critic, config.ppo.lora_rank, config.ppo.critic_lora_rank) == ("none", 32, 0)


def test_explain_names_the_preset_and_its_reason(tmp_path: Path) -> None:
    text = explain("ppo.actor_lr", "sokoban", [f"model={folder(tmp_path / 'm')}", "ppo.actor_lr=1e-5"])
    assert "Set by: default < model/preset < command line\n" in text
    assert "Preset: smollm2-135m (135 million parameters, llama; " in text
    assert "Preset:" not in explain("ppo.gamma", "sokoban", [f"model={tmp_path / 'm'}"])


def test_a_saved_config_is_read_back_unchanged(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    config = load_config("sokoban", [f"model={path}", "sft.lr=0.125"])
    saved = tmp_path / "config.yaml"
    saved.write_text(to_yaml(config))
    (tmp_path / "m" / "config.json").unlink()
    assert load_config(saved) == config
    assert preset_of(saved, []) is None


def test_a_dry_run_says_which_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "frozen_lake", "model=org/model-7b", "--dry-run"]) == 0
    assert "# preset: qwen2.5-1.5b-lora (not on this disk, 7 billion by its name; " in capsys.readouterr().out
