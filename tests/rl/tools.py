"""What several tests of stage 3 need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spa.agent.episode import Episode
from spa.config.schema import PPOConfig
from spa.rl.batch import Array, TrainSequence
from spa.rl.filters import choose_groups, filter_metrics, group_indices
from spa.rl.rewards import token_rewards, turn_rewards


def filtered(episodes: Sequence[Episode], ratio: float, kind: str = "std") -> tuple[list[Episode], dict[str, float]]:
    """The episodes of the groups that a filter keeps, and its metrics."""
    groups, scores = group_indices(episodes), [episode.score for episode in episodes]
    chosen = choose_groups(groups, scores, kind, ratio, max(1, int(ratio * len(groups))))
    return [episodes[i] for group in chosen for i in groups[group]], filter_metrics(groups, scores, chosen)


def placed(episode: Episode, turns: Sequence[int], placement: str, **ppo: object) -> Array:
    """An episode's training reward on its tokens."""
    rewards = turn_rewards(episode, PPOConfig(**ppo))
    return token_rewards(rewards, sum(rewards), np.array(turns), placement)


def tokens(rewards: Sequence[float], values: Sequence[float], turns: Sequence[int], group: int = 0) -> TrainSequence:
    """The trained tokens of an episode, as an estimator sees them."""
    one = TrainSequence.of(range(len(turns)), [True] * len(turns), turns, np.zeros(len(turns)), group)
    one.rewards[:], one.values[:] = rewards, values
    return one
