"""One PPO update, top to bottom: values, advantages, epochs of mini-batches. Equations: docs/algorithms.md."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.config.schema import PPOConfig
from spa.data.encode import Example
from spa.models.families import rescales_rope
from spa.models.optim import clip_norm, lr_factor, set_lr
from spa.models.score import autocast, batches, score
from spa.rl.advantages import estimate
from spa.rl.batch import Array, MicroBatch, TrainSequence, micro_batches, parts, train_sequences, trained_tokens
from spa.rl.correction import correct
from spa.rl.estimates import record_estimates
from spa.rl.health import TrainingFailed
from spa.rl.learner import Learner
from spa.rl.losses import kl_penalty, policy_loss, silenced, token_weights, value_loss
from spa.rl.metrics import Sums, values_explained
from spa.rl.rewards import normalize, token_rewards, turn_rewards
from spa.scale import ranks
from spa.sft.train import loss_sums

_ROUNDING = 1e-4  # nats by which log-probs of one model may differ (in float32 up to 3e-5)


class TrainingDiverged(TrainingFailed):
    """A loss became infinite or not a number."""


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
        critic_only: leave out the policy loss.
        world_model: examples of the auxiliary loss, spread evenly over the mini-batches of every pass.

    Raises:
        ValueError: no trainable token.
        TrainingDiverged: the loss or the gradient is not finite; the weights are those before that step.
    """
    config = learner.config
    by_episode = train_sequences(episodes, chat, config.loss_mask)
    sequences = [sequence for group in by_episode for sequence in group]
    learner.train(False)  # baseline scores are computed without dropout
    metrics = score_tokens(learner, sequences, recompute=needs_recompute(learner))
    metrics |= set_advantages(by_episode, episodes, config)
    metrics |= correct(sequences, config)
    if not critic_only and config.log_episodes:
        record_estimates(episodes, by_episode, values=learner.critic is not None)

    sums = Sums()
    learner.train()
    try:
        with torch.random.fork_rng(devices=[learner.actor.device] if learner.actor.device.type == "cuda" else []):
            seed = int(rng.integers(2**63))
            torch.manual_seed(seed + ranks.rank())  # for dropout, if any: each rank has other rows
            order = np.random.default_rng(seed)  # mini-batches are the same with and without the auxiliary loss
            for _ in range(config.epochs):
                count = min(config.mini_batches, len(sequences))
                mini_batches = np.array_split(rng.permutation(len(sequences)), count)
                extra = np.array_split(order.permutation(len(world_model)), count)
                for part, more in zip(mini_batches, extra, strict=True):
                    if not sums.stopped:
                        _step(learner, [sequences[i] for i in part], [world_model[i] for i in more], sums, critic_only)
    finally:
        learner.optimizer.zero_grad(set_to_none=True)  # the next rollout needs the memory, after an error too
    return (
        metrics
        | sums.means()
        | (values_explained(sequences) if learner.critic is not None else {})
        | {
            "train/tokens": float(sum(sequence.mask.sum() for sequence in sequences)),
            "train/sequence_tokens": float(sum(len(sequence.ids) for sequence in sequences)),
            "train/updates": float(sums.num_steps),
            "train/kl_stop": float(sums.stopped),
            "charts/learning_rate": learner.optimizer.param_groups[0]["lr"],
        }
    )


def needs_recompute(learner: Learner) -> bool:
    """Whether the sampler's log-probs differ from a training forward: context is trained, precision is reduced, another
    engine samples or RoPE changes with the length."""
    config = learner.config
    differs = not learner.exact or config.rollout_is != "none" or rescales_rope(learner.actor.config)
    return differs or config.loss_mask == "all" or learner.actor.dtype != torch.float32 or config.precision != "float32"


@torch.no_grad()
def score_tokens(learner: Learner, sequences: Sequence[TrainSequence], *, recompute: bool) -> dict[str, float]:
    """Sets values, reference log-probs and, with ``recompute``, log-probs (else the sampler's exact ones are used).

    Returns:
        with ``recompute``, the difference between sampler and training forward on sampled tokens (verl's
        ``training/rollout_probs_diff_{mean,max}``).
    """
    config, actor, critic = learner.config, learner.actor, learner.critic
    if not recompute and critic is None and learner.reference is None:  # nothing to score
        return {}
    differences: list[Array] = [np.zeros(0)]
    scored: list[int] = []
    for batch in batches(sequences, config.micro_batch_tokens, actor.device, packing=config.packing, divide=True):
        chosen = [sequences[i] for i in batch.indices]
        if batch.counts:
            scored += batch.indices
        hidden_ND = None
        with autocast(actor, config.precision):
            if recompute or learner.shares_trunk:
                hidden_ND = batch.hidden(actor)
            if critic is not None:
                for sequence, values in parts(chosen, _array(critic.values(batch, hidden_ND))):
                    sequence.values[sequence.mask] = values
        if recompute:
            scores = score(
                actor, batch, temperature=learner.temperature, precision=config.precision, hidden_ND=hidden_ND
            )
            for sequence, logprobs in parts(chosen, _array(scores.logprobs_N)):
                sampled = sequence.turns[sequence.mask] >= 0
                if batch.counts:
                    differences.append(np.abs(np.exp(logprobs) - np.exp(sequence.logprobs[sequence.mask]))[sampled])
                sequence.logprobs[sequence.mask] = logprobs
        if learner.reference is not None:
            logprobs_N = learner.reference.logprobs(batch, temperature=learner.temperature, precision=config.precision)
            for sequence, logprobs in parts(chosen, _array(logprobs_N)):
                sequence.reference[sequence.mask] = logprobs
    results = [(i, sequences[i].values, sequences[i].logprobs, sequences[i].reference) for i in scored]
    for part in ranks.gather(results):
        for i, values, logprobs, reference in part:
            sequences[i].values, sequences[i].logprobs, sequences[i].reference = values, logprobs, reference
    if not recompute:
        return {}
    difference = np.concatenate([each for part in ranks.gather(differences) for each in part])
    return {
        "training/rollout_probs_diff_mean": float(difference.mean()) if len(difference) else 0.0,
        "training/rollout_probs_diff_max": float(difference.max()) if len(difference) else 0.0,
    }


def _array(values_N: Tensor) -> Array:
    array: Array = values_N.double().cpu().numpy()
    return array


def set_advantages(
    by_episode: Sequence[Sequence[TrainSequence]], episodes: Sequence[Episode], config: PPOConfig
) -> dict[str, float]:
    """Sets rewards, then advantages and returns, over the trained tokens of each episode across its sequences.

    Returns:
        metrics of scores, rewards, advantages and returns under verl's names (``critic/score/mean``, ...).
    """
    chosen = [(sequences, episode) for sequences, episode in zip(by_episode, episodes, strict=True) if sequences]
    by_turn = [turn_rewards(episode, config) for _, episode in chosen]
    scores = [float(sum(rewards)) for rewards in by_turn]
    normalized = normalize(scores, [episode for _, episode in chosen], config.reward_norm, config.reward_norm_by)
    trained = [trained_tokens(sequences) for sequences, _ in chosen]
    for tokens, rewards, total in zip(trained, by_turn, normalized, strict=True):
        tokens.rewards[:] = _token_rewards(tokens, rewards, total, config)
    estimates = estimate(trained, config)
    for (sequences, _), tokens, (advantages, returns) in zip(chosen, trained, estimates, strict=True):
        for sequence, part in parts(sequences, tokens.rewards):
            sequence.rewards[sequence.mask] = part
        for sequence, part in parts(sequences, advantages):
            sequence.advantages[sequence.mask] = part
        for sequence, part in parts(sequences, returns):
            sequence.returns[sequence.mask] = part
    metrics: dict[str, float] = {}
    for name, arrays in (
        ("score", [np.array(scores)]),
        ("rewards", [np.array([episode.score for episode in trained])]),
        ("advantages", [advantages for advantages, _ in estimates]),
        ("returns", [returns for _, returns in estimates]),
        ("values", [episode.values for episode in trained]),
    ):
        flat = np.concatenate(arrays)
        metrics |= {f"critic/{name}/{of.__name__}": float(of(flat)) for of in (np.mean, np.max, np.min)}
    return metrics


def _token_rewards(tokens: TrainSequence, by_turn: list[float], score: float, config: PPOConfig) -> Array:
    """Rewards (T,) of an episode's trained tokens, less the KL penalty."""
    rewards = token_rewards(by_turn, score, tokens.turns, config.reward_placement) * config.reward_scale
    if config.kl_reward_coef:
        logprobs, reference = torch.from_numpy(tokens.logprobs), torch.from_numpy(tokens.reference)
        kl = kl_penalty(logprobs, reference, config.kl_reward_estimator).numpy()
        # Baselines would blow up what rounding leaves.
        differs = np.abs(tokens.logprobs - tokens.reference) > _ROUNDING
        rewards = rewards - config.kl_reward_coef * np.where(differs & (tokens.turns >= 0), kl, 0.0)
    return rewards


def _step(
    learner: Learner,
    sequences: Sequence[TrainSequence],
    examples: Sequence[Example],
    sums: Sums,
    critic_only: bool,
) -> None:
    """One optimizer step on a mini-batch; adds to ``sums``, or sets ``sums.stopped`` if the policy has moved too far."""
    config, optimizer = learner.config, learner.optimizer
    lengths = [int(sequence.mask.sum()) for sequence in sequences]
    weights = token_weights(lengths, config.loss_aggregation, horizon=learner.horizon)
    set_lr(optimizer, lr_factor(learner.updates, warmup=config.warmup_steps, total=0))
    optimizer.zero_grad(set_to_none=True)
    tokens: dict[str, float] = defaultdict(float)
    totals: dict[str, float] = defaultdict(float)
    device, packing = learner.actor.device, config.packing
    for batch in micro_batches(sequences, weights, config.micro_batch_tokens, device, packing=packing):
        into = (tokens, totals) if batch.tokens.counts else (defaultdict(float), defaultdict(float))
        for loss in _micro_losses(learner, batch, critic_only, *into):
            loss.backward()
            into[1]["loss"] += float(loss.detach())
    _add_finite("PPO loss", totals, "loss", tokens)
    del totals["loss"]
    # Before the first step nothing has moved: what is measured there is dropout or another precision.
    if config.target_kl and sums.num_steps and tokens["approx_kl"] / sum(lengths) > config.target_kl:
        optimizer.zero_grad(set_to_none=True)
        sums.stopped = True
        return
    if examples:
        totals["losses/world_model"] = _world_model_backward(learner, examples)
    # Critic and actor are clipped separately: a large value error must not shrink the policy's step.
    networks = {"actor": learner.actor.parameters()}
    if learner.critic is not None:
        networks["critic"] = learner.critic.parameters()
    for whose, parameters in networks.items():
        norm = clip_norm(parameters, config.max_grad_norm)
        _check_finite(f"norm of the {whose}'s gradient", norm)
        totals[f"{whose}/grad_norm"] = norm
    optimizer.step()
    learner.updates += 1
    for name, value in tokens.items():
        sums.tokens[name] += value
    for name, value in totals.items():
        sums.steps[name].append(value)
    sums.num_tokens += sum(lengths)
    sums.num_steps += 1


def _micro_losses(
    learner: Learner, batch: MicroBatch, critic_only: bool, tokens: dict[str, float], totals: dict[str, float]
) -> Iterator[Tensor]:
    """Yields the loss of one forward pass, then that of a critic with its own network, so that only one network's activations
    are held at a time. Adds metrics to ``tokens`` (sums over tokens) and ``totals`` (weighted like losses)."""
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
    config, actor, temperature = learner.config, learner.actor, learner.temperature
    logprobs_N, entropy_N = score(
        actor, batch.tokens, temperature=temperature, entropy=True, precision=config.precision, hidden_ND=hidden_ND
    )
    assert entropy_N is not None
    pg_loss_N, diagnostics = policy_loss(
        logprobs_N,
        batch.logprobs_N,
        batch.advantages_N,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
    )
    if config.silence_below:
        silent_N = silenced(batch.logprobs_N, batch.advantages_N, config.silence_below)
        pg_loss_N = pg_loss_N.masked_fill(silent_N, 0.0)
        diagnostics["silenced"] = silent_N.float()
    losses: Losses = {
        "policy_loss": (1.0, pg_loss_N),
        "entropy": (-config.entropy_coef, entropy_N if config.entropy_coef else entropy_N.detach()),
    }
    if learner.reference is not None:
        kl_N = kl_penalty(logprobs_N, batch.reference_N, config.kl_loss_estimator)
        losses["kl_loss"] = (config.kl_loss_coef, kl_N)
    for name, values in {"entropy": entropy_N, **diagnostics}.items():
        tokens[name] += float(values.detach().sum())
    return losses


def _weighted(losses: Losses, batch: MicroBatch, totals: dict[str, float]) -> Iterator[Tensor]:
    """Yields the sum to minimise, if any loss has a coefficient."""
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
    sums = {"loss": 0.0}
    for part in loss_sums(
        learner.actor, examples, config.micro_batch_tokens, packing=config.packing, precision=config.precision
    ):
        (config.world_model_coef * part / count).backward()
        sums["loss"] += float(part.detach()) / count
    _add_finite("world-model loss", sums, "loss")
    return sums["loss"]


def _add_finite(what: str, totals: dict[str, float], name: str, *others: dict[str, float]) -> None:
    """Adds up sums over the ranks, the one under ``name`` among ``totals``; the error names the ranks where it is not finite."""
    before = totals[name]
    ranks.add(totals, *others)
    _check_finite(what, totals[name], before)


def _check_finite(what: str, value: float, here: float = 0.0) -> None:
    if not math.isfinite(value):
        raise TrainingDiverged(f"the {what} is {value}{ranks.not_finite(here)}")
