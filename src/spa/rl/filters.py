"""Selects the groups of a batch to train on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from spa.agent.episode import Episode
from spa.config.schema import PPOConfig

_EQUAL = 1e-9  # scores that differ by less are equal

Groups = dict[int, list[int]]


def group_indices(episodes: Sequence[Episode]) -> Groups:
    """Indices of the usable episodes by group, in order; failed ones (``status="error"``) are left out."""
    groups: Groups = defaultdict(list)
    for index, episode in enumerate(episodes):
        if not episode.failed:
            groups[episode.group].append(index)
    return dict(groups)


def informative(groups: Groups, scores: Sequence[float]) -> list[int]:
    """The groups whose episodes differ in score, so that a group baseline leaves a learning signal."""
    return [group for group, members in groups.items() if np.ptp([scores[i] for i in members]) > _EQUAL]


def nothing_to_learn(rewards: Sequence[Sequence[float]], groups: Sequence[int], config: PPOConfig) -> bool:
    """Whether no group is informative: all episodes of a world score the same (``rewards``: per turn), so that nothing says which
    of their actions were better. Advantages are then only critic error or differences between worlds, which whitening
    amplifies to unit variance. Where the estimator reads turn rewards (``reward_placement=turn``; a group baseline reads their
    sum), those must match, and a turn that was not played counts as 0. If no world has two episodes, all are compared. A KL
    penalty in the reward always distinguishes tokens."""
    if config.kl_reward_coef:
        return False
    members: dict[int, list[Sequence[float]]] = defaultdict(list)
    for turns, group in zip(rewards, groups, strict=True):
        members[group].append(turns)
    compared = [group for group in members.values() if len(group) > 1] or [list(rewards)]
    values = [
        zip_longest(*group, fillvalue=0.0) if config.by_turn else [[sum(turns) for turns in group]]
        for group in compared
    ]
    return all(np.ptp(each) <= _EQUAL for group in values for each in group)


def select_groups(groups: Groups, scores: Sequence[float], tasks: Sequence[int], config: PPOConfig) -> list[int]:
    """The groups to train on, in order. They compete within a task alone, since another's rewards may be ten times as large.

    With ``dynamic_groups`` the first informative ones, of each task in proportion; else those of ``choose_groups``.

    Args:
        tasks: the task of each episode.
    """
    by_task: dict[int, Groups] = defaultdict(dict)
    for group, members in groups.items():
        by_task[tasks[members[0]]][group] = members
    if config.dynamic_groups:
        by_information = [informative(part, scores) for part in by_task.values()]
        # The first of each task before all others: a task that is seldom won is trained on, too.
        places = sorted(
            ((i + 0.5) / len(part) if i else 0.0, group) for part in by_information for i, group in enumerate(part)
        )
        chosen = {group for _, group in places[: config.dynamic_groups]}
    else:
        kind, ratio = config.filter, config.filter_ratio
        shares = _allotted([len(part) for part in by_task.values()], max(1, int(ratio * len(groups))))
        chosen = set()
        for part, count in zip(by_task.values(), shares, strict=True):
            chosen |= {*choose_groups(part, scores, kind, ratio, count)}
    return [group for group in groups if group in chosen]


def _allotted(sizes: Sequence[int], total: int) -> list[int]:
    """``total`` by the largest remainder in proportion to ``sizes``, at least one each."""
    exact = [size * total / sum(sizes) for size in sizes]
    counts = [max(1, int(share)) for share in exact]
    by_rest = sorted(range(len(sizes)), key=lambda index: counts[index] - exact[index])
    for index in by_rest[: max(0, total - sum(counts))]:
        counts[index] += 1
    return counts


def choose_groups(groups: Groups, scores: Sequence[float], kind: str, ratio: float, count: int) -> list[int]:
    """The groups to keep, in order.

    * ``std`` (RAGEN's default): the ``count`` with the largest standard deviation of the score;
    * ``std_rev``: those with the smallest;
    * ``max_mean``: those whose best episode is farthest above the mean;
    * ``top_p``: the fewest groups, largest variance first, that hold ``ratio`` of the total variance; none if no group's scores
      differ;
    * ``off``: all.

    Ties go to the earlier group. ``ratio`` 1 keeps all (``top_p``: all whose scores differ).
    """
    if kind == "off" or not groups:
        return list(groups)
    values = {group: np.array([scores[i] for i in members]) for group, members in groups.items()}
    if kind == "top_p":
        chosen = _nucleus({group: float(np.var(value)) for group, value in values.items()}, ratio)
    else:
        key = {group: _spread(value, kind) for group, value in values.items()}
        chosen = set(sorted(groups, key=lambda group: -key[group])[:count])
    return [group for group in groups if group in chosen]


def _spread(scores: np.ndarray[Any, Any], kind: str) -> float:
    if kind == "max_mean":
        return float(scores.max() - scores.mean())
    return float(scores.std()) * (-1 if kind == "std_rev" else 1)


def _nucleus(variances: dict[int, float], share: float) -> set[int]:
    total = sum(variances.values())
    chosen: set[int] = set()
    reached = 0.0
    for group in sorted(variances, key=lambda group: -variances[group]):
        if variances[group] <= _EQUAL**2 or reached >= share * total * (1 - 1e-12):
            break
        chosen.add(group)
        reached += variances[group]
    return chosen


def filter_metrics(groups: Groups, scores: Sequence[float], chosen: Sequence[int]) -> dict[str, float]:
    """``rollout/in_group_{std,max,mean}`` over all groups, ``rollout/chosen_in_group_*`` over those kept, ``rollout/kept`` (share
    of the groups), ``rollout/zero_std`` (share of groups whose scores are all equal). Names are RAGEN's where it has one."""
    if not groups:
        return {"rollout/kept": 0.0}
    values = {group: np.array([scores[i] for i in members]) for group, members in groups.items()}
    metrics: dict[str, float] = {}
    for name, of in (("std", np.std), ("max", np.max), ("mean", np.mean)):
        metrics[f"rollout/in_group_{name}"] = float(np.mean([of(value) for value in values.values()]))
        if chosen:
            metrics[f"rollout/chosen_in_group_{name}"] = float(np.mean([of(values[group]) for group in chosen]))
    metrics["rollout/kept"] = len(chosen) / len(groups)
    metrics["rollout/zero_std"] = float(np.mean([np.ptp(value) <= _EQUAL for value in values.values()]))
    return metrics
