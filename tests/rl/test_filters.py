"""Which groups are kept, and what is logged of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spa.agent.episode import Episode, Turn
from spa.config.load import load_config
from spa.config.schema import PPOConfig
from spa.rl.filters import choose_groups, filter_metrics, group_indices, informative, select_groups
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


def selected(groups: list[list[int]], tasks: list[int], **ppo: object) -> list[int]:
    episodes = batch(groups)
    scores = [episode.score for episode in episodes]
    return select_groups(group_indices(episodes), scores, [tasks[e.group] for e in episodes], PPOConfig(**ppo))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("std", [0, 2]), ("std_rev", [1, 3]), ("max_mean", [0, 2]), ("top_p", [0, 2]), ("off", [0, 1, 2, 3])],
)
def test_groups_compete_within_their_task_alone(kind: str, expected: list[int]) -> None:
    groups, tasks = [[0, 10], [0, 8], [0, 1], [1, 1]], [0, 0, 1, 1]
    assert selected(groups, tasks, filter=kind, filter_ratio=0.5) == expected


@pytest.mark.parametrize(
    ("sizes", "ratio", "kept"),
    [
        ([11, 11, 10], 0.25, [3, 3, 2]),
        ([21, 11], 0.25, [5, 3]),
        ([3, 1], 0.5, [1, 1]),
        ([30, 1, 1], 0.05, [1, 1, 1]),
        ([6, 6], 1.0, [6, 6]),
    ],
)
def test_tasks_share_the_kept_groups_in_proportion(sizes: list[int], ratio: float, kept: list[int]) -> None:
    tasks = [task for task, size in enumerate(sizes) for _ in range(size)]
    found = selected([[0, 1 + n] for n in range(sum(sizes))], tasks, filter="std", filter_ratio=ratio)
    assert [sum(tasks[group] == task for group in found) for task in range(len(sizes))] == kept


def test_dynamic_sampling_keeps_each_tasks_share() -> None:
    groups, tasks = [[0, 9]] * 4 + [[0, 1], [1, 1], [0, 1]], [0] * 4 + [1] * 3
    assert selected(groups, tasks, dynamic_groups=3) == [0, 1, 4]
    assert selected([[0, 9]] * 8 + [[0, 1]] * 4, [0] * 8 + [1] * 4, dynamic_groups=6) == [0, 1, 2, 3, 8, 9]
    assert selected(groups, tasks, dynamic_groups=9) == [0, 1, 2, 3, 4, 6]
    assert selected(groups[:4], tasks, dynamic_groups=3) == [0, 1, 2]
    assert selected([[0, 9]] * 9 + [[0, 1]], [0] * 9 + [1], dynamic_groups=3) == [0, 1, 9], "a task that seldom wins"


@given(SCORES, st.sampled_from(["std", "std_rev", "max_mean", "top_p", "off"]), st.floats(0.05, 1))
def test_a_single_task_is_filtered_as_a_whole(groups: list[list[int]], kind: str, ratio: float) -> None:
    episodes = batch(groups)
    count = max(1, int(ratio * len(groups)))
    whole = choose_groups(group_indices(episodes), [e.score for e in episodes], kind, ratio, count)
    assert selected(groups, [0] * len(groups), filter=kind, filter_ratio=ratio) == whole


@pytest.mark.parametrize("kind", ["std", "std_rev", "max_mean", "top_p"])
def test_a_filter_needs_two_episodes_of_a_world(kind: str) -> None:
    message = f"ppo.filter={kind} compares .*: set ppo.group_size to 2 or more, or ppo.filter=off"
    with pytest.raises(ValueError, match=message):
        load_config("sokoban", ["ppo.group_size=1", f"ppo.filter={kind}", "ppo.filter_ratio=0.5"])


@pytest.mark.parametrize("setting", ["ppo.filter=off", "ppo.filter_ratio=1"])
def test_one_episode_of_a_world_is_enough_where_all_groups_are_kept(setting: str) -> None:
    assert load_config("sokoban", ["ppo.filter_ratio=0.5", "ppo.group_size=1", setting]).ppo.group_size == 1


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
