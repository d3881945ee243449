"""Values of contexts: a head on the actor's hidden states, or a second network."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from spa.config.schema import PPOConfig
from spa.config.training import WITH_VALUES
from spa.models.load import ValueHead
from spa.models.lora import adapter_state, add_lora, has_lora, load_adapter_state
from spa.models.score import TokenBatch
from spa.scale import ranks


class Critic(nn.Module):
    """Values of the contexts before trained tokens.

    ``head`` reads the actor's hidden states and trains the shared trunk too; ``detached_head`` reads them and leaves the trunk
    to the policy; ``model`` has its own copy of the actor's network (the original also starts the critic from that checkpoint).
    The head is float32 whatever the networks are: bfloat16 holds neither its small updates nor values that differ little.
    """

    def __init__(self, kind: str, actor: Any) -> None:
        super().__init__()
        self.kind = kind
        self.head = ValueHead(actor.get_output_embeddings().in_features)
        self.head.to(device=actor.device, dtype=torch.float32)
        self.network = copy.deepcopy(actor) if kind == "model" else None

    def values(self, batch: TokenBatch, actor_hidden_ND: Tensor | None) -> Tensor:
        """(N,) float32 values of the contexts before the scored tokens."""
        if self.network is not None:
            hidden_ND = batch.hidden(self.network)
        else:
            assert actor_hidden_ND is not None, "a value head needs the actor's hidden states"
            hidden_ND = actor_hidden_ND.detach() if self.kind == "detached_head" else actor_hidden_ND
        with torch.autocast(hidden_ND.device.type, enabled=False):
            values_N: Tensor = self.head(hidden_ND.float()).squeeze(-1)
        return values_N

    def trained(self) -> Iterator[nn.Parameter]:
        """The critic's own parameters, without a network's unused language-model head."""
        yield from self.head.parameters()
        if self.network is not None:
            yield from self.network.base_model.parameters()

    def state(self) -> dict[str, Any]:
        """The learnt weights: all of them, or those of the head and the adapters."""
        if has_lora(self.network):
            return {"head": self.head.state_dict(), "lora": adapter_state(self.network)}
        return dict(self.state_dict())

    def load_state(self, state: dict[str, Any]) -> None:
        if has_lora(self.network):
            ranks.copy_weights(self.head, state["head"])
            load_adapter_state(self.network, state["lora"])
        else:
            ranks.copy_weights(self, state)


def make_critic(config: PPOConfig, actor: Any, *, seed: int = 0) -> Critic | None:
    """The critic that the estimator needs (None if it needs none), with its own adapters if configured.

    Must be called before the actor gets adapters: a critic's network is a copy of it.
    """
    if config.estimator not in WITH_VALUES:
        return None
    critic = Critic(config.critic, actor)
    if config.critic_lora_rank and critic.network is not None:
        add_lora(critic.network, config, config.critic_lora_rank, seed)
    return critic
