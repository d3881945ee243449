"""Optimiser and learning-rate schedule, shared by the stages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def adamw(
    groups: Iterable[tuple[Iterable[nn.Parameter], float]],
    *,
    betas: Iterable[float],
    weight_decay: float,
    eps: float = 1e-8,
) -> torch.optim.AdamW:
    """AdamW over (parameters, learning rate) groups. Vectors (norms, biases) are not decayed."""
    settings: list[dict[str, Any]] = []
    for parameters, lr in groups:
        trainable = [p for p in parameters if p.requires_grad]
        matrices = [p for p in trainable if p.ndim >= 2]
        vectors = [p for p in trainable if p.ndim < 2]
        settings.append({"params": matrices, "lr": lr, "peak_lr": lr, "weight_decay": weight_decay})
        settings.append({"params": vectors, "lr": lr, "peak_lr": lr, "weight_decay": 0.0})
    beta1, beta2 = betas
    # foreach, the default on CUDA, makes a copy of all of a group's weights for a moment.
    return torch.optim.AdamW([s for s in settings if s["params"]], betas=(beta1, beta2), eps=eps, foreach=False)


def lr_factor(step: int, *, warmup: int, total: int, schedule: str = "constant", decay: int = 0) -> float:
    """Fraction of the peak learning rate at optimizer step ``step`` (from 0): linear warm-up, then ``schedule``.

    ``cosine`` decays to 0 over the rest of the ``total`` steps, ``wsd`` (warm-up, stable, decay) stays at 1 and follows a
    cosine over the last ``decay`` steps, ``constant`` stays at 1.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    start = warmup if schedule == "cosine" else max(warmup, total - decay)
    progress = min(1.0, max(0, step - start) / max(1, total - start))
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def clip_norm(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Clips gradients by their norm over all ranks; returns it."""
    norm = nn.utils.clip_grad_norm_(parameters, limit)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Sets each group's learning rate to ``factor`` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor
