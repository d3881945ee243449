"""The PPO update side by side with the original's way of doing it.

    python benchmarks/ppo.py
    python benchmarks/ppo.py --repeats 5 --json ppo.json

All learn from the same recorded episodes, one optimizer step for the actor and one for the critic: old log-probs, values, GAE,
whitening, both losses, backward, clipping, AdamW. Rollouts are not in it. Each repeat is a process of its own and the contestants
take turns. A token counts once for every row it is in, padding never. Their losses are compared: they do the same work.

    spa                spa.rl.update.update with a critic of its own, as the original has; old log-probs are the sampler's
    spa-recompute      the same with old log-probs computed again, as the original must
    spa-small          as spa, with 1,024 tokens in a forward pass instead of 8,192: less memory
    spa-head           the same with a value head on the shared trunk (one network instead of two; another algorithm)
    original           verl's and RAGEN's way at the original's settings: rows left-padded to the longest of the batch, one row
                       a forward pass, a pass of its own for old log-probs, logits and log-softmax over the whole vocabulary at
                       every position
    original-ragged    the same without the padding, which it does not have: each row at its own length

    spa-compile, spa-bf16   (if asked for) as spa with ppo.compile, and with ppo.precision=bfloat16: nearly the same losses

``large vocabulary`` is the same model with 50,000 words and random weights, where logits are most of the memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import finish, lines, run, summary, take_turns

CONTESTANTS = ("spa", "spa-recompute", "spa-small", "spa-head", "original", "original-ragged")
OTHERS = ("spa-head", "spa-bf16")  # do not compute the same losses
SAME = ("policy_loss", "value_loss", "entropy")
SHORT = ["agent.style=terse", "agent.window=1"]
LONG = ["agent.style=paper", "agent.window=0"]
# name: (config, settings, worlds, episodes of each, words in the vocabulary or 0 for the model's own)
SETS: dict[str, tuple[str, list[str], int, int, int]] = {
    # one turn a row, played by the built-in model
    "short": ("sokoban", SHORT, 16, 8, 0),
    # the whole history in the paper's words, played at random: episodes of one to five turns
    "long": ("frozen_lake", [*LONG, "selfplay.policy=random"], 8, 8, 0),
    "large vocabulary": ("sokoban", SHORT, 4, 4, 50_000),
    # for --model: few rows
    "real": ("frozen_lake", ["agent.style=paper", "agent.window=1", "selfplay.policy=random"], 2, 4, 0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--updates", type=int, default=1, help="updates timed, after one that is not")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--sets", default="short,long,large vocabulary", help="short, long, large vocabulary, real")
    parser.add_argument("--model", default="builtin:tiny")
    parser.add_argument("--peers", default=",".join(CONTESTANTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--prepare", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        name, folder = options.prepare
        print(json.dumps(prepare(Path(folder), options.model, *SETS[name])))
        return
    peers = options.peers.split(",")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sets.split(","):
            # In a process of its own: what it used would count as the contestants' memory.
            target = str(Path(folder) / name.replace(" ", "-"))
            command = [sys.executable, __file__, "--model", options.model, "--prepare", name, target]
            data, model, about = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            runs = take_turns(name, peers, options.repeats, measure, data, model, options)
            check_same({peer: found[0] for peer, found in runs.items() if peer not in OTHERS})
            results[name] = {"rows": about, "peers": {peer: summary(found) for peer, found in runs.items()}}
            print(f"\n{name}: {about['rows']} rows, longest {about['longest']} tokens, {about['tokens']} in all")
            print("\n".join(lines(results[name]["peers"])))
    finish(results, options.threads, options.json)


def measure(peer: str, data: str, model: str, options: argparse.Namespace) -> dict[str, float]:
    arguments = [peer, data, model, options.updates, options.threads]
    return run(sys.executable, f"ppo_{peer.partition('-')[0]}.py", arguments, options.threads)


def prepare(
    folder: Path, path: str, config: str, settings: list[str], groups: int, size: int, vocabulary: int
) -> tuple[str, str, dict[str, int]]:
    """Plays episodes once and writes them down; makes the model with the large vocabulary. Returns file, model, description."""
    import torch

    from spa.agent.episode import write_episodes
    from spa.agent.policy import Policy, make_task
    from spa.agent.random_engine import RandomEngine, random_responder
    from spa.agent.worlds import WorldSource
    from spa.config.load import load_config
    from spa.models.load import load_model, resolve_path

    folder.mkdir()
    model = resolve_path(path)
    if vocabulary:
        model = str(folder / "model")
        grow(resolve_path(path), Path(model), vocabulary)
    cfg = load_config(config, [*settings, "sampling.max_tokens=200", f"model.path={path}"])
    policy, task = Policy.load(cfg), make_task(cfg, state_format="coordinates", prompt="world_model")
    if cfg.selfplay.policy == "random":
        policy.engine = RandomEngine(policy.chat, random_responder(task))
    worlds = WorldSource(task, "train", cfg.seeds.train).take(groups)
    episodes = policy.play(task, worlds, samples=size, seed=0)
    for episode in episodes:  # random play seldom wins: without differences there would be no advantages to compare
        episode.turns[-1].reward = float(episode.member % 2)
    # As if the model that is trained had written them.
    scorer = load_model(dataclasses.replace(cfg.model, path=model))
    for sequence in (sequence for episode in episodes for sequence in episode.sequences):
        at = [i for i, sampled in enumerate(sequence.mask) if sampled]
        with torch.no_grad():
            scored = scorer(torch.tensor([sequence.ids])).logits[0, :-1].log_softmax(-1)
        for i in at:
            sequence.logprobs[i] = float(scored[i - 1, sequence.ids[i]])
    write_episodes(folder / "episodes.jsonl", episodes)
    lengths = [len(sequence) for episode in episodes for sequence in episode.sequences]
    about = {"rows": len(lengths), "longest": max(lengths), "tokens": sum(lengths)}
    return str(folder / "episodes.jsonl"), model, about


def grow(source: str, target: Path, vocabulary: int) -> None:
    """A random model like ``source`` with a larger vocabulary, of whose words the tokenizer knows few."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(source)
    config.vocab_size = vocabulary
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(target)
    AutoTokenizer.from_pretrained(source).save_pretrained(target)


def check_same(found: dict[str, dict[str, float]]) -> None:
    for name in SAME:
        values = {peer: one[name] for peer, one in found.items()}
        if max(values.values()) - min(values.values()) > 2e-3 * max(1.0, *map(abs, values.values())):
            raise SystemExit(f"the contestants do not do the same work: {name} is {values}")


if __name__ == "__main__":
    main()
