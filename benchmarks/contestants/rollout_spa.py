"""Ours, and its forward passes alone: see benchmarks/rollout.py."""

from __future__ import annotations

import resource
import time
from typing import Any

import torch
from rollouts import PEER, WORLDS, config, measure, play, report

from spa.agent.chat import Chat
from spa.agent.player import Player
from spa.engines.decoder import Chunk, Decoder
from spa.runs.schema import Config


def make(cfg: Config) -> tuple[Any, Chat]:
    player = Player.load(cfg)
    return player.engine, player.chat


def bare() -> None:
    cfg = config()
    engine, chat = make(cfg)
    shapes: list[list[tuple[int, int]]] = []
    rooms: list[int] = []
    forward, allocate = Decoder.forward, Decoder.allocate

    def recorded(self: Decoder, chunks: list[Chunk]) -> torch.Tensor:
        shapes.append([(chunk.past, len(chunk.ids)) for chunk in chunks])
        rooms.append(self.slots)
        return forward(self, chunks)

    Decoder.forward = recorded  # type: ignore[method-assign, assignment]
    episodes, _ = play(engine, chat, cfg, WORLDS, 1)
    Decoder.forward = forward  # type: ignore[method-assign]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decoder = engine.decoder
    with torch.no_grad():
        decoder.refresh()
        allocate(decoder, max(rooms), max(past + new for shape in shapes for past, new in shape))
        words = torch.randint(5, engine.model.config.vocab_size, (max(new for s in shapes for _, new in s),)).tolist()
        batches = [[Chunk(slot, past, words[:new]) for slot, (past, new) in enumerate(shape)] for shape in shapes]
        for chunks in batches[:5]:
            decoder.forward(chunks)
        started = time.perf_counter()
        for chunks in batches:
            decoder.forward(chunks)
        if engine.model.device.type == "cuda":
            torch.cuda.synchronize()
    report(episodes, time.perf_counter() - started, before)


if __name__ == "__main__":
    bare() if PEER == "bare" else measure(make)
