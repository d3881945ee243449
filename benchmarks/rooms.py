"""How hard the Sokoban rooms are: the share that cannot be solved within an episode's actions, and the moves and pushes needed.

    python benchmarks/rooms.py                # 2000 rooms of each kind, seeds 0, 1, ...: about a minute
    python benchmarks/rooms.py --rooms 200 --actions 10

The rooms are made as the original makes them (`spa.envs.sokoban.generator`), without a limit. A breadth-first search tells whether
a room has a solution of at most so many moves: there is no shorter one that it could miss.
"""

from __future__ import annotations

import argparse
from math import sqrt

from spa.envs.sokoban.generator import RoomSpec, make_room, min_pushes, solve

KINDS = {
    "6x6, 1 box": RoomSpec(6, 6, 1),
    "6x6, 2 boxes, search_depth 30": RoomSpec(6, 6, 2, 30),
    "6x6, 2 boxes": RoomSpec(6, 6, 2),
    "10x10, 2 boxes": RoomSpec(10, 10, 2),
}
EXACT = 60  # moves up to which the shortest solution is looked for: beyond, a room of 10x10 takes seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", type=int, default=2000, help="rooms of each kind")
    parser.add_argument("--actions", type=int, default=10, help="actions of an episode")
    options = parser.parse_args()
    print(f"{'':32}{f'not within {options.actions}':>24}{'median moves':>14}{'median pushes':>15}")
    for kind, spec in KINDS.items():
        rooms = [make_room(spec, seed) for seed in range(options.rooms)]
        low, share, high = wilson(sum(solve(room, options.actions) is None for room in rooms), len(rooms))
        sample = rooms[:200]
        moves = median([len(found) if (found := solve(room, EXACT)) is not None else EXACT for room in sample])
        pushes = median([min_pushes(room) or 0 for room in sample])
        shown = f"{share:.1%} ({low:.1%} - {high:.1%})"
        print(f"{kind:32}{shown:>24}{moves:>14}{pushes:>15}")


def wilson(count: int, total: int) -> tuple[float, float, float]:
    """A share between the ends of its 95% interval."""
    z = 1.96
    share = count / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(centre - half, 0.0), share, centre + half


def median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
