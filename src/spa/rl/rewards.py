"""From episodes to scores: the group filter and the placement of rewards on tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from spa.agent.episode import Episode
from spa.rl.advantages import Array

PLACEMENTS = ("end", "turn")


def filter_groups(episodes: Sequence[Episode], ratio: float) -> tuple[list[Episode], dict[str, float]]:
    """Keeps the groups with the largest standard deviation of the score (RAGEN's ``std`` filter).

    ``int(ratio * groups)`` groups are kept, at least one; ties go to the earlier group. Failed episodes
    (``status="error"``) are dropped first. ``ratio`` 1 keeps all.

    Returns:
        the kept episodes in order, and metrics ``rollout/in_group_std``, ``rollout/chosen_in_group_std``,
        ``rollout/kept`` (share of groups), ``rollout/zero_std`` (share of groups in which all scores are equal).

    Raises:
        ValueError: ``ratio`` is not in (0, 1].
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ppo.filter_ratio must be in (0, 1], not {ratio}")
    groups: dict[int, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.status != "error":
            groups[episode.group].append(episode)
    if not groups:
        return [], {"rollout/kept": 0.0}
    std = {group: float(np.std([episode.score for episode in members])) for group, members in groups.items()}
    num_kept = max(1, int(ratio * len(groups)))
    chosen = set(sorted(groups, key=lambda group: (-std[group], group))[:num_kept])
    return [episode for group in groups if group in chosen for episode in groups[group]], {
        "rollout/in_group_std": float(np.mean(list(std.values()))),
        "rollout/chosen_in_group_std": float(np.mean([std[group] for group in chosen])),
        "rollout/kept": len(chosen) / len(groups),
        "rollout/zero_std": float(np.mean([value < 1e-9 for value in std.values()])),
    }


def token_rewards(episode: Episode, turns: Sequence[int], placement: str) -> Array:
    """Rewards (T,) on the trainable tokens of an episode, whose turn indices (T,; -1 for context) are ``turns``.

    ``end``: the episode's score on its last token. ``turn``: each turn's reward and penalty on that turn's last
    token (a turn without trainable tokens hands them to the token before it, or else the first).

    Raises:
        ValueError: unknown placement.
    """
    rewards = np.zeros(len(turns))
    if placement == "end":
        rewards[-1] = episode.score
    elif placement == "turn":
        last = {turn: position for position, turn in enumerate(turns) if turn >= 0}
        position = 0
        for turn in episode.turns:
            position = last.get(turn.index, position)
            rewards[position] += turn.reward + turn.penalty
    else:
        raise ValueError(f"unknown ppo.reward_placement {placement!r}; choose one of {', '.join(PLACEMENTS)}")
    return rewards
