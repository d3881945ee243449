"""How long `spa view` takes to start on many runs: makes 50 runs with 100,000 episodes and asks for the first pages.

    python benchmarks/view.py
    python benchmarks/view.py --runs 200 --episodes 2000

Prints the seconds from the start of `spa view` to the list of runs, to the list again, and to a run's page; and the
seconds of processor time of each, which a busy machine does not change.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from spa.agent.episode import Episode, Turn
from spa.config.load import load_config
from spa.evaluate.summary import EvalResult
from spa.runs.folder import RunFolder


def ask(root: Path) -> None:
    """Starts `spa view`, asks for its pages and prints the times since its start."""
    started = time.time()
    server = subprocess.Popen(
        [sys.executable, "-m", "spa", "view", str(root), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = re.search(r"http://\S+", server.stdout.readline())[0]
        process = psutil.Process(server.pid)

        def get(title: str, path: str) -> str:
            text = urllib.request.urlopen(url + path).read().decode()
            used = process.cpu_times()
            print(f"{title}: {time.time() - started:.2f} s, processor {used.user + used.system:.2f} s since the start")
            return text

        page = get("list of runs", "/")
        get("list again", "/list")
        get("a run's page", page.split('href="')[2].split('"')[0] + "/report")
    finally:
        server.terminate()
        server.wait()


def make(root: Path, runs: int, episodes: int, steps: int) -> None:
    """Finished runs of two variants; a twentieth of the episodes belongs to the evaluation, the rest to stages 1 and 3."""
    grid = "#P_\n_#G\n" * 4
    turn = Turn(0, grid, "state" * 30, "<think>go</think>" * 20, grid, actions=["Down"], executed=["Down"])
    cfg = load_config("frozen_lake")
    for number in range(runs):
        folder = root / f"run-{number:03d}"
        run = RunFolder(folder).open(cfg, "run", resume=False)
        played = [
            Episode("FrozenLake", seed, seed, turns=[turn] * 8, success=seed % 3 == 0) for seed in range(episodes // 20)
        ]
        lines = "".join(episode.to_json() + "\n" for episode in played)
        (folder / "selfplay").mkdir()
        (folder / "selfplay" / "episodes.jsonl").write_text(lines * 9)
        for name in ("vanilla", "spa"):
            ppo, evaluation = folder / "variants" / name / "ppo", folder / "variants" / name / "eval"
            (ppo / "episodes").mkdir(parents=True)
            evaluation.mkdir()
            for step in range(100):
                (ppo / "episodes" / f"step_{step:06d}.jsonl").write_text(
                    "\n".join(lines.splitlines()[: episodes // 400])
                )
            rows = (
                {"step": s, "time": 0.0, "val/pass@1": s / steps, **{f"m{i}": 0.1 for i in range(60)}}
                for s in range(steps)
            )
            (ppo / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (evaluation / "episodes.jsonl").write_text(lines)
            EvalResult.from_episodes(name, played, [1], 10).write(evaluation / "result.json")
        run.close(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--episodes", type=int, default=2000, help="of each run")
    parser.add_argument("--steps", type=int, default=500, help="rows of each metrics.jsonl")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), options.runs, options.episodes, options.steps)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        print(f"{options.runs} runs, {options.runs * options.episodes:,} episodes, {size / 1e9:.2f} GB")
        ask(Path(folder))


if __name__ == "__main__":
    main()
