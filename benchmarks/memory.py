"""The estimate of memory that ``--dry-run`` prints, against the peak of a process that trains.

    python benchmarks/memory.py
    SPA_REAL_MODEL=FOLDER python benchmarks/memory.py --tokens 512      # the rows ``real``, too (SmolLM2-135M-Instruct)

Each row is a process of its own: two optimizer steps of two forward passes of ``--tokens`` tokens, a quarter of them trained, and a
checkpoint; for PPO also a short rollout, and actor and critic are networks of their own. The peak is ``ru_maxrss``, or on a GPU the
memory that the card has in use.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from common import finish, run

LORA = ["model.dtype=bfloat16", "sft.lora_rank=32", "ppo.lora_rank=32", "ppo.critic_lora_rank=32"]
CASES: dict[str, list[str]] = {
    "tiny": ["model=tiny", "ppo.critic=model"],
    "real": ["model.dtype=float32"],
    "real, checkpointing": ["model.gradient_checkpointing=true"],
    "real, LoRA bfloat16": LORA,
    "real, LoRA float32": [*LORA, "model.dtype=float32"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1, help="ignored: peaks hardly vary")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--cases", default=";".join(CASES), help="separated by semicolons")
    parser.add_argument("--stages", default="sft,ppo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int, default=1, help="processes that share the states; the largest peak counts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = os.environ.get("SPA_REAL_MODEL")
    results = {}
    print(f"{'':22}{'stage':8}{'estimate MiB':>14}{'peak MiB':>10}{'estimate / peak':>17}", flush=True)
    for case in options.cases.split(";"):
        if case.startswith("real") and not model:
            print(f"{case}: set SPA_REAL_MODEL to a model's folder", file=sys.stderr)
            continue
        where = [f"model={model}"] if case.startswith("real") else []
        for stage in options.stages.split(","):
            settings = [*where, *CASES[case], f"model.device={options.device}"]
            found = run(sys.executable, "memory.py", [stage, options.tokens, *settings], options.threads, options.ranks)
            ratio = found["estimate"] / found["peak"]
            print(
                f"{case:22}{stage:8}{found['estimate'] / 2**20:>14.0f}{found['peak'] / 2**20:>10.0f}{ratio:>17.2f}",
                flush=True,
            )
            results[f"{case}, {stage}"] = found
    finish([{"case": case, **found} for case, found in results.items()], options.threads, options.json)


if __name__ == "__main__":
    main()
