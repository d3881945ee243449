"""Ours, and its forward passes alone: see benchmarks/rollout.py."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rollouts import PEER, WORLDS, config, measure, play, report

from spa.agent import rollout
from spa.agent.chat import Chat
from spa.agent.policy import Policy
from spa.config.schema import Config
from spa.engines.decoder import Chunk, Decoder
from spa.engines.processes import in_processes


def make(cfg: Config) -> tuple[Any, Chat]:
    policy = Policy.load(cfg)
    return policy.engine, policy.chat


@dataclass
class Pass:
    ids: list[int]
    positions: list[int]
    earlier: list[Chunk]
    shared: int
    slots: int


def bare() -> None:
    cfg = config()
    engine, chat = make(cfg)
    shares: list[list[Pass]] = []
    forward = Decoder.forward

    def recorded(
        self: Decoder, ids: Sequence[int], positions: Sequence[int], earlier: Sequence[Chunk] = (), shared: int = 0
    ) -> torch.Tensor:
        shares[-1].append(Pass(list(ids), list(positions), list(earlier), shared, self.slots))
        return forward(self, ids, positions, earlier, shared)

    def one_by_one(work: Any, count: int) -> list[Any]:
        results = []
        for number in range(count):
            shares.append([])
            results.append(work(number))
        return results

    Decoder.forward = recorded  # type: ignore[method-assign]
    rollout.in_processes = one_by_one  # type: ignore[assignment]
    episodes, _ = play(engine, chat, cfg, WORLDS, 1)
    Decoder.forward = forward  # type: ignore[method-assign]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decoder = engine.decoder

    @torch.no_grad()
    def passes(number: int) -> None:
        with engine.alone(len(shares)):
            decoder.refresh()
            for each in shares[number]:
                decoder.forward(each.ids, each.positions, each.earlier, each.shared)

    everything = [each for share in shares for each in share]
    decoder.allocate(max(each.slots for each in everything), max(max(each.positions) for each in everything) + 1)
    in_processes(passes, len(shares))
    started = time.perf_counter()
    in_processes(passes, len(shares))
    if engine.model.device.type == "cuda":
        torch.cuda.synchronize()
    report(episodes, time.perf_counter() - started, before)


if __name__ == "__main__":
    bare() if PEER == "bare" else measure(make)
