"""Token rows in one forward pass of training: packed, common beginnings once, or padded on the right."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spa.models.forward import hidden_states, micro_batches, pad_right
from spa.models.last_layer import Reads, states_read
from spa.models.packing import Layout, pack, pack_groups, packed_hidden_states


@dataclass(frozen=True)
class TokenRows:
    """Rows of ids with N chosen tokens ``targets_N``, row by row.

    ``ids`` are (T,) packed, with their ``layout``, or (B, T) padded. ``before_N`` are the places, in ``ids`` flattened, of the
    tokens before the chosen ones, ``reads`` the same for a last layer that is computed for few packed tokens alone.
    """

    ids: Tensor
    before_N: Tensor
    targets_N: Tensor
    layout: Layout | None
    reads: Reads | None

    @classmethod
    def of(
        cls, rows: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | str, *, packing: bool
    ) -> TokenRows:
        """Rows of (ids, positions of the chosen tokens; at least 1 each, since nothing predicts a first token)."""
        layout = reads = None
        before = [np.asarray(at, dtype=np.int64) - 1 for _, at in rows]
        if packing:
            packed, places = pack([ids for ids, _ in rows])
            layout = Layout.of(places, device)
            reads = Reads.of(places, before, layout)
            ids = torch.tensor(packed, device=device)
        else:
            ids = pad_right([ids for ids, _ in rows], device=device)
            places = [np.arange(ids.shape[1]) + number * ids.shape[1] for number in range(len(rows))]
        before_N = torch.from_numpy(np.concatenate([row[at] for row, at in zip(places, before, strict=True)])).to(
            device
        )
        targets = [ids_of_row[position] for ids_of_row, at in rows for position in at]
        return cls(
            ids,
            before_N,
            torch.tensor(targets, dtype=torch.long, device=device),
            layout,
            reads,
        )

    def hidden(self, model: Any) -> Tensor:
        """(N, D) last hidden states at the places that predict the chosen tokens. Packed rows need ``enable_packing``."""
        if self.layout is None:
            return hidden_states(model, self.ids).flatten(0, 1)[self.before_N]
        if self.reads is None:
            return packed_hidden_states(model, self.ids, self.layout)[self.before_N]
        states = states_read(model, self.ids, self.layout, self.reads)
        return states[torch.searchsorted(self.reads.wanted_W, self.before_N)]


def forward_groups(rows: Sequence[Sequence[int]], max_tokens: int, *, packing: bool) -> list[list[int]]:
    """Indices of rows by forward pass: packed as ``pack_groups``, padded as ``micro_batches``."""
    return pack_groups(rows, max_tokens) if packing else micro_batches([len(ids) for ids in rows], max_tokens)


def autocast(model: Any, precision: str) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16 where ``precision`` says so; weights and sums stay what they are."""
    return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
