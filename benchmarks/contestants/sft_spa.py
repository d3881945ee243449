"""Ours: see benchmarks/sft.py."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

data, steps, threads, max_length, step_tokens, folder, peer = sys.argv[1:8]
torch.set_num_threads(int(threads))
clock = time.process_time if int(threads) == 1 else time.perf_counter

from spa.config.schema import ModelConfig, SFTConfig  # noqa: E402
from spa.data.encode import Example, merge_turns  # noqa: E402
from spa.models.load import load_model, load_tokenizer  # noqa: E402
from spa.sft.train import SFTTrainer  # noqa: E402

WARM = 2
rows = [json.loads(line) for line in Path(data).read_text(encoding="utf-8").splitlines()]
examples = [Example(row["ids"], row["positions"]) for row in rows]
row_tokens = sum(len(e.ids) for e in examples)
if peer == "spa":
    examples = merge_turns(examples)
# What a token of a sequence stands for: more than one, where turns were merged.
worth = row_tokens / sum(len(e.ids) for e in examples)
batch_size = max(1, round(int(step_tokens) / (sum(len(e.ids) for e in examples) / len(examples))))
total = WARM + int(steps)
examples = [Example(e.ids, e.positions) for e in examples]  # a step is so many sequences
examples = (examples * (total * batch_size // len(examples) + 1))[: total * batch_size]
model = load_model(ModelConfig(path=folder, device="cpu"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
marks: dict[int, float] = {}
losses: list[float] = []


def on_step(step: int, loss: float) -> None:
    marks[step] = clock()
    losses.append(loss)


class Timed(SFTTrainer):
    """Counts the tokens of the timed steps and saves no checkpoint."""

    tokens = 0

    def _one_step(self, batch):
        if self.step >= WARM:
            self.tokens += sum(len(example.ids) for example in batch)
        return super()._one_step(batch)

    def _save(self) -> None:
        pass


config = SFTConfig(
    epochs=1,
    batch_size=batch_size,
    lr=1e-4,
    micro_batch_tokens=int(step_tokens),
    max_length=int(max_length),
    log_every=10**6,
    precision="bfloat16" if peer == "spa-bf16" else "float32",
)
with tempfile.TemporaryDirectory() as out:
    trainer = Timed(model, load_tokenizer(folder), examples, [], config, Path(out), seed=0, log=lambda *_: None)
    trainer.on_step = on_step
    trainer.train()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds = marks[total] - marks[WARM]
print(
    json.dumps(
        {
            "per_second": worth * trainer.tokens / seconds,
            "peak_mib": peak / 1024,
            "before_mib": before / 1024,
            "loss": losses[0],
        }
    )
)
