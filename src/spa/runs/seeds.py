"""Random streams of a run. Every use of randomness is seeded by (seeds.run, purpose, step): resuming needs no saved state."""

from __future__ import annotations

import numpy as np

SELFPLAY, ROLLOUT, UPDATE, VAL, EVAL, PROBE, AUXILIARY = range(1, 8)


def stream_seed(run: int, purpose: int, step: int) -> int:
    """A 63-bit seed for one purpose at one step of a run."""
    state = np.random.SeedSequence([run, purpose, step]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
