"""Several processes, one run: ranks, launching, sharded weights and checkpoints (docs/ranks.md)."""
