"""Stage 1: the model plays itself through worlds of its own split, writing what it sees and what it expects."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

from spa.agent.episode import write_episodes
from spa.agent.player import Player, make_task
from spa.agent.worlds import WorldSource
from spa.engines.random import RandomEngine, random_responder
from spa.evaluate.play import play_chunks
from spa.evaluate.world_model import world_model_metrics
from spa.runs.files import atomic_write
from spa.runs.schema import Config
from spa.runs.seeds import SELFPLAY
from spa.worldmodel.dataset import split_rows, write_rows
from spa.worldmodel.groundtruth import deduplicate, rejection, rows_of

POLICIES = ("model", "random")


def row_window(cfg: Config) -> int:
    """Turns of history in a row's prompt: ``sft.window``, or ``agent.window`` where that is null.

    Raises:
        ValueError: neither 0 (all turns) nor 1.
    """
    window = cfg.agent.window if cfg.sft.window is None else cfg.sft.window
    if window not in (0, 1):
        raise ValueError(f"stage 1 makes rows with all turns or one: set sft.window=0 or sft.window=1, not {window}")
    return window


def selfplay(cfg: Config, out: Path) -> dict[str, Any]:
    """Plays, corrects, filters, splits; writes train.parquet, val.parquet, episodes.jsonl and stats.json to ``out``.

    Returns:
        what the stage records: counts and the keys of the worlds played.

    Raises:
        ValueError: a setting, model or world that cannot be used, or no row left after the filter.
    """
    play = cfg.selfplay
    if play.policy not in POLICIES:
        raise ValueError(f"unknown selfplay.policy {play.policy!r}; choose one of {', '.join(POLICIES)}")
    window = row_window(cfg)
    cfg = dataclasses.replace(cfg, agent=dataclasses.replace(cfg.agent, window=window))
    task = make_task(cfg, state_format=play.state_format, prompt="world_model")
    player = Player.load(cfg)
    if play.policy == "random":
        player.engine = RandomEngine(player.chat, random_responder(task))
    worlds = WorldSource(task, "selfplay", cfg.seeds.selfplay).take(play.groups)
    episodes = play_chunks(player, task, worlds, play.group_size, cfg.seeds.run, SELFPLAY, "self-play")
    write_episodes(out / "episodes.jsonl", episodes)

    reasons: Counter[str] = Counter()
    rows = []
    for episode in episodes:
        if episode.status == "error":
            reasons["failed episode"] += 1
            continue
        for row in rows_of(episode, window=window, states=play.states):
            reason = rejection(row.response) if play.filter else None
            if reason is None:
                rows.append(row)
            else:
                reasons[reason] += 1
    if play.deduplicate:
        kept = deduplicate(rows)
        reasons["duplicate"] += len(rows) - len(kept)
        rows = kept
    if not rows:
        raise ValueError(
            f"self-play left no row to train on; dropped: {dict(reasons)}. Is the format too hard for the model?"
        )
    train, val = split_rows(rows, play.val_fraction, cfg.seeds.run)
    write_rows(out / "train.parquet", train)
    write_rows(out / "val.parquet", val)
    turns = sum(len(episode.turns) for episode in episodes)
    stats: dict[str, Any] = {
        "episodes": len(episodes),
        "worlds": len({world.content for world in worlds}),
        "turns": turns,
        "rows_train": len(train),
        "rows_val": len(val),
        "dropped": dict(reasons),
        "format_rate": sum(t.format_ok for e in episodes for t in e.turns) / max(1, turns),
        "success": sum(e.success for e in episodes) / len(episodes),
        "belief": world_model_metrics(episodes),
    }
    atomic_write(out / "stats.json", json.dumps(stats, indent=1) + "\n")
    return {
        "rows_train": len(train),
        "rows_val": len(val),
        "dropped": dict(reasons),
        "worlds": {"selfplay": sorted({world.content for world in worlds})},
    }
