"""``builtin:tiny4`` computes what the built-in model does until training changes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spa.config.schema import ModelConfig
from spa.models.folders import resolve_path
from spa.models.load import load_model, load_tokenizer


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPA_HOME", str(tmp_path))
    return Path(resolve_path("builtin:tiny4"))


def test_the_deeper_model_starts_as_the_shallow_one(deep: Path) -> None:
    tiny, tiny4 = (load_model(ModelConfig(path=f"builtin:{name}", device="cpu")) for name in ("tiny", "tiny4"))
    tokens_BT = torch.arange(40).view(2, 20) * 7 % 512
    torch.testing.assert_close(tiny4(tokens_BT).logits, tiny(tokens_BT).logits, rtol=0, atol=0)
    assert (tiny.config.num_hidden_layers, tiny4.config.num_hidden_layers) == (2, 4)
    text = "<observation>#P_\n_G#</observation>"
    assert (deep / "README.md").read_text().startswith("---\nlicense: apache-2.0\n")
    assert load_tokenizer("builtin:tiny4").encode(text) == load_tokenizer("builtin:tiny").encode(text)


def test_every_new_layer_learns(deep: Path) -> None:
    model = load_model(ModelConfig(path="builtin:tiny4", device="cpu"))
    tokens_BT = torch.arange(40).view(2, 20) * 7 % 512
    model(tokens_BT, labels=tokens_BT).loss.backward()
    for layer in model.model.layers:
        assert layer.self_attn.o_proj.weight.grad.abs().max() > 0
        assert layer.mlp.down_proj.weight.grad.abs().max() > 0


def test_it_is_made_once_and_again_where_incomplete(deep: Path) -> None:
    weights = deep / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert Path(resolve_path("builtin:tiny4")) == deep and weights.stat().st_mtime_ns == before
    (deep / "config.json").unlink()  # as after a kill: the config is written last
    weights.write_bytes(b"")
    resolve_path("builtin:tiny4")
    load_model(ModelConfig(path="builtin:tiny4", device="cpu"))
