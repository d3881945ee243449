"""Cascade attention on a CPU: what many rows ask of a prefix common to all is one product; their own keys follow row by row.

The results of both parts are weighted by their sums of exponentials (Juravsky et al. 2024, Hydragen). For 64 rows of 500
positions, 330 of them common, a step's attention takes two thirds of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SHARED = 256  # positions and rows from which this is faster
_ROWS = 8


def pays(shared: int, rows: int, device: torch.device) -> bool:
    """Whether ``rows`` rows with ``shared`` common positions are faster this way."""
    name = "_scaled_dot_product_flash_attention_for_cpu"
    return shared >= _SHARED and rows >= _ROWS and device.type == "cpu" and hasattr(torch.ops.aten, name)


def attend(q_nKGd: Tensor, keys_nKTd: Tensor, values_nKTd: Tensor, mask_nT: Tensor, shared: int) -> Tensor:
    """(n, K, G, d) attention of one token a row, G heads to each of K heads of keys.

    The first ``shared`` positions are the same and visible in all rows, which see at least one more; ``mask_nT`` is additive.
    """
    n, kv_heads, group, width = q_nKGd.shape
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    together = q_nKGd.transpose(0, 1).reshape(1, kv_heads, n * group, width)
    prefix, prefix_lse = flash(together, keys_nKTd[:1, :, :shared], values_nKTd[:1, :, :shared])
    prefix_nKGd = prefix.view(kv_heads, n, group, width).transpose(0, 1)
    prefix_lse_nKG = prefix_lse.view(kv_heads, n, group).transpose(0, 1)
    own_nKGd, own_lse_nKG = flash(
        q_nKGd, keys_nKTd[:, :, shared:], values_nKTd[:, :, shared:], attn_mask=mask_nT[:, None, None, shared:]
    )
    weight_nKG1 = torch.sigmoid(prefix_lse_nKG - own_lse_nKG)[..., None].to(q_nKGd.dtype)
    return torch.lerp(own_nKGd, prefix_nKGd, weight_nKG1)
