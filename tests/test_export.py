"""``spa export``: a model of a run as a plain folder."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from spa.agent.chat import Chat
from spa.agent.episode import read_episodes
from spa.agent.response import parse_response
from spa.cli import main
from spa.common.manifest import MANIFEST, write_manifest
from spa.common.progress import set_quiet
from spa.config.load import load_config
from spa.config.schema import ModelConfig
from spa.models.export import export, find_checkpoint
from spa.models.folders import resolve_path
from spa.models.load import load_model, load_tokenizer
from spa.report.model_card import export_files
from spa.runs.stage import model_of
from tests.scripted import same
from tests.test_pipeline import SMALL

pytestmark = pytest.mark.slow
LORA = ["ppo.lora_rank=2", "ppo.critic=model"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "lake"
    settings = [*SMALL, "variants=[vanilla,spa]", "ppo.save_every=1", "ppo.keep_checkpoints=0", "ppo.use=best"]
    settings += ["seeds.test=4000000000"]
    assert main(["run", "frozen_lake", "--out", str(out), *settings, "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("lora") / "lake"
    assert main(["ppo", "frozen_lake", "--out", str(out), *SMALL, *LORA, "ppo.steps=1", "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def adapters_of_both_stages(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("both") / "lake"
    settings = [*SMALL, "variants=[spa]", "sft.lora_rank=4", "ppo.lora_rank=4", "ppo.steps=1"]
    assert main(["run", "frozen_lake", "--out", str(out), *settings, "--quiet"]) == 0
    return out


def snippet(folder: Path) -> str:
    """The Python code of a card."""
    found = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


def trained_by(folder: Path) -> str:
    """What a card says of the training."""
    found = re.search(r"^Trained with .*: (.*)\.$", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[1]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(str(folder / "model.safetensors"))


def same_model(a: Path, b: Path) -> bool:
    return same(weights(a), weights(b))


def test_the_model_that_was_evaluated_without_the_trainers_state(run, tmp_path, capsys) -> None:
    to = tmp_path / "model"
    used = json.loads((run / "variants" / "spa" / "eval" / "done.json").read_text())["model"]
    (sharded := Path(used) / "trainer_state").mkdir()  # of several ranks
    assert main(["export", str(run), "--variant", "spa", "--to", str(to)]) == 0
    sharded.rmdir()
    assert f"{to}" in capsys.readouterr().out
    assert same_model(to, Path(used))
    assert not list(to.glob("trainer_state*"))
    load_model(ModelConfig(path=str(to)))
    load_tokenizer(str(to))
    card = (to / "README.md").read_text(encoding="utf-8")
    assert "# frozen_lake, variant spa" in card and "builtin:tiny" in card and "license: apache-2.0" in card
    assert "; one seed, 2 PPO steps: no claim." in card, "no more than one run shows"
    assert [line.split("|")[1].strip() for line in card.splitlines() if line.startswith("| ")] == [
        "variant",
        "base",
        "vanilla",
        "spa",
    ]


def test_the_cards_snippet_runs_and_asks_as_a_rollout_does(run, tmp_path, capsys, monkeypatch) -> None:
    to = tmp_path / "model"
    assert main(["export", str(run), "--variant", "spa", "--to", str(to)]) == 0
    code = snippet(to)
    capsys.readouterr()
    monkeypatch.chdir(to)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(code, names)
    answer = capsys.readouterr().out
    assert parse_response(answer.strip(), "base").format_ok, answer
    episode = next(iter(read_episodes(run / "variants" / "spa" / "eval" / "episodes.jsonl")))
    asked, played = names["messages"][-1]["content"], episode.turns[0].user
    assert len(names["messages"]) == 1, "the tiny model is asked without a system message"
    assert (
        asked.splitlines()[-2:] == played.splitlines()[-2:] and "Player (P) is at" in asked and "Player (P)" in played
    )
    assert names["ids"][0].tolist() == [*names["tokenizer"](names["prompt"])["input_ids"], *forced_ids(to)]
    assert str(run) not in (to / "README.md").read_text() + (to / "spa.yaml").read_text(), "no paths of this machine"


def forced_ids(folder: Path) -> list[int]:
    return Chat(load_tokenizer(str(folder))).forced_ids


def test_the_bases_sampling_settings_are_left_out(run, tmp_path) -> None:
    to, shipped = (
        tmp_path / "model",
        {"top_k": 20, "repetition_penalty": 1.1, "eos_token_id": 2, "transformers_version": "5"},
    )
    used = Path(json.loads((run / "variants" / "spa" / "eval" / "done.json").read_text())["model"])
    shutil.copytree(used, tmp_path / "used")
    (tmp_path / "used" / "generation_config.json").write_text(json.dumps(shipped))
    write_manifest(tmp_path / "used")
    export(tmp_path / "used", to, files={})
    assert json.loads((to / "generation_config.json").read_text()) == {"eos_token_id": 2, "transformers_version": "5"}


def test_a_turn_that_does_not_end_with_the_tokenizers_own_token(run, tmp_path) -> None:
    shutil.copytree(run, copy := tmp_path / "run")
    checkpoint = find_checkpoint(copy, variant="spa")
    tokenizer = load_tokenizer(str(checkpoint))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>", "</turn>"]})
    tokenizer.chat_template = (  # as Gemma's
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<turn>{{ m.role }}\n"
        "{{ m.content }}</turn>\n{% endfor %}{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
    )
    tokenizer.save_pretrained(checkpoint)
    (checkpoint / MANIFEST).unlink()
    (copy / "config.yaml").write_text((copy / "config.yaml").read_text().replace("style: terse", "style: paper"))
    files = export_files(checkpoint)
    stops = sorted([tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("</turn>")])
    assert json.loads(files["generation_config.json"])["eos_token_id"] == stops
    assert f"eos_token_id={stops}," in files["README.md"]
    assert '"role": "user"' in files["README.md"] and '"role": "system"' not in files["README.md"]


def test_an_exported_model_is_played_by_its_folder(run, tmp_path, capsys) -> None:
    for options, shown in ((["--variant", "vanilla"], "actual"), (["--sft"], "predicted")):
        to = tmp_path / shown
        assert main(["export", str(run), *options, "--to", str(to)]) == 0
        assert main(["play", str(to)]) == 0
        assert shown in capsys.readouterr().out
    (to / "spa.yaml").unlink()
    assert main(["play", str(to)]) == 2
    assert f"use `spa play NAME --model {to}`" in capsys.readouterr().err
    assert main(["export", str(to), "--to", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "README.md").read_text() == (to / "README.md").read_text()


def test_a_planner_is_measured_beside_the_plain_policy(run, tmp_path, capsys) -> None:
    to = tmp_path / "model"
    assert main(["export", str(run), "--sft", "--to", str(to)]) == 0
    few = ["eval.worlds=2", "eval.samples=1", "eval.ks=[1]", "env.max_actions_per_turn=1", "env.max_turns=2"]
    planner = ["agent.planner=lookahead", "planner.depth=1", "--out", str(tmp_path / "eval"), "--quiet"]
    capsys.readouterr()
    assert main(["eval", str(to), *few, *planner]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert rows[2:4] == ["base", "base+lookahead"]


def test_an_exported_model_is_measured_in_the_states_that_it_was_trained_on(run, tmp_path, capsys) -> None:
    to = tmp_path / "model"
    assert main(["export", str(run), "--variant", "spa", "--to", str(to)]) == 0
    few = ["eval.worlds=2", "eval.samples=1", "eval.ks=[1]"]
    for number, words in enumerate(([str(to)], [f"{to}/spa.yaml", f"model={to}"])):
        out = tmp_path / f"eval-{number}"
        assert main(["eval", *words, *few, "--out", str(out), "--quiet"]) == 0
        shown = capsys.readouterr().out
        assert "Pass@1" in shown and f"Result: {out / 'variants' / 'base' / 'eval' / 'result.json'}" in shown
        first, *_ = read_episodes(out / "variants" / "base" / "eval" / "episodes.jsonl")
        user, card = first.turns[0].user, (to / "README.md").read_text()
        assert "Player (P) is at" in user and "Player (P) is at" in card
        assert user.splitlines()[-1] in card, "and asked for the same"
        again = ["eval", "--variant", "base", "--model", str(to), "--out", str(out), "--resume", "--quiet"]
        assert main(again) == 0, "as an interrupted command says how to go on"


@pytest.mark.parametrize("named", [True, False])
def test_a_practised_policy_is_exported_with_its_plain_prompt(run, tmp_path, capsys, named: bool) -> None:
    """Nothing is imagined here, so that practice keeps the model of stage 2."""
    out, to = tmp_path / "run", tmp_path / "model"
    variants = "vanilla,plan" if named else "plan"
    small = [*SMALL, f"variants=[{variants}]", "ppo.steps=1", "practice.worlds=2", "practice.rounds=1"]
    small += ["planner.max_questions=8"]
    assert main(["run", "frozen_lake", "--out", str(out), *small, "--quiet"]) == 0
    if named:
        capsys.readouterr()
        assert main(["export", str(out), "--to", str(to)]) == 2
        assert "It has vanilla, plan: choose one with --variant" in capsys.readouterr().err
        assert main(["export", str(out), "--variant", "plan", "--to", str(to)]) == 0
    else:  # as if it had been taught something
        policy = out / "practice-plan" / "round_1" / "policy" / "checkpoints" / "global_step_1"
        shutil.copytree(Path(model_of(str(out / "practice-plan"))), policy)
        assert main(["export", str(policy), "--to", str(to)]) == 0
    task = load_config(to / "spa.yaml")
    assert (task.agent.prompt, task.env.state_format) == ("base", "grid")
    assert trained_by(to) == "self-play, world-model SFT" + ("" if named else ", practice in imagination")
    if named:
        shutil.rmtree(out / "sft-plan")  # the run's own stage 2 is another model
        shutil.copytree(run / "sft", out / "sft")
        capsys.readouterr()
        assert main(["export", str(out), "--sft", "--variant", "plan", "--to", str(tmp_path / "other")]) == 2
        assert "no SFT model of variant plan" in capsys.readouterr().err
    else:
        (out / "practice-plan" / "done.json").write_text(
            json.dumps({"seconds": 1.0, "model": "round_1/policy/checkpoints/global_step_1"})
        )
        assert main(["export", str(out), "--which", "last", "--to", str(tmp_path / "last")]) == 0
        assert same_model(tmp_path / "last", policy)


def test_an_exported_model_is_measured_as_in_its_run(run, tmp_path) -> None:
    to, out = tmp_path / "model", tmp_path / "eval"
    assert main(["export", str(run), "--variant", "spa", "--to", str(to)]) == 0
    assert main(["eval", str(to), "--out", str(out), "--quiet"]) == 0
    there, here = (
        json.loads((folder / "variants" / name / "eval" / "result.json").read_text())
        for folder, name in ((run, "spa"), (out, "base"))
    )
    assert [each["seed"] for each in here["worlds"]] == [each["seed"] for each in there["worlds"]]
    assert len(there["worlds"]) == 4 and here["ks"] == there["ks"] == [1, 2]


def test_the_card_names_the_training_that_happened(run, tmp_path) -> None:
    for name, options, training in (
        ("vanilla", ["--variant", "vanilla"], "PPO"),
        ("spa", ["--variant", "spa"], "self-play, world-model SFT, PPO"),
        ("sft", ["--sft"], "self-play, world-model SFT"),
    ):
        assert main(["export", str(run), *options, "--to", str(tmp_path / name)]) == 0
        assert trained_by(tmp_path / name) == training
        card = (tmp_path / name / "README.md").read_text()
        assert ("- world-model" in card) == (name != "vanilla") and ("- reinforcement-learning" in card) == (
            name != "sft"
        )


@pytest.mark.parametrize(
    ("before", "after", "training"),
    [
        ("estimator: gae", "estimator: grpo", "self-play, world-model SFT, GRPO"),
        ("  start: null", "  start: them/theirs", "PPO from another model"),
        ("  data: null", "  data: rows.parquet", "world-model SFT, PPO"),
    ],
)
def test_the_card_names_what_the_settings_made_of_the_recipe(run, tmp_path, before, after, training) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    config = (copy / "config.yaml").read_text().replace("critic: model", "critic: none")
    assert config.count(f"{before}\n") == 1
    config = config.replace(before, after)
    (copy / "config.yaml").write_text(config if "grpo" in after else config.replace("critic: none", "critic: model"))
    assert main(["export", str(copy), "--variant", "spa", "--to", str(tmp_path / "model")]) == 0
    assert trained_by(tmp_path / "model") == training


def test_the_card_shows_names_as_text(run, tmp_path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    config = (copy / "config.yaml").read_text()
    name = next(line for line in config.splitlines() if line.startswith("name: "))
    (copy / "config.yaml").write_text(config.replace(name, r'name: "a <img src=x>\n# b"', 1))
    assert main(["export", str(copy), "--variant", "spa", "--to", str(tmp_path / "model")]) == 0
    card = (tmp_path / "model" / "README.md").read_text()
    assert "\n# a &lt;img src=x&gt; # b, variant spa\n" in card and "<img" not in card.split("```")[0]


def test_an_export_in_a_run_is_none_of_its_stages(run, tmp_path) -> None:
    inside, again = run / "exported", tmp_path / "again"
    assert main(["export", str(run), "--variant", "spa", "--to", str(inside)]) == 0
    try:
        assert main(["export", str(inside), "--to", str(again), "--dtype", "bfloat16"]) == 0
        for name in ("README.md", "spa.yaml"):
            assert (again / name).read_bytes() == (inside / name).read_bytes()
    finally:
        shutil.rmtree(inside)


def test_the_base_models_licence_comes_along(run, tmp_path) -> None:
    base, copy, to = (tmp_path / name for name in ("base", "run", "model"))
    shutil.copytree(resolve_path("builtin:tiny"), base)
    (base / "LICENSE").write_text("keep this notice")
    (base / "README.md").write_text("---\nlicense: mit\nbase_model: them/theirs\n---\n# A model\n")
    shutil.copytree(run, copy)
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("builtin:tiny", str(base)))
    assert main(["export", str(copy), "--variant", "spa", "--to", str(to)]) == 0
    assert (to / "LICENSE").read_text() == "keep this notice"
    card = (to / "README.md").read_text()
    assert "\nlicense: mit\n" in card and "\nbase_model: them/theirs\n" in card and str(tmp_path) not in card


def test_a_stage_is_not_taken_for_another(run, tmp_path, capsys) -> None:
    stage, to = run / "variants" / "vanilla" / "ppo", tmp_path / "model"
    for other in (["--sft"], ["--variant", "spa"]):
        assert main(["export", str(stage), *other, "--to", str(to)]) == 2
        assert "choose among those of a run folder" in capsys.readouterr().err
        assert not to.exists()
    assert main(["export", str(stage), "--variant", "vanilla", "--to", str(to)]) == 0
    assert "variant vanilla" in (to / "README.md").read_text()


def test_an_export_is_for_everyone_and_says_if_its_training_has_not_ended(run, tmp_path, capsys, monkeypatch) -> None:
    set_quiet(False)  # as other tests left it
    started = tmp_path / "started"
    shutil.copytree(run, started)
    (started / "variants" / "spa" / "ppo" / "done.json").unlink()
    for source, name in ((run, "all"), (started, "half")):
        assert main(["export", str(source), "--variant", "spa", "--to", str(tmp_path / name)]) == 0
        assert ("has not ended: this is global_step_" in capsys.readouterr().err) == (name == "half")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "all", "--to", "again"]) == 0
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "all").iterdir() if file.is_file()}
    assert len(modes) == 1  # as the umask says, the weights' too


def test_other_models_of_the_run(run, tmp_path) -> None:
    ppo = run / "variants" / "vanilla" / "ppo"
    done = json.loads((ppo / "done.json").read_text())
    given = {
        "step": (["--variant", "vanilla", "--step", "1"], ppo / "checkpoints" / "global_step_1"),
        "last": (["--variant", "vanilla", "--which", "last"], ppo / "checkpoints" / "global_step_2"),
        "best": (["--variant", "vanilla", "--which", "best"], ppo / done["best"]),
        "sft": (["--sft"], run / "sft" / json.loads((run / "sft" / "done.json").read_text())["model"]),
        "sft of a variant": (
            ["--sft", "--variant", "spa"],
            run / "sft" / json.loads((run / "sft" / "done.json").read_text())["model"],
        ),
    }
    for name, (options, expected) in given.items():
        assert main(["export", str(run), *options, "--to", str(tmp_path / name)]) == 0
        assert same_model(tmp_path / name, expected), name
    assert main(["export", str(ppo), "--step", "1", "--to", str(tmp_path / "stage")]) == 0
    assert same_model(tmp_path / "stage", ppo / "checkpoints" / "global_step_1")
    assert main(["export", str(ppo / "checkpoints" / "global_step_1"), "--to", str(tmp_path / "single")]) == 0
    assert same_model(tmp_path / "single", tmp_path / "stage")


def test_another_dtype(run, tmp_path) -> None:
    to = tmp_path / "model"
    assert main(["export", str(run), "--variant", "spa", "--to", str(to), "--dtype", "bfloat16"]) == 0
    assert {tensor.dtype for tensor in weights(to).values()} == {torch.bfloat16}
    assert json.loads((to / "config.json").read_text())["dtype"] == "bfloat16"


def test_adapters_alone_give_the_merged_model_on_the_base(adapters, tmp_path) -> None:
    peft = pytest.importorskip("peft")
    assert main(["export", str(adapters), "--to", str(tmp_path / "merged")]) == 0
    assert not (tmp_path / "merged" / "adapter").exists()
    assert main(["export", str(adapters), "--adapter", "--to", str(tmp_path / "adapter")]) == 0
    base = load_model(ModelConfig(path="builtin:tiny"))
    plain = weights(tmp_path / "merged")
    model = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).merge_and_unload()
    for name, tensor in model.state_dict().items():
        if name in plain:
            torch.testing.assert_close(tensor, plain[name])
    AutoTokenizer.from_pretrained(str(tmp_path / "adapter"))
    with pytest.raises(ValueError, match="adapter holds LoRA adapters alone: merge them into their model"):
        resolve_path(str(tmp_path / "adapter"))
    assert "library_name: peft" in (tmp_path / "adapter" / "README.md").read_text()


def test_adapters_on_stage_2s_model_are_refused(adapters_of_both_stages, tmp_path, capsys) -> None:
    to = tmp_path / "adapter"
    stage = adapters_of_both_stages / "variants" / "spa" / "ppo"
    for source in ([str(adapters_of_both_stages)], [str(stage)], [str(stage), "--variant", "spa"]):
        assert main(["export", *source, "--adapter", "--to", str(to)]) == 2
        error = capsys.readouterr().err.strip()
        assert "export the merged model" in error and "`--sft --adapter --variant spa`" in error and "\n" not in error
        assert not to.exists()


def test_the_snippet_of_adapters_loads_them_onto_their_base(adapters_of_both_stages, tmp_path, monkeypatch) -> None:
    base, copy, to, merged = (tmp_path / name for name in ("base", "run", "adapter", "merged"))
    shutil.copytree(resolve_path("builtin:tiny"), base)
    (base / "README.md").write_text("---\nlicense: mit\nbase_model: them/theirs\n---\n# A model\n")
    shutil.copytree(adapters_of_both_stages, copy)
    assert main(["export", str(copy), "--sft", "--to", str(merged)]) == 0
    expected = weights(merged)
    config = (copy / "config.yaml").read_text()
    for path in ("builtin:tiny", str(base)):
        (copy / "config.yaml").write_text(config.replace("builtin:tiny", path))
        assert main(["export", str(copy), "--sft", "--adapter", "--to", str(to), "--force"]) == 0
        settings = json.loads((to / "adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == path
        assert settings["target_modules"] == sorted(settings["target_modules"]), "equal runs have equal files"
        card = (to / "README.md").read_text()
        assert "spa play" not in card and "them/theirs" not in card, "nor the base of the base"
        names: dict[str, Any] = {}
        monkeypatch.chdir(to)
        exec(snippet(to), names)
        model = names["model"].merge_and_unload().state_dict()
        for name in model.keys() & expected.keys():
            torch.testing.assert_close(model[name], expected[name])


def test_what_is_there_is_replaced_only_when_asked(run, tmp_path, capsys) -> None:
    to = tmp_path / "model"
    to.mkdir()
    (to / "mine.txt").write_text("x")
    command = ["export", str(run), "--variant", "spa", "--to", str(to)]
    for mine in (to, to / "mine.txt"):
        assert main([*command[:-1], str(mine), "--force"]) == 2, "it is no export"
        assert f"{mine} exists and is no exported model; give another --to" in capsys.readouterr().err
    assert (to / "mine.txt").exists()
    (to / "mine.txt").unlink()
    assert main(command) == 0
    (to / "old.json").write_text("x")
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    assert not (to / "old.json").exists()
    for name in ("notes.txt", ".git/HEAD"):
        (to / name).parent.mkdir(exist_ok=True)
        (to / name).write_text("x")
        assert main([*command, "--force"]) == 2
        first = name.partition("/")[0]
        assert f"{to} holds more than an exported model ({first}); give another --to" in capsys.readouterr().err
        assert (to / name).exists()
        shutil.rmtree(to / first) if (to / first).is_dir() else (to / first).unlink()
    (to / "spa.yaml").unlink()
    assert main([*command, "--force"]) == 2, "a model, but not one exported from a run"
    assert (to / "config.json").exists()
    stage = run / "variants" / "spa" / "ppo"
    assert main(["export", str(stage), "--to", str(stage), "--force"]) == 2
    assert "give another --to" in capsys.readouterr().err
    assert stage.is_dir()
    model = stage / "checkpoints" / "global_step_2"
    assert main(["export", str(model), "--to", str(model / "inner")]) == 2
    assert "is in the model that is exported; give another --to" in capsys.readouterr().err
    assert not (model / "inner").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "It has spa, vanilla: choose one with --variant"),
        (["--variant", "vanila"], "Did you mean 'vanilla'?"),
        (["--variant", "spa", "--step", "7"], "has no checkpoint of step 7; it has 1, 2"),
        (
            ["--variant", "spa", "--step", "1", "--which", "last"],
            "a checkpoint is chosen by its step, 1, or as the last one, not both",
        ),
        (["--variant", "spa", "--public"], "--public is of the upload: add --push REPO"),
        (["--variant", "spa", "--which", "bets"], "Did you mean 'best'?"),
        (["--variant", "spa", "--adapter"], "has no adapters"),
        (["--variant", "spa", "--dtype", "float33"], "Did you mean 'float32'?"),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, capsys, options, message) -> None:
    assert main(["export", str(run), *options, "--to", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error
    assert not (tmp_path / "x").exists()


def test_where_there_is_nothing_to_export(run, adapters, tmp_path, capsys) -> None:
    for source, options, message in (
        (tmp_path / "nowhere", [], "no folder"),
        (tmp_path, [], "holds no checkpoint"),
        (adapters, ["--sft"], "has no SFT model"),
        (run / "sft", ["--which", "best"], "ppo.use=best"),
        (run / "variants" / "spa" / "ppo" / "checkpoints" / "global_step_1", ["--variant", "spa"], "is a single model"),
    ):
        assert main(["export", str(source), *options, "--to", str(tmp_path / "x")]) == 2
        assert message in capsys.readouterr().err
