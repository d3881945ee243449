"""What a checkpoint of several ranks costs beside an optimizer step, and what asynchronous saving would leave of it.

    python benchmarks/checkpoints.py --ranks 2
    SPA_REAL_MODEL=FOLDER python benchmarks/checkpoints.py --ranks 2 --tokens 512      # SmolLM2-135M-Instruct

One process group, one model, one after the other in every repeat: an optimizer step of SFT with a forward pass of ``--tokens``
tokens a rank, a checkpoint as a run writes it (the model's folder and the sharded tensors), the sharded tensors alone, the same by
``torch.distributed.checkpoint.async_save`` (seconds until training may go on), and a step while that writes. Medians, in seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median

from common import finish, run

ROWS = {
    "step": "optimizer step",
    "checkpoint": "checkpoint, as a run writes it",
    "sharded": "of it the sharded tensors",
    "staged": "the same asynchronously, until training may go on",
    "step_beside": "optimizer step while they are written",
    "written": "asynchronously, until they are written",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = os.environ.get("SPA_REAL_MODEL", "tiny")
    arguments = [options.tokens, options.repeats, f"model={model}", f"model.device={options.device}"]
    runs = run(sys.executable, "checkpoints.py", arguments, options.threads, options.ranks)
    print(f"{runs['mib']:.0f} MiB of sharded tensors")
    for name, label in ROWS.items():
        print(f"{label:52}{median(runs[name]):>8.2f}   ({min(runs[name]):.2f} to {max(runs[name]):.2f})")
    finish(runs, options.threads, options.json)


if __name__ == "__main__":
    main()
