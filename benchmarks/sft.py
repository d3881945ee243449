"""Stage 2 side by side with TRL's SFTTrainer and with the original code's way of batching.

    python benchmarks/sft.py                 # makes the data and, once, a virtual environment for TRL
    python benchmarks/sft.py --repeats 5 --json sft.json

All train the same model on the same rows (self-play of the built-in model) in the same precision, AdamW and gradient
clipping included, with as many tokens to an optimizer step as can be had alike. Each repeat is a process of its own, and the
contestants take turns, so that a busy moment of the machine hits all of them. A token counts once for every row it is in, and
not if it is padding: rows per second, in other words.

    spa         spa.sft.train.SFTTrainer, turns of an episode merged into one sequence (sft.merge_turns)
    spa-rows    the same with every row a sequence of its own, as for the others
    spa-bf16    (if asked for) as spa-rows with sft.precision=bfloat16
    trl         trl.SFTTrainer, packing=True, loss on the completion, gradient checkpointing off
    trl-padded  the same with packing=False: rows padded to the longest of their batch
    original    rows right-padded to max_length, one row a forward pass, loss over the whole vocabulary at every position
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import finish, lines, make_venv, run, summary, take_turns

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CONTESTANTS = ("spa", "spa-rows", "trl", "trl-padded", "original")
SETS = {
    # one turn a row, short prompts: what the tiny model is trained on
    "short": ["sokoban", "selfplay.groups=64", "selfplay.group_size=4"],
    # the whole history in the paper's words: long rows of very different lengths
    "long": [
        "sokoban",
        "selfplay.groups=32",
        "selfplay.group_size=4",
        "selfplay.policy=random",
        "agent.style=paper",
        "agent.window=0",
    ],
    # for --model: few rows
    "real": [
        "frozen_lake",
        "selfplay.groups=8",
        "selfplay.group_size=4",
        "selfplay.policy=random",
        "agent.style=paper",
        "agent.window=1",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=6, help="optimizer steps timed, after two (original: one) that are not"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--step-tokens", type=int, default=8192, help="tokens to an optimizer step, about")
    parser.add_argument("--sets", default="short,long", help="short, long, real")
    parser.add_argument("--model", default="builtin:tiny")
    parser.add_argument("--peers", default=",".join(CONTESTANTS))
    parser.add_argument("--trl-venv", type=Path, default=HERE / ".venv-trl")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peers = options.peers.split(",")
    if any(peer.startswith("trl") for peer in peers):
        constraints = ["-c", ROOT / "constraints.txt"]
        make_venv(options.trl_venv, [*constraints, "torch"], [*constraints, "trl==1.16.0"])
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sets.split(","):
            data = make_data(Path(folder) / name, SETS[name], options)
            runs = take_turns(name, peers, options.repeats, measure, data, options)
            results[name] = {"rows": describe(data), "peers": {peer: summary(runs[peer]) for peer in peers}}
            rows = results[name]["rows"]
            print(f"\n{name}: {rows['rows']} rows, median {rows['median']:.0f}, longest {rows['longest']} tokens")
            print("\n".join(lines(results[name]["peers"])))
    finish(results, options.threads, options.json)


def make_data(folder: Path, settings: list[str], options: argparse.Namespace) -> Path:
    """Self-play rows of the built-in model as token ids, trained positions and messages: one JSON object a line."""
    command = [
        sys.executable,
        "-m",
        "spa",
        "generate",
        *settings,
        f"model.path={options.model}",
        "--out",
        str(folder),
        "--quiet",
    ]
    subprocess.run(command, check=True)
    from spa.agent.chat import Chat
    from spa.config.schema import SFTConfig
    from spa.data.encode import encode_rows
    from spa.data.layouts import read_rows
    from spa.models.load import load_tokenizer

    rows, *_ = read_rows(folder / "selfplay" / "train.parquet")
    chat = Chat(load_tokenizer(options.model))
    path = folder / "rows.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            try:
                (example,), _ = encode_rows([row], chat, SFTConfig(max_length=options.max_length))
            except ValueError:
                continue  # too long or without a trainable token, for every contestant
            prompt = [{"role": m["role"], "content": m["content"]} for m in row.prompt]
            record = {
                "ids": example.ids,
                "positions": example.positions,
                "prompt": prompt,
                "completion": [{"role": "assistant", "content": row.response}],
            }
            file.write(json.dumps(record) + "\n")
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def describe(path: Path) -> dict[str, float]:
    lengths = sorted(len(row["ids"]) for row in read(path))
    return {"rows": len(lengths), "median": statistics.median(lengths), "longest": lengths[-1], "tokens": sum(lengths)}


def measure(peer: str, data: Path, options: argparse.Namespace) -> dict[str, float]:
    python = str(options.trl_venv / "bin" / "python") if peer.startswith("trl") else sys.executable
    folder = model_folder(options.model)
    arguments = [data, options.steps, options.threads, options.max_length, options.step_tokens, folder, peer]
    return run(python, f"sft_{peer.partition('-')[0]}.py", arguments, options.threads)


def model_folder(model: str) -> Path:
    from spa.models.load import resolve_path

    return Path(resolve_path(model))


if __name__ == "__main__":
    main()
