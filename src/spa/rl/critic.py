"""Values of contexts: a head on the actor's hidden states, or a second network."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from spa.models.forward import hidden_states
from spa.models.load import ValueHead
from spa.rl.batch import MicroBatch

CRITICS = ("model", "head")


class Critic(nn.Module):
    """Values of the contexts before trainable tokens.

    ``head`` reads the actor's hidden states and trains them too; ``model`` owns a copy of the actor's network
    (as the original, which starts the critic from the same checkpoint).

    Raises:
        ValueError: unknown kind.
    """

    def __init__(self, kind: str, actor: Any) -> None:
        super().__init__()
        if kind not in CRITICS:
            raise ValueError(f"unknown ppo.critic {kind!r}; choose one of {', '.join(CRITICS)}")
        self.kind = kind
        self.head = ValueHead(actor.config.hidden_size)
        self.head.to(device=actor.device, dtype=actor.dtype)
        self.network = copy.deepcopy(actor) if kind == "model" else None

    def values(self, batch: MicroBatch, actor_hidden_BTD: Tensor | None) -> Tensor:
        """(N,) float32 values of the contexts before the trainable tokens of a micro-batch."""
        if self.network is not None:
            hidden_BTD = hidden_states(self.network, batch.ids_BT)
        else:
            assert actor_hidden_BTD is not None, "a value head needs the actor's hidden states"
            hidden_BTD = actor_hidden_BTD
        values_N: Tensor = self.head(batch.before(hidden_BTD)).squeeze(-1).float()
        return values_N

    def trained(self) -> Iterator[nn.Parameter]:
        """The parameters that belong to the critic alone; a network's unused language-model head is left out."""
        yield from self.head.parameters()
        if self.network is not None:
            yield from self.network.base_model.parameters()
