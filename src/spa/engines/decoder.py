"""Inference for Llama-like models with a slot-based KV cache and ragged chunks of new tokens.

transformers' own forward pass takes a rectangular batch of new tokens and left-pads its cache. Here a row that prefills
a state of forty tokens and a row that samples its next token share a pass: matrix products run over all new tokens
concatenated; attention runs over the last new token of all rows together, and over earlier ones in rows of similar size.
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

from spa.engines import cascade
from spa.engines.prepacked import Linear, can_prepack, joined, linear
from spa.models.families import is_llama_like
from spa.models.memory import cache_bytes

_ROPES = ("default", "linear", "llama3", "yarn")  # RoPE types whose angles depend only on the position
_SCORES = 2**22  # largest number of attention weights (rows x new tokens x keys) in one call
_KEPT = 2**28  # bytes of memory kept for reuse
_GROWTH = 64  # minimum growth of the cache, in positions


def supports(model: Any) -> bool:
    """Whether ``Decoder`` computes this model exactly as transformers does."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    return is_llama_like(model) and rope.get("rope_type", "default") in _ROPES


@dataclass(frozen=True)
class Chunk:
    """New tokens, except the last, of the row in ``slot``, which already has ``past`` tokens."""

    slot: int
    past: int
    ids: Sequence[int]


class Decoder:
    """Continues rows of tokens; keys and values of slot s are at ``keys[layer][s]``, shape (K, T, d).

    A head's positions lie together in memory: attention reads them up to twice as fast as with the heads inside. Weights are
    read by ``refresh``; the model must not change between calls.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        self.model = model
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps: float = config.rms_norm_eps
        self.capacity = 0
        self.slots = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.layers: list[_Layer] = []
        self.head: Linear = model.lm_head

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of one position of one slot."""
        return cache_bytes(self.model.config, self.model.dtype.itemsize)

    def refresh(self) -> None:
        """Reads the model's current weights."""
        prepack = can_prepack(self.model)
        self.layers = [_Layer.of(layer, prepack) for layer in self.model.model.layers]
        self.head = linear(self.model.lm_head, prepack)

    def allocate(self, slots: int, capacity: int) -> None:
        """Allocates at least ``slots`` rows of ``capacity`` tokens, preserving the contents."""
        options = {"dtype": self.model.dtype, "device": self.model.device}
        if self.keys and (self.keys[0].dtype, self.keys[0].device) != (options["dtype"], options["device"]):
            self.free()
        if slots <= self.slots and capacity <= self.capacity:
            return
        slots, capacity = max(slots, self.slots), max(capacity, self.capacity)
        old_keys, old_values = self.keys, self.values
        shape = (slots, self.kv_heads, capacity, self.head_dim)
        region = (slice(self.slots), slice(None), slice(self.capacity))
        count = self.model.config.num_hidden_layers
        # One layer at a time, so that old and new caches never coexist in full. Zeros: masked values must be finite.
        for caches, olds in ((self.keys, old_keys), (self.values, old_values)):
            for layer in range(count):
                new = torch.zeros(shape, **options)
                if layer < len(olds):
                    new[region] = olds[layer][region]
                    caches[layer] = new
                else:
                    caches.append(new)
        self.slots, self.capacity = slots, capacity
        positions = torch.arange(capacity, device=self.model.device)[None]
        cos, sin = self.model.model.rotary_emb(torch.zeros(1, **options), positions)
        self.cos, self.sin = cos[0], sin[0].clone()
        self.sin[:, : self.head_dim // 2].neg_()

    def reserve(self, length: int) -> None:
        """Grows the cache to rows of ``length`` tokens."""
        if length > self.capacity:
            grown = max(length, self.capacity * 5 // 4)
            self.allocate(self.slots, -(-grown // _GROWTH) * _GROWTH)

    def copy(self, pieces: Sequence[tuple[int, int, int, int]]) -> None:
        """Copies keys and values: (source slot, target slot, first position, end); sources are read before any is written."""
        pieces = [piece for piece in pieces if piece[2] < piece[3]]
        if not pieces:
            return
        sources, targets, positions = (
            np.concatenate([np.full(b - a, source) for source, _, a, b in pieces]),
            np.concatenate([np.full(b - a, target) for _, target, a, b in pieces]),
            np.concatenate([np.arange(a, b) for _, _, a, b in pieces]),
        )
        sources_P, targets_P = self._places(sources, positions), self._places(targets, positions)
        for cache in (*self.keys, *self.values):
            flat = cache.view(-1, self.head_dim)
            flat.index_copy_(0, targets_P, flat.index_select(0, sources_P))

    def _places(self, slots_N: NDArray[np.int64], positions_N: NDArray[np.int64]) -> Tensor:
        """(N * K,) where the K heads' keys of these positions stand in a layer's cache, seen as (-1, d)."""
        rows_NK = slots_N[:, None] * self.kv_heads + np.arange(self.kv_heads)
        places_NK = rows_NK * self.capacity + positions_N[:, None]
        return torch.from_numpy(places_NK.ravel()).to(self.model.device)

    @property
    def held(self) -> int:
        """Bytes allocated for keys and values."""
        return self.slots * self.capacity * self.bytes_per_token

    def release(self) -> None:
        """Releases the weights, and the cache unless it is small, since reusing it is faster than reallocating."""
        self.layers, self.head = [], self.model.lm_head
        if self.held > _KEPT or self.model.device.type != "cpu":
            self.free()

    def free(self) -> None:
        """Frees all memory."""
        self.keys, self.values = [], []
        self.slots = self.capacity = 0

    def forward(
        self, ids: Sequence[int], positions: Sequence[int], earlier: Sequence[Chunk] = (), shared: int = 0
    ) -> Tensor:
        """Processes new tokens of slots 0 to n-1.

        Args:
            ids: (n,) the last new token of each slot.
            positions: (n,) their positions.
            earlier: new tokens before the last one, at most one chunk per slot, none empty.
            shared: number of first tokens that are the same in all slots, fewer than each slot's tokens.

        Returns:
            (n, V) logits after the last token of each slot.
        """
        device = self.model.device
        n = len(ids)
        # The last new token of every row in slot order, then all earlier ones row by row.
        all_ids, all_positions, slots = list(ids), list(positions), list(range(n))
        for chunk in earlier:
            count = len(chunk.ids)
            assert chunk.past + count == positions[chunk.slot], "a chunk ends where the last token stands"
            all_ids += chunk.ids
            all_positions += range(chunk.past, chunk.past + count)
            slots += [chunk.slot] * count
        ids_N, positions_N = torch.tensor([all_ids, all_positions], device=device)
        places = self._places(np.array(slots), np.array(all_positions))
        longest = max(positions) + 1
        mask = _mask(torch.arange(longest, device=device) > positions_N[:n, None], self.model.dtype)
        blocks = _blocks(earlier, device, self.model.dtype)
        shared = shared if cascade.pays(shared, n, device) else 0
        cos, sin = self.cos[positions_N, None], self.sin[positions_N, None]

        hidden_ND = self.model.model.embed_tokens(ids_N)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            keys, values = self.keys[index], self.values[index]
            qk, v = layer.project(_norm(hidden_ND, layer.norm_in, self.eps), self.heads, self.kv_heads, self.head_dim)
            q, k = _rotate(qk, cos, sin).split([self.heads, self.kv_heads], dim=1)
            keys.view(-1, self.head_dim).index_copy_(0, places, k.flatten(0, 1))
            values.view(-1, self.head_dim).index_copy_(0, places, v.flatten(0, 1))
            out = self._attend_last(q[:n], keys[:n, :, :longest], values[:n, :, :longest], mask, shared)
            if index == last:  # the last layer's output is needed for the last tokens only
                hidden_ND = hidden_ND[:n]
            elif blocks:
                rest = torch.empty_like(q[n:])  # every token is in a block
                for block in blocks:
                    self._attend_block(q[n:], keys, values, block, rest)
                out = torch.cat([out, rest.flatten(1)])
            hidden_ND = layer.out(out).add_(hidden_ND)
            hidden_ND += layer.feed_forward(_norm(hidden_ND, layer.norm_post, self.eps))
        hidden_ND = _norm(hidden_ND, self.model.model.norm.weight, self.eps)
        return self.head(hidden_ND)

    def _attend_last(
        self, q_nHd: Tensor, keys_nKTd: Tensor, values_nKTd: Tensor, mask_nT: Tensor, shared: int
    ) -> Tensor:
        """(n, H * d). Heads that share keys take the query dimension, so keys and values are not repeated."""
        n = len(q_nHd)
        q = q_nHd.view(n, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        if shared:
            out = cascade.attend(q, keys_nKTd, values_nKTd, mask_nT, shared)
        else:
            out = F.scaled_dot_product_attention(q, keys_nKTd, values_nKTd, attn_mask=mask_nT[:, None, None])
        return out.reshape(n, -1)

    def _attend_block(self, q_MHd: Tensor, keys: Tensor, values: Tensor, block: _Block, out_MHd: Tensor) -> None:
        """Attention of a block's tokens other than each row's last."""
        q = q_MHd[block.places_RC].transpose(1, 2)
        k, v = keys[block.slots_R, :, : block.length], values[block.slots_R, :, : block.length]
        mask = block.mask_R1CT
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads > self.kv_heads
        )
        out_MHd[block.own_K] = out.transpose(1, 2).flatten(0, 1)[block.real_K]


@dataclass(frozen=True)
class _Block:
    """Rows whose tokens, except the last, attend together to the first ``length`` positions.

    ``places_RC`` are the tokens' indices (arbitrary for padding); ``real_K`` says which of them, flattened, are real, and
    ``own_K`` are their indices. Without a mask all rows begin at position 0.
    """

    slots_R: Tensor
    places_RC: Tensor
    real_K: Tensor
    own_K: Tensor
    length: int
    mask_R1CT: Tensor | None


def _mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive attention mask: attention would convert a boolean one in every layer."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def _blocks(chunks: Sequence[Chunk], device: torch.device, dtype: torch.dtype) -> list[_Block]:
    """Groups chunks of similar size into blocks of at most ``_SCORES`` attention weights; those that begin a row are kept apart."""
    starts, total = [], 0
    for chunk in chunks:
        starts.append(total)
        total += len(chunk.ids)
    order = sorted(range(len(chunks)), key=lambda i: (chunks[i].past > 0, len(chunks[i].ids), chunks[i].past))
    groups: list[list[int]] = []
    length = 0
    for i in order:
        width = len(chunks[i].ids)
        length = max(length, chunks[i].past + width)
        first = chunks[groups[-1][0]] if groups else None
        if (
            first is not None
            and (first.past > 0) == (chunks[i].past > 0)
            and (len(groups[-1]) + 1) * width * length <= _SCORES
            and width <= 2 * len(first.ids) + 8  # a block is as wide as its longest chunk
        ):
            groups[-1].append(i)
        else:
            groups.append([i])
            length = chunks[i].past + width
    blocks = []
    for group in groups:
        # Shapes are computed on the host: the device is not waited for.
        sizes = np.array([len(chunks[i].ids) for i in group])[:, None]
        pasts = np.array([chunks[i].past for i in group])[:, None]
        at = np.array([starts[i] for i in group])[:, None]
        columns = np.arange(sizes.max())[None]
        places = at + np.minimum(columns, sizes - 1)
        real = np.flatnonzero(columns < sizes)
        slots = np.array([chunks[i].slot for i in group])
        length = int((pasts + sizes).max())
        mask = None
        if pasts.any():
            # The last key visible to each token; irrelevant beyond a chunk's end.
            reach = torch.from_numpy(pasts + columns).to(device)
            mask = _mask(torch.arange(length, device=device) > reach[:, None, :, None], dtype)
        slots_R, places_RC, real_K, own_K = (
            torch.from_numpy(array).to(device) for array in (slots, places, real, places.ravel()[real])
        )
        blocks.append(_Block(slots_R, places_RC, real_K, own_K, length, mask))
    return blocks


@dataclass(frozen=True)
class _Layer:
    """A transformer block whose plain linear layers are fused, unless they are too large to join."""

    norm_in: Tensor
    norm_post: Tensor
    attention: Any
    mlp: Any
    qkv: Linear | None
    gate_up: Linear | None
    qkv_parts: tuple[Linear, ...]
    gate_up_parts: tuple[Linear, ...]
    out: Linear
    down: Linear

    @classmethod
    def of(cls, layer: Any, prepack: bool) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        inputs, inner = (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)
        qkv, gate_up = joined(inputs, prepack), joined(inner, prepack)
        return cls(
            layer.input_layernorm.weight,
            layer.post_attention_layernorm.weight,
            attention,
            mlp,
            qkv,
            gate_up,
            tuple(linear(module, prepack and qkv is None) for module in inputs),  # one blocked copy is enough
            tuple(linear(module, prepack and gate_up is None) for module in inner),
            linear(attention.o_proj, prepack),
            linear(mlp.down_proj, prepack),
        )

    def project(self, x_ND: Tensor, heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Queries and keys (N, H + K, d), values (N, K, d)."""
        attention = self.attention
        if self.qkv is not None:
            qkv = self.qkv(x_ND).view(len(x_ND), heads + 2 * kv_heads, head_dim)
            qk, v = qkv.split([heads + kv_heads, kv_heads], dim=1)
            if not hasattr(attention, "q_norm"):
                return qk, v
            q, k = qk.split([heads, kv_heads], dim=1)
        else:
            q, k, v = (product(x_ND).view(len(x_ND), -1, head_dim) for product in self.qkv_parts)
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm(q), attention.k_norm(k)
        return torch.cat([q, k], dim=1), v

    def feed_forward(self, x_ND: Tensor) -> Tensor:
        if self.gate_up is not None:
            gate, up = self.gate_up(x_ND).chunk(2, dim=-1)
        else:
            gate, up = (product(x_ND) for product in self.gate_up_parts)
        return self.down(self.mlp.act_fn(gate).mul_(up))


def _norm(x_ND: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x_ND, weight_D.shape, weight_D, eps)


def _rotate(x_NHd: Tensor, cos_N1d: Tensor, sin_N1d: Tensor) -> Tensor:
    """Rotary position embedding, halves paired as in Llama; the first half of the sines is negated."""
    a, b = x_NHd.chunk(2, dim=-1)
    return torch.addcmul(x_NHd * cos_N1d, torch.cat((b, a), dim=-1), sin_N1d)
