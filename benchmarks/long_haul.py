"""A long stage 3: does memory grow, do steps slow down, how many files and bytes are left?

    python benchmarks/long_haul.py FOLDER                  # 2,000 steps of the built-in model on FrozenLake
    python benchmarks/long_haul.py FOLDER --steps 400      # further arguments are settings: ppo.keep_episodes=10

``spa ppo`` runs in the new FOLDER as a process of its own. After every step its resident memory and
its processor time, after every tenth the files and bytes of the folder go to ``FOLDER.jsonl``. Learning rates are so small that the
policy, and so the work of a step, stays as it is. Compared are the medians of two spans of 100 steps: after the warm-up of 200,
and the last. Steps are measured in processor time, which other processes disturb less, also per token of the update.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from common import finish

SETTINGS = [
    *("frozen_lake", "model=tiny", "model.threads=1", "ppo.groups=2", "ppo.group_size=4", "ppo.epochs=1"),
    *("ppo.mini_batches=2", "ppo.actor_lr=1e-7", "ppo.critic_lr=1e-7", "ppo.val_every=100", "ppo.val_worlds=16"),
    *("ppo.save_every=100", "ppo.keep_episodes=100", "ppo.on_collapse=continue"),
]
WARM_UP, SPAN = 200, 100  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=1, help="ignored: a run is long enough")
    parser.add_argument("--json", type=Path)
    options, settings = parser.parse_known_args()
    rows = Path(f"{options.folder}.jsonl")
    if options.folder.exists() or rows.exists():
        parser.error(f"{options.folder} or {rows} exists: the times of a run in pieces are not those of one")
    command = [sys.executable, "-m", "spa", "ppo", "--variant", "vanilla", *SETTINGS, f"ppo.steps={options.steps}"]
    with open(rows, "w", encoding="utf-8") as file:
        run([*command, *settings, "--out", str(options.folder)], options.folder, file)
    found = summary([json.loads(line) for line in rows.read_text().splitlines()])
    print("\n".join(f"{name:32}{value:>12.4g}" for name, value in found.items()))
    finish(found, 1, options.json)


def run(command: list[str], folder: Path, file: IO[str]) -> None:
    """Runs the command to its end; writes a row for every step."""
    metrics = folder / "variants" / "vanilla" / "ppo" / "metrics.jsonl"
    lines = follow(metrics)
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(0.05)
        for line in lines:
            if line is None:
                break
            row = {
                key: line[key]
                for key in ("step", "time/rollout_s", "time/update_s", "train/sequence_tokens")
                if key in line
            }
            try:
                row |= {"rss_mib": rss(process.pid), "cpu_s": cpu(process.pid)}
            except OSError:  # it has ended
                break
            sizes = (
                [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if line["step"] % 10 == 0 else []
            )
            file.write(json.dumps(row | ({"files": len(sizes), "bytes": sum(sizes)} if sizes else {})) + "\n")
            file.flush()
    if process.returncode:
        raise SystemExit(f"the run ended with exit code {process.returncode}")


def follow(path: Path) -> Iterator[dict[str, Any] | None]:
    """The lines that are appended to a file, None whenever there is no further one yet."""
    while not path.is_file():
        yield None
    with open(path, encoding="utf-8") as file:
        text = ""
        while True:
            text += file.readline()
            if text.endswith("\n"):
                yield json.loads(text)
                text = ""
            else:
                yield None


def rss(pid: int) -> float:
    """Resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu(pid: int) -> float:
    """Seconds of processor time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Memory, seconds a step, files and bytes after the warm-up and at the end."""
    steps = [row for row in rows if "time/update_s" in row]
    last = steps[-1]["step"]
    found: dict[str, float] = {"steps": last}
    spans = {"after_warm_up": WARM_UP, "at_the_end": last - SPAN}
    for name, start in spans.items():
        span = [row for row in steps if start < row["step"] <= start + SPAN]
        pairs = [(a, b) for a, b in itertools.pairwise(steps) if a in span and b in span]
        used = [b["cpu_s"] - a["cpu_s"] for a, b in pairs]
        found[f"rss_mib_{name}"] = statistics.median(row["rss_mib"] for row in span)
        found[f"cpu_seconds_a_step_{name}"] = statistics.median(used)
        found[f"cpu_us_a_token_{name}"] = 1e6 * sum(used) / sum(b["train/sequence_tokens"] for _, b in pairs)
    found["rss_growth_percent"] = 100 * (found["rss_mib_at_the_end"] / found["rss_mib_after_warm_up"] - 1)
    final = next(row for row in reversed(rows) if "files" in row)
    return found | {"files": final["files"], "mib": final["bytes"] / 2**20}


if __name__ == "__main__":
    main()
