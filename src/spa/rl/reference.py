"""The reference model of the KL terms."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spa.models.lora import without_adapters
from spa.models.score import TokenBatch, score


@dataclass
class Reference:
    """A frozen model; with ``adapters_off`` it is the actor itself without its LoRA adapters, which costs no memory."""

    model: Any
    adapters_off: bool = False

    def __post_init__(self) -> None:
        if not self.adapters_off:
            self.model.requires_grad_(False).eval()

    @torch.no_grad()
    def logprobs(self, batch: TokenBatch, *, temperature: float, precision: str) -> Tensor:
        """(N,) log-probs of a batch's tokens."""
        with without_adapters(self.model) if self.adapters_off else nullcontext():
            return score(self.model, batch, temperature=temperature, precision=precision).logprobs_N
