"""Truncated importance weights, against an oracle in plain numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spa.agent.worlds import World
from spa.config.schema import PPOConfig
from spa.rl.batch import TrainSequence, train_sequences
from spa.rl.correction import correct
from spa.rl.critic import make_critic
from spa.rl.learner import Learner
from spa.rl.losses import policy_loss
from spa.rl.update import score_tokens, update
from tests.scripted import flat, lake_task, tiny_config, tiny_policy

CAP = 1.5


def sequence(seed: int) -> TrainSequence:
    """Context, two sampled turns of which one token is not trained, and trained context in between."""
    rng = np.random.default_rng(seed)
    mask = [False, False, True, True, True, False, True, True, True]
    turns = [-1, -1, 0, 0, -1, -1, 1, 1, 1] if seed else [-1, -1, 0, 0, 0, 1, 1, 1, 1]
    one = TrainSequence.of(range(9), mask, turns, rng.normal(-1, 1, 9))
    one.logprobs = one.sampler + rng.normal(0, 1.0, 9)
    one.advantages[:] = rng.normal(0, 1, 9) * one.mask
    return one


def oracle(one: TrainSequence, level: str) -> list[float]:
    """Loops over tokens: min(p / q, cap) of each, or of all sampled and trained ones together."""
    p, q = np.exp(one.logprobs), np.exp(one.sampler)
    chosen = [t for t in range(len(one.ids)) if one.mask[t] and one.turns[t] >= 0]
    together = math.prod(p[t] / q[t] for t in chosen)
    weights = [1.0] * len(one.ids)
    for t in chosen:
        weights[t] = min(CAP, together if level == "sequence" else p[t] / q[t])
    return weights


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_weights_are_those_of_the_oracle(level: str) -> None:
    rows = [sequence(seed) for seed in range(12)]
    before = [row.advantages.copy() for row in rows]
    expected = [oracle(row, level) for row in rows]
    metrics = correct(rows, PPOConfig(rollout_is=level, rollout_is_threshold=CAP))
    for row, plain, weights in zip(rows, before, expected, strict=True):
        assert row.advantages == pytest.approx(plain * np.array(weights), rel=1e-12)
        assert not row.returns.any()
    assert any(weight == CAP for weights in expected for weight in weights)
    assert metrics["rollout_corr/rollout_is_max"] > CAP
    assert 0 < metrics["rollout_corr/rollout_is_ratio_fraction_high"] < 1


def test_without_it_nothing_changes() -> None:
    one = sequence(1)
    before = one.advantages.copy()
    assert correct([one], PPOConfig()) == {}
    assert np.array_equal(one.advantages, before)


def test_extreme_ratios_stay_finite() -> None:
    one = sequence(1)
    one.logprobs = one.sampler + 1000.0
    metrics = correct([one], PPOConfig(rollout_is="sequence", rollout_is_threshold=CAP))
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(math.exp(20))
    assert np.isfinite(one.advantages).all()


def test_a_weight_on_the_advantage_is_one_on_the_loss() -> None:
    rng = np.random.default_rng(0)
    new, old, advantages = (torch.from_numpy(rng.normal(0, 1, 200)) for _ in range(3))
    weights = torch.from_numpy(rng.uniform(0.01, CAP, 200))
    limits = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
    plain, _ = policy_loss(new, old, advantages, **limits)
    weighted, _ = policy_loss(new, old, weights * advantages, **limits)
    torch.testing.assert_close(weighted, weights * plain)


def test_an_update_corrects_for_a_sampler_that_differs() -> None:
    """The policy's gradient is that of the weighted advantages, and the sampler's log-probs are kept."""
    policy = tiny_policy()
    episodes = policy.play(lake_task(1), [World(s, str(s)) for s in range(3)], samples=2, seed=3)
    for episode in episodes:
        for row in episode.sequences:
            row.logprobs = [value - 0.3 * (i % 3) for i, value in enumerate(row.logprobs)]
    after, metrics = {}, {}
    for level in ("none", "token", "sequence"):
        policy = tiny_policy()
        config = tiny_config(mini_batches=1, rollout_is=level, rollout_is_threshold=CAP).ppo
        one = Learner(policy.model, make_critic(config, policy.model), config, 1.0, exact=False)
        metrics[level] = update(one, episodes, policy.chat, rng=np.random.default_rng(0))
        after[level] = flat(policy.model.parameters())
        rows = [row for group in train_sequences(episodes, policy.chat) for row in group]
        sampled = [row.logprobs.copy() for row in rows]
        score_tokens(one, rows, recompute=True)
        assert all(np.array_equal(row.sampler, kept) for row, kept in zip(rows, sampled, strict=True))
    assert metrics["none"]["training/rollout_probs_diff_max"] > 0.01
    assert metrics["token"]["rollout_corr/rollout_is_mean"] > 1
    assert not torch.equal(after["none"], after["token"])
    assert not torch.equal(after["token"], after["sequence"])
