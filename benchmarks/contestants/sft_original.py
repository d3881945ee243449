"""The original code's way of batching: see benchmarks/sft.py."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

data, steps, threads, max_length, step_tokens, folder = sys.argv[1:7]
torch.set_num_threads(int(threads))
clock = time.process_time if int(threads) == 1 else time.perf_counter
WARM = 1
rows = [json.loads(line) for line in Path(data).read_text(encoding="utf-8").splitlines()]
length = int(max_length)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
model.train()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01)
batch_size = max(1, round(int(step_tokens) / (sum(len(row["ids"]) for row in rows) / len(rows))))
tokens, first, started = 0, None, 0.0
for step in range(WARM + int(steps)):
    if step == WARM:
        started = clock()
    optimizer.zero_grad()
    chosen = [rows[(step * batch_size + i) % len(rows)] for i in range(batch_size)]
    for row in chosen:
        ids = torch.zeros(1, length, dtype=torch.long)
        ids[0, : len(row["ids"])] = torch.tensor(row["ids"])
        attention = torch.zeros(1, length, dtype=torch.long)
        attention[0, : len(row["ids"])] = 1
        mask = torch.zeros(1, length)
        mask[0, row["positions"]] = 1
        logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (losses * mask[:, 1:].flatten()).sum() / mask.sum()
        first = float(loss) if first is None else first
        (loss / batch_size).backward()
        tokens += len(row["ids"]) if step >= WARM else 0
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
seconds = clock() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"per_second": tokens / seconds, "peak_mib": peak / 1024, "before_mib": before / 1024, "loss": first}))
