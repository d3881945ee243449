"""Files of a run or a model that a stranger wrote: nothing outside is read, copied or loaded, no reader ends."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from spa.common.files import atomic_write
from spa.common.manifest import find_damage, write_manifest
from spa.common.tables import markdown_table
from spa.config.load import load_config
from spa.config.schema import ModelConfig
from spa.envs.checked import CheckedEnv, WorldError
from spa.models.export import export
from spa.models.folders import resolve_path
from spa.models.load import load_model, load_tokenizer
from spa.report.boards import alphabet
from spa.report.collect import collect
from spa.runs.folder import RunFolder
from spa.runs.stage import model_of
from spa.view.index import Index


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return RunFolder(tmp_path / "run").open(load_config("frozen_lake"), "run", resume=False).path


@pytest.fixture
def checkpoint(run: Path) -> Path:
    folder = run / "sft" / "checkpoints" / "global_step_2"
    shutil.copytree(resolve_path("builtin:tiny"), folder)
    write_manifest(folder)
    return folder


@pytest.mark.parametrize("linked", ["notes.json", "folder", "inner/notes.json"])
def test_an_export_copies_nothing_from_elsewhere(checkpoint: Path, tmp_path: Path, linked: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "key").write_text("PRIVATE")
    (checkpoint / linked).parent.mkdir(exist_ok=True)
    (checkpoint / linked).symlink_to(tmp_path / "mine" if linked == "folder" else tmp_path / "mine" / "key")
    with pytest.raises(ValueError, match=f"{linked} is a link that leads out of"):
        export(checkpoint, tmp_path / "to", files={})
    assert not (tmp_path / "to").exists()


def test_damaged_weights_are_not_exported(checkpoint: Path, tmp_path: Path) -> None:
    with open(checkpoint / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        export(checkpoint, tmp_path / "to", files={})


@pytest.mark.parametrize("model", ["../../mine", "{}/mine"])
def test_a_record_names_models_of_its_run_alone(run: Path, tmp_path: Path, model: str) -> None:
    shutil.copytree(resolve_path("builtin:tiny"), tmp_path / "mine")
    (run / "sft").mkdir()
    (run / "sft" / "done.json").write_text(json.dumps({"seconds": 1.0, "model": model.format(tmp_path)}))
    with pytest.raises(ValueError, match="which is outside of"):
        model_of(str(run / "sft"))


@pytest.mark.parametrize("name", ["/etc/passwd", "../other"])
def test_a_record_is_of_files_in_its_folder(run: Path, name: str) -> None:
    (line,) = find_damage(run, {name: {"bytes": 1, "sha256": ""}})
    assert line.endswith(f"{name} is none of them")


def test_a_model_that_brings_adapters_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve_path("builtin:tiny"), folder)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "/elsewhere"})
    )
    with pytest.raises(ValueError, match="holds LoRA adapters beside a model"):
        load_model(ModelConfig(path=str(folder)))


def tokenizer_with(folder: Path, **model: object) -> None:
    file = folder / "tokenizer.json"
    atomic_write(file, json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", **model}}))


# The library panics at the first and aborts the process at the second.
BAD = [
    {"vocab": {"a": 0, "b": 1}, "merges": ["a b"]},
    {"vocab": {"é": 0, "b": 2, "éb": 1}, "merges": [["b", "é"]], "continuing_subword_prefix": "x"},
]


@pytest.mark.parametrize("model", BAD)
def test_a_report_does_without_a_tokenizer_that_cannot_be_loaded(
    checkpoint: Path, run: Path, model: dict[str, object]
) -> None:
    tokenizer_with(checkpoint, **model)
    assert collect(run).decode is None


def test_a_number_that_is_no_token_has_no_text(checkpoint: Path, run: Path) -> None:
    decode = collect(run).decode
    assert decode is not None and decode(5)
    assert [decode(number) for number in (-1, 2**32, 10**30)] == ["", "", ""]


def test_a_tokenizer_that_panics_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve_path("builtin:tiny"), folder)
    tokenizer_with(folder, **BAD[0])
    with pytest.raises(ValueError, match="cannot load a tokenizer"):
        load_tokenizer(str(folder))


def test_a_config_cannot_put_the_environment_into_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "very secret")
    for key in ("env.instruction", "env.instruction_world_model", "agent.action_sep"):
        with pytest.raises(ValueError, match=f"{key} is part of prompts"):
            load_config("frozen_lake", [f"{key}=${{oc.env:MY_SECRET}}"])


class Wanders:
    """A world with an end for each of its actions."""

    actions = ("Go", "Raise", "Exit")

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[str, dict[str, object]]:
        return "here", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, object]]:
        os.chdir("/")
        if action != "Go":
            raise Unprintable(SystemExit if action == "Exit" else KeyboardInterrupt)
        return "there", 0.0, False, False, {"success": False, "nothing": float("nan"), "all": float("inf")}

    def close(self) -> None:
        pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise self.args[0]


def test_a_world_leaves_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = CheckedEnv(Wanders)
    world.reset(seed=0)
    assert world.step("Go").info == {"success": False, "nothing": None, "all": None}
    assert Path.cwd() == tmp_path
    for action in ("Raise", "Exit"):
        world.reset(seed=0)
        with pytest.raises(WorldError, match="step: Unprintable"):
            world.step(action)
        assert Path.cwd() == tmp_path


@pytest.mark.parametrize("vocabulary", [5, {"P": [1]}])
def test_an_alphabet_that_is_none(vocabulary: object) -> None:
    assert alphabet("frozen_lake", {"grid_vocab": vocabulary}) == alphabet("another", {})


@pytest.mark.parametrize("continues", [5, [], "../../../base", None])
def test_a_definition_continues_a_variant_of_the_run(run: Path, continues: object) -> None:
    record = json.loads((run / "run.json").read_text())
    record.pop("sha256", None)
    record["variants"] = {"spa": {"continues": continues}}
    (run / "run.json").write_text(json.dumps(record))
    stage = run / "variants" / "spa" / "ppo"
    stage.mkdir(parents=True)
    (stage / "done.json").write_text(json.dumps({"seconds": 1.0}))
    assert collect(run).timings["PPO, spa"] == 1.0


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "link"])
def test_the_list_reads_the_runs_own_files(run: Path, make) -> None:
    for name in ("variants/spa/eval/result.json", "variants/spa/ppo/metrics.jsonl"):
        (run / name).parent.mkdir(parents=True)
        make(run / name)
    (entry,) = Index([run]).entries()
    assert entry.score is None and not entry.curve


@pytest.mark.parametrize(
    "setting", ["variants=" + "[" * 2000 + "]" * 2000, "ppo.steps=" + "9" * 5000], ids=["deep", "long"]
)
def test_a_value_that_no_parser_bears_is_one_line(setting: str) -> None:
    with pytest.raises(ValueError, match=f"^{setting.partition('=')[0]}: cannot read the value"):
        load_config("frozen_lake", [setting])


def test_a_cell_of_a_markdown_table_stays_one() -> None:
    assert markdown_table(["a"], [["x |\ny"]]) == ["| a      |", "|--------|", r"| x \| y |"]
