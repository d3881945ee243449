"""Percentile bootstrap over worlds: the spread to expect on other worlds of the same kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95  # coverage of every interval
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


def _vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be one number a world, at least one world; got the shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite")
    return array


def _weights(weights: ArrayLike | None, like: NDArray[np.float64]) -> NDArray[np.float64]:
    if weights is None:
        return np.ones_like(like)
    array = _vector("weights", weights)
    if array.shape != like.shape or np.any(array <= 0):
        raise ValueError("weights must be one positive number a world")
    return array


def _interval(
    terms: list[tuple[float, NDArray[np.float64], NDArray[np.float64]]], num_resamples: int, seed: int
) -> Interval:
    """Bootstraps ``sum_i sign_i * weighted mean_i``; all terms see the same resampled worlds."""
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, not {num_resamples}")
    mean = sum(sign * float(np.average(values, weights=weights)) for sign, values, weights in terms)
    worlds = terms[0][1].size
    # One world, or identical worlds, carry no information about the spread: rounding must not invent one.
    if all(np.ptp(values) == 0 for _, values, _ in terms):
        mean = sum(sign * float(values[0]) for sign, values, _ in terms)
        return Interval(mean, mean, mean)
    rng = np.random.default_rng(seed)
    draws = np.zeros(num_resamples)
    rows = max(1, _BLOCK // worlds)
    for start in range(0, num_resamples, rows):
        size = min(rows, num_resamples - start)
        index = rng.integers(0, worlds, size=(size, worlds))
        for sign, values, weights in terms:
            w = weights[index]
            draws[start : start + size] += sign * (values[index] * w).sum(axis=1) / w.sum(axis=1)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(mean, float(low), float(high))


def bootstrap_mean(
    values: ArrayLike, num_resamples: int = 2000, seed: int = 0, weights: ArrayLike | None = None
) -> Interval:
    """Mean of ``values`` with its 95% percentile bootstrap interval over worlds.

    Worlds, not samples, are drawn with replacement: samples of one world are not independent. The same arguments give the
    same interval. With one world, or when all values are equal, the interval has no width: the spread is unknown, not zero.

    Args:
        values: float (worlds,), e.g. Pass@k of each world.
        num_resamples: number of bootstrap samples.
        seed: of the resampling.
        weights: float (worlds,), positive; ``sum(w * v) / sum(w)`` is estimated. None: equal weights.

    Raises:
        ValueError: no world, a value that is not finite, a wrong shape, or ``num_resamples`` below 1.
    """
    array = _vector("values", values)
    return _interval([(1.0, array, _weights(weights, array))], num_resamples, seed)


def bootstrap_difference(
    values: ArrayLike,
    baseline: ArrayLike,
    num_resamples: int = 2000,
    seed: int = 0,
    weights: ArrayLike | None = None,
    baseline_weights: ArrayLike | None = None,
) -> Interval:
    """``mean(values) - mean(baseline)`` of two variants on the *same* worlds, in the same order.

    Both variants share each resample of worlds, so that world difficulty cancels out. The interval is usually much narrower than
    the variants' own intervals suggest.

    Args:
        values: float (worlds,) of one variant; ``weights`` as in ``bootstrap_mean``.
        baseline: float (worlds,) of the other; ``baseline_weights`` likewise.

    Raises:
        ValueError: as ``bootstrap_mean``, or the variants have different numbers of worlds.
    """
    a, b = _vector("values", values), _vector("baseline", baseline)
    if a.shape != b.shape:
        raise ValueError(f"a paired difference needs the same worlds: {a.size} and {b.size}")
    terms = [(1.0, a, _weights(weights, a)), (-1.0, b, _weights(baseline_weights, b))]
    return _interval(terms, num_resamples, seed)
