"""How many test worlds are a rotation or mirror image of one that a run trains on, by how the splits are kept apart.

    python scripts/mirror_images.py sokoban_easy sokoban frozen_lake frozen_lake_5x5

Counts what a run of seed 0 would meet: 256 test worlds, 96 of self-play and 2,000 of training.
"""

from __future__ import annotations

import sys

from spa.agent.policy import make_task
from spa.agent.worlds import World, WorldSource
from spa.config.load import load_config
from spa.config.seeds import first_seed


def worlds(config: str, disjoint: str, split: str, count: int) -> list[World]:
    cfg = load_config(config, [f"env.disjoint={disjoint}"])
    return WorldSource(make_task(cfg), split, first_seed(cfg.seeds, split), unique=split == "test").take(count)


def main() -> None:
    for config in sys.argv[1:]:
        shares = []
        for disjoint in ("content", "symmetry"):
            test = worlds(config, disjoint, "test", 256)
            met = {
                w.symmetry
                for split, n in (("selfplay", 96), ("train", 2000))
                for w in worlds(config, disjoint, split, n)
            }
            shares.append(f"env.disjoint={disjoint}: {sum(w.symmetry in met for w in test) / len(test):.0%}")
        print(f"{config}: {', '.join(shares)}")


if __name__ == "__main__":
    main()
