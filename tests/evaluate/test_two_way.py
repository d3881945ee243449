"""Intervals over seeds and worlds: their coverage of a simulated truth, and formulas worked out another way.

``PYTHONPATH=src python -m tests.evaluate.test_two_way`` prints the coverage that docs/evaluation.md shows.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from spa.evaluate.bootstrap import Interval, bootstrap_mean, without_spread
from spa.evaluate.two_way import two_groups, two_way

WORLDS = 256


def tables(seed: int, count: int, seeds: int, spread: float, world: float, rest: float) -> np.ndarray:
    """``count`` tables (seeds, worlds) around 0: a training run's luck, a world's difficulty, and everything else."""
    rng = np.random.default_rng(seed)
    table = rng.normal(0, rest, (count, seeds, WORLDS))
    return table + rng.normal(0, spread, (count, seeds, 1)) + rng.normal(0, world, (count, 1, WORLDS))


# Deviations of worlds and of the rest as runs of the built-in model have them: Pass@1, and a difference of two.
KINDS = {"variant": (0.35, 0.2), "difference": (0.15, 0.3)}
SPREADS, SEEDS = (0.02, 0.044, 0.1), (3, 6, 12)


def coverage(count: int, seeds: int, spread: float, kind: str) -> float:
    intervals = [two_way(table) for table in tables(seeds, count, seeds, spread, *KINDS[kind])]
    return float(np.mean([interval.low <= 0 <= interval.high for interval in intervals]))


def bootstrap_coverage(count: int, spread: float, kind: str) -> float:
    """Of a percentile bootstrap over three seeds and the worlds, as docs/evaluation.md reports it."""
    covered = 0
    for number, values in enumerate(tables(0, count, 3, spread, *KINDS[kind])):
        rng = np.random.default_rng(number)
        means = [values[rng.integers(0, 3, 3)][:, rng.integers(0, WORLDS, WORLDS)].mean() for _ in range(400)]
        low, high = np.quantile(means, [0.025, 0.975])
        covered += low <= 0 <= high
    return covered / count


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("seeds", SEEDS)
def test_the_interval_covers_what_it_claims(seeds: int, spread: float, kind: str) -> None:
    covered = coverage(1500, seeds, spread, kind)
    assert 0.93 - 0.006 <= covered <= 0.97 + 0.006, "the standard error of 1,500 tables is .006"


def satterthwaite(values: np.ndarray) -> tuple[float, float]:
    """Half the width by the two-way variance alone, and by t over the seeds' means alone."""
    S, W = values.shape
    rows, columns, mean = values.mean(axis=1, keepdims=True), values.mean(axis=0, keepdims=True), values.mean()
    squares = [
        W * ((rows - mean) ** 2).sum(),
        S * ((columns - mean) ** 2).sum(),
        ((values - rows - columns + mean) ** 2).sum(),
    ]
    freedoms = [S - 1, W - 1, (S - 1) * (W - 1)]
    ms = [square / freedom for square, freedom in zip(squares, freedoms, strict=True)]
    total = max(ms[0] + ms[1] - ms[2], ms[0], ms[2])
    freedom = total**2 / sum(m**2 / f for m, f in zip(ms, freedoms, strict=True))
    over_seeds = stats.t.ppf(0.975, S - 1) * stats.sem(values.mean(axis=1))
    return stats.t.ppf(0.975, freedom) * np.sqrt(total / values.size), over_seeds


def test_seeds_that_agree_by_chance_leave_the_noise_of_the_rest() -> None:
    interval = two_way(np.array([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0]]))
    assert interval.mean == 0.75 and interval.low < 0.5 and interval.high > 1.0


def test_bimodal_seeds_are_covered_less_and_are_said_to_be_bimodal() -> None:
    rng = np.random.default_rng(0)
    covered = seen = 0
    for _ in range(400):
        means = rng.choice([-0.2, 0.2], 3)
        values = means[:, None] + rng.normal(0, 0.3, (3, WORLDS))
        interval = two_way(values)
        covered += interval.low <= 0 <= interval.high
        seen += two_groups([float(row.mean()) for row in values]) is not None
    assert covered / 400 < 0.9, "no formula makes up for three seeds that all did the same"
    assert seen / 400 == pytest.approx(0.75, abs=0.08), "three in four draws have both kinds"


def test_against_formulas_worked_out_by_hand() -> None:
    for seed in range(5):
        values = tables(seed, 1, 4, 0.05, 0.2, 0.2)[0, :, :30] + 0.5
        interval = two_way(values)
        assert interval.mean == pytest.approx(values.mean())
        assert interval.high - interval.mean == pytest.approx(max(satterthwaite(values)))
        assert interval.mean - interval.low == pytest.approx(interval.high - interval.mean)


def test_worlds_that_agree_by_chance_leave_the_spread_of_a_seed() -> None:
    """Every world has the same mean, so the noise of the rest is subtracted from nothing."""
    noise = np.where(np.indices((4, 30)).sum(axis=0) % 2, 0.1, -0.1)
    values = 0.5 + noise + np.array([-0.06, 0.02, 0.02, 0.02])[:, None]
    interval = two_way(values)
    assert interval.high - interval.mean == pytest.approx(max(satterthwaite(values)))


def test_the_published_differences_that_did_not_carry() -> None:
    """Sokoban within eight moves, seeds 40 to 42: +10.8 [4.6, 16.8] by the bootstrap; the seeds alone leave 0 inside."""
    by_seed = np.array([55.4 - 42.7, 54.5 - 48.8, 56.0 - 42.0]) / 100
    interval = two_way(np.repeat(by_seed[:, None], WORLDS, axis=1))
    assert [100 * interval.low, 100 * interval.high] == pytest.approx([-0.3, 21.9], abs=0.1)


def test_one_seed_is_an_interval_over_worlds() -> None:
    values = np.random.default_rng(0).random((1, 50))
    interval = two_way(values)
    half = stats.t.ppf(0.975, 49) * stats.sem(values[0])
    assert [interval.low, interval.high] == pytest.approx([values.mean() - half, values.mean() + half])


def test_an_interval_of_shares_ends_where_shares_end() -> None:
    values = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    free, cut = two_way(values), two_way(values, 0, 1)
    assert free.low < 0 < 1 < free.high
    assert (cut.low, cut.mean, cut.high) == (0, free.mean, 1)


def test_seeds_that_differ_where_worlds_do_not() -> None:
    apart = np.array([[0.0] * 40, [0.5] * 40, [1.0] * 40])
    interval = two_way(apart)
    assert interval.high - interval.mean == pytest.approx(stats.t.ppf(0.975, 2) * 0.5 / np.sqrt(3))
    assert two_way(np.full((3, 4), 0.25)) == Interval(0.25, 0.25, 0.25)


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((0, 3)), np.array([[np.nan]])])
def test_no_table(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="table"):
        two_way(bad)


def test_two_groups() -> None:
    lake = [15.2, 22.7, 50.0, 19.7, 55.6, 14.4, 14.2, 59.5, 14.3, 16.2, 25.7, 27.3]
    groups = two_groups([value / 100 for value in lake])
    assert groups is not None
    assert [len(group) for group in groups] == [9, 3]
    assert two_groups([0.1, 0.6]) is None, "two seeds always are two groups"
    assert two_groups([0.40, 0.44, 0.47, 0.41]) is None
    assert two_groups([0.1, 0.2, 0.3, 0.4, 0.5]) is None, "a wide but even spread"
    assert two_groups([0.15, 0.16, 0.55]) == ([0.15, 0.16], [0.55])
    assert two_groups([0.58, 0.698, 0.813]) is None, "the largest gap of three seeds is always half of their range"


@pytest.mark.parametrize(("seeds", "most"), [(3, 0.45), (4, 0.2), *((count, 0.07) for count in (5, 6, 7, 8, 9, 12))])
def test_normal_seeds_seldom_look_like_two_groups(seeds: int, most: float) -> None:
    rng = np.random.default_rng(0)
    flagged = [two_groups(list(rng.normal(0.5, 0.2, seeds))) is not None for _ in range(2000)]
    assert np.mean(flagged) < most


@pytest.mark.parametrize(("worlds", "width"), [(8, 0.3694), (256, 0.0143)])
def test_where_nothing_or_everything_was_won_the_interval_is_the_exact_one(worlds: int, width: float) -> None:
    """SciPy's Clopper-Pearson interval; a bootstrap would say that other worlds cannot differ."""
    from scipy.stats import binomtest

    for share in (0.0, 1.0):
        exact = binomtest(int(share * worlds), worlds).proportion_ci(0.95, "exact")
        for interval in (
            two_way(np.full((3, worlds), share), 0, 1),
            bootstrap_mean(np.full(worlds, share), least=0, most=1),
            without_spread(share, worlds, 0, 1),
        ):
            assert (interval.mean, interval.low, interval.high) == pytest.approx((share, exact.low, exact.high))
            assert interval.high - interval.low == pytest.approx(width, abs=1e-4)
    for difference, low, high in (
        (0.0, -width, width),
        (1.0, 1 - 2 * width, 1.0),
        (0.125, 0.125 - 1.125 * width, 0.125 + 0.875 * width),
    ):
        for interval in (
            two_way(np.full((3, worlds), difference), -1, 1),
            bootstrap_mean(np.full(worlds, difference), least=-1, most=1),
        ):
            assert (interval.mean, interval.low, interval.high) == pytest.approx((difference, low, high), abs=2e-4)


def of_wins(won: int, worlds: int, of: str = "one seed by bootstrap") -> Interval:
    """Of so many won worlds, each with one sample."""
    shares = np.repeat([1.0, 0.0], [won, worlds - won])
    if of == "one seed by bootstrap":
        return bootstrap_mean(shares, least=0, most=1)
    return two_way(np.tile(shares, (1 + (of == "two seeds"), 1)), 0, 1)


def exact_coverage(worlds: int, share: float, of: str = "one seed by bootstrap") -> float:
    """Where each world is won with the chance ``share``."""
    chances = stats.binom.pmf(np.arange(worlds + 1), worlds, share)
    intervals = {int(won): of_wins(int(won), worlds, of) for won in np.flatnonzero(chances > 1e-6)}
    return float(sum(chances[won] for won, each in intervals.items() if each.low <= share <= each.high))


@pytest.mark.parametrize("of", ["one seed by bootstrap", "one seed by t", "two seeds"])
def test_near_the_bounds_intervals_cover_and_a_world_more_won_never_lowers_an_end(of: str) -> None:
    """Without the interval of equal values beside it, one of 95% would cover .86 and .87 here."""
    for worlds, share in ((64, 0.95), (256, 0.98)):
        intervals = [of_wins(won, worlds, of) for won in range(round(0.85 * worlds), worlds + 1)]
        for lower, higher in pairwise(intervals):
            assert lower.low <= higher.low and lower.high <= higher.high
        assert exact_coverage(worlds, share, of) > 0.94


def test_what_was_missed_deviates_no_further_than_many_worlds_that_were_not() -> None:
    """Half the worlds differ, by at most ten points: allowing for worlds apart by 100 would hide any difference below 1.5."""
    rng = np.random.default_rng(0)
    low = rng.choice([-0.1, -0.05, 0.0, 0.05], size=(10, 256), p=[0.1, 0.2, 0.5, 0.2])
    interval = two_way(low, -1, 1)
    assert -0.02 < interval.mean < -0.005 and interval.high < 0
    few = np.zeros((10, 256))
    few[:, :9] = -0.1
    assert two_way(few, -1, 1).high > 0.01, "nine worlds are few"
    few[:, :10] = -1.0
    assert two_way(few, -1, 1).high < 0


if __name__ == "__main__":
    for spread_ in SPREADS:
        for kind_ in KINDS:
            shown = ", ".join(f"{seeds_} seeds {coverage(4000, seeds_, spread_, kind_):.3f}" for seeds_ in SEEDS)
            by_bootstrap = bootstrap_coverage(1000, spread_, kind_)
            print(f"{kind_}, spread {spread_}: {shown}; bootstrap, 3 seeds {by_bootstrap:.3f}")
    for worlds_, share_ in ((64, 0.95), (256, 0.98), (256, 0.95), (64, 0.5)):
        print(f"{share_:.0%} of {worlds_} worlds, one seed by bootstrap: {exact_coverage(worlds_, share_):.3f}")
