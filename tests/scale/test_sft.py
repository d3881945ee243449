"""Stage 2 on several ranks gives the losses and the model of one process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from spa.config.schema import ModelConfig, SFTConfig
from spa.models.load import load_model
from spa.models.lora import add_lora
from spa.sft.train import SFTTrainer
from tests.scale.tools import in_ranks
from tests.sft.test_sft import TOKENIZER, examples

pytestmark = pytest.mark.scale
VARIANTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "padded, uneven passes": {"packing": False, "micro_batch_tokens": 100},
    "one row a step": {"batch_size": 1},
    "checkpointing": {"checkpointing": True},
    "LoRA": {"rank": 4},
    "bfloat16": {"precision": "bfloat16"},
}


def trained(
    checkpointing: bool = False, rank: int = 0, **settings: Any
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    model = load_model(ModelConfig(path="builtin:tiny", device="cpu", gradient_checkpointing=checkpointing))
    if rank:
        add_lora(model, SFTConfig(lora_alpha=8), rank)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model,
            TOKENIZER,
            examples(),
            examples(3),
            SFTConfig(**{"epochs": 1, "batch_size": 4, "lr": 1e-4, "log_every": 1, **settings}),
            Path(folder),
            seed=0,
            log=lambda step, metrics: rows.append(metrics),
        )
        saved = trainer.train() / "model.safetensors"
        weights = load_file(saved) if saved.is_file() else {}
    return [{name: row[name] for name in row if "second" not in name} for row in rows], weights


def all_trained() -> dict[str, Any]:
    return {name: trained(**settings) for name, settings in VARIANTS.items()}


def test_sft_on_ranks() -> None:
    (alone,) = in_ranks(all_trained, 1)
    for count, shards in ((2, 0), (3, 0), (4, 2)):
        together = in_ranks(all_trained, count, shards)[0]
        for name, (expected_rows, expected) in alone.items():
            # In one process the products are bfloat16, on ranks the weights too.
            limits = {"rel": 0.05, "abs": 0.01} if name == "bfloat16" else {"rel": 1e-5, "abs": 5e-7}
            rows, weights = together[name]
            assert rows == [{key: pytest.approx(v, **limits) for key, v in row.items()} for row in expected_rows], name
            assert weights.keys() == expected.keys()
            worst = max(float(np.abs(weights[key] - expected[key]).max()) for key in weights)
            assert worst <= (1e-2 if name == "bfloat16" else 1e-5), name
