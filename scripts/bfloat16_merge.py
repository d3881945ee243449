"""Validation loss of bfloat16 weights with LoRA adapters, apart and merged: rounded to the nearest value, and as SPA rounds.

    python scripts/bfloat16_merge.py RUN

RUN has stages 1 and 2 of a bfloat16 model with sft.lora_rank; its adapters count whole, and scaled down to smaller updates.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from spa.agent.chat import Chat
from spa.agent.response import forced_tag
from spa.common.checkpoints import latest_checkpoint
from spa.data.encode import encode_rows
from spa.data.layouts import data_files, read_rows
from spa.models import lora
from spa.models.load import load_model, load_state, load_tokenizer
from spa.runs.folder import RunFolder
from spa.sft.train import mean_loss


def main() -> None:
    run = Path(sys.argv[1])
    cfg = RunFolder(run).config()
    chat = Chat(load_tokenizer(cfg.model.path), forced=forced_tag(cfg.agent.think))
    examples, _ = encode_rows(read_rows(data_files(run / "selfplay")[1])[0], chat, cfg.sft)

    def loss(model: Any) -> float:
        return mean_loss(model, examples, cfg.sft.micro_batch_tokens, packing=False)

    adapted, merged = load_model(cfg.model), load_model(cfg.model)
    exact = load_model(cfg.model, dtype=torch.float32)
    print(f"base: {loss(merged):.4f}")
    lora.add_lora(adapted, cfg.sft, cfg.sft.lora_rank)
    newest = latest_checkpoint(run / "sft")
    assert newest is not None
    tensors = load_state(newest[1])["lora"]
    for scale in (1.0, 0.3, 0.1):
        lora.load_adapter_state(adapted, {k: v * (scale if "lora_B" in k else 1.0) for k, v in tensors.items()})
        merged.load_state_dict(lora.merged_state(adapted))
        losses = {"adapters": loss(adapted), "merged": loss(merged)}
        with patch.object(lora, "_rounded", lambda exact, dtype, seed: exact.to(dtype)):
            merged.load_state_dict(lora.merged_state(adapted))
        losses["merged to the nearest"] = loss(merged)
        with patch.object(lora, "_rounded", lambda exact, dtype, seed: exact):
            exact.load_state_dict(lora.merged_state(adapted))
        losses["in float32"] = loss(exact)
        print(f"updates x {scale}: " + ", ".join(f"{name} {value:.4f}" for name, value in losses.items()), flush=True)


if __name__ == "__main__":
    main()
