"""An export in another dtype casts what is stored, and loads no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from spa.config.schema import ModelConfig
from spa.models.export import export
from spa.models.load import load_model, load_tokenizer, save_model
from tests.models.networks import network


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    save_model(network(vocab_size=512), load_tokenizer("builtin:tiny"), folder, {"step": 3})
    return folder


def change(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    (folder / "manifest.json").unlink()


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: weight for path in folder.glob("*.safetensors") for name, weight in load_file(path).items()}


def test_every_weight_is_cast(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "to", files={}, dtype="bfloat16")
    wanted = {name: weight.bfloat16() for name, weight in stored(checkpoint).items()}
    got = stored(tmp_path / "to")
    assert got.keys() == wanted.keys() and all(torch.equal(got[name], weight) for name, weight in wanted.items())
    assert all(weight.dtype == torch.bfloat16 for weight in got.values())
    with safe_open(tmp_path / "to" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    names = {path.name for path in checkpoint.iterdir()} - {"trainer_state.pt", "manifest.json"}
    assert {path.name for path in (tmp_path / "to").iterdir()} == names
    model = load_model(ModelConfig(path=str(tmp_path / "to"), device="cpu"), dtype=torch.bfloat16)
    assert torch.equal(model.lm_head.weight, wanted["lm_head.weight"])


def test_sharded_weights_are_cast(tmp_path: Path) -> None:
    model, source, to = network(), tmp_path / "sharded", tmp_path / "to"
    model.save_pretrained(source, max_shard_size="20KB")
    assert len(list(source.glob("*.safetensors"))) > 1
    export(source, to, files={}, dtype="float16")
    before, after = (json.loads((each / "model.safetensors.index.json").read_text()) for each in (source, to))
    assert after["weight_map"] == before["weight_map"]
    assert after["metadata"] == {**before["metadata"], "total_size": before["metadata"]["total_size"] // 2}
    loaded = load_model(ModelConfig(path=str(to), device="cpu"), dtype=torch.float16).state_dict()
    assert all(torch.equal(loaded[name], weight.half()) for name, weight in model.state_dict().items())


def test_a_model_with_code_is_cast_without_running_it(checkpoint: Path, tmp_path: Path) -> None:
    code = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
    (checkpoint / "own.py").write_text(code)
    mapped = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    change(checkpoint, model_type="own_llama", auto_map=mapped)
    export(checkpoint, tmp_path / "to", files={}, dtype="bfloat16")
    assert (tmp_path / "to" / "own.py").read_text() == code and not (tmp_path / "ran").exists()


def test_the_config_names_the_dtype(checkpoint: Path, tmp_path: Path) -> None:
    parts = {"text_config": {"dtype": "float32", "hidden_size": 32}, "rope": {"theta": 1.0}}
    change(checkpoint, torch_dtype="float32", dtype=None, **parts)
    export(checkpoint, tmp_path / "to", files={}, dtype="float16")
    config = json.loads((tmp_path / "to" / "config.json").read_text())
    assert config["dtype"] == "float16" and "torch_dtype" not in config
    assert config["text_config"] == {"dtype": "float16", "hidden_size": 32} and config["rope"] == {"theta": 1.0}


def test_what_cannot_be_cast_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        export(checkpoint, tmp_path / "to", files={}, dtype="float16")
    change(checkpoint, quantization_config={"quant_method": "fp8"})
    with pytest.raises(ValueError, match=r"export it without --dtype$"):
        export(checkpoint, tmp_path / "to", files={}, dtype="float16")
    assert not (tmp_path / "to").exists()
