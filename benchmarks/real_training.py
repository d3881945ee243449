"""SFT and the PPO update of a real model beside their peers: ``sft.py`` and ``ppo.py`` on few rows of FrozenLake, one thread.

    SPA_REAL_MODEL=FOLDER python benchmarks/real_training.py
    SPA_REAL_MODEL=FOLDER python benchmarks/real_training.py --only ppo --repeats 1

With one thread all are timed by processor time. The PPO update of 135 million parameters needs 4 GiB for the weights, gradients
and optimizers of its two networks, and activations.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

COMMANDS = {
    "sft": ["--peers", "spa-rows,trl,trl-padded", "--steps", "2", "--max-length", "1024", "--step-tokens", "2048"],
    "ppo": ["--peers", "spa,spa-small,original,original-ragged"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("SPA_REAL_MODEL"), help="folder; default: SPA_REAL_MODEL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=COMMANDS)
    options, more = parser.parse_known_args()
    if not options.model:
        sys.exit("Error: give a model's folder with --model or SPA_REAL_MODEL")
    common = ["--sets", "real", "--model", options.model]
    common += ["--repeats", str(options.repeats), "--threads", str(options.threads)]
    for name in [options.only] if options.only else COMMANDS:
        script = Path(__file__).with_name(f"{name}.py")
        subprocess.run([sys.executable, str(script), *common, *COMMANDS[name], *more], check=True)


if __name__ == "__main__":
    main()
