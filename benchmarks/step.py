"""A whole PPO step side by side: 256 episodes are played, then actor and critic learn from them.

    python benchmarks/step.py --json step.json

    spa        our engine and our update, the critic a network of its own, as the original has
    spa-head   the same with a value head on the shared trunk
    original   model.generate turn by turn with the whole history read again; rows left-padded to the longest, one a forward pass

Making worlds is not counted. What is outside the network is worlds, tokenizer, sampling, packing, advantages, losses, the optimizer
and the start and end of processes. Rates are per sampled token; each repeat is a process of its own, and the contestants take
turns.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rollout import SETS

from common import finish, lines, run, summary, take_turns

CONTESTANTS = ("spa", "spa-head", "original")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--peers", default=",".join(CONTESTANTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peers = options.peers.split(",")
    results = {}
    for name in options.sets.split(","):
        runs = take_turns(name, peers, options.repeats, measure, SETS[name], options.threads)
        results[name] = {"peers": {peer: summary(found) for peer, found in runs.items()}}
        print(f"\n{name}")
        print("\n".join(lines(results[name]["peers"])))
        for peer, found in results[name]["peers"].items():
            outside = (
                f"; outside the network's forward and backward passes: {found['outside']:.0%} of the step, "
                f"{found['outside_rollout']:.0%} of the rollout, {found['outside_update']:.0%} of the update"
                if "outside" in found
                else ""
            )
            print(f"{peer}: rollout {found['rollout_seconds']:.2f} s, update {found['update_seconds']:.2f} s{outside}")
    finish(results, options.threads, options.json)


def measure(peer: str, setting: list[str], threads: int) -> dict[str, float]:
    return run(sys.executable, "step.py", [peer, threads, *setting], threads)


if __name__ == "__main__":
    main()
