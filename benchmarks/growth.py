"""How the cost of rollouts grows: with episodes at once, turns, length of the context and size of the model.

    python benchmarks/growth.py                                  # the built-in model's shape and larger ones, random weights
    python benchmarks/growth.py --device cuda --dtype bfloat16 --sizes 0.4M,100M,1.5B

Made-up episodes: a first context of random tokens, responses of 32 sampled tokens, further messages of 32. One number varies at a
time, the others stay at 64 episodes, 3 turns, a first context of 256 tokens, the smallest model. ``sampled/s`` are sampled
tokens a second, ``read/s`` all tokens that are new to the cache, ``cache`` what keys and values take at the end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from common import finish
from spa.config.schema import SamplingConfig
from spa.engines.base import Completion
from spa.engines.processes import in_processes
from spa.engines.transformers import TransformersEngine

RESPONSE = MESSAGE = 32
BASE = {"episodes": 64, "turns": 3, "context": 256}
GROWTH = {"episodes": [16, 64, 256, 512], "turns": [1, 3, 10], "context": [256, 1024, 4096]}
# layers, width, heads, heads of keys, inner width, words
SIZES = {
    "0.4M": (2, 128, 4, 1, 256, 512),
    "7M": (6, 256, 8, 2, 768, 2048),
    "100M": (12, 768, 12, 4, 2048, 16_384),
    "1.5B": (28, 1536, 12, 2, 8960, 151_936),  # Qwen2.5-1.5B's
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sizes", default="0.4M,7M,100M")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = options.sizes.split(",")
    rows: list[dict[str, Any]] = []
    print(
        f"{'model':>6}{'episodes':>10}{'turns':>7}{'context':>9}{'seconds':>9}{'sampled/s':>11}{'read/s':>10}{'cache':>10}"
    )
    engine = make(sizes[0], options)
    settings = [
        BASE,
        *({**BASE, name: value} for name, values in GROWTH.items() for value in values if value != BASE[name]),
    ]
    for setting in settings:
        rows.append(measure(engine, sizes[0], setting, options.repeats))
    for size in sizes[1:]:
        rows.append(measure(make(size, options), size, BASE, options.repeats))
    finish(rows, options.threads, options.json)


def make(size: str, options: argparse.Namespace) -> TransformersEngine:
    layers, width, heads, kv_heads, inner, words = SIZES[size]
    config = Qwen2Config(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        vocab_size=words,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(options.device):
        model = Qwen2ForCausalLM(config).to(getattr(torch, options.dtype))
    return TransformersEngine(model.eval(), 0)


def measure(engine: TransformersEngine, size: str, setting: dict[str, int], repeats: int) -> dict[str, Any]:
    words = engine.model.config.vocab_size
    rng = np.random.default_rng(0)
    first = [rng.integers(5, words, size=setting["context"]).tolist() for _ in range(setting["episodes"])]
    message = rng.integers(5, words, size=MESSAGE).tolist()
    sampling = SamplingConfig(max_tokens=RESPONSE, batch_size=512)
    seconds = []
    for repeat in range(repeats + 1):
        contexts, turns = [list(context) for context in first], [0] * len(first)

        def answer(
            session: int, completion: Completion, contexts: Any = contexts, turns: Any = turns
        ) -> list[int] | None:
            turns[session] += 1
            contexts[session] += [*completion.ids, *message]
            return contexts[session] if turns[session] < setting["turns"] else None

        count = engine.split(sampling, len(first), 1)

        def share(
            number: int, contexts: Any = contexts, answer: Any = answer, count: int = count, seed: int = repeat
        ) -> None:
            asked = {session: contexts[session] for session in range(number, len(first), count)}
            with engine.alone(count):
                engine.serve(asked, sampling, stop_ids=frozenset(), seed=seed, on_completion=answer)

        started = time.perf_counter()
        in_processes(share, count)
        seconds.append(time.perf_counter() - started)
    taken = statistics.median(seconds[1:])
    sampled = setting["episodes"] * setting["turns"] * RESPONSE
    length = setting["context"] + setting["turns"] * (RESPONSE + MESSAGE) - MESSAGE
    assert engine.decoder is not None
    cache = setting["episodes"] * length * engine.decoder.bytes_per_token / 2**20
    found = {"model": size, **setting, "seconds": taken, "sampled_per_second": sampled / taken}
    found |= {"read_per_second": setting["episodes"] * length / taken, "cache_mib": cache}
    print(
        f"{size:>6}{setting['episodes']:>10}{setting['turns']:>7}{setting['context']:>9}{taken:>9.2f}"
        f"{found['sampled_per_second']:>11.0f}{found['read_per_second']:>10.0f}{cache:>6.0f} MiB",
        flush=True,
    )
    return found


if __name__ == "__main__":
    main()
