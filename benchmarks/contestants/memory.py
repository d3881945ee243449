"""One measurement of benchmarks/memory.py: peak memory of two optimizer steps of two forward passes each, and of a checkpoint."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

stage, tokens, *settings = sys.argv[1:]
PASSES = STEPS = 2

from spa.agent.episode import Episode, TokenSequence, Turn  # noqa: E402
from spa.agent.policy import Policy, make_task  # noqa: E402
from spa.agent.worlds import WorldSource  # noqa: E402
from spa.config.load import load_config  # noqa: E402
from spa.data.encode import Example  # noqa: E402
from spa.models.fit import device_type, shards_of  # noqa: E402
from spa.models.load import save_checkpoint, save_model  # noqa: E402
from spa.models.lora import add_lora  # noqa: E402
from spa.rl.critic import make_critic  # noqa: E402
from spa.rl.learner import Learner  # noqa: E402
from spa.rl.memory import memory_estimate as ppo_memory  # noqa: E402
from spa.rl.update import update  # noqa: E402
from spa.scale import ranks  # noqa: E402
from spa.sft.memory import memory_estimate as sft_memory  # noqa: E402
from spa.sft.train import SFTTrainer  # noqa: E402

length = int(tokens)
fixed = [
    f"{stage}.micro_batch_tokens={length}",
    f"sft.max_length={length}",
    f"sft.batch_size={PASSES}",
    "sft.epochs=1",
    f"ppo.mini_batches={STEPS}",
]
cfg = load_config("frozen_lake", [*settings, *fixed, "env.max_turns=1", "sampling.max_tokens=8", "ppo.epochs=1"])
joined = ExitStack()
joined.enter_context(ranks.joined(cfg.scale))
policy = Policy.load(cfg)
rng = np.random.default_rng(0)
rows = [rng.integers(policy.model.config.vocab_size, size=length).tolist() for _ in range(PASSES * STEPS)]
scored = length // 4  # as many tokens of a row are a response
sft, ppo = cfg.sft, cfg.ppo
with tempfile.TemporaryDirectory() as out:
    if stage == "sft":
        estimate = sft_memory(cfg, device_type(cfg), shards_of(cfg), longest=length).total
        if sft.lora_rank:
            add_lora(policy.model, sft, sft.lora_rank)
        examples = [Example(ids, list(range(length - scored, length))) for ids in rows]
        SFTTrainer(policy.model, policy.tokenizer, examples, [], sft, Path(out), seed=0, log=lambda *_: None).train()
    else:
        estimate = ppo_memory(cfg, device_type(cfg), shards_of(cfg)).total
        task = make_task(cfg)
        critic = make_critic(ppo, policy.model)
        if ppo.lora_rank:
            add_lora(policy.model, ppo, ppo.lora_rank)
        learner = Learner(policy.model, critic, ppo, 1.0)
        with policy.playing():
            policy.play(task, WorldSource(task, "train", 0).take(2), samples=2, seed=0)
        context = length - scored
        sequences = [
            TokenSequence(ids, [0] * context + [1] * scored, [-1.0] * length, [-1] * context + [0] * scored)
            for ids in rows
        ]
        episodes = [
            Episode("t", number, number, turns=[Turn(0, "", "", "", reward=float(number))], sequences=[sequence])
            for number, sequence in enumerate(sequences)
        ]
        update(learner, episodes, policy.chat, rng=rng)
        folder = Path(out) / "checkpoint"
        if ranks.world() > 1:
            save_checkpoint(policy.model, policy.tokenizer, folder, {}, learner.optimizer, learner.modules)
        else:
            save_model(policy.model, policy.tokenizer, folder, learner.state())
peak = max(ranks.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
if policy.model.device.type == "cuda":
    free, total = torch.cuda.mem_get_info()
    peak = total - free  # of a card that nobody else uses: the allocator keeps what it had at the peak
if ranks.is_main():
    print(json.dumps({"estimate": estimate, "peak": peak}))
joined.close()
