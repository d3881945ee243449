"""Advantage estimators over the trainable tokens of episodes. Observation tokens are excluded: they are not time steps.

Every estimator maps the trained tokens of episodes (``batch.trained_tokens``, one sequence of T tokens each) to (advantages,
returns), a pair of (T,) arrays per episode; equations and sources in docs/algorithms.md. Turn -1 is context, trained only with
``ppo.loss_mask=all``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from spa.config.schema import PPOConfig
from spa.config.training import WHITENED
from spa.rl.batch import Array, TrainSequence

Pair = tuple[Array, Array]

_EPS = 1e-6  # added to a group's standard deviation, as in verl


def gae(rewards: Array, values: Array, gamma: float, lam: float) -> Pair:
    """Generalised advantage estimation over one finished episode (Schulman et al. 2016, Eq. 16).

    Args:
        rewards: (T,) reward that follows each step.
        values: (T,) value before each step.

    Returns:
        advantages (T,) and returns (T,) = advantages + values. The value after the last step is 0.
    """
    rewards, values = (np.asarray(array, dtype=np.float64) for array in (rewards, values))
    assert rewards.shape == values.shape and rewards.ndim == 1
    advantages = np.zeros_like(values)
    running = next_value = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + gamma * next_value - values[t]
        running = delta + gamma * lam * running
        advantages[t] = running
        next_value = values[t]
    return advantages, advantages + values


def _pieces(ends: Sequence[int]) -> list[slice]:
    """The token segments that end at each of ``ends`` (inclusive, ascending)."""
    return [slice(a, b) for a, b in pairwise([0, *(end + 1 for end in ends)])]


def _turn_ends(episode: TrainSequence) -> list[int]:
    """The last token of every turn, in order; tokens after the last turn belong to it."""
    last = {int(turn): position for position, turn in enumerate(episode.turns) if turn >= 0}
    ends = sorted(last.values())
    return [*ends[:-1], len(episode.turns) - 1]


def turn_gae(episode: TrainSequence, gamma: float, lam: float) -> Pair:
    """GAE whose time step is a turn: from the value before a turn's first token to that before the next turn's.

    All tokens of a turn get the turn's advantage and return.
    """
    pieces = _pieces(_turn_ends(episode))
    rewards = np.array([episode.rewards[piece].sum() for piece in pieces])
    values = np.array([episode.values[piece][0] for piece in pieces])
    turn_advantages, turn_returns = gae(rewards, values, gamma, lam)
    sizes = [piece.stop - piece.start for piece in pieces]
    return np.repeat(turn_advantages, sizes), np.repeat(turn_returns, sizes)


def bi_level_gae(episode: TrainSequence, gamma: float, lam: float, high_gamma: float) -> Pair:
    """Two nested GAEs (VAGEN): over the turns' last tokens with ``high_gamma``, then within each turn.

    The return of a turn's last token stands in for its reward in the second pass, which restarts at every turn's end. With rewards
    at turn ends and both discounts and ``lam`` 1 this is plain GAE. RAGEN's code ends a turn only where the reward is not 0; that
    defect is not reproduced.
    """
    ends = _turn_ends(episode)
    rewards, values = episode.rewards.astype(np.float64), episode.values
    for piece in _pieces(ends):  # a turn's reward counts where the turn ends
        total = rewards[piece].sum()
        rewards[piece] = 0.0
        rewards[piece.stop - 1] = total
    _, rewards[ends] = gae(rewards[ends], values[ends], high_gamma, lam)
    parts = [gae(rewards[piece], values[piece], gamma, lam)[0] for piece in _pieces(ends)]
    advantages = np.concatenate(parts)
    return advantages, advantages + values


def _by_group(episodes: Sequence[TrainSequence]) -> list[list[float]]:
    """The scores of each episode's group."""
    scores: dict[int, list[float]] = defaultdict(list)
    for episode in episodes:
        scores[episode.group].append(episode.score)
    return [scores[episode.group] for episode in episodes]


def _spread_out(episodes: Sequence[TrainSequence], values: Sequence[float]) -> list[Pair]:
    """Broadcasts one number per episode to its tokens."""
    arrays = [np.full(len(episode.rewards), value) for episode, value in zip(episodes, values, strict=True)]
    return [(array, array) for array in arrays]


def grpo(episodes: Sequence[TrainSequence], *, divide: bool) -> list[Pair]:
    """(score - group mean) / (group standard deviation + 1e-6) for every token (Shao et al. 2024, Sec. 4.1.2).

    Without ``divide`` it is not divided (Liu et al. 2025, "Dr. GRPO"). An episode that is alone in its group keeps its score.
    """
    advantages = []
    for episode, scores in zip(episodes, _by_group(episodes), strict=True):
        if len(scores) == 1:
            advantages.append(episode.score / (1 + _EPS) if divide else episode.score)
            continue
        centred = episode.score - float(np.mean(scores))
        advantages.append(centred / (float(np.std(scores, ddof=1)) + _EPS) if divide else centred)
    return _spread_out(episodes, advantages)


def rloo(episodes: Sequence[TrainSequence]) -> list[Pair]:
    """Score minus the mean score of the other episodes in its group, for every token (Ahmadian et al. 2024, Eq. 6).

    An episode that is alone in its group keeps its score.
    """
    advantages = []
    for episode, scores in zip(episodes, _by_group(episodes), strict=True):
        others = (sum(scores) - episode.score) / (len(scores) - 1) if len(scores) > 1 else 0.0
        advantages.append(episode.score - others)
    return _spread_out(episodes, advantages)


def reinforce_plus_plus(episodes: Sequence[TrainSequence], gamma: float) -> list[Pair]:
    """Discounted reward-to-go of every token (Hu 2025); whitened over the batch by the caller."""
    return [(pair := gae(s.rewards, np.zeros_like(s.rewards), gamma, 1.0)[0], pair) for s in episodes]


ESTIMATORS: dict[str, Callable[[Sequence[TrainSequence], PPOConfig], list[Pair]]] = {
    "gae": lambda s, c: [gae(x.rewards, x.values, c.gamma, c.lam) for x in s],
    "turn_gae": lambda s, c: [turn_gae(x, c.gamma, c.lam) for x in s],
    "bi_level_gae": lambda s, c: [bi_level_gae(x, c.gamma, c.lam, c.high_level_gamma) for x in s],
    "grpo": lambda s, c: grpo(s, divide=True),
    "dr_grpo": lambda s, c: grpo(s, divide=False),
    "rloo": lambda s, c: rloo(s),
    "reinforce_plus_plus": lambda s, c: reinforce_plus_plus(s, c.gamma),
    "reinforce_plus_plus_baseline": lambda s, c: grpo(s, divide=False),  # score minus the group's mean, whitened below
}


def whitens(config: PPOConfig) -> bool:
    """Whether advantages are whitened: as configured, else as the estimator is defined."""
    return config.estimator in WHITENED if config.whiten_advantages is None else config.whiten_advantages


def estimate(episodes: Sequence[TrainSequence], config: PPOConfig) -> list[Pair]:
    """Advantages (whitened where ``whitens`` says so) and returns of each episode, in order."""
    pairs = ESTIMATORS[config.estimator](episodes, config)
    if whitens(config):
        whitened = whiten([advantages for advantages, _ in pairs])
        pairs = [(advantages, returns) for advantages, (_, returns) in zip(whitened, pairs, strict=True)]
    return pairs


def whiten(arrays: Sequence[Array]) -> list[Array]:
    """Shifts and scales all entries together to mean 0 and standard deviation 1 (unbiased, as verl's ``masked_whiten``).

    Equal entries, or a single one, give zeros.
    """
    if not arrays:
        return []
    flat = np.concatenate(arrays)
    scale = 1.0 / np.sqrt((flat.var(ddof=1) if len(flat) > 1 else 0.0) + 1e-8)
    return [(array - flat.mean()) * scale for array in arrays]
