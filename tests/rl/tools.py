"""What several tests of stage 3 need."""

from __future__ import annotations

from collections.abc import Sequence

from spa.agent.episode import Episode
from spa.config.schema import PPOConfig
from spa.rl.advantages import Array
from spa.rl.filters import choose_groups, filter_metrics, group_indices
from spa.rl.rewards import token_rewards, training_reward


def filtered(episodes: Sequence[Episode], ratio: float, kind: str = "std") -> tuple[list[Episode], dict[str, float]]:
    """The episodes of the groups that a filter keeps, and its metrics."""
    groups, scores = group_indices(episodes), [episode.score for episode in episodes]
    chosen = choose_groups(groups, scores, kind, ratio)
    return [episodes[i] for group in chosen for i in groups[group]], filter_metrics(groups, scores, chosen)


def placed(episode: Episode, turns: Sequence[int], placement: str, **ppo: object) -> Array:
    """An episode's training reward on its tokens."""
    return token_rewards(training_reward(episode, PPOConfig(**ppo)), turns, placement)
