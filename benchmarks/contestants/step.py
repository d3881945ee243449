"""A whole PPO step, ours and the original's way: see benchmarks/step.py."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ppo_original import Original
from rollout_generate import Generate
from rollouts import PEER, WORLDS, config, play, report

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.agent.player import Player
from spa.models.load import resolve_path
from spa.rl.critic import make_critic
from spa.rl.ppo import Learner, update
from spa.runs.schema import PPOConfig


def ours(player: Player) -> tuple[Any, Callable[[list[Episode]], Any]]:
    settings = PPOConfig(critic="head" if PEER == "spa-head" else "model", actor_lr=1e-5)
    learner = Learner(player.model, make_critic(settings, player.model), settings, 1.0)
    rng = np.random.default_rng(0)
    return player.engine, lambda episodes: update(learner, episodes, player.chat, rng=rng)


def original(player: Player) -> tuple[Any, Callable[[list[Episode]], Any]]:
    learner = Original(resolve_path("builtin:tiny"), actor=player.model)
    engine = Generate(player.model, player.tokenizer.pad_token_id)
    return engine, lambda episodes: learner.update(*learner.batch([dataclasses.asdict(e) for e in episodes]))


def main() -> None:
    cfg = config()
    player = Player.load(cfg)
    chat: Chat = player.chat
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    engine, learn = original(player) if PEER == "original" else ours(player)
    learn(play(engine, chat, cfg, max(1, WORLDS // 8), 0)[0])
    episodes, played = play(engine, chat, cfg, WORLDS, 1)
    started = time.perf_counter()
    learn(episodes)
    learnt = time.perf_counter() - started
    report(episodes, played + learnt, before, {"rollout_seconds": played, "update_seconds": learnt})


if __name__ == "__main__":
    main()
