"""Model folders that cannot be loaded: one line says what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from spa.config.schema import ModelConfig
from spa.models.folders import check_folder, resolve_path
from spa.models.load import load_config, load_model, load_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve_path("builtin:tiny"), tmp_path / "model"))


def change(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def refused(load: Any) -> str:
    with pytest.raises(ValueError) as caught:
        load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_of_another_size(folder: Path) -> None:
    change(folder / "config.json", {"hidden_size": 256})
    line = refused(lambda: load_model(ModelConfig(path=str(folder))))
    assert line == (
        f"the weights of {folder} do not fit its config.json, by which model.embed_tokens.weight has the shape [512, 256], "
        "not [512, 128]: save or copy the model again"
    )


def test_weights_that_are_not_there(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    assert "model-2.safetensors is missing, which the index" in refused(lambda: check_folder(str(folder)))
    index.write_text("[]")
    assert "index.json is damaged" in refused(lambda: check_folder(str(folder)))
    index.unlink()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "*.bin are not read" in refused(lambda: check_folder(str(folder)))


def test_weights_whose_package_is_missing(folder: Path) -> None:
    change(folder / "config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    if torch.cuda.is_available():
        pytest.skip("the message depends on what is installed")
    assert refused(lambda: load_model(ModelConfig(path=str(folder)))).startswith(
        f"cannot load a model from '{folder}': "
    )


def test_a_setting_of_another_type(folder: Path) -> None:
    change(folder / "config.json", {"num_attention_heads": "8"})
    for load in (lambda: load_config(str(folder)), lambda: load_model(ModelConfig(path=str(folder)))):
        line = refused(load)
        assert line.startswith("cannot ") and "'num_attention_heads' expected int, got str" in line


def test_a_tokenizer_of_an_unknown_type(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["type"] = "Unknown"
    change(folder / "tokenizer.json", tokenizer)
    assert refused(lambda: load_tokenizer(str(folder))).startswith(f"cannot load a tokenizer from '{folder}': ")


def test_a_hub_out_of_reach_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*given: Any, **more: Any) -> None:
        raise OSError("We couldn't connect to 'https://huggingface.co' to load the files.\nCheck your connection.")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", unreachable)
    line = refused(lambda: load_tokenizer("org/name"))
    assert "couldn't connect" in line and line.endswith("(`hf download NAME`), or give a folder (model=FOLDER).")


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_too_little_memory_is_no_damage(folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def full(*given: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(error):
        load_model(ModelConfig(path=str(folder)))
