"""Random streams of a run, each seeded from seeds.run and from what is drawn (purpose and step): resuming needs no saved state."""

from __future__ import annotations

import numpy as np

from spa.config.schema import SEED_RANGE, SeedConfig

SEEDS_OF_A_RUN = SEED_RANGE // 2  # candidates available to one run in a split
_STRIDE = 309_016_994  # their golden section: spreads the starts of any number of runs

SELFPLAY, ROLLOUT, UPDATE, VAL, EVAL, PROBE, AUXILIARY, PLANNER = range(1, 9)
PRACTICE = 100  # rounds use the numbers after it


def stream_seed(run: int, purpose: int, step: int) -> int:
    """A 63-bit seed for one purpose at one step of a run."""
    state = np.random.SeedSequence([run, purpose, step]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def first_seed(seeds: SeedConfig, split: str) -> int:
    """The first seed of a run's worlds in a split.

    Validation and test worlds are the same for all runs. Self-play and training worlds differ by run, so that the spread over
    runs includes this randomness; run 0 begins at the first seed of the range.
    """
    first: int = getattr(seeds, split)
    return first + (seeds.run * _STRIDE % SEEDS_OF_A_RUN if split in ("selfplay", "train") else 0)
