"""TRL's SFTTrainer with packing, in an environment of its own: see benchmarks/sft.py."""

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

from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

WARM = 2
rows = [json.loads(line) for line in Path(data).read_text(encoding="utf-8").splitlines()]
total = WARM + int(steps)
count = int(step_tokens) * total // (sum(len(row["ids"]) for row in rows) // len(rows)) + len(rows)
rows = (rows * (count // len(rows) + 1))[:count]
# Already tokenised: the same ids and the same trained tokens as the other contestants get.
masks = [[0] * len(row["ids"]) for row in rows]
for mask, row in zip(masks, rows, strict=True):
    for position in row["positions"]:
        mask[position] = 1
dataset = Dataset.from_dict({"input_ids": [row["ids"] for row in rows], "completion_mask": masks})
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
packing = peer == "trl"
mean_length = sum(len(row["ids"]) for row in rows) / len(rows)
sequences = max(1, round(int(step_tokens) / (int(max_length) if packing else mean_length)))


class Marks(TrainerCallback):
    """When steps end."""

    times: dict[int, float] = {}

    def on_step_end(self, args, state, control, **kwargs):
        self.times[state.global_step] = clock()


class Counting(SFTTrainer):
    """Counts real tokens of the timed steps."""

    tokens = 0
    first = None

    def compute_loss(self, model, inputs, *args, **kwargs):
        ids = inputs["input_ids"]
        mask = inputs.get("attention_mask")
        if self.state.global_step >= WARM:
            self.tokens += int(mask.sum()) if mask is not None else ids.numel()
        return super().compute_loss(model, inputs, *args, **kwargs)


with tempfile.TemporaryDirectory() as out:
    settings = SFTConfig(
        output_dir=out,
        packing=packing,
        max_length=int(max_length),
        per_device_train_batch_size=sequences,
        max_steps=total,
        learning_rate=1e-4,
        lr_scheduler_type="cosine",
        adam_beta2=0.95,
        weight_decay=0.01,
        max_grad_norm=1.0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        completion_only_loss=True,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataset_num_proc=1,
    )
    trainer = Counting(
        model=model, args=settings, train_dataset=dataset, processing_class=tokenizer, callbacks=[Marks()]
    )
    result = trainer.train()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds = Marks.times[total] - Marks.times[WARM]
print(
    json.dumps(
        {
            "per_second": trainer.tokens / seconds,
            "peak_mib": peak / 1024,
            "before_mib": before / 1024,
            "loss": result.training_loss,
        }
    )
)
