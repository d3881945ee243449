"""Pass@k: the chance that at least one of k tries at a world succeeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pass_at_k(successes: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Unbiased estimate of Pass@k for every world: ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, arXiv 2107.03374).

    With ``n`` samples of a world, ``c`` of them successful, the estimate is the share of k-subsets of the samples that contain
    a success. It is computed as ``1 - prod_{j<k} (n - c - j) / (n - j)``, whose factors lie in [0, 1], so that nothing
    overflows. Pass@1 is ``c / n``.

    Args:
        successes: int (worlds,), successful samples of each world, ``0 <= c <= n``.
        samples: int (worlds,), samples of each world.
        k: number of tries, at least 1 and at most the smallest ``n``.

    Returns:
        float64 (worlds,), each in [0, 1].

    Raises:
        ValueError: ``k`` is out of range, the arrays differ in shape or are not whole numbers, or some ``c`` is not in
            ``[0, n]``.
    """
    c, n = np.asarray(successes), np.asarray(samples)
    if c.ndim != 1 or c.shape != n.shape:
        raise ValueError(f"successes and samples must be two arrays (worlds,), not {c.shape} and {n.shape}")
    if c.size and not (np.issubdtype(c.dtype, np.integer) and np.issubdtype(n.dtype, np.integer)):
        raise ValueError(f"successes and samples must be whole numbers, not {c.dtype} and {n.dtype}")
    if np.any(c < 0) or np.any(c > n):
        raise ValueError("every world needs 0 <= successes <= samples")
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if c.size and k > n.min():
        raise ValueError(f"Pass@{k} needs at least {k} samples of every world; the fewest are {n.min()}")
    if k == 1:
        return np.asarray(c / n, dtype=np.float64)
    miss = np.ones(c.shape, dtype=np.float64)
    for j in range(k):
        miss *= np.maximum(n - c - j, 0) / (n - j)
    return 1.0 - miss
