"""A model's folder may bring Python code with it; it is not run, whatever a person at the terminal would answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from spa.config.schema import ModelConfig
from spa.models.load import load_config, load_model, load_tokenizer

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
