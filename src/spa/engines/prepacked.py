"""Linear layers for decoding on a CPU: weights of several layers joined, and kept in oneDNN's blocked layout.

torch lays a weight matrix out again for every product, which for the few tokens of a decoding step takes longer than the
product: with 8 tokens and 49,152 words the head takes 41 ms, with blocked weights 15. Sums are in another order, so results
differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spa.models.memory import BLOCKED, free_memory

Linear = Callable[[Tensor], Tensor]
"""(N, inputs) -> (N, outputs)"""

_JOIN = 2**22  # weights: above this, a joined copy costs memory and saves no time
_FREE = 4  # blocked copies of all weights must fit this many times into the free memory
_TOKENS = 64  # a hint: other numbers of tokens are as fast


def can_prepack(model: Any) -> bool:
    """Whether a blocked copy of all weights is possible and fits into memory."""
    ops = torch.ops.mkldnn
    if model.device.type != "cpu" or model.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    if not (hasattr(ops, "_reorder_linear_weight") and hasattr(ops, "_linear_pointwise")):
        return False
    free = free_memory(model.device)
    return free is None or _FREE * sum(parameter.nbytes for parameter in model.parameters()) < free


def linear(module: Any, prepack: bool) -> Linear:
    """The layer itself, or with ``prepack`` the same with blocked weights if it is a plain, large one."""
    if type(module) is not torch.nn.Linear or not prepack or module.weight.numel() < BLOCKED:
        result: Linear = module
        return result
    return _blocked(module.weight, module.bias)


def joined(modules: Sequence[Any], prepack: bool) -> Linear | None:
    """One layer with the outputs of all, one after the other; None if they are not plain, or too large."""
    if any(type(module) is not torch.nn.Linear for module in modules):  # adapters
        return None
    if sum(module.weight.numel() for module in modules) > _JOIN:
        return None
    biases = [module.bias for module in modules if module.bias is not None]
    if 0 < len(biases) < len(modules):
        return None
    weight, bias = torch.cat([module.weight for module in modules]), torch.cat(biases) if biases else None
    return (
        _blocked(weight, bias) if prepack and weight.numel() >= BLOCKED else partial(F.linear, weight=weight, bias=bias)
    )


def _blocked(weight_OI: Tensor, bias_O: Tensor | None) -> Linear:
    ops = torch.ops.mkldnn
    blocked = ops._reorder_linear_weight(weight_OI.detach(), _TOKENS)

    def product(x_NI: Tensor) -> Tensor:
        result: Tensor = ops._linear_pointwise(x_NI, blocked, bias_O, "none", [], "")
        return result

    return product
