"""A whole PPO step, ours and the original's way: see benchmarks/step.py."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ppo_original import Original
from rollout_generate import Generate
from rollouts import PEER, WORLDS, config, play, report

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.agent.policy import Policy
from spa.config.schema import PPOConfig
from spa.engines.decoder import Decoder
from spa.models import score
from spa.models.load import resolve_path
from spa.models.score import TokenBatch
from spa.rl.critic import Critic, make_critic
from spa.rl.learner import Learner
from spa.rl.update import update


class Watch:
    """Seconds spent in functions, the innermost watched one counted once."""

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    def over(self, owner: Any, *names: str) -> None:
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.seconds += time.perf_counter() - started

        return timed

    def take(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def ours(policy: Policy) -> tuple[Any, Callable[[list[Episode]], Any]]:
    settings = PPOConfig(critic="head" if PEER == "spa-head" else "model", actor_lr=1e-5)
    learner = Learner(policy.model, make_critic(settings, policy.model), settings, 1.0)
    rng = np.random.default_rng(0)
    return policy.engine, lambda episodes: update(learner, episodes, policy.chat, rng=rng)


def original(policy: Policy) -> tuple[Any, Callable[[list[Episode]], Any]]:
    learner = Original(resolve_path("builtin:tiny"), actor=policy.model)
    engine = Generate(policy.model, policy.tokenizer.pad_token_id)
    return engine, lambda episodes: learner.update(*learner.batch([dataclasses.asdict(e) for e in episodes]))


def main() -> None:
    cfg = config()
    policy = Policy.load(cfg)
    chat: Chat = policy.chat
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    engine, learn = original(policy) if PEER == "original" else ours(policy)
    watch = Watch()
    watch.over(Decoder, "forward")  # of the first process, which is as long at it as the others
    watch.over(TokenBatch, "hidden")
    watch.over(Critic, "values")
    watch.over(score, "token_logprobs")
    watch.over(torch.Tensor, "backward")
    learn(play(engine, chat, cfg, max(1, WORLDS // 8), 0)[0])
    watch.take()
    episodes, played = play(engine, chat, cfg, WORLDS, 1)
    in_rollout = watch.take()
    started = time.perf_counter()
    learn(episodes)
    learnt = time.perf_counter() - started
    more = {"rollout_seconds": played, "update_seconds": learnt}
    if PEER != "original":
        more["outside_rollout"] = 1 - in_rollout / played
        more["outside_update"] = 1 - watch.seconds / learnt
        more["outside"] = 1 - (in_rollout + watch.seconds) / (played + learnt)
    report(episodes, played + learnt, before, more)


if __name__ == "__main__":
    main()
