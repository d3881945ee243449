"""How much of a model's self-play can be used, by the settings of stage 1 that help a model into the format.

python benchmarks/cold_start.py FOLDER                         # a Hugging Face model, on its own; hours for a large one
python benchmarks/cold_start.py FOLDER --worlds frozen_lake --settings none,shots --set selfplay.groups=2

kept       share of the turns that selfplay.filter keeps, tries that were rejected not counted as turns
low, high  its 95% interval (Clopper and Pearson)
states     distinct true states in the rows kept, before and after the turn
tries      responses sampled per turn
cpu s      processor seconds of stage 1 in all, with warm-up and loading the model
cpu s/row  of these, for each row kept
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORLDS = ("sokoban", "frozen_lake", "sudoku")
SETTINGS = {
    "none": ["selfplay.tries=1"],
    "shots": ["selfplay.tries=1", "selfplay.shots=2"],
    "tries": ["selfplay.tries=4"],
    "constrained": ["selfplay.tries=1", "selfplay.constrained=true"],
    "warmup": ["selfplay.tries=1", "selfplay.warmup_rows=24"],
    "shots+tries": ["selfplay.tries=4", "selfplay.shots=2"],
    "all": ["selfplay.tries=4", "selfplay.shots=2", "selfplay.warmup_rows=24"],
}
# One turn per episode: with one turn of history, later turns look like first ones.
COMMON = [
    "model.device=cpu",
    "agent.style=paper",
    "agent.window=1",
    "env.max_turns=1",
    "sampling.temperature=0.5",
    "sampling.max_tokens=256",
    "sampling.stop=['</answer>']",
    "selfplay.groups=12",
    "selfplay.group_size=1",
    "selfplay.min_kept=0",
    "selfplay.constrained=false",
    "sft.batch_size=8",
    "sft.lr=1e-4",
]
COLUMNS = {
    "turns": "d",
    "kept": ".3f",
    "low": ".3f",
    "high": ".3f",
    "states": "d",
    "tries": ".2f",
    "cpu s": ".0f",
    "cpu s/row": ".1f",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with a Hugging Face model")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--set", nargs="*", default=[], help="more settings, for all")
    parser.add_argument("--out", type=Path, help="keep the data here, and do not play again what is there")
    parser.add_argument("--one", nargs=2, metavar=("WORLD", "SETTING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(play(options.model, *options.one, options.set, options.out)))
        return
    print(f"{'world':14}{'settings':14}" + "".join(f"{name:>11}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as scratch:
        for world in options.worlds.split(","):
            for setting in options.settings.split(","):
                found = measure(options.out or Path(scratch), world, setting)
                print(
                    f"{world:14}{setting:14}" + "".join(f"{found[name]:>11{form}}" for name, form in COLUMNS.items()),
                    flush=True,
                )


def measure(out: Path, world: str, setting: str) -> dict[str, float]:
    """What ``play`` gives in a process of its own, or gave before."""
    folder = out / f"{world}-{setting}"
    path = folder / "result.json"
    if not path.is_file():
        command = [sys.executable, *sys.argv, "--out", str(folder), "--one", world, setting]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{world}, {setting} failed:\n{done.stderr[-3000:]}")
        path.write_text(done.stdout.splitlines()[-1])
    result: dict[str, float] = json.loads(path.read_text())
    return result


def play(model: str, world: str, setting: str, more: list[str], out: Path) -> dict[str, float]:
    from scipy.stats import binomtest

    from spa.agent.episode import read_episodes
    from spa.config.load import load_config
    from spa.data.ground_truth import rejection
    from spa.sft.selfplay import selfplay

    out.mkdir(parents=True, exist_ok=True)
    cfg = load_config(world, [f"model={model}", *COMMON, *SETTINGS[setting], *more])
    try:
        selfplay(cfg, out)
    except ValueError as error:  # the episodes are there all the same
        if "left no row" not in str(error):
            raise
    seconds = time.process_time()
    turns = [turn for episode in read_episodes(out / "episodes.jsonl") for turn in episode.turns]
    kept = [turn for turn in turns if rejection(turn.response) is None]
    interval = binomtest(len(kept), len(turns)).proportion_ci()
    return {
        "turns": len(turns),
        "kept": len(kept) / len(turns),
        "low": interval.low,
        "high": interval.high,
        "states": len({state for turn in kept for state in (turn.state, turn.next_state)}),
        "tries": sum(turn.tries for turn in turns) / len(turns),
        "cpu s": seconds,
        "cpu s/row": seconds / len(kept) if kept else float("inf"),
    }


if __name__ == "__main__":
    main()
