"""Advantages, losses, rewards and masks against naive loops."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spa.agent.episode import Episode, TokenSequence, Turn
from spa.agent.worlds import World
from spa.config.overrides import choices
from spa.config.schema import PPOConfig
from spa.data.encode import loss_spans
from spa.rl.advantages import gae, whiten
from spa.rl.batch import train_sequences
from spa.rl.losses import kl_penalty, policy_loss, token_weights, value_loss
from spa.rl.update import set_advantages
from tests.rl.tools import filtered, placed
from tests.scripted import CHAT, lake_task, tiny_policy

FLOATS = st.floats(-5, 5)


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=12), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_the_double_sum(pairs, gamma: float, lam: float) -> None:
    rewards, values = (np.array(x) for x in zip(*pairs, strict=True))
    following = np.append(values[1:], 0.0)
    deltas = rewards + gamma * following - values
    expected = [
        sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, len(deltas))) for t in range(len(deltas))
    ]
    advantages, returns = gae(rewards, values, gamma, lam)
    np.testing.assert_allclose(advantages, expected, atol=1e-9)
    np.testing.assert_allclose(returns, advantages + values)


def test_undiscounted_advantage_is_return_minus_value() -> None:
    rewards, values = np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.25, -1.0])
    np.testing.assert_allclose(gae(rewards, values, 1.0, 1.0)[0], [2.5, 2.75, 3.0])


def test_whitening_is_over_the_whole_batch() -> None:
    arrays = whiten([np.array([1.0, 2.0]), np.array([5.0])])
    flat = np.concatenate(arrays)
    assert [len(a) for a in arrays] == [2, 1]
    assert (flat.mean(), flat.std(ddof=1)) == pytest.approx((0.0, 1.0), abs=1e-6)
    assert np.all(whiten([np.full(3, 7.0)])[0] == 0)
    assert whiten([]) == []


@given(
    st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0), FLOATS), min_size=1, max_size=8),
    st.sampled_from([0.0, 3.0, 1.5]),
)
def test_policy_loss_equals_a_loop(rows, dual: float) -> None:
    total = 0.0
    for new, old, advantage in rows:
        ratio = float(np.exp(new - old))
        loss = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.28))
        if dual and advantage < 0:
            loss = min(loss, -advantage * dual)
        total += loss
    new, old, advantages = (torch.tensor(x, dtype=torch.float64) for x in zip(*rows, strict=True))
    loss, _ = policy_loss(new, old, advantages, clip_low=0.2, clip_high=0.28, dual_clip=dual)
    assert float(loss.sum()) == pytest.approx(total, abs=1e-6)


def test_clipped_tokens_have_no_gradient_and_clipping_is_asymmetric() -> None:
    ratios = torch.tensor([1.25, 1.3, 0.85, 0.75, 1.3, 0.75], dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    new = ratios.log().requires_grad_()
    loss, sums = policy_loss(new, torch.zeros(6, dtype=torch.float64), advantages, clip_low=0.2, clip_high=0.28)
    loss.sum().backward()
    assert [bool(g) for g in new.grad != 0] == [True, False, True, False, True, True]
    assert float(sums["clipfrac"].sum()) == 2


def test_on_policy_loss_is_minus_the_advantage() -> None:
    zeros = torch.zeros(3)
    loss, sums = policy_loss(zeros, zeros, torch.tensor([1.0, -2.0, 0.5]), clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert float(loss.sum()) == pytest.approx(0.5)
    assert float(sums["approx_kl"].sum()) == float(sums["clipfrac"].sum()) == 0


@given(st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=8), st.sampled_from([0.0, 0.5]))
def test_value_loss_equals_a_loop(rows, clip: float) -> None:
    total = 0.0
    for value, old, target in rows:
        near = old + min(max(value - old, -clip), clip)
        total += 0.5 * max((value - target) ** 2, (near - target) ** 2) if clip else 0.5 * (value - target) ** 2
    values = [torch.tensor(x, dtype=torch.float64) for x in zip(*rows, strict=True)]
    assert float(value_loss(*values, clip)[0].sum()) == pytest.approx(total, abs=1e-6)


def episode(group: int, *rewards: float, status: str = "completed", penalty: float = 0.0) -> Episode:
    turns = [Turn(i, "s", "u", "r", "s", reward=r, penalty=penalty) for i, r in enumerate(rewards)]
    return Episode("T", 0, group, turns=turns, status=status)


def test_the_filter_keeps_the_groups_with_the_largest_spread() -> None:
    scores = {0: (0, 0), 1: (0, 1), 2: (0, 5), 3: (0, 1), 4: (2, 2)}
    episodes = [episode(g, r) for g, pair in scores.items() for r in pair]
    kept, metrics = filtered(episodes, 0.4)
    assert [e.group for e in kept] == [1, 1, 2, 2]  # of 1 and 3, which tie, the earlier
    assert metrics["rollout/kept"] == pytest.approx(0.4)
    assert metrics["rollout/zero_std"] == pytest.approx(0.4)
    assert {e.group for e in filtered(episodes, 0.1)[0]} == {2}
    assert len(filtered(episodes, 1.0)[0]) == 10


def test_the_filter_sees_penalties_and_drops_failures() -> None:
    episodes = [episode(0, 1.0), episode(0, 1.0, penalty=-0.1), episode(1, 0.0), episode(1, 9.0, status="error")]
    assert {e.group for e in filtered(episodes, 0.5)[0]} == {0}
    assert filtered([episode(0, 1.0, status="error")], 1.0) == ([], {"rollout/kept": 0.0})


def test_reward_placement() -> None:
    played = episode(0, 1.0, 2.0, 4.0, penalty=-0.5)
    turns = [0, 0, 1, 1, 1, 2]
    np.testing.assert_allclose(placed(played, turns, "end"), [0, 0, 0, 0, 0, 5.5])
    np.testing.assert_allclose(placed(played, turns, "turn"), [0, 0.5, 0, 0, 1.5, 3.5])
    np.testing.assert_allclose(placed(played, [0, 0, -1, 2], "turn"), [0, 2.0, 0, 3.5])


@pytest.fixture(scope="module")
def played() -> list[Episode]:
    worlds = [World(s, str(s)) for s in range(4)]
    policy = tiny_policy()
    return policy.play(lake_task(0), worlds, samples=2, seed=5) + policy.play(lake_task(1), worlds, samples=2, seed=5)


def test_masks_token_by_token(played) -> None:
    for one in played:
        for loss_mask in ("sampled", "all", "answer"):
            (rows,) = train_sequences([one], CHAT, loss_mask)
            for sequence, row in zip(one.sequences, rows, strict=True):
                assert row.ids == sequence.ids
                sampled = [i for i, m in enumerate(sequence.mask) if m]
                if loss_mask == "sampled":
                    assert row.positions == sampled
                elif loss_mask == "all":
                    assert row.positions == list(range(1, len(sequence)))
                    assert [t >= 0 for t in row.turns] == [bool(m) for m in sequence.mask]
                else:
                    assert set(row.positions) < set(sampled)
        turn = one.turns[0]
        if turn.format_ok:
            ids = [rows[0].ids[i] for i in rows[0].positions if rows[0].turns[i] == 0]
            assert CHAT.decode(ids) == turn.response[turn.response.index("<answer>") :]


def test_nothing_to_train_is_an_error(played) -> None:
    empty = copy.deepcopy(played[0])
    for sequence in empty.sequences:
        sequence.mask = [0] * len(sequence)
    with pytest.raises(ValueError, match="no token to train"):
        train_sequences([empty], CHAT, "sampled")


@pytest.mark.parametrize("lam", [1.0, 0.9])
def test_poisoned_context_values_change_nothing(played, lam: float) -> None:
    """Observation tokens take no part: whatever stands at them, advantages are the same."""

    def advantages(episodes: list[Episode]) -> list[np.ndarray]:
        by_episode = train_sequences(episodes, CHAT, "sampled")
        rng = np.random.default_rng(0)
        for rows in by_episode:
            for row in rows:
                row.values[row.mask] = rng.normal(size=len(row.positions))
                row.values[~row.mask] = np.nan
        set_advantages(by_episode, episodes, PPOConfig(lam=lam, gamma=0.9))
        return [row.advantages[row.mask] for rows in by_episode for row in rows]

    poisoned = copy.deepcopy(played)
    for one in poisoned:
        for sequence in one.sequences:
            sequence.logprobs = [
                x if m else float("nan") for x, m in zip(sequence.logprobs, sequence.mask, strict=True)
            ]
    for a, b in zip(advantages(played), advantages(poisoned), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


def test_time_runs_through_trainable_tokens_across_sequences() -> None:
    """A window's sequences are one episode: the reward of its last turn reaches the first, discounted per trained token."""
    sequences = [TokenSequence([1, 2, 3, 4], [0, 0, 1, 1], [0, 0, -1.0, -1.0], [-1, -1, i, i]) for i in range(2)]
    one = Episode("T", 0, 0, turns=[Turn(0, "", "", ""), Turn(1, "", "", "", reward=8.0)], sequences=sequences)
    by_episode = train_sequences([one], CHAT, "sampled")
    set_advantages(by_episode, [one], PPOConfig(gamma=0.5, lam=1.0, whiten_advantages=False))
    assert [row.advantages[2:].tolist() for row in by_episode[0]] == [[1.0, 2.0], [4.0, 8.0]]


@pytest.mark.parametrize("aggregation", choices(PPOConfig, "loss_aggregation"))
def test_weights_of_tokens(aggregation: str) -> None:
    lengths = [3, 1, 4]
    weights = token_weights(lengths, aggregation, horizon=10)
    losses = [[1.0, 2.0, 3.0], [5.0], [1.0, 1.0, 2.0, 2.0]]
    total = sum(weight * x for weight, sequence in zip(weights, losses, strict=True) for x in sequence)
    expected = {
        "token-mean": 17 / 8,
        "seq-mean-token-mean": (2 + 5 + 1.5) / 3,
        "seq-mean-token-sum": 17 / 3,
        "seq-mean-token-sum-norm": 17 / 30,
    }[aggregation]
    assert total == pytest.approx(expected)


def test_a_misspelled_mode_is_no_other_mode(played) -> None:
    with pytest.raises(ValueError, match=r"unknown aggregation 'mean'; choose one of token-mean"):
        token_weights([3, 5], "mean")
    with pytest.raises(ValueError, match=r"unknown KL estimator 'k4'"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "k4")
    with pytest.raises(ValueError, match=r"unknown loss mask 'answr'.* Did you mean 'answer'\?"):
        train_sequences(played, CHAT, "answr")
    with pytest.raises(ValueError, match=r"unknown loss 'thnk_answer'"):
        loss_spans("<think>a</think><answer>Up</answer>", "thnk_answer")


def test_kl_estimators_are_means_of_the_kl() -> None:
    """Against the exact divergence of two distributions; k2 is the biased one."""
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(2, 6)))
    p, q = logits[0].log_softmax(-1), (0.9 * logits[0] + 0.1 * logits[1]).log_softmax(-1)
    exact = float((p.exp() * (p - q)).sum())
    for name, tolerance in (("k1", 1e-9), ("k3", 1e-9), ("k2", 0.2 * exact)):
        assert float((p.exp() * kl_penalty(p, q, name)).sum()) == pytest.approx(exact, abs=tolerance)
    assert (kl_penalty(p, q, "k3") >= 0).all()
