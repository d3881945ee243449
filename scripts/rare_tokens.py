"""What became of the least likely tokens of a step: trains a run's stage 3 again from its last checkpoint and follows them.

    python scripts/rare_tokens.py RUN              # a copy of RUN is trained; tokens sampled with probability below e^-9
    python scripts/rare_tokens.py RUN --below -12
    python scripts/rare_tokens.py RUN --below -12 --without    # leaves them out of the loss: were they the reason?

Keep a checkpoint from before the step that broke: ``ppo.save_every=1 ppo.keep_checkpoints=0``, and delete the later ones and
``done.json`` of stage 3 and of the evaluation.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import spa.rl.update
from spa.cli import main
from spa.models.load import load_tokenizer
from spa.rl.batch import TrainSequence


def follow(run: Path, below: float, without: bool) -> None:
    """Prints, after each optimizer step, the log-prob of the least likely tokens seen so far: those sampled below ``below``."""
    step, watched = spa.rl.update._step, list[tuple[TrainSequence, int]]()
    tokenizer: Any = None

    def followed(learner: Any, sequences: Sequence[TrainSequence], *rest: Any) -> None:
        nonlocal tokenizer
        tokenizer = tokenizer or load_tokenizer(learner.actor.name_or_path)
        for sequence in sequences:
            rare = np.flatnonzero(sequence.mask & (sequence.logprobs < below))
            if not any(one is sequence for one, _ in watched):
                watched.extend((sequence, int(i)) for i in rare)
        for sequence, i in watched if without else ():
            sequence.advantages[i] = 0.0
        step(learner, sequences, *rest)
        for sequence, i in watched:
            with torch.no_grad():
                logprobs = learner.actor(torch.tensor([sequence.ids[:i]])).logits[0, -1].log_softmax(-1)
            text, before = tokenizer.decode([sequence.ids[i]]), tokenizer.decode(sequence.ids[max(0, i - 3) : i])
            print(
                f"update {learner.updates}: {text!r} after {before!r}, advantage {sequence.advantages[i]:.2f}: "
                f"log-prob {sequence.logprobs[i]:.2f} when sampled, {logprobs[sequence.ids[i]]:.2f} now"
            )

    spa.rl.update._step = followed
    with TemporaryDirectory() as folder:
        shutil.copytree(run, copy := Path(folder) / "run")
        main(["run", "--out", str(copy), "--resume", "--quiet"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--below", type=float, default=-9.0, help="log-prob, nats")
    parser.add_argument("--without", action="store_true", help="set their advantages to 0")
    follow(**vars(parser.parse_args()))
