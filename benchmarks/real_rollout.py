"""Self-play turns of a real model, side by side: sampled tokens a second of processor time, and memory.

    SPA_REAL_MODEL=FOLDER python benchmarks/real_rollout.py
    SPA_REAL_MODEL=FOLDER python benchmarks/real_rollout.py --vllm-python VENV/bin/python

All continue the same contexts, those of FrozenLake episodes of random play in the paper's words with a window of one turn, eight
episodes a world, by the same number of tokens each turn; loading the model is not counted. Each measurement is a process of its
own, the contestants take turns, and rates are per second of processor time of one thread, so that other jobs disturb them little.

    spa, spa-bf16, spa-int8   the engine of this repository in float32; with bfloat16 weights; with PyTorch's dynamic int8 layers
    generate                  transformers' model.generate, all live episodes one turn at a time
    vllm                      vLLM with its prefix cache, in float32
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from common import finish, lines, run, summary, take_turns

CONTESTANTS = ("spa", "spa-bf16", "spa-int8", "generate")
GROUP = 8  # episodes of a world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("SPA_REAL_MODEL"), help="folder; default: SPA_REAL_MODEL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sets", default="8,64", help="numbers of episodes")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=100, help="sampled each turn")
    parser.add_argument("--peers", default=",".join(CONTESTANTS))
    parser.add_argument("--vllm-python", help="vLLM too, with the Python of an environment that has it and spa")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.model:
        sys.exit("Error: give a model's folder with --model or SPA_REAL_MODEL")
    peers = [*options.peers.split(","), *(["vllm"] if options.vllm_python else [])]
    results = {}
    for name in options.sets.split(","):
        runs = take_turns(f"{name} episodes", peers, options.repeats, measure, int(name), options)
        results[name] = {"peers": {peer: summary(found) for peer, found in runs.items()}}
        any_peer = results[name]["peers"][peers[0]]
        print(f"\n{name} episodes: {any_peer['context']:.0f} tokens of context, {any_peer['sampled']:.0f} sampled")
        print("\n".join(lines(results[name]["peers"])))
    finish(results, options.threads, options.json)


def measure(peer: str, episodes: int, options: argparse.Namespace) -> dict[str, float]:
    python = options.vllm_python if peer == "vllm" else sys.executable
    settings = [f"model.path={options.model}", f"sampling.max_tokens={options.tokens}", "sampling.stop=[]"]
    settings += ["agent.style=paper", "agent.window=1", f"env.max_turns={options.turns}"]
    arguments = [peer, options.threads, "frozen_lake", max(1, episodes // GROUP), min(episodes, GROUP), *settings]
    return run(python, "real_rollout.py", arguments, options.threads)


if __name__ == "__main__":
    main()
