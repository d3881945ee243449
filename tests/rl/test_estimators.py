"""Advantage estimators against naive loops, against each other, and on problems with a known optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.config.overrides import choices
from spa.config.schema import PPOConfig
from spa.config.training import WHITENED, WITH_GROUPS, WITH_VALUES
from spa.report.model_card import ALGORITHMS
from spa.rl.advantages import ESTIMATORS, _turn_ends, bi_level_gae, estimate, gae, turn_gae, whiten
from spa.rl.batch import TrainSequence
from spa.rl.losses import policy_loss
from tests.rl.tools import tokens

FLOATS = st.floats(-3, 3)


@st.composite
def episodes(draw, *, context: bool = False) -> TrainSequence:
    """An episode of one to four turns of one to four tokens, context tokens between them if asked for."""
    turns: list[int] = []
    for turn in range(draw(st.integers(1, 4))):
        if context:
            turns += [-1] * draw(st.integers(0, 2))
        turns += [turn] * draw(st.integers(1, 4))
    if context:
        turns += [-1] * draw(st.integers(0, 2))
    numbers = st.lists(FLOATS, min_size=len(turns), max_size=len(turns))
    return tokens(np.array(draw(numbers)), np.array(draw(numbers)), turns, draw(st.integers(0, 2)))


BATCHES = st.lists(episodes(), min_size=1, max_size=6)


def loop_gae(rewards, values, gamma: float, lam: float) -> list[float]:
    following = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def test_the_config_knows_the_estimators() -> None:
    assert set(choices(PPOConfig, "estimator")) == set(ESTIMATORS)
    assert {*WITH_VALUES, *WITH_GROUPS, *WHITENED} <= set(ESTIMATORS)
    assert set(ALGORITHMS) == set(ESTIMATORS), "a model card needs a name for each"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_config_knows_which_estimators_compare_episodes_of_a_world(name: str) -> None:
    def advantages(other: float) -> list[np.ndarray]:
        scores = ([1.0, 0], [other, 0], [2.0, 1])
        batch = [tokens(np.array([score]), np.zeros(1), [0], int(group)) for score, group in scores]
        return [advantages for advantages, _ in ESTIMATORS[name](batch, PPOConfig(estimator=name))]

    compares = any((a != b).any() for a, b in zip(advantages(0.0)[::2], advantages(5.0)[::2], strict=True))
    assert compares == (name in WITH_GROUPS)


# Turn level


@given(episodes(), st.floats(0, 1), st.floats(0, 1))
def test_turn_gae_equals_a_loop_over_turns(episode: TrainSequence, gamma: float, lam: float) -> None:
    advantages, returns = turn_gae(episode, gamma, lam)
    turns = sorted(set(episode.turns))
    members = [[i for i, t in enumerate(episode.turns) if t == turn] for turn in turns]
    rewards = [sum(episode.rewards[i] for i in m) for m in members]
    values = [episode.values[m[0]] for m in members]
    expected = loop_gae(rewards, values, gamma, lam)
    for m, advantage, value in zip(members, expected, values, strict=True):
        np.testing.assert_allclose(advantages[m], advantage, atol=1e-9)
        np.testing.assert_allclose(returns[m], advantage + value, atol=1e-9)


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 1))
def test_with_turns_of_one_token_turn_gae_is_gae(pairs, gamma: float, lam: float) -> None:
    rewards, values = (np.array(x) for x in zip(*pairs, strict=True))
    episode = tokens(rewards, values, list(range(len(pairs))))
    for a, b in zip(turn_gae(episode, gamma, lam), gae(rewards, values, gamma, lam), strict=True):
        np.testing.assert_allclose(a, b)


# Bi-level


@given(episodes(context=True), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_bi_level_gae_equals_two_nested_loops(episode: TrainSequence, gamma: float, lam: float, high: float) -> None:
    if max(episode.turns) < 0:
        return
    size = len(episode.turns)
    ends = [i for i in range(size) if episode.turns[i] >= 0 and episode.turns[i] not in episode.turns[i + 1 :]]
    ends[-1] = size - 1
    starts = [0, *(end + 1 for end in ends[:-1])]
    rewards = [sum(episode.rewards[a : b + 1]) for a, b in zip(starts, ends, strict=True)]
    outer = loop_gae(rewards, [episode.values[end] for end in ends], high, lam)
    expected: list[float] = []
    for a, b, advantage in zip(starts, ends, outer, strict=True):
        inner = [0.0] * (b - a) + [advantage + episode.values[b]]
        expected += loop_gae(inner, list(episode.values[a : b + 1]), gamma, lam)
    advantages, returns = bi_level_gae(episode, gamma, lam, high)
    np.testing.assert_allclose(advantages, expected, atol=1e-9)
    np.testing.assert_allclose(returns, advantages + episode.values)


@given(episodes())
def test_without_discounts_and_with_lambda_one_both_levels_are_plain_gae(episode: TrainSequence) -> None:
    """The two passes telescope, if rewards stand where turns end and time within a turn costs nothing."""
    at_ends = np.zeros(len(episode.rewards))
    at_ends[_turn_ends(episode)] = 1.0
    episode = tokens(at_ends, episode.values, episode.turns)
    np.testing.assert_allclose(
        bi_level_gae(episode, 1.0, 1.0, 1.0)[0], gae(episode.rewards, episode.values, 1.0, 1.0)[0], atol=1e-9
    )


def test_a_turns_last_token_gets_the_turns_advantage() -> None:
    episode = tokens(np.array([0.0, 1.0, 0.0, 2.0]), np.array([0.1, 0.2, 0.3, 0.4]), [0, 0, 1, 1])
    advantages, _ = bi_level_gae(episode, 1.0, 1.0, 0.5)
    last = 2.0 - 0.4
    first = (1.0 + 0.5 * 0.4 - 0.2) + 0.5 * last
    np.testing.assert_allclose(advantages[[1, 3]], [first, last])


@pytest.mark.parametrize("name", ["gae", "bi_level_gae"])
def test_whole_numbers_are_not_cut_off(name: str) -> None:
    """An array of integers would take the fractions of what is written into it."""
    rewards, values = np.array([0, 1, 0, 2]), np.array([0, 0, 1, 0])
    episode, exact = tokens(rewards, values, [0, 0, 1, 1]), tokens(rewards * 1.0, values * 1.0, [0, 0, 1, 1])
    episode.rewards, episode.values = rewards, values
    estimates = {
        "gae": lambda one: gae(one.rewards, one.values, 0.9, 0.95),
        "bi_level_gae": lambda one: bi_level_gae(one, 0.9, 0.95, 0.95),
    }
    np.testing.assert_allclose(estimates[name](episode), estimates[name](exact))


def test_a_turn_without_reward_is_a_turn_all_the_same() -> None:
    """RAGEN's code sees no end there: the first turn's end gets a value target of its own."""
    episode = tokens(np.array([0.0, 0.0, 0.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4]), [0, 0, 1, 1])
    settings = PPOConfig(estimator="bi_level_gae", high_level_gamma=0.5, whiten_advantages=False)
    ((advantages, _),) = estimate([episode], settings)
    np.testing.assert_allclose(advantages[1], 0.5 * 1.0 - 0.2)


# Groups


def group_scores(batch: list[TrainSequence], episode: TrainSequence) -> list[float]:
    return [float(sum(other.rewards)) for other in batch if other.group == episode.group]


@given(BATCHES)
def test_group_estimators_equal_loops(batch: list[TrainSequence]) -> None:
    results = {
        name: estimate(batch, PPOConfig(estimator=name, whiten_advantages=False))
        for name in ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")
    }
    for number, episode in enumerate(batch):
        scores, own = group_scores(batch, episode), float(sum(episode.rewards))
        mean = sum(scores) / len(scores)
        if len(scores) == 1:
            expected = {"grpo": own / (1 + 1e-6), "dr_grpo": own, "rloo": own, "reinforce_plus_plus_baseline": own}
        else:
            std = (sum((s - mean) ** 2 for s in scores) / (len(scores) - 1)) ** 0.5
            centred = own - mean
            expected = {
                "grpo": centred / (std + 1e-6),
                "dr_grpo": centred,
                "rloo": own - (sum(scores) - own) / (len(scores) - 1),
                "reinforce_plus_plus_baseline": centred,
            }
        for name, value in expected.items():
            advantages, returns = results[name][number]
            assert len(advantages) == len(episode.rewards)
            np.testing.assert_allclose(advantages, value, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(advantages, returns)


@given(BATCHES, st.floats(0, 1))
def test_reinforce_plus_plus_equals_a_double_loop(batch: list[TrainSequence], gamma: float) -> None:
    results = estimate(batch, PPOConfig(estimator="reinforce_plus_plus", gamma=gamma, whiten_advantages=False))
    for episode, (advantages, _) in zip(batch, results, strict=True):
        size = len(episode.rewards)
        expected = [sum(gamma ** (k - t) * episode.rewards[k] for k in range(t, size)) for t in range(size)]
        np.testing.assert_allclose(advantages, expected, atol=1e-9)


# All of them


@pytest.mark.parametrize("name", list(ESTIMATORS))
@given(batch=BATCHES, order=st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_the_order_of_episodes_does_not_matter(name: str, batch: list[TrainSequence], order) -> None:
    shuffled = list(range(len(batch)))
    order.shuffle(shuffled)
    config = PPOConfig(estimator=name, lam=0.9)
    plain, other = estimate(batch, config), estimate([batch[i] for i in shuffled], config)
    for position, index in enumerate(shuffled):
        for a, b in zip(plain[index], other[position], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_whitening_is_the_estimators_own_unless_said_otherwise(name: str) -> None:
    rng = np.random.default_rng(0)
    batch = [tokens(rng.normal(size=4), rng.normal(size=4), [0, 0, 1, 1], i // 2) for i in range(6)]
    own, plain, forced = (
        estimate(batch, PPOConfig(estimator=name, whiten_advantages=choice)) for choice in (None, False, True)
    )
    wanted = forced if name in WHITENED else plain
    for (a, _), (b, _) in zip(own, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    flat = np.concatenate([a for a, _ in forced])
    assert (flat.mean(), flat.std(ddof=1)) == pytest.approx((0, 1), abs=1e-6)
    for (_, a), (_, b) in zip(forced, plain, strict=True):
        np.testing.assert_array_equal(a, b)  # returns never are


def test_one_token_in_all_is_whitened_to_nothing() -> None:
    assert whiten([np.array([5.0])])[0].tolist() == [0.0]


# Problems with a known optimum: a table of logits is the policy, one of values the critic


class Table:
    """A softmax policy and values over a few states, trained by the very functions that PPO uses."""

    def __init__(self, states: int, actions: int, name: str) -> None:
        self.config = PPOConfig(estimator=name, lam=0.95, high_level_gamma=1.0)
        self.logits = torch.zeros(states, actions, requires_grad=True)
        self.values = np.zeros(states)
        self.optimizer = torch.optim.Adam([self.logits], lr=0.1)

    def act(self, states: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(N,) actions, one token each."""
        probs = self.logits.detach().softmax(-1).numpy()[states]
        return (rng.random(len(states))[:, None] > probs.cumsum(-1)).sum(-1).clip(max=probs.shape[1] - 1)

    def learn(self, episodes: list[tuple[list[int], list[int], list[float], int]]) -> None:
        """From (states, actions, rewards, group), one turn of one token a step."""
        batch = [
            tokens(np.array(rewards), self.values[states], list(range(len(states))), group)
            for states, _, rewards, group in episodes
        ]
        pairs = estimate(batch, self.config)
        states = torch.tensor([s for one, *_ in episodes for s in one])
        actions = torch.tensor([a for _, one, *_ in episodes for a in one])
        advantages = torch.tensor(np.concatenate([a for a, _ in pairs]), dtype=torch.float32)
        if self.config.estimator in WITH_VALUES:
            returns = np.concatenate([r for _, r in pairs])
            for state in range(len(self.values)):
                seen = returns[states.numpy() == state]
                if len(seen):
                    self.values[state] += 0.3 * (seen.mean() - self.values[state])
        old = None
        for _ in range(2):
            logprobs = self.logits.log_softmax(-1)[states, actions]
            old = logprobs.detach() if old is None else old
            loss, _ = policy_loss(logprobs, old, advantages, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
            self.optimizer.zero_grad()
            loss.mean().backward()
            self.optimizer.step()


LEARNING = [pytest.param(name, marks=() if name in ("gae", "grpo") else pytest.mark.slow) for name in ESTIMATORS]


@pytest.mark.parametrize("name", LEARNING)
def test_a_bandit_is_solved(name: str) -> None:
    """Three arms that pay 0.2, 1 with probability 0.5, 0.3: the second is best."""
    table, rng = Table(1, 3, name), np.random.default_rng(0)
    for _ in range(150):
        actions = table.act(np.zeros(48, dtype=int), rng)
        pay = np.choose(actions, [np.full(48, 0.2), (rng.random(48) < 0.5).astype(float), np.full(48, 0.3)])
        table.learn([([0], [int(a)], [float(p)], i // 8) for i, (a, p) in enumerate(zip(actions, pay, strict=True))])
    assert float(table.logits.softmax(-1)[0, 1].detach()) > 0.9


@pytest.mark.parametrize("name", LEARNING)
def test_a_chain_is_solved(name: str) -> None:
    """Three states in a row: leaving pays 0.3 at once and ends it, staying to the end pays 1. Greed loses."""
    table, rng = Table(3, 2, name), np.random.default_rng(1)
    for _ in range(100):
        episodes = []
        for number in range(48):
            states, actions, rewards = [], [], []
            for state in range(3):
                action = int(table.act(np.array([state]), rng)[0])
                states.append(state)
                actions.append(action)
                rewards.append(0.3 if action == 0 else float(state == 2))
                if action == 0:
                    break
            episodes.append((states, actions, rewards, number // 8))
        table.learn(episodes)
    assert (table.logits.softmax(-1)[:, 1].detach() > 0.9).all()
