"""Token rows in one forward pass of training: packed one behind the other, or padded on the right."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spa.models.forward import hidden_states, pad_right
from spa.models.packing import Layout, packed_hidden_states


@dataclass(frozen=True)
class TokenRows:
    """Rows of ids with N chosen tokens, row by row.

    ``ids`` are (T,) packed, with their ``layout``, or (B, T) padded. ``places_N`` are the places of the chosen tokens in ``ids``
    flattened.
    """

    ids: Tensor
    places_N: Tensor
    layout: Layout | None

    @classmethod
    def of(
        cls, rows: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | str, *, packing: bool
    ) -> TokenRows:
        """Rows of (ids, positions of the chosen tokens; at least 1 each, since nothing predicts a first token)."""
        lengths = [len(ids) for ids, _ in rows]
        if packing:
            ids = torch.tensor([token for ids, _ in rows for token in ids], device=device)
            starts = [sum(lengths[:number]) for number in range(len(rows))]
            layout = Layout.of(lengths, device)
        else:
            ids = pad_right([ids for ids, _ in rows], device=device)
            starts = [number * max(lengths) for number in range(len(rows))]
            layout = None
        places = [start + position for start, (_, at) in zip(starts, rows, strict=True) for position in at]
        return cls(ids, torch.tensor(places, dtype=torch.long, device=device), layout)

    @property
    def targets_N(self) -> Tensor:
        return self.ids.flatten()[self.places_N]

    def hidden(self, model: Any) -> Tensor:
        """(N, D) last hidden states at the places that predict the chosen tokens. Packed rows need ``enable_packing``."""
        if self.layout is not None:
            states = packed_hidden_states(model, self.ids, self.layout)
        else:
            states = hidden_states(model, self.ids).flatten(0, 1)
        return states[self.places_N - 1]


def autocast(model: Any, precision: str) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16 where ``precision`` says so; weights and sums stay what they are."""
    return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
