"""Several rows in one forward pass without padding, each attending to itself alone.

The rows stand one behind the other in a sequence of T tokens. Everything that works token by token (embeddings, linear layers,
norms) runs on exactly these T; only attention needs to know where rows begin, and gets them as a right-padded batch of
queries, keys and values, in which causal attention lets no real token see a pad. So isolation needs no mask of T x T, and rows of
unequal length cost no wasted matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAME = "spa_packed"


@dataclass(frozen=True)
class Layout:
    """Where the rows of a packed sequence stand.

    ``positions_1T[0, t]`` is the place of token t in its row, ``flat_T[t]`` its place in the padded batch of ``rows`` rows of
    ``longest`` tokens, flattened. ``even`` says that all rows have one length, so that the two are the same.
    """

    positions_1T: Tensor
    flat_T: Tensor
    rows: int
    longest: int
    even: bool

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> Layout:
        sizes_B = torch.tensor(lengths, device=device)
        starts_B = sizes_B.cumsum(0) - sizes_B
        row_T = torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes_B)
        positions_T = torch.arange(len(row_T), device=device) - starts_B[row_T]
        longest = max(lengths)
        even = min(lengths) == longest
        return cls(positions_T[None], row_T * longest + positions_T, len(lengths), longest, even)


class _Spread(torch.autograd.Function):
    """Tokens (T, ...) to their places in a batch of zeros (rows * longest, ...). Each place has at most one token, which
    autograd cannot know: its own gradient of an indexing adds up, and is several times as slow."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, flat_T: Tensor, places: int) -> Tensor:
        ctx.save_for_backward(flat_T)
        return tokens.new_zeros(places, *tokens.shape[1:]).index_copy_(0, flat_T, tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        (flat_T,) = ctx.saved_tensors
        return grads[0].index_select(0, flat_T), None, None


class _Collect(torch.autograd.Function):
    """The inverse of ``_Spread``."""

    @staticmethod
    def forward(ctx: Any, batch: Tensor, flat_T: Tensor) -> Tensor:
        ctx.save_for_backward(flat_T)
        ctx.places = batch.shape[0]
        return batch.index_select(0, flat_T)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        (flat_T,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.places, *grads[0].shape[1:]).index_copy_(0, flat_T, grads[0]), None


def enable_packing(model: Any, setting: str = "sft.packing") -> None:
    """Lets ``packed_hidden_states`` be used with a transformers model; everything else it does stays ``sdpa``.

    Args:
        setting: that asks for it, for the message.

    Raises:
        ValueError: the model's attention cannot be replaced.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    try:
        model.set_attn_implementation(NAME)
    except (ValueError, AttributeError) as error:
        raise ValueError(f"rows cannot be packed with {type(model).__name__} ({error}); use {setting}=false") from error
    windows = (
        [getattr(model.config, "sliding_window", None)] if getattr(model.config, "use_sliding_window", True) else []
    )
    if any(windows):
        raise ValueError(
            f"{type(model).__name__} has sliding-window attention, which cannot be packed; use {setting}=false"
        )


def packed_hidden_states(model: Any, ids_T: Tensor, layout: Layout) -> Tensor:
    """(T, D) last hidden states of packed rows; needs ``enable_packing``."""
    assert model.config._attn_implementation == NAME, "without enable_packing rows would see each other"
    # A mask of four dimensions is passed on as it is: none of T x T is built from the position ids.
    unused = torch.empty(1, 1, 0, 0, device=ids_T.device)
    output = model.base_model(
        input_ids=ids_T[None],
        position_ids=layout.positions_1T,
        attention_mask=unused,
        use_cache=False,
        packed_layout=layout,
    )
    hidden_TD: Tensor = output.last_hidden_state[0]
    return hidden_TD


def _attention(
    module: Any,
    query_1HTK: Tensor,
    key_1HTK: Tensor,
    value_1HTK: Tensor,
    attention_mask: Tensor | None,
    packed_layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if packed_layout is None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_1HTK, key_1HTK, value_1HTK, attention_mask, **kwargs
        )
        return result
    rows, longest = packed_layout.rows, packed_layout.longest

    def unpack(packed_1HTK: Tensor) -> Tensor:
        tokens_THK = packed_1HTK[0].transpose(0, 1)
        if not packed_layout.even:
            tokens_THK = _Spread.apply(tokens_THK, packed_layout.flat_T, rows * longest)
        return tokens_THK.reshape(rows, longest, *tokens_THK.shape[1:]).transpose(1, 2)

    out_BLHK, _ = sdpa_attention_forward(
        module, unpack(query_1HTK), unpack(key_1HTK), unpack(value_1HTK), None, **kwargs
    )
    out_THK = out_BLHK.reshape(rows * longest, *out_BLHK.shape[2:])
    if not packed_layout.even:
        out_THK = _Collect.apply(out_THK, packed_layout.flat_T)
    return out_THK[None], None
