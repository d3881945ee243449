"""Intervals over training runs (seeds) and worlds: the spread to expect with other seeds and other worlds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spa.evaluate.bootstrap import LEVEL, Interval, covering_missed, without_spread

_GAP = 0.1  # seeds closer together than this are one group, whatever their shape
# Of the range of 3, 4 ... 8, and of more seeds. Two in five normal samples of 3 have a larger gap, one in six of 4, then one in
# twenty. Of 3 every sample has 0.5; with more than 0.75 most samples of two groups would be missed.
_GAP_SHARES = (0.75, 0.75, 0.74, 0.66, 0.60, 0.55, 0.50)


def two_way(values_SW: NDArray[np.float64], least: float = -np.inf, most: float = np.inf) -> Interval:
    """The mean of values of (seeds, worlds) with a 95% t interval for other seeds *and* other worlds.

    The model is ``mean + seed + world + rest`` with independent random effects. With the mean squares of the two-way table,
    ``Var(mean) = (MS_seed + MS_world - MS_rest) / (seeds * worlds)``, with Satterthwaite's degrees of freedom. These are too many
    if a few seeds happen to agree, so the interval is at least as wide as the t interval over the seeds' means alone, and the
    variance at least that of a seed's or of the rest's mean square. In
    simulation (``tests/evaluate/test_two_way.py``) it covers the truth in .94 to .96 of cases with 3, 6 and 12 normal seeds. With
    bimodal seeds, no formula makes up for having too few: see ``two_groups``.

    With one seed the spread over seeds is unknown: the interval is over worlds and describes this run only. Where
    all values are equal it is that of ``without_spread``; where few worlds deviate, see ``covering_missed``.

    Args:
        values_SW: float (seeds, worlds), e.g. Pass@1 of each world in each run, or differences of two variants.
        least, most: bounds of what is estimated (0 and 1 for Pass@k, -1 and 1 for differences); the interval ends there.

    Raises:
        ValueError: not a full table of finite numbers.

    Source: Searle, Casella and McCulloch, Variance Components (1992), chapter 4; Satterthwaite (1946).
    """
    from scipy.special import stdtrit

    values = np.asarray(values_SW, dtype=np.float64)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ValueError(
            f"values must be a table (seeds, worlds) of finite numbers, got the shape {values.shape} "
            f"with {np.count_nonzero(~np.isfinite(values))} not finite"
        )
    seeds, worlds = values.shape
    mean = float(values.mean())
    by_seed, by_world = values.mean(axis=1) - mean, values.mean(axis=0) - mean
    rest = values - mean - by_seed[:, None] - by_world[None, :]
    # (mean square, degrees of freedom) of each part; parts without degrees of freedom are left out.
    ms_seed, df_seed = _mean_square(by_seed, seeds - 1, worlds)
    ms_world, df_world = _mean_square(by_world, worlds - 1, seeds)
    ms_rest, df_rest = _mean_square(rest, (seeds - 1) * (worlds - 1), 1)
    parts = [(ms, df) for ms, df in ((ms_seed, df_seed), (ms_world, df_world), (ms_rest, df_rest)) if df]
    # Estimates of a part can be negative by chance, if worlds or seeds are alike; the noise of the rest remains.
    total = max(ms_seed + ms_world - ms_rest, ms_seed, ms_rest)
    if total <= 0:
        return without_spread(mean, worlds, least, most)
    freedom = total**2 / sum(ms**2 / df for ms, df in parts)
    tail = (1 + LEVEL) / 2
    half = float(stdtrit(freedom, tail)) * np.sqrt(total / values.size)
    if df_seed:
        half = max(half, float(stdtrit(df_seed, tail)) * np.sqrt(ms_seed / values.size))
    ends = Interval(mean, max(least, mean - float(half)), min(most, mean + float(half)))
    return covering_missed(ends, values.mean(axis=0), least, most)


def _mean_square(deviations: NDArray[np.float64], freedom: int, repeats: int) -> tuple[float, int]:
    return (repeats * float((deviations**2).sum()) / freedom if freedom else 0.0), freedom


def two_groups(means: Sequence[float]) -> tuple[list[float], list[float]] | None:
    """The seeds' means in two groups, low and high, if they look bimodal: some runs took off and others did not.

    They do if the largest gap between neighbours is at least ten points, and a larger share of their range than in most
    normal samples of so few (``_GAP_SHARES``). A mean over such seeds mostly reflects how many runs took off, and its interval
    covers less than its nominal level.
    """
    ordered = sorted(float(mean) for mean in means)
    if len(ordered) < 3:
        return None
    gaps = np.diff(ordered)
    at = int(np.argmax(gaps))
    share = _GAP_SHARES[min(len(ordered) - 3, len(_GAP_SHARES) - 1)]
    if gaps[at] < max(_GAP, share * (ordered[-1] - ordered[0])):
        return None
    return ordered[: at + 1], ordered[at + 1 :]
