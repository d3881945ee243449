"""What an episode is worth and where on its tokens that stands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spa.agent.episode import Episode, Turn
from spa.config.schema import PPOConfig
from spa.data.states import cell_accuracy, changed_cell_accuracy, exact
from spa.rl.advantages import Array

_EPS = 1e-6


def state_match(written: str | None, truth: str, before: str, rule: str) -> float:
    """How well a state that the model wrote agrees with the true one, in [0, 1]; 0 where it wrote none.

    ``exact``: 1 if they are equal up to surrounding white space. ``cells``: share of the grid's cells that are right.
    ``changed``: share of those cells that differ from the state ``before``; where none does, or ``truth`` is no grid, ``exact``.
    """
    if written is None:
        return 0.0
    share: float | None = None
    if rule == "cells":
        share = cell_accuracy(written, truth)
    elif rule == "changed":
        share = changed_cell_accuracy(written, truth, before)
    return float(exact(written, truth)) if share is None else share


def world_model_reward(turn: Turn, config: PPOConfig) -> float:
    """The online world-modelling reward of a turn (VAGEN, the paper's baseline): for writing true state and true next state."""
    reward = 0.0
    if config.observation_reward:
        # There is no state before the observed one: "changed" compares all of it.
        rule = "cells" if config.state_match == "changed" else config.state_match
        reward += config.observation_reward * state_match(turn.observation, turn.state, "", rule)
    if config.prediction_reward:
        reward += config.prediction_reward * state_match(
            turn.prediction, turn.next_state, turn.state, config.state_match
        )
    return reward


@dataclass(frozen=True)
class Reward:
    """The training reward of one episode: of each turn (format penalties and world-model rewards included), and its score.

    ``score`` is the turns' sum until ``normalize`` changes it.
    """

    turns: list[float]
    score: float


def training_reward(episode: Episode, config: PPOConfig) -> Reward:
    turns = [turn.reward + turn.penalty + world_model_reward(turn, config) for turn in episode.turns]
    return Reward(turns, float(sum(turns)))


def normalize(rewards: Sequence[Reward], episodes: Sequence[Episode], method: str, by: str) -> list[Reward]:
    """Scores (penalties included) normalised within classes of episodes, as RAGEN does it.

    Args:
        method: ``identity``; ``mean`` subtracts the class's mean; ``mean_std`` also divides by its standard deviation
            (unbiased, plus 1e-6), all equal gives 0; ``asym_clip`` clips that to [-1, 3].
        by: ``state`` (one world), ``inductive`` (one tag) or ``batch``.

    A class of one episode is left as it is.
    """
    if method == "identity":
        return list(rewards)
    classes: dict[object, list[int]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        key = {"state": (episode.task, episode.group), "inductive": episode.task, "batch": None}[by]
        classes[key].append(index)
    out = list(rewards)
    for members in classes.values():
        scores = np.array([rewards[i].score for i in members])
        if len(scores) > 1:
            for i, score in zip(members, _normalized(scores, method), strict=True):
                out[i] = Reward(rewards[i].turns, float(score))
    return out


def _normalized(scores: Array, method: str) -> Array:
    centred: Array = scores - scores.mean()
    if method == "mean":
        return centred
    std = scores.std(ddof=1)
    if std <= _EPS:
        return np.zeros_like(scores)
    scaled: Array = centred / (std + _EPS)
    return scaled.clip(-1.0, 3.0) if method == "asym_clip" else scaled


def token_rewards(reward: Reward, turns: Sequence[int], placement: str) -> Array:
    """Rewards (T,) on the trainable tokens of an episode, whose turn indices (T,; -1 for context) are ``turns``.

    ``end``: the score on the last token. ``turn``: each turn's reward on that turn's last token (a turn without trainable
    tokens hands it to the token before it, or else the first).
    """
    rewards = np.zeros(len(turns))
    if placement == "end":
        rewards[-1] = reward.score
    else:
        last = {turn: position for position, turn in enumerate(turns) if turn >= 0}
        position = 0
        for index, value in enumerate(reward.turns):
            position = last.get(index, position)
            rewards[position] += value
    return rewards
