"""One PPO update, top to bottom: values, advantages, epochs of mini-batches. Equations: docs/algorithms.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.config.schema import PPOConfig
from spa.data.encode import Example
from spa.models.compiling import compile_blocks
from spa.models.forward import token_logprobs
from spa.models.lora import adapter_state, has_lora, load_adapter_state
from spa.models.optim import adamw, lr_factor, set_lr
from spa.models.packing import enable_packing
from spa.models.rows import autocast
from spa.rl.advantages import Signal, estimate
from spa.rl.batch import MicroBatch, Row, build_rows, to_micro_batches
from spa.rl.critic import Critic
from spa.rl.health import TrainingFailed
from spa.rl.losses import kl_penalty, policy_loss, token_weights, value_loss
from spa.rl.reference import Reference
from spa.rl.rewards import Reward, normalize, token_rewards, training_reward
from spa.sft.train import loss_sums


class TrainingDiverged(TrainingFailed):
    """A loss became infinite or not a number."""


@dataclass
class Learner:
    """Actor, critic (None for estimators without values) and their optimiser.

    ``updates`` counts optimizer steps (learning-rate warm-up follows it). ``horizon`` is the constant that
    ``seq-mean-token-sum-norm`` divides by.

    Raises:
        ValueError: ``config.packing`` or ``config.compile`` with a model for which that cannot be done.
    """

    actor: Any
    critic: Critic | None
    config: PPOConfig
    temperature: float
    reference: Reference | None = None
    horizon: int = 1
    updates: int = 0

    def __post_init__(self) -> None:
        config = self.config
        networks = [self.actor, self.critic and self.critic.network, self.reference and self.reference.model]
        for network in networks:
            if config.packing and network is not None:
                enable_packing(network, "ppo.packing")
            if config.compile and network is not None:
                compile_blocks(network, "ppo.compile")
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
        """What a checkpoint holds beside the actor's weights."""
        state = {"optimizer": self.optimizer.state_dict(), "updates": self.updates}
        if self.critic is not None:
            state["critic"] = self.critic.state()
        if has_lora(self.actor):
            state["lora"] = adapter_state(self.actor)
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        if self.critic is not None:
            self.critic.load_state(state["critic"])
        if has_lora(self.actor):
            load_adapter_state(self.actor, state["lora"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = int(state["updates"])


@dataclass
class _Sums:
    """What an update adds up, to report means of: over trained tokens, and over optimizer steps."""

    tokens: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    steps: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_tokens: int = 0
    num_steps: int = 0
    stopped: bool = False

    def means(self) -> dict[str, float]:
        means = {f"losses/{name}": value / max(1, self.num_tokens) for name, value in self.tokens.items()}
        return means | {name: value / max(1, self.num_steps) for name, value in self.steps.items()}


def update(
    learner: Learner,
    episodes: Sequence[Episode],
    chat: Chat,
    *,
    rng: np.random.Generator,
    critic_only: bool = False,
    world_model: Sequence[Example] = (),
) -> dict[str, float]:
    """Improves actor and critic on a batch of episodes; returns metrics.

    Args:
        critic_only: the policy's loss is left out.
        world_model: examples of the auxiliary loss, spread evenly over the mini-batches of every pass.

    Raises:
        ValueError: no trainable token.
        TrainingDiverged: the loss or the gradient is not finite; the weights are those before that step.
    """
    config = learner.config
    by_episode = build_rows(episodes, chat, config.loss_mask)
    rows = [row for group in by_episode for row in group]
    learner.train(False)  # what the steps are compared with has no dropout
    metrics = score_tokens(learner, rows, recompute=needs_recompute(learner))
    metrics |= set_advantages(by_episode, episodes, config)

    sums = _Sums()
    learner.train()
    with torch.random.fork_rng(devices=[learner.actor.device] if learner.actor.device.type == "cuda" else []):
        seed = int(rng.integers(2**63))
        torch.manual_seed(seed)  # of dropout, where there is some
        order = np.random.default_rng(seed)  # mini-batches are the same with and without the auxiliary loss
        for _ in range(config.epochs):
            parts = np.array_split(rng.permutation(len(rows)), min(config.mini_batches, len(rows)))
            extra = np.array_split(order.permutation(len(world_model)), len(parts))
            for part, more in zip(parts, extra, strict=True):
                if not sums.stopped:
                    _step(learner, [rows[i] for i in part], [world_model[i] for i in more], sums, critic_only)
    learner.optimizer.zero_grad(set_to_none=True)  # the next rollout needs the memory
    return (
        metrics
        | sums.means()
        | _values_explained(rows, learner)
        | {
            "train/tokens": float(sum(len(row.positions) for row in rows)),
            "train/sequence_tokens": float(sum(len(row.ids) for row in rows)),
            "train/updates": float(sums.num_steps),
            "train/kl_stop": float(sums.stopped),
            "charts/learning_rate": max(group["lr"] for group in learner.optimizer.param_groups),
        }
    )


def needs_recompute(learner: Learner) -> bool:
    """Whether the sampler's log-probs are not those of a training forward: context is trained, or numbers are short."""
    config = learner.config
    return config.loss_mask == "all" or learner.actor.dtype != torch.float32 or config.precision != "float32"


@torch.no_grad()
def score_tokens(learner: Learner, rows: Sequence[Row], *, recompute: bool) -> dict[str, float]:
    """Sets each row's values, reference log-probs and, with ``recompute``, old log-probs (else the sampler's exact ones stand).

    Returns:
        with ``recompute``, how far sampler and training forward are apart on sampled tokens (verl's
        ``training/rollout_probs_diff_{mean,max}``).
    """
    config, actor, critic = learner.config, learner.actor, learner.critic
    differences: list[np.ndarray[Any, Any]] = []
    for group, batch in to_micro_batches(rows, config.micro_batch_tokens, actor.device, packing=config.packing):
        known: dict[str, Tensor] = {}
        with autocast(actor, config.precision):
            hidden_ND = batch.tokens.hidden(actor) if recompute or learner.shares_trunk else None
            if critic is not None:
                known["values"] = critic.values(batch.tokens, hidden_ND)
            if recompute:
                assert hidden_ND is not None
                known["old_logprobs"], _ = token_logprobs(
                    actor, hidden_ND, batch.tokens.targets_N, temperature=learner.temperature
                )
        if learner.reference is not None:
            known["reference"] = learner.reference.logprobs(
                batch.tokens, temperature=learner.temperature, precision=config.precision
            )
        arrays = {name: values.double().cpu().numpy() for name, values in known.items()}
        arrays.setdefault("values", np.zeros(len(batch.old_logprobs_N)))
        start = 0
        for index in group:
            row = rows[index]
            end = start + len(row.positions)
            if recompute:
                sampled = np.array(row.turns) >= 0
                differences.append(
                    np.abs(np.exp(arrays["old_logprobs"][start:end]) - np.exp(row.old_logprobs))[sampled]
                )
            for name, values in arrays.items():
                setattr(row, name, values[start:end])
            start = end
    if not differences:
        return {}
    flat = np.concatenate(differences)
    return {
        "training/rollout_probs_diff_mean": float(flat.mean()) if len(flat) else 0.0,
        "training/rollout_probs_diff_max": float(flat.max()) if len(flat) else 0.0,
    }


def set_advantages(
    by_episode: Sequence[Sequence[Row]], episodes: Sequence[Episode], config: PPOConfig
) -> dict[str, float]:
    """Rewards, then advantages and returns over the trainable tokens of each episode, across its rows.

    Returns:
        metrics of scores, rewards, advantages and returns under verl's names (``critic/score/mean``, ...).
    """
    chosen = [(rows, episode) for rows, episode in zip(by_episode, episodes, strict=True) if rows]
    raw = [training_reward(episode, config) for _, episode in chosen]
    rewards = normalize(raw, [episode for _, episode in chosen], config.reward_norm, config.reward_norm_by)
    signals = [_signal(rows, episode, reward, config) for (rows, episode), reward in zip(chosen, rewards, strict=True)]
    pairs = estimate(signals, config)
    for (rows, _), (advantages, returns) in zip(chosen, pairs, strict=True):
        cuts = np.cumsum([len(row.positions) for row in rows])[:-1]
        for row, a, r in zip(rows, np.split(advantages, cuts), np.split(returns, cuts), strict=True):
            row.advantages, row.returns = a, r
    metrics: dict[str, float] = {}
    for name, arrays in (
        ("score", [np.array([reward.score]) for reward in raw]),
        ("rewards", [np.array([signal.score]) for signal in signals]),
        ("advantages", [advantages for advantages, _ in pairs]),
        ("returns", [returns for _, returns in pairs]),
        ("values", [signal.values for signal in signals]),
    ):
        flat = np.concatenate(arrays)
        metrics |= {f"critic/{name}/{of.__name__}": float(of(flat)) for of in (np.mean, np.max, np.min)}
    return metrics


def _signal(rows: Sequence[Row], episode: Episode, reward: Reward, config: PPOConfig) -> Signal:
    turns = [turn for row in rows for turn in row.turns]
    rewards = token_rewards(reward, turns, config.reward_placement) * config.reward_scale
    if config.kl_reward_coef:
        old, reference = (
            np.concatenate([getattr(row, name) for row in rows]) for name in ("old_logprobs", "reference")
        )
        kl = kl_penalty(torch.from_numpy(old), torch.from_numpy(reference), config.kl_reward_estimator).numpy()
        rewards = rewards - config.kl_reward_coef * np.where(np.array(turns) >= 0, kl, 0.0)
    return Signal(rewards, np.concatenate([row.values for row in rows]), turns, episode.group)


def _step(learner: Learner, rows: Sequence[Row], examples: Sequence[Example], sums: _Sums, critic_only: bool) -> None:
    """One optimizer step on a mini-batch; adds to ``sums``, or sets ``sums.stopped`` if the policy has moved too far already."""
    config, optimizer = learner.config, learner.optimizer
    lengths = [len(row.positions) for row in rows]
    weights = token_weights(lengths, config.loss_aggregation, horizon=learner.horizon)
    for row, weight in zip(rows, weights, strict=True):
        row.weight = weight
    set_lr(optimizer, lr_factor(learner.updates, warmup=config.warmup_steps, total=0))
    optimizer.zero_grad(set_to_none=True)
    tokens: dict[str, float] = defaultdict(float)
    totals: dict[str, float] = defaultdict(float)
    for _, batch in to_micro_batches(rows, config.micro_batch_tokens, learner.actor.device, packing=config.packing):
        for loss in _micro_losses(learner, batch, critic_only, tokens, totals):
            _check_finite("PPO loss", loss)
            loss.backward()
    if config.target_kl and tokens["approx_kl"] / sum(lengths) > config.target_kl:
        optimizer.zero_grad(set_to_none=True)
        sums.stopped = True
        return
    if examples:
        totals["losses/world_model"] = _world_model_backward(learner, examples)
    # Critic and actor are clipped apart: a large value error must not shrink the policy's step.
    parts = {"actor": learner.actor.parameters()}
    if learner.critic is not None:
        parts["critic"] = learner.critic.parameters()
    for whose, parameters in parts.items():
        norm = nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        _check_finite(f"norm of the {whose}'s gradient", norm)
        totals[f"{whose}/grad_norm"] = float(norm)
    optimizer.step()
    learner.updates += 1
    for name, value in tokens.items():
        sums.tokens[name] += value
    for name, value in totals.items():
        sums.steps[name] += value
    sums.num_tokens += sum(lengths)
    sums.num_steps += 1


def _micro_losses(
    learner: Learner, batch: MicroBatch, critic_only: bool, tokens: dict[str, float], totals: dict[str, float]
) -> Iterator[Tensor]:
    """The loss of one forward pass; of a critic with a network of its own apart and later, so that only one network's activations
    are held at a time. Adds what is reported to ``tokens`` (sums over tokens) and ``totals`` (weighted as losses)."""
    config, critic = learner.config, learner.critic
    hidden_ND = None
    losses: Losses = {}
    with autocast(learner.actor, config.precision):
        if not critic_only or learner.shares_trunk:
            hidden_ND = batch.tokens.hidden(learner.actor)
        if critic_only and hidden_ND is not None:
            hidden_ND = hidden_ND.detach()  # only the critic learns: its gradient must not reach the actor
    if not critic_only:
        assert hidden_ND is not None
        losses |= _policy_losses(learner, batch, hidden_ND, tokens)
        if critic is not None and not learner.shares_trunk:
            yield from _weighted(losses, batch, totals)
            losses = {}
    if critic is not None:
        with autocast(learner.actor, config.precision):
            values_N = critic.values(batch.tokens, hidden_ND)
        v_loss_N, clipped_N = value_loss(values_N, batch.values_N, batch.returns_N, config.value_clip)
        losses["value_loss"] = (config.value_coef, v_loss_N)
        tokens["value_clipfrac"] += float(clipped_N.detach().sum())
    yield from _weighted(losses, batch, totals)


Losses = dict[str, tuple[float, Tensor]]  # name -> (coefficient, loss of each token)


def _policy_losses(learner: Learner, batch: MicroBatch, hidden_ND: Tensor, tokens: dict[str, float]) -> Losses:
    config = learner.config
    with autocast(learner.actor, config.precision):
        logprobs_N, entropy_N = token_logprobs(
            learner.actor, hidden_ND, batch.tokens.targets_N, temperature=learner.temperature, entropy=True
        )
    assert entropy_N is not None
    pg_loss_N, parts = policy_loss(
        logprobs_N,
        batch.old_logprobs_N,
        batch.advantages_N,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
    )
    losses: Losses = {
        "policy_loss": (1.0, pg_loss_N),
        "entropy": (-config.entropy_coef, entropy_N if config.entropy_coef else entropy_N.detach()),
    }
    if learner.reference is not None:
        kl_N = kl_penalty(logprobs_N, batch.reference_N, config.kl_loss_estimator)
        losses["kl_loss"] = (config.kl_loss_coef, kl_N)
    for name, values in {"entropy": entropy_N, **parts}.items():
        tokens[name] += float(values.detach().sum())
    return losses


def _weighted(losses: Losses, batch: MicroBatch, totals: dict[str, float]) -> Iterator[Tensor]:
    """The sum that is to be minimised, if any loss has a coefficient."""
    total = None
    for name, (coefficient, loss_N) in losses.items():
        value = (batch.weights_N * loss_N).sum()
        if name != "entropy":
            totals[f"losses/{name}"] += float(value.detach())
        if coefficient:
            total = coefficient * value if total is None else total + coefficient * value
    if total is not None:
        yield total


def _world_model_backward(learner: Learner, examples: Sequence[Example]) -> float:
    """Adds the gradient of the auxiliary loss (token mean over the true states); returns the loss."""
    config = learner.config
    count = sum(len(example.positions) for example in examples)
    loss = 0.0
    for part in loss_sums(
        learner.actor, examples, config.micro_batch_tokens, packing=config.packing, precision=config.precision
    ):
        _check_finite("world-model loss", part)
        (config.world_model_coef * part / count).backward()
        loss += float(part.detach()) / count
    return loss


def _check_finite(what: str, value: Tensor) -> None:
    if not torch.isfinite(value):
        raise TrainingDiverged(f"the {what} is {float(value.detach())}")


def _values_explained(rows: Sequence[Row], learner: Learner) -> dict[str, float]:
    if learner.critic is None:
        return {}
    returns, values = (np.concatenate([getattr(row, name) for row in rows]) for name in ("returns", "values"))
    spread = returns.var()
    return {"losses/explained_variance": float(1 - (returns - values).var() / spread) if spread > 0 else 0.0}
