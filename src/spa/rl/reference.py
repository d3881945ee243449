"""The reference model of the KL terms."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spa.config.schema import PPOConfig
from spa.models.forward import token_logprobs
from spa.models.lora import without_adapters
from spa.models.rows import TokenRows, autocast


def needs_reference(config: PPOConfig) -> bool:
    return bool(config.kl_reward_coef or config.kl_loss_coef)


@dataclass
class Reference:
    """A frozen model; with ``adapters_off`` it is the actor itself without its LoRA adapters, which costs no memory."""

    model: Any
    adapters_off: bool = False

    def __post_init__(self) -> None:
        if not self.adapters_off:
            self.model.requires_grad_(False).eval()

    @torch.no_grad()
    def logprobs(self, tokens: TokenRows, *, temperature: float, precision: str) -> Tensor:
        """(N,) log-probs of the chosen tokens."""
        with without_adapters(self.model) if self.adapters_off else nullcontext(), autocast(self.model, precision):
            logprobs_N, _ = token_logprobs(
                self.model, tokens.hidden(self.model), tokens.targets_N, temperature=temperature
            )
        return logprobs_N
