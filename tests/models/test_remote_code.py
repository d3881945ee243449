"""A model's folder may bring Python code with it; it is not run, whatever a person at the terminal would answer."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import spa
from spa.config.load import load_config as load_task
from spa.config.load import load_variant
from spa.config.schema import ModelConfig
from spa.models.load import (
    check_model,
    hub_options,
    load_config,
    load_model,
    load_tokenizer,
    load_weights,
    save_model,
)
from spa.preflight import _check_training
from tests.models.networks import network

CODE = """
from pathlib import Path
from transformers import PreTrainedConfig
Path({marker!r}).touch()
class Mine(PreTrainedConfig):
    model_type = "mine"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    mapped = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine", "AutoTokenizer": ["code.Mine", None]}}
    (model / "config.json").write_text(json.dumps(mapped))
    (model / "tokenizer_config.json").write_text(json.dumps(mapped))
    save_file({"weight": np.zeros(1)}, str(model / "model.safetensors"))
    (model / "code.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    return model


def test_a_models_code_is_not_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="cannot read the model config"):
        load_config(str(folder))
    with pytest.raises(ValueError, match="cannot load a tokenizer"):
        load_tokenizer(str(folder))
    with pytest.raises(ValueError, match="cannot load a model"):
        load_model(ModelConfig(path=str(folder)))
    assert not (folder.parent / "ran").exists()


def test_one_setting_lets_it_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ModelConfig(path=str(folder), trust_remote_code=True)
    assert type(load_config(str(folder), settings)).__name__ == "Mine"
    assert (folder.parent / "ran").exists()
    assert capsys.readouterr().err == f"model.trust_remote_code=true: Python code that {folder} brings along is run\n"


LLAMA = """
from transformers import LlamaConfig, LlamaForCausalLM
class Config(LlamaConfig):
    model_type = "own_llama"
class Model(LlamaForCausalLM):
    config_class = Config
"""


def test_a_checkpoint_of_a_model_with_code_is_loaded_in_place(folder: Path, tmp_path: Path) -> None:
    settings = network().config.to_dict() | {
        "model_type": "own_llama",
        "architectures": ["Model"],
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "own.py").write_text(LLAMA)
    network().save_pretrained(tmp_path / "weights")
    shutil.copy(tmp_path / "weights" / "model.safetensors", folder)
    config = ModelConfig(path=str(folder), trust_remote_code=True, device="cpu")
    model = load_model(config)
    save_model(model, load_tokenizer("builtin:tiny"), tmp_path / "checkpoint")
    expected = model.lm_head.weight.clone()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    load_weights(model, tmp_path / "checkpoint", config)
    assert torch.equal(model.lm_head.weight, expected)


def test_the_memory_of_a_model_with_code_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = network().config.to_dict() | {"model_type": "own_llama", "auto_map": {"AutoConfig": "own.Config"}}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "own.py").write_text(LLAMA)
    checked = []
    monkeypatch.setattr("spa.sft.memory.check_memory", lambda cfg, **more: checked.append(cfg.model.path))
    cfg = load_task("frozen_lake", [f"model.path={folder}", "model.trust_remote_code=true"])
    _check_training(cfg, "sft", [load_variant("spa")], local_only=True)
    assert checked == [str(folder)]


def test_a_revision_is_that_of_model_path_alone() -> None:
    settings = ModelConfig(path="org/name", revision="0123abc")
    assert hub_options("org/name", settings) == {"trust_remote_code": False, "revision": "0123abc"}
    assert hub_options("org/other", settings) == {"trust_remote_code": False}
    assert hub_options("org/name") == {"trust_remote_code": False}


def test_a_folder_has_no_revision(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^model.revision=main is of a hub name, and .* is a folder"):
        check_model(ModelConfig(path=str(folder), revision="main", device="cpu"))


def test_every_call_of_transformers_says_whether_code_may_run() -> None:
    root = Path(spa.__file__).parent
    calls = 0
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(getattr(node, "func", None), "attr", "")
            owner = getattr(getattr(getattr(node, "func", None), "value", None), "id", "")
            if owner == "AutoHfQuantizer":  # which knows transformers' own alone
                continue
            if isinstance(node, ast.Call) and name in ("from_pretrained", "from_config") and owner.startswith("Auto"):
                calls += 1
                given = {word.arg for word in node.keywords}
                options = [ast.unparse(word.value) for word in node.keywords if word.arg is None]
                assert "trust_remote_code" in given or any("hub_options(" in text for text in options), (
                    f"{path}:{node.lineno}"
                )
    assert calls == 6
