"""Percentile bootstrap over worlds: the spread to expect on other worlds of the same kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95  # coverage of every interval
_MEASURED = 10  # deviating worlds whose spread is taken as measured
_BLOCK = 2_000_000  # indices drawn at once, so that memory does not grow with resamples x worlds


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its interval, in the unit of the values."""

    mean: float
    low: float
    high: float


def percent(interval: Interval | None, sign: bool = False) -> str:
    """``34.1 [30.2, 38.0]`` in percent; ``sign`` shows a plus (differences, in percentage points). None: ``-``."""
    if interval is None:
        return "-"
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    mean, low, high = (round(100 * x, 1) + 0.0 for x in (interval.mean, interval.low, interval.high))
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" if sign else f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def without_spread(mean: float, worlds: int, least: float, most: float) -> Interval:
    """The 95% interval of a mean whose values are all equal and lie in ``[least, most]``.

    Other worlds may still differ: at each end, a share of them that has a chance of 2.5% to be missed (Clopper-Pearson), by as much
    as the bounds allow. Of shares that are all 0 or all 1, this is the exact interval: with 256 worlds its other end is 1.4
    points away, with 8 worlds 36.9. Without bounds the interval has no width.
    """
    if np.isinf([least, most]).any():
        return Interval(mean, mean, mean)
    missed = 1 - ((1 - LEVEL) / 2) ** (1 / worlds)
    return Interval(mean, mean - missed * (mean - least), mean + missed * (most - mean))


def covering_missed(interval: Interval, values: NDArray[np.float64], least: float, most: float) -> Interval:
    """``interval``, or further where as many worlds as can just be missed (``without_spread``) would move its ends further.

    Few deviating worlds say as little of how many were missed as none do: without this, losing one world of 256 would raise the
    lower end. Missed worlds may deviate as far as the bounds allow; where ten or more worlds deviate from the median (the usual
    rule for a normal approximation of a share), no further from the mean than the furthest of them.
    """
    mean, far = interval.mean, np.abs(values - np.median(values))
    if np.count_nonzero(far > 1e-9) >= _MEASURED:
        least, most = max(least, mean - far.max()), min(most, mean + far.max())
    exact = without_spread(mean, len(values), least, most)
    return Interval(mean, min(interval.low, exact.low), max(interval.high, exact.high))


def bootstrap_mean(
    values: ArrayLike, num_resamples: int = 2000, seed: int = 0, *, least: float = -np.inf, most: float = np.inf
) -> Interval:
    """Mean of ``values`` with its 95% percentile bootstrap interval over worlds.

    Worlds, not samples, are drawn with replacement: samples of one world are not independent. The same arguments give the
    same interval. With one world or equal values it is that of ``without_spread``; near a bound, or where few worlds deviate, see
    ``covering_missed``.

    Given the differences of two variants on the *same* worlds, it is the interval of a paired difference: world difficulty
    cancels out, and the interval is usually much narrower than the variants' own intervals suggest.

    Args:
        values: float (worlds,), finite, at least one; e.g. Pass@k of each world.
        num_resamples: number of bootstrap samples, at least 1.
        seed: of the resampling.
        least, most: bounds of the values: 0 and 1 for shares, -1 and 1 for their differences.

    Raises:
        ValueError: other values.
    """
    array = np.asarray(values, dtype=np.float64)
    worlds = array.size
    if array.ndim != 1 or not worlds or not np.isfinite(array).all() or num_resamples < 1:
        raise ValueError(
            f"the bootstrap needs finite values (worlds,) and num_resamples from 1, got shape {array.shape} with "
            f"{np.count_nonzero(~np.isfinite(array))} not finite, num_resamples={num_resamples}"
        )
    # One world, or identical worlds, carry no information about the spread: rounding must not invent one.
    if np.ptp(array) == 0:
        return without_spread(float(array[0]), worlds, least, most)
    rng = np.random.default_rng(seed)
    rows = max(1, _BLOCK // worlds)
    sizes = [min(rows, num_resamples - start) for start in range(0, num_resamples, rows)]
    means = np.concatenate([array[rng.integers(0, worlds, size=(size, worlds))].mean(axis=1) for size in sizes])
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return covering_missed(Interval(float(array.mean()), float(low), float(high)), array, least, most)
