"""A whole PPO step side by side: 256 episodes are played, then actor and critic learn from them.

    python benchmarks/step.py --json step.json

    spa        our engine and our update, the critic a network of its own, as the original has
    spa-head   the same with a value head on the shared trunk
    original   model.generate turn by turn with the whole history read again; rows left-padded to the longest, one a forward pass

Making worlds is not counted. Rates are per sampled token; each repeat is a process of its own, and the contestants take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from common import lines, machine, run, summary
from rollout import SETS

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
        runs: dict[str, list[dict[str, float]]] = {peer: [] for peer in peers}
        for repeat in range(options.repeats):
            for peer in peers:
                runs[peer].append(run(sys.executable, "step.py", [peer, options.threads, *SETS[name]], options.threads))
                print(f"{name} {repeat + 1}/{options.repeats} {peer}: {runs[peer][-1]}", file=sys.stderr)
        results[name] = {peer: summary(found) for peer, found in runs.items()}
        print(f"\n{name}")
        print("\n".join(lines(results[name], "spa")))
        for peer, found in results[name].items():
            print(f"{peer}: rollout {found['rollout_seconds']:.2f} s, update {found['update_seconds']:.2f} s")
    print(json.dumps(machine(options.threads)))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(options.threads), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
