"""An engine that writes what a test tells it to, and the pieces that most tests need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from spa.agent.chat import Chat
from spa.agent.policy import Policy, make_task
from spa.agent.task import Task
from spa.agent.worlds import WorldSource
from spa.config.schema import AgentConfig, Config, EnvConfig, ModelConfig, PPOConfig, SamplingConfig
from spa.engines.base import Completion, Engine
from spa.models.load import load_tokenizer
from spa.models.score import Chosen, batches, prepare, score

TOKENIZER = load_tokenizer("builtin:tiny")
CHAT = Chat(TOKENIZER)
LAKE = EnvConfig(id="frozen_lake", tag="FrozenLake", settings={"size": 4, "is_slippery": False})


class Scripted(Engine):
    """Answers the i-th request of a call with ``text(i)``; remembers all contexts. The log-prob of token t is -t."""

    def __init__(self, text: Callable[[int], str], end: bool = True) -> None:
        self.text, self.end = text, end
        self.contexts: list[list[list[int]]] = []

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        self.contexts.append([list(context) for context in contexts])
        out = []
        for i in range(len(contexts)):
            ids = CHAT.encode(self.text(i)) + ([CHAT.closing_ids[0]] if self.end else [])
            out.append(Completion(ids, [-float(token) for token in ids], "stop" if self.end else "length"))
        return out


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """Whether two sets of weights are equal, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def flat(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """A copy of all parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in parameters]).clone()


def lake_task(window: int = 0, style: str = "terse", **env: object) -> Task:
    return Task(EnvConfig(**{**vars(LAKE), **env}), AgentConfig(style=style, window=window))


def tiny_config(**ppo: object) -> Config:
    """FrozenLake with the built-in model, small in every dimension."""
    settings = {
        "steps": 4,
        "groups": 2,
        "group_size": 3,
        "filter_ratio": 1.0,
        "epochs": 1,
        "mini_batches": 2,
        "critic": "head",
        "actor_lr": 1e-3,
        "val_every": 2,
        "val_worlds": 2,
        "save_every": 2,
        "reward_placement": "turn",
    }
    return Config(
        name="frozen_lake",
        env=EnvConfig(**vars(LAKE)),
        agent=AgentConfig(style="terse", window=1),
        model=ModelConfig(path="builtin:tiny", device="cpu"),
        sampling=SamplingConfig(max_tokens=40),
        ppo=PPOConfig(**{**settings, **ppo}),
    )


def tiny_policy(**ppo: object) -> Policy:
    return Policy.load(tiny_config(**ppo))


@torch.no_grad()
def logprob_differences(cfg: Config, worlds: int, samples: int) -> np.ndarray:
    """Absolute differences, in nats, of sampled tokens' log-probs: decoded with a cache, and in a packed forward pass."""
    policy, task = Policy.load(cfg), make_task(cfg)
    played = policy.play(
        task, WorldSource(task, "test", cfg.seeds.test, unique=True).take(worlds), samples=samples, seed=0
    )
    sequences = [sequence for episode in played for sequence in episode.sequences]
    prepare(policy.model, "ppo", packing=True, compile=False)
    policy.model.eval()
    rows = [Chosen(s.ids, np.flatnonzero(s.mask).tolist()) for s in sequences]
    differences = []
    for batch in batches(rows, 4096, policy.model.device, packing=True):
        trained = score(policy.model, batch).logprobs_N.float().cpu().numpy()
        sampled = np.concatenate([np.asarray(sequences[i].logprobs)[rows[i].positions] for i in batch.indices])
        differences.append(np.abs(trained - sampled))
    return np.concatenate(differences)
