"""Several rows in one forward pass without padding, each attending to itself alone, and what rows have in common only once.

The rows stand one behind the other in a sequence of T tokens. Where a row begins as another one does (the episodes of a group
share their first prompt, rows with the whole history their earlier turns), the common beginning stands there once: with causal
attention its hidden states are the same in both. Everything that works token by token (embeddings, linear layers, norms) runs on
exactly these T; only attention needs to know where rows begin and end, and gets them whole, as right-padded batches of rows of
similar length, in which no real token sees a pad. So isolation needs no mask of T x T, and rows of unequal length cost no wasted
matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

NAME = "spa_packed"
_SIMILAR = 0.8  # rows of one batch of attention are at least so long, as a share of its longest
_SHARED_COST = 0.25  # what a token costs that is only attended to, as a share of one that is computed

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Where the rows of a packed sequence stand.

    ``positions_1T[0, t]`` is the place of token t in its row. Attention works on ``batches`` of (rows, longest); flattened one
    behind the other they have R places, of which ``tokens_R`` names the token (of a pad: any), and ``places_T`` says for each
    token at which of its places its output is read. ``all_places`` are all of them, token by token, those of token t from
    ``starts_T[t]`` on. ``even`` says that nothing is padded, shared or moved, ``rows`` which rows the batches have.
    """

    positions_1T: Tensor
    tokens_R: Tensor
    places_T: Tensor
    batches: tuple[tuple[int, int], ...]
    all_places: Tensor
    starts_T: Tensor
    even: bool
    rows: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rows: Sequence[Places], device: torch.device | str = "cpu") -> Layout:
        """The layout of rows of places in the packed sequence, as ``pack`` gives them."""
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        batches: list[list[int]] = []
        for index in order:
            if batches and len(rows[index]) >= _SIMILAR * len(rows[batches[-1][0]]):
                batches[-1].append(index)
            else:
                batches.append([index])
        total = 1 + max(int(row.max()) for row in rows)
        positions = np.zeros(total, dtype=np.int64)
        tokens: list[Places] = []
        real: list[Places] = []
        start = 0
        for batch in batches:
            longest = len(rows[batch[0]])
            for index in batch:
                row = rows[index]
                positions[row] = np.arange(len(row))
                tokens.append(np.concatenate([row, np.full(longest - len(row), row[-1])]))
                real.append(np.arange(start, start + len(row)))
                start += longest
        flat, all_places = np.concatenate(tokens), np.concatenate(real)
        all_places = all_places[np.argsort(flat[all_places], kind="stable")]
        starts = np.searchsorted(flat[all_places], np.arange(total))
        shapes = tuple((len(batch), len(rows[batch[0]])) for batch in batches)
        even = len(batches) == 1 and len(flat) == total and bool((flat == np.arange(total)).all())
        return cls(
            torch.from_numpy(positions)[None].to(device),
            torch.from_numpy(flat).to(device),
            torch.from_numpy(all_places[starts]).to(device),
            shapes,
            torch.from_numpy(all_places).to(device),
            torch.from_numpy(starts).to(device),
            even,
            tuple(tuple(batch) for batch in batches),
        )


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences of one type begin with in common."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:  # a[:low] == b[:low], a[:high] != b[:high]
        middle = (low + high) // 2
        if a[low : middle + 1] == b[low : middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low


def pack(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[Places]]:
    """The ids of a packed sequence, common beginnings once, and for each row the places of its tokens in it."""
    lists = [list(row) for row in rows]
    ids: list[int] = []
    places: list[Places] = [np.zeros(0, dtype=np.int64)] * len(rows)
    before: int | None = None
    # In this order the longest beginning that a row shares with any earlier one it shares with its neighbour.
    for index in sorted(range(len(rows)), key=lambda i: lists[i]):
        shared = common_length(lists[index], lists[before]) if before is not None else 0
        shared_places = places[before][:shared] if before is not None else places[index]
        places[index] = np.concatenate([shared_places, np.arange(len(ids), len(ids) + len(rows[index]) - shared)])
        ids += lists[index][shared:]
        before = index
    return ids, places


def pack_groups(rows: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Indices of rows by forward pass, those with a common beginning together.

    A pass has at most ``max_tokens`` tokens (a longer row stands alone), a shared one counted a quarter for every further row.
    """
    lists = [list(row) for row in rows]
    groups: list[list[int]] = []
    cost, before = 0.0, -1
    for index in sorted(range(len(rows)), key=lambda i: lists[i]):
        shared = common_length(lists[index], lists[before]) if groups else 0
        more = len(lists[index]) - (1 - _SHARED_COST) * shared
        if groups and cost + more <= max_tokens:
            groups[-1].append(index)
            cost += more
        else:
            groups.append([index])
            cost = len(lists[index])
        before = index
    return groups


class _Expand(torch.autograd.Function):
    """Tokens (T, ...) to all their places (R, ...). Autograd's own gradient of an indexing adds up entry by entry, several times as
    slow as one sum over the places of each token."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return tokens.index_select(0, layout.tokens_R)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        (grad,) = grads
        layout = ctx.layout
        if len(layout.all_places) == len(layout.starts_T):  # nothing is shared
            return grad.index_select(0, layout.places_T), None
        summed = F.embedding_bag(layout.all_places, grad.flatten(1), layout.starts_T, mode="sum")
        return summed.view(-1, *grad.shape[1:]), None


class _Collect(torch.autograd.Function):
    """Outputs (R, ...) to tokens (T, ...): each is read at one place."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return outputs.index_select(0, layout.places_T)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        (grad,) = grads
        out = grad.new_zeros(len(ctx.layout.tokens_R), *grad.shape[1:])
        return out.index_copy_(0, ctx.layout.places_T, grad), None


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
    outputs = []
    parts = (
        by_batch(packed_1HTK[0].transpose(0, 1), packed_layout) for packed_1HTK in (query_1HTK, key_1HTK, value_1HTK)
    )
    for query, key, value in zip(*parts, strict=True):
        out_BLHK, _ = sdpa_attention_forward(module, query, key, value, None, **kwargs)
        outputs.append(out_BLHK.flatten(0, 1))
    out_THK = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if not packed_layout.even:
        out_THK = _Collect.apply(out_THK, packed_layout)
    return out_THK[None], None


def by_batch(tokens_THK: Tensor, layout: Layout) -> list[Tensor]:
    """(rows, H, longest, K) for each batch of a layout."""
    if not layout.even:
        tokens_THK = _Expand.apply(tokens_THK, layout)
    parts = tokens_THK.split([rows * longest for rows, longest in layout.batches])
    return [
        part.reshape(rows, longest, *part.shape[1:]).transpose(1, 2)
        for part, (rows, longest) in zip(parts, layout.batches, strict=True)
    ]
