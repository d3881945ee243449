"""Training rewards of an episode and their placement on its tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spa.agent.episode import Episode, Turn
from spa.config.schema import PPOConfig
from spa.envs.states import cell_accuracy, exact
from spa.rl.batch import Array

_EPS = 1e-6


def state_match(written: str | None, truth: str, before: str, rule: str) -> float:
    """How well the state written by the model matches the true one, in [0, 1]; 0 if it wrote none.

    ``exact``: 1 if they are equal up to the layout's white space. ``cells``: share of correct grid cells. ``changed``: the same
    among cells that differ from the state ``before``; if none does, or ``truth`` is not a grid, ``exact``.
    """
    if written is None:
        return 0.0
    share = None if rule == "exact" else cell_accuracy(written, truth, before if rule == "changed" else None)
    return float(exact(written, truth, before)) if share is None else share


def world_model_reward(turn: Turn, config: PPOConfig) -> float:
    """The online world-modelling reward of a turn (VAGEN, the paper's baseline): for writing true state and true next state."""
    reward = 0.0
    if config.observation_reward:
        # The observed state has no predecessor: "changed" compares all of it.
        rule = "cells" if config.state_match == "changed" else config.state_match
        reward += config.observation_reward * state_match(turn.observation, turn.state, turn.next_state, rule)
    if config.prediction_reward:
        reward += config.prediction_reward * state_match(
            turn.prediction, turn.next_state, turn.state, config.state_match
        )
    return reward


def turn_rewards(episode: Episode, config: PPOConfig) -> list[float]:
    """The training reward of each turn: the world's, format penalties, and world-model rewards. Their sum is the score."""
    return [turn.reward + turn.penalty + world_model_reward(turn, config) for turn in episode.turns]


def normalize(scores: Sequence[float], episodes: Sequence[Episode], method: str, by: str) -> list[float]:
    """Scores (penalties included) normalised within classes of episodes, as RAGEN does it.

    Args:
        method: ``identity``; ``mean`` subtracts the class's mean; ``mean_std`` also divides by its standard deviation
            (unbiased, plus 1e-6), all equal gives 0; ``asym_clip`` clips that to [-1, 3].
        by: ``state`` (one world), ``inductive`` (one tag) or ``batch``.

    A class of one episode is left as it is.
    """
    if method == "identity":
        return list(scores)
    classes: dict[object, list[int]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        key = {"state": (episode.task, episode.group), "inductive": episode.task, "batch": None}[by]
        classes[key].append(index)
    out = list(scores)
    for members in classes.values():
        if len(members) > 1:
            normalized = _normalized(np.array([scores[i] for i in members]), method)
            for i, score in zip(members, normalized, strict=True):
                out[i] = float(score)
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


def token_rewards(rewards: Sequence[float], score: float, turns: NDArray[np.int64], placement: str) -> Array:
    """Rewards (T,) on the trained tokens of an episode, whose turn indices (T,; -1 for context) are ``turns``.

    ``end``: the score on the last token. ``turn``: each turn's reward on that turn's last token (for a turn without trained
    tokens, on the token before it, else the first).
    """
    placed = np.zeros(len(turns))
    if placement == "end":
        placed[-1] = score
        return placed
    last = {int(turn): position for position, turn in enumerate(turns) if turn >= 0}
    position = 0
    for index, reward in enumerate(rewards):
        position = last.get(index, position)
        placed[position] += reward
    return placed
