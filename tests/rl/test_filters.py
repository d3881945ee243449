"""Which groups are kept, and what is logged of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spa.agent.episode import Episode, Turn
from spa.rl.filters import filter_metrics, group_indices, informative
from tests.rl.tools import filtered

SCORES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=8)


def batch(groups: list[list[int]]) -> list[Episode]:
    return [
        Episode("T", 0, g, turns=[Turn(0, "", "", "", reward=float(s))])
        for g, scores in enumerate(groups)
        for s in scores
    ]


def kept(groups: list[list[int]], kind: str, ratio: float) -> list[int]:
    return list(dict.fromkeys(e.group for e in filtered(batch(groups), ratio, kind)[0]))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("std", [1, 3]), ("std_rev", [0, 2]), ("max_mean", [1, 3]), ("off", [0, 1, 2, 3])],
)
def test_kinds(kind: str, expected: list[int]) -> None:
    assert kept([[1, 1, 1], [0, 0, 3], [2, 2, 2], [0, 2, 2]], kind, 0.5) == expected


def test_max_mean_looks_at_the_best_episode_alone() -> None:
    one_wins, one_loses = [0, 0, 0, 4], [4, 4, 4, 0]
    assert kept([one_loses, one_wins], "std", 0.5) == [0]  # a tie: the earlier
    assert kept([one_loses, one_wins], "max_mean", 0.5) == [1]


def test_top_p_takes_the_fewest_groups_with_the_share_of_the_variance() -> None:
    groups = [[0, 0], [0, 2], [0, 4], [0, 2]]  # variances 0, 1, 4, 1
    assert kept(groups, "top_p", 0.5) == [2]
    assert kept(groups, "top_p", 4 / 6) == [2]
    assert kept(groups, "top_p", 0.7) == [1, 2]
    assert kept(groups, "top_p", 1.0) == [1, 2, 3]
    assert kept([[1, 1], [2, 2]], "top_p", 0.9) == []


@given(SCORES, st.floats(0.05, 1))
def test_top_p_against_trying_all_subsets(groups: list[list[int]], ratio: float) -> None:
    variances = [float(np.var(g)) for g in groups]
    chosen = kept(groups, "top_p", ratio)
    if not sum(variances):
        assert chosen == []
        return
    needed = next(
        k for k in range(1, len(groups) + 1) if sum(sorted(variances)[-k:]) >= ratio * sum(variances) * (1 - 1e-9)
    )
    assert len(chosen) == needed
    assert sum(variances[g] for g in chosen) == pytest.approx(sum(sorted(variances)[-needed:]))


@given(SCORES)
def test_informative_groups_are_those_whose_scores_differ(groups: list[list[int]]) -> None:
    episodes = batch(groups)
    found = informative(group_indices(episodes), [e.score for e in episodes])
    assert found == [g for g, scores in enumerate(groups) if len(set(scores)) > 1]


def test_failed_episodes_are_nowhere() -> None:
    episodes = batch([[0, 9], [1, 1]])
    episodes[1].status = "error"
    assert group_indices(episodes) == {0: [0], 1: [2, 3]}
    assert group_indices([Episode("T", 0, 0, status="error")]) == {}


def test_metrics() -> None:
    episodes = batch([[0, 2], [1, 1], [0, 4]])
    metrics = filter_metrics(group_indices(episodes), [e.score for e in episodes], [2])
    assert metrics == pytest.approx(
        {
            "rollout/in_group_std": 1.0,
            "rollout/in_group_max": 7 / 3,
            "rollout/in_group_mean": 4 / 3,
            "rollout/chosen_in_group_std": 2.0,
            "rollout/chosen_in_group_max": 4.0,
            "rollout/chosen_in_group_mean": 2.0,
            "rollout/kept": 1 / 3,
            "rollout/zero_std": 1 / 3,
        }
    )
    assert filter_metrics({}, [], []) == {"rollout/kept": 0.0}
    assert "rollout/chosen_in_group_std" not in filter_metrics({0: [0]}, [1.0], [])
