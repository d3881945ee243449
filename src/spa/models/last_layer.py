"""Computes the last layer of packed rows only for tokens whose hidden states are used.

Training uses only hidden states that predict sampled tokens. With a prompt of seventy tokens and a response of ten, the others
are needed only for their keys and values, so the last layer's queries, attention, feed-forward part and norms, and the
final norm, are computed for a seventh of the tokens. In a two-layer model this saves more than a third of the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spa.models.families import is_llama_like
from spa.models.packing import Layout, Places, by_batch, packed_hidden_states

_FEW = 0.75  # above this share of tokens, selection costs as much as it saves


@dataclass(frozen=True)
class Reads:
    """The W tokens of packed rows whose hidden states are used.

    ``wanted_W`` are their indices. In attention every row of a batch has as many query slots as the row with the most such
    tokens. ``asks_S`` maps all S slots to the W tokens (arbitrary for unused slots), and ``slots_W`` maps each token
    to its slot. ``masks`` is the attention mask of each batch: (rows, 1, slots, longest).
    """

    wanted_W: Tensor
    asks_S: Tensor
    slots_W: Tensor
    masks: tuple[Tensor, ...]

    @classmethod
    def of(cls, rows: Sequence[Places], asked: Sequence[Places], layout: Layout) -> Reads | None:
        """``asked[i]`` are the positions in row i whose states are used. Returns None if most are, or none."""
        device = layout.tokens_R.device
        wanted = np.unique(np.concatenate([row[at] for row, at in zip(rows, asked, strict=True)]))
        if not 0 < len(wanted) <= _FEW * len(layout.places_T):
            return None
        asks, masks = [], []
        for batch, (_, longest) in zip(layout.rows, layout.batches, strict=True):
            places = [np.unique(asked[index]) for index in batch]
            used = np.arange(max(1, *map(len, places))) < np.array([len(at) for at in places])[:, None]
            # An unused slot sees the row's first token: attention over no keys is undefined.
            positions, asks_of = np.zeros(used.shape, np.int64), np.full(used.shape, -1)
            positions[used] = np.concatenate(places)
            in_rows = [rows[index][at] for index, at in zip(batch, places, strict=True)]
            asks_of[used] = np.searchsorted(wanted, np.concatenate(in_rows))
            masks.append(torch.from_numpy(np.arange(longest) <= positions[:, None, :, None]).to(device))
            asks.append(asks_of.ravel())
        flat = np.concatenate(asks)
        slots = np.flatnonzero(flat >= 0)
        first = np.unique(flat[slots], return_index=True)[1]
        return cls(
            torch.from_numpy(wanted).to(device),
            torch.from_numpy(flat.clip(min=0)).to(device),
            torch.from_numpy(slots[first]).to(device),
            tuple(masks),
        )


def states_read(model: Any, ids_T: Tensor, layout: Layout, reads: Reads) -> Tensor:
    """(W, D) last hidden states of the tokens in ``reads``; needs ``enable_packing``."""
    if is_llama_like(model):
        layer = model.base_model.layers[-1]
        # Recomputation in the backward pass would use the original forward.
        if not (layer.gradient_checkpointing and layer.training):
            with _reading(layer, reads):
                return packed_hidden_states(model, ids_T, layout)
    return packed_hidden_states(model, ids_T, layout)[reads.wanted_W]


@contextmanager
def _reading(layer: Any, reads: Reads) -> Iterator[None]:
    def forward(
        hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], packed_layout: Layout, **_: Any
    ) -> Tensor:
        return _forward(layer, hidden_states, position_embeddings, packed_layout, reads)

    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward  # uncovers the class's method


def _forward(layer: Any, hidden_1TD: Tensor, cos_sin: tuple[Tensor, Tensor], layout: Layout, reads: Reads) -> Tensor:
    """(1, W, D): the layer's output for (1, T, D) at the used tokens."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.models.llama.modeling_llama import rotate_half

    attention = layer.self_attn
    cos_TK, sin_TK = (table_1TK[0] for table_1TK in cos_sin)

    def heads(name: str, states_TD: Tensor) -> Tensor:
        split_THK = getattr(attention, f"{name}_proj")(states_TD).unflatten(-1, (-1, attention.head_dim))
        norm = getattr(attention, f"{name}_norm", None)
        result: Tensor = split_THK if norm is None else norm(split_THK)
        return result

    def turned(states_THK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
        result: Tensor = states_THK * cos_TK[:, None] + rotate_half(states_THK) * sin_TK[:, None]
        return result

    normed_TD = layer.input_layernorm(hidden_1TD)[0]
    keys_THK = turned(heads("k", normed_TD), cos_TK, sin_TK)
    values_THK = heads("v", normed_TD)
    wanted_W = reads.wanted_W
    queries_WHK = turned(heads("q", normed_TD[wanted_W]), cos_TK[wanted_W], sin_TK[wanted_W])
    queries = queries_WHK[reads.asks_S].split([mask.shape[0] * mask.shape[2] for mask in reads.masks])
    outputs = []
    for query_SHK, key, value, mask in zip(
        queries, by_batch(keys_THK, layout), by_batch(values_THK, layout), reads.masks, strict=True
    ):
        query = query_SHK.unflatten(0, (mask.shape[0], mask.shape[2])).transpose(1, 2)
        dropout = attention.attention_dropout if attention.training else 0.0
        out_BLHK, _ = sdpa_attention_forward(
            attention, query, key, value, mask, dropout=dropout, scaling=attention.scaling
        )
        outputs.append(out_BLHK.flatten(0, 1))
    attended_WHK = torch.cat(outputs)[reads.slots_W]
    out_WD = hidden_1TD[0, wanted_W] + attention.o_proj(attended_WHK.flatten(1))
    result_1WD: Tensor = (out_WD + layer.mlp(layer.post_attention_layernorm(out_WD)))[None]
    return result_1WD
