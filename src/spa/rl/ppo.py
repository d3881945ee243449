"""One PPO update, top to bottom: values, advantages, epochs of mini-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.models.forward import hidden_states, token_logprobs
from spa.models.optim import adamw, lr_factor, set_lr
from spa.rl.advantages import gae, whiten
from spa.rl.batch import Row, build_rows, to_micro_batches
from spa.rl.critic import Critic
from spa.rl.losses import policy_loss, value_loss
from spa.rl.rewards import token_rewards
from spa.runs.schema import PPOConfig


class TrainingDiverged(ValueError):
    """A loss became infinite or not a number."""


@dataclass
class Learner:
    """Actor, critic and their optimiser.

    ``updates`` counts optimizer steps (learning-rate warm-up follows it).
    """

    actor: Any
    critic: Critic
    config: PPOConfig
    temperature: float
    updates: int = 0

    def __post_init__(self) -> None:
        config = self.config
        groups = [(self.actor.parameters(), config.actor_lr), (self.critic.trained(), config.critic_lr)]
        self.optimizer = adamw(groups, betas=config.betas, weight_decay=config.weight_decay, eps=config.adam_eps)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the actor's weights."""
        return {"critic": self.critic.state_dict(), "optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load_state(self, state: dict[str, Any]) -> None:
        self.critic.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = int(state["updates"])


def update(
    learner: Learner, episodes: Sequence[Episode], chat: Chat, *, rng: np.random.Generator, critic_only: bool = False
) -> dict[str, float]:
    """Improves actor and critic on a batch of episodes; returns metrics.

    Raises:
        ValueError: no trainable token.
        TrainingDiverged: the loss or the gradient is not finite; the weights are those before that step.
    """
    config = learner.config
    by_episode = build_rows(episodes, chat, config.loss_mask)
    rows = [row for group in by_episode for row in group]
    score_tokens(learner, rows, recompute=config.loss_mask == "all" or learner.actor.dtype != torch.float32)
    set_advantages(by_episode, episodes, config)

    sums: dict[str, float] = defaultdict(float)
    num_tokens = num_updates = 0
    grad_norms: list[float] = []
    for _ in range(config.epochs):
        order = rng.permutation(len(rows))
        for part in np.array_split(order, min(config.mini_batches, len(rows))):
            chosen = [rows[i] for i in part]
            tokens = sum(len(row.positions) for row in chosen)
            grad_norms.append(_step(learner, chosen, tokens, sums, critic_only))
            num_tokens += tokens
            num_updates += 1
    metrics = {f"losses/{name}": value / num_tokens for name, value in sums.items()}
    returns = np.concatenate([row.returns for row in rows])
    values = np.concatenate([row.values for row in rows])
    spread = returns.var()
    metrics |= {
        "losses/explained_variance": float(1 - (returns - values).var() / spread) if spread > 0 else 0.0,
        "losses/grad_norm": float(np.mean(grad_norms)),
        "critic/values_mean": float(values.mean()),
        "critic/returns_mean": float(returns.mean()),
        "train/tokens": float(sum(len(row.positions) for row in rows)),
        "train/sequence_tokens": float(sum(len(row.ids) for row in rows)),
        "train/updates": float(num_updates),
        "train/lr": max(group["lr"] for group in learner.optimizer.param_groups),
    }
    return metrics


@torch.no_grad()
def score_tokens(learner: Learner, rows: Sequence[Row], *, recompute: bool) -> None:
    """Sets each row's values and, with ``recompute``, its old log-probs (else the sampler's stand: they are exact)."""
    for group, batch in to_micro_batches(rows, learner.config.micro_batch_tokens, learner.actor.device):
        hidden = None
        if recompute or learner.critic.kind == "head":
            hidden = hidden_states(learner.actor, batch.ids_BT)
        values = learner.critic.values(batch, hidden).double().cpu().numpy()
        logprobs = None
        if recompute:
            assert hidden is not None
            scored, _ = token_logprobs(
                learner.actor, batch.before(hidden), batch.targets_N, temperature=learner.temperature
            )
            logprobs = scored.double().cpu().numpy()
        start = 0
        for index in group:
            end = start + len(rows[index].positions)
            rows[index].values = values[start:end]
            if logprobs is not None:
                rows[index].old_logprobs = logprobs[start:end]
            start = end


def set_advantages(by_episode: Sequence[Sequence[Row]], episodes: Sequence[Episode], config: PPOConfig) -> None:
    """GAE over the trainable tokens of each episode, across its rows; then whitening over the batch."""
    pairs = [(rows, episode) for rows, episode in zip(by_episode, episodes, strict=True) if rows]
    advantages, returns = [], []
    for rows, episode in pairs:
        turns = [turn for row in rows for turn in row.turns]
        rewards = token_rewards(episode, turns, config.reward_placement) * config.reward_scale
        a, r = gae(rewards, np.concatenate([row.values for row in rows]), config.gamma, config.lam)
        advantages.append(a)
        returns.append(r)
    if config.whiten_advantages:
        advantages = whiten(advantages)
    for (rows, _), a, r in zip(pairs, advantages, returns, strict=True):
        cuts = np.cumsum([len(row.positions) for row in rows])[:-1]
        for row, row_advantages, row_returns in zip(rows, np.split(a, cuts), np.split(r, cuts), strict=True):
            row.advantages, row.returns = row_advantages, row_returns


def _step(learner: Learner, rows: Sequence[Row], tokens: int, sums: dict[str, float], critic_only: bool) -> float:
    """One optimizer step on the token means over ``rows``; adds to ``sums``; returns the gradient's norm."""
    config, optimizer = learner.config, learner.optimizer
    set_lr(optimizer, lr_factor(learner.updates, warmup=config.warmup_steps, total=0))
    optimizer.zero_grad(set_to_none=True)
    for _, batch in to_micro_batches(rows, config.micro_batch_tokens, learner.actor.device):
        hidden = None
        losses: dict[str, torch.Tensor] = {}
        total = torch.zeros((), device=batch.ids_BT.device)
        if not critic_only or learner.critic.kind == "head":
            hidden = hidden_states(learner.actor, batch.ids_BT)
        if not critic_only:
            assert hidden is not None
            logprobs_N, entropy_N = token_logprobs(
                learner.actor,
                batch.before(hidden),
                batch.targets_N,
                temperature=learner.temperature,
                entropy=True,
            )
            assert entropy_N is not None
            pg_loss, parts = policy_loss(
                logprobs_N,
                batch.old_logprobs_N,
                batch.advantages_N,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                dual_clip=config.dual_clip,
            )
            losses = {"policy_loss": pg_loss, "entropy": entropy_N.sum(), **parts}
            total = pg_loss - config.entropy_coef * losses["entropy"]
        if critic_only and hidden is not None:
            hidden = hidden.detach()  # only the critic learns: its gradient must not reach the actor
        values_N = learner.critic.values(batch, hidden)
        v_loss, v_clipped = value_loss(values_N, batch.values_N, batch.returns_N, config.value_clip)
        losses |= {"value_loss": v_loss, "value_clipfrac": v_clipped}
        total = (total + config.value_coef * v_loss) / tokens
        if not torch.isfinite(total):
            raise TrainingDiverged(f"the PPO loss is {float(total.detach())}")
        total.backward()
        for name, value in losses.items():
            sums[name] += float(value.detach())
    # Critic and actor are clipped apart: a large value error must not shrink the policy's step.
    norm = nn.utils.clip_grad_norm_(learner.actor.parameters(), config.max_grad_norm)
    critic_norm = nn.utils.clip_grad_norm_(learner.critic.parameters(), config.max_grad_norm)
    for whose, value in (("actor", norm), ("critic", critic_norm)):
        if not torch.isfinite(value):
            raise TrainingDiverged(f"the norm of the {whose}'s gradient is {float(value)}")
    optimizer.step()
    learner.updates += 1
    return float(norm)
