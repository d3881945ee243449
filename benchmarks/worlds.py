"""Worlds side by side with the libraries that they come from: rooms, moves and whole episodes a second.

    python benchmarks/worlds.py                     # gym-sokoban in a virtual environment of its own, made once (NumPy 1)
    python benchmarks/worlds.py --peers spa,gymnasium

    rooms      Sokoban rooms made: ours by `spa.envs.sokoban.generator.make_room`, theirs by `generate_room`, once a seed
    moves      of a 6x6 Sokoban with one box: ours give the state as text, theirs as the smallest picture that they have
    lakes      a 4x4 FrozenLake with a fresh random map, slippery, and ten moves, with the state as text;
               from its start again where an episode ends
    256 x 10   ten moves in each of 256 Sokoban worlds, a rollout's worth

One thread. Each repeat is a process of its own, and the contestants take turns.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import HERE, finish, make_venv, run, summary, take_turns

# what is counted: contestants and how often each does it
COUNTS: dict[str, dict[str, int]] = {
    "rooms 6x6, 1 box": {"spa": 3000, "gym-sokoban": 200},
    "rooms 10x10, 2 boxes": {"spa": 300, "gym-sokoban": 12},
    "moves": {"spa": 100_000, "gym-sokoban": 5000},
    "lakes": {"spa": 5000, "gymnasium": 1000},
    "256 x 10": {"spa": 20},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="accepted because make bench passes it; worlds use one")
    parser.add_argument("--peers", default="spa,gym-sokoban,gymnasium")
    parser.add_argument("--gym-venv", type=Path, default=HERE / ".venv-gym-sokoban")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peers = options.peers.split(",")
    if "gym-sokoban" in peers:
        make_venv(options.gym_venv, ["gym-sokoban==0.0.6", "numpy<2", "setuptools<81"])
    results = {}
    print(f"{'':22}{'peer':14}{'a second':>10}{'spread':>20}{'spa is':>10}")
    for kind, counts in COUNTS.items():
        chosen = [peer for peer in counts if peer in peers]
        runs = take_turns(kind, chosen, options.repeats, measure, kind, options.gym_venv)
        found = {peer: summary(each) for peer, each in runs.items()}
        results[kind] = {"peers": found}
        for peer, values in found.items():
            ratio = found["spa"]["per_second"] / values["per_second"] if "spa" in found else float("nan")
            spread = f"{values['lowest']:.0f} - {values['highest']:.0f}"
            print(f"{kind:22}{peer:14}{values['per_second']:>10.0f}{spread:>20}{ratio:>9.1f}x")
    batch = results["256 x 10"]["peers"].get("spa")
    if batch:
        print(f"256 worlds, 10 moves each: {1000 / batch['per_second']:.1f} ms")
    finish(results, 1, options.json)


def measure(peer: str, kind: str, gym_venv: Path) -> dict[str, float]:
    python = str(gym_venv / "bin" / "python") if peer == "gym-sokoban" else sys.executable
    return run(python, "worlds.py", [peer, kind, COUNTS[kind][peer]], 1)


if __name__ == "__main__":
    main()
