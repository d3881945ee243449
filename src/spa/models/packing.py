"""Sequence packing: several rows in one forward pass without padding, isolated from each other, with shared prefixes stored once.

The rows are concatenated into a sequence of T tokens. A prefix shared by rows (the first prompt of a group's episodes, or
earlier turns of rows with the full history) is stored once: with causal attention its hidden states are the same in all of
them. Token-wise operations (embeddings, linear layers, norms) run on exactly these T tokens. Only attention needs row
boundaries: it receives whole rows in right-padded batches of similar length, in which no real token sees a pad. Isolation
therefore needs no T x T mask, and rows of unequal length waste no matrix products.
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

from spa.common.errors import first_line
from spa.common.sequences import common_length
from spa.models.families import check_packing, is_llama_like
from spa.models.forward import evaluating, hidden_states, probe_ids, trunk

NAME = "spa_packed"
_SIMILAR = 0.8  # minimum row length in an attention batch, as a share of its longest row
_SHARED_COST = 0.25  # cost of a token that is only attended to, relative to one that is computed

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The layout of rows in a packed sequence.

    ``positions_1T[0, t]`` is the position of token t in its row. Attention works on ``batches`` of (rows, longest), which
    flattened and concatenated have R places. ``tokens_R`` is the token of each place (arbitrary for pads), and ``places_T``
    the place where each token's output is read. ``all_places`` lists the places of every token, those of token t starting
    at ``starts_T[t]``. ``even`` means that nothing is padded, shared or moved; ``rows`` are the rows of the batches.
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
        """The layout for ``rows``, each row's token indices in the packed sequence (see ``pack``)."""
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


def pack(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[Places]]:
    """The ids of a packed sequence, with shared prefixes once, and for each row the indices of its tokens in it."""
    lists = [list(row) for row in rows]
    ids: list[int] = []
    places: list[Places] = [np.zeros(0, dtype=np.int64)] * len(rows)
    before: int | None = None
    # In this order a row's longest prefix shared with any earlier row is the one shared with its predecessor.
    for index in sorted(range(len(rows)), key=lambda i: lists[i]):
        shared = common_length(lists[index], lists[before]) if before is not None else 0
        shared_places = places[before][:shared] if before is not None else places[index]
        places[index] = np.concatenate([shared_places, np.arange(len(ids), len(ids) + len(rows[index]) - shared)])
        ids += lists[index][shared:]
        before = index
    return ids, places


def pack_groups(rows: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Groups row indices into forward passes, keeping rows with a common prefix together.

    A pass has at most ``max_tokens`` tokens (a longer row gets its own); a shared token counts a quarter for every further row.
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
    """Copies tokens (T, ...) to all their places (R, ...). Autograd's gradient of indexing accumulates entry by entry, several
    times slower than one sum over each token's places."""

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
    """Gathers outputs (R, ...) into tokens (T, ...), each from one place."""

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
    """Enables ``packed_hidden_states`` for a transformers model; its other forward passes keep using ``sdpa``.

    Models that are not known to be exact pack two short rows, which must get the states that each has alone.

    Args:
        setting: name of the setting, for the error message.

    Raises:
        ValueError: the model's attention cannot be replaced, or its packed rows are not those rows alone.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    try:
        model.set_attn_implementation(NAME)
    except (ValueError, AttributeError) as error:
        raise ValueError(f"rows cannot be packed with {type(model).__name__} ({error}); use {setting}=false") from error
    check_packing(model.config, setting)
    if not (is_llama_like(model) or hasattr(model, "sharded_trunk")):
        try:
            difference = _packed_difference(model)
        except Exception as error:  # models raise many types
            raise ValueError(
                f"rows cannot be packed with {type(model).__name__} ({first_line(error)}); use {setting}=false"
            ) from error
        if not difference <= max(1e-2, 16 * torch.finfo(model.dtype).eps):
            raise ValueError(
                f"rows cannot be packed with {type(model).__name__} (hidden states of packed rows are {difference:.2g} of their "
                f"size off those of rows alone); use {setting}=false"
            )


@torch.no_grad()
def _packed_difference(model: Any) -> float:
    """The largest difference between the states of one of two packed rows and those of the row alone, relative to their norm."""
    ids = probe_ids(model, 12)
    rows = [ids[:8], [*ids[:3], *ids[8:]]]
    packed, places = pack(rows)
    device = model.device
    with evaluating(model):
        states_TD = packed_hidden_states(model, torch.tensor(packed, device=device), Layout.of(places, device)).float()
        alone = [hidden_states(model, torch.tensor([row], device=device))[0].float() for row in rows]
    pairs = [(states_TD[torch.from_numpy(row).to(device)], each) for row, each in zip(places, alone, strict=True)]
    return max(float((states - each).norm() / each.norm()) for states, each in pairs)


def packed_hidden_states(model: Any, ids_T: Tensor, layout: Layout) -> Tensor:
    """(T, D) last hidden states of packed rows; needs ``enable_packing``."""
    assert model.config._attn_implementation == NAME, "without enable_packing rows would see each other"
    # A 4-D mask is passed through unchanged, so no T x T mask is built from the position ids.
    unused = torch.empty(1, 1, 0, 0, device=ids_T.device)
    output = trunk(model)(
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
