"""Intervals over seeds and worlds: what they cover, against simulated truth, and against formulas worked out another way."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from spa.evaluate.bootstrap import Interval
from spa.evaluate.two_way import two_groups, two_way

WORLDS = 256


def tables(seed: int, count: int, seeds: int, spread: float, world: float, rest: float) -> np.ndarray:
    """``count`` tables (seeds, worlds) around 0: a training run's luck, a world's difficulty, and everything else."""
    rng = np.random.default_rng(seed)
    table = rng.normal(0, rest, (count, seeds, WORLDS))
    return table + rng.normal(0, spread, (count, seeds, 1)) + rng.normal(0, world, (count, 1, WORLDS))


# Deviations of worlds and of the rest as runs of the built-in model have them: Pass@1 of an arm, and a difference of two arms.
@pytest.mark.parametrize(("world", "rest"), [(0.35, 0.2), (0.15, 0.3)], ids=["arm", "difference"])
@pytest.mark.parametrize("spread", [0.02, 0.044, 0.1])
@pytest.mark.parametrize("seeds", [3, 6, 12])
def test_the_interval_covers_what_it_claims(seeds: int, spread: float, world: float, rest: float) -> None:
    count = 1500
    intervals = [two_way(table) for table in tables(seeds, count, seeds, spread, world, rest)]
    covered = np.mean([found.low <= 0 <= found.high for found in intervals])
    # .93 to .97 and, with three seeds that hardly differ, a little more; the standard error of 1,500 tables is .006.
    assert 0.93 - 0.006 <= covered <= (0.985 if seeds == 3 and spread == 0.02 else 0.97 + 0.006)


def test_a_bootstrap_over_three_seeds_does_not() -> None:
    """What it replaced, in the same simulation: seeds and worlds drawn again, percentiles of the means."""
    covered = 0
    for number, values in enumerate(tables(0, 150, 3, 0.1, 0.15, 0.3)):
        rng = np.random.default_rng(number)
        means = [values[rng.integers(0, 3, 3)][:, rng.integers(0, WORLDS, WORLDS)].mean() for _ in range(400)]
        low, high = np.quantile(means, [0.025, 0.975])
        covered += low <= 0 <= high
    assert covered / 150 < 0.88


def test_bimodal_seeds_are_covered_less_and_are_said_to_be_bimodal() -> None:
    rng = np.random.default_rng(0)
    covered = seen = 0
    for _ in range(400):
        means = rng.choice([-0.2, 0.2], 3)
        values = means[:, None] + rng.normal(0, 0.3, (3, WORLDS))
        found = two_way(values)
        covered += found.low <= 0 <= found.high
        seen += two_groups([float(row.mean()) for row in values]) is not None
    assert covered / 400 < 0.9, "no formula makes up for three seeds that all did the same"
    assert seen / 400 == pytest.approx(0.75, abs=0.08), "three in four draws have both kinds"


def test_against_an_analysis_of_variance() -> None:
    """The mean squares as sums over cells, one by one, and the quantile from scipy.stats."""
    values = tables(3, 1, 4, 0.05, 0.2, 0.2)[0, :, :30] + 0.5
    S, W = values.shape
    mean = values.mean()
    seed_squares = world_squares = rest_squares = 0.0
    for s in range(S):
        for w in range(W):
            row, column = values[s].mean(), values[:, w].mean()
            seed_squares += (row - mean) ** 2
            world_squares += (column - mean) ** 2
            rest_squares += (values[s, w] - row - column + mean) ** 2
    ms = seed_squares / (S - 1), world_squares / (W - 1), rest_squares / ((S - 1) * (W - 1))
    total = ms[0] + ms[1] - ms[2]
    freedom = total**2 / (ms[0] ** 2 / (S - 1) + ms[1] ** 2 / (W - 1) + ms[2] ** 2 / ((S - 1) * (W - 1)))
    two_sided = stats.t.ppf(0.975, freedom) * np.sqrt(total / (S * W))
    by_seed = stats.t.ppf(0.975, S - 1) * stats.sem(values.mean(axis=1))
    found = two_way(values)
    assert found.mean == pytest.approx(mean)
    assert found.high - found.mean == pytest.approx(max(two_sided, by_seed))
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_the_published_differences_that_did_not_carry() -> None:
    """Sokoban within eight moves, seeds 40 to 42: +10.8 [4.6, 16.8] by the bootstrap; the seeds alone leave 0 inside."""
    by_seed = np.array([55.4 - 42.7, 54.5 - 48.8, 56.0 - 42.0]) / 100
    found = two_way(np.repeat(by_seed[:, None], WORLDS, axis=1))
    assert [100 * found.low, 100 * found.high] == pytest.approx([-0.3, 21.9], abs=0.1)


def test_one_seed_is_an_interval_over_worlds() -> None:
    values = np.random.default_rng(0).random((1, 50))
    found = two_way(values)
    half = stats.t.ppf(0.975, 49) * stats.sem(values[0])
    assert [found.low, found.high] == pytest.approx([values.mean() - half, values.mean() + half])


def test_seeds_that_differ_where_worlds_do_not() -> None:
    apart = np.array([[0.0] * 40, [0.5] * 40, [1.0] * 40])
    found = two_way(apart)
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, 2) * 0.5 / np.sqrt(3))
    assert two_way(np.full((3, 4), 0.25)) == Interval(0.25, 0.25, 0.25)


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((0, 3)), np.array([[np.nan]])])
def test_no_table(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="table"):
        two_way(bad)


def test_two_groups() -> None:
    lake = [15.2, 22.7, 50.0, 19.7, 55.6, 14.4, 14.2, 59.5, 14.3, 16.2, 25.7, 27.3]
    found = two_groups([value / 100 for value in lake])
    assert found is not None
    assert [len(group) for group in found] == [9, 3]
    assert two_groups([0.1, 0.6]) is None, "two seeds always are two groups"
    assert two_groups([0.40, 0.44, 0.47, 0.41]) is None
    assert two_groups([0.1, 0.2, 0.3, 0.4, 0.5]) is None, "a wide but even spread"
    rng = np.random.default_rng(0)
    normal = [two_groups(list(rng.normal(0.4, 0.044, 6))) is not None for _ in range(1000)]
    assert np.mean(normal) < 0.05
