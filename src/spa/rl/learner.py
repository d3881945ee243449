"""The networks that stage 3 trains, and their optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spa.config.schema import PPOConfig
from spa.models.lora import adapter_state, has_lora, load_adapter_state
from spa.models.optim import adamw
from spa.models.score import prepare
from spa.rl.critic import Critic
from spa.rl.reference import Reference
from spa.scale import ranks


@dataclass
class Learner:
    """Actor, critic (None for estimators without values) and their optimizer.

    ``updates`` counts optimizer steps (learning-rate warm-up follows it). ``horizon`` is the constant that
    ``seq-mean-token-sum-norm`` divides by. ``exact``: the engine samples with the actor itself, not with a copy of its weights.

    Raises:
        ValueError: ``config.packing`` or ``config.compile`` with a model that does not support it.
    """

    actor: Any
    critic: Critic | None
    config: PPOConfig
    temperature: float
    reference: Reference | None = None
    horizon: int = 1
    exact: bool = True
    updates: int = 0

    def __post_init__(self) -> None:
        config = self.config
        networks = [self.actor, self.critic and self.critic.network, self.reference and self.reference.model]
        for network in networks:
            if network is not None:
                prepare(network, "ppo", packing=config.packing, compile=config.compile)
        ranks.shard(*networks, self.critic and self.critic.head, precision=config.precision)
        groups = [(self.actor.parameters(), config.actor_lr)]
        if self.critic is not None:
            groups.append((self.critic.trained(), config.critic_lr))
        self.optimizer = adamw(groups, betas=config.betas, weight_decay=config.weight_decay, eps=config.adam_eps)

    @property
    def shares_trunk(self) -> bool:
        """Whether values are read from the actor's hidden states."""
        return self.critic is not None and self.critic.network is None

    def train(self, mode: bool = True) -> None:
        """Turns dropout on or off."""
        self.actor.train(mode)
        if self.critic is not None:
            self.critic.train(mode)

    def state(self) -> dict[str, Any]:
        """Checkpoint contents besides the actor's weights."""
        state = {"optimizer": self.optimizer.state_dict(), "updates": self.updates}
        if self.critic is not None:
            state["critic"] = self.critic.state()
        if has_lora(self.actor):
            state["lora"] = adapter_state(self.actor)
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Loads what ``state`` returned; of a sharded checkpoint, whose tensors are elsewhere, there are ``updates`` alone."""
        self.updates = int(state["updates"])
        if "optimizer" not in state:
            return
        if self.critic is not None:
            self.critic.load_state(state["critic"])
        if has_lora(self.actor):
            load_adapter_state(self.actor, state["lora"])
        ranks.load_optimizer(self.optimizer, state["optimizer"])

    @property
    def modules(self) -> dict[str, Any]:
        """The trained weights that are not part of the actor's plain checkpoint."""
        modules = {"critic": self.critic, "adapters": self.actor if has_lora(self.actor) else None}
        return {name: module for name, module in modules.items() if module is not None}
