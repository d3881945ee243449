"""Ours: see benchmarks/ppo.py."""

from __future__ import annotations

import json
import resource
import sys
import time

import torch

peer, data, folder, updates, threads = sys.argv[1:6]
torch.set_num_threads(int(threads))
clock = time.process_time if int(threads) == 1 else time.perf_counter

import numpy as np  # noqa: E402

from spa.agent.chat import Chat  # noqa: E402
from spa.agent.episode import read_episodes  # noqa: E402
from spa.config.schema import ModelConfig, PPOConfig  # noqa: E402
from spa.models.load import load_model, load_tokenizer  # noqa: E402
from spa.rl import update as ppo  # noqa: E402
from spa.rl.critic import make_critic  # noqa: E402
from spa.rl.learner import Learner  # noqa: E402
from spa.rl.update import update  # noqa: E402

episodes = list(read_episodes(data))
chat = Chat(load_tokenizer(folder))
model = load_model(ModelConfig(path=folder, device="cpu"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
config = PPOConfig(
    critic="head" if peer == "spa-head" else "model",
    micro_batch_tokens=1024 if peer == "spa-small" else 8192,
    actor_lr=1e-5,
    compile=peer == "spa-compile",
    precision="bfloat16" if peer == "spa-bf16" else "float32",
)
learner = Learner(model, make_critic(config, model), config, 1.0)
if peer == "spa-recompute":
    ppo.needs_recompute = lambda learner: True
metrics = update(learner, episodes, chat, rng=np.random.default_rng(0))
started = clock()
for number in range(int(updates)):
    update(learner, episodes, chat, rng=np.random.default_rng(number))
seconds = clock() - started
tokens = sum(len(sequence) for episode in episodes for sequence in episode.sequences)
print(
    json.dumps(
        {
            "per_second": tokens * int(updates) / seconds,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "before_mib": before / 1024,
            **{name: metrics[f"losses/{name}"] for name in ("policy_loss", "value_loss", "entropy")},
        }
    )
)
