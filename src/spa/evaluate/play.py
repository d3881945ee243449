"""``spa eval``: a model on the test worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spa.agent.episode import Episode, write_episodes
from spa.agent.player import Player, make_task
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource
from spa.evaluate.summary import EvalResult
from spa.runs.progress import progress
from spa.runs.schema import ArmConfig, Config
from spa.runs.seeds import EVAL, PROBE, stream_seed

CHUNK = 32  # worlds played at once; also how often the progress bar moves


def evaluate_model(cfg: Config, arm: ArmConfig, model: str, out: Path) -> dict[str, Any]:
    """Plays ``eval.worlds`` distinct test worlds ``eval.samples`` times each and measures the world model on some of them.

    Writes ``result.json`` and ``episodes.jsonl`` (one sample of each world).

    Returns:
        what the stage records: the model, Pass@k, the world keys.

    Raises:
        ValueError: a model, world or setting that cannot be used, or every episode failed (the first error is named).
    """
    if cfg.eval.worlds < 1 or cfg.eval.samples < 1:
        raise ValueError("eval.worlds and eval.samples must be at least 1")
    player = Player.load(cfg, model)
    task = make_task(cfg, state_format=arm.state_format)
    worlds = WorldSource(task, "test", cfg.seeds.test, unique=True).take(cfg.eval.worlds)
    episodes = play_chunks(player, task, worlds, cfg.eval.samples, cfg.seeds.run, EVAL, f"evaluating {arm.name}")
    if all(episode.status == "error" for episode in episodes):
        raise ValueError(f"every episode failed; the first error: {episodes[0].error}")
    probe: list[Episode] = []
    if cfg.eval.world_model_worlds:
        told = make_task(cfg, state_format=arm.state_format, prompt="world_model")
        chosen = worlds[: cfg.eval.world_model_worlds]
        probe = play_chunks(player, told, chosen, 1, cfg.seeds.run, PROBE, f"world model of {arm.name}")
    result = EvalResult.from_episodes(arm.name, episodes, cfg.eval.ks, cfg.eval.bootstrap, cfg.seeds.run, probe)
    result.write(out / "result.json")
    # One sample of each world, and as many of the probe, which shows predictions: enough to look at.
    shown = [episode for episode in episodes if episode.member == 0] + probe
    write_episodes(out / "episodes.jsonl", shown)
    scores = {f"pass@{k}": result.metrics[f"pass@{k}"] for k in result.ks}
    return {"model": model, **scores, "worlds": {"test": sorted({world.content for world in worlds})}}


def play_chunks(
    player: Player, task: Task, worlds: list[World], samples: int, run: int, purpose: int, title: str
) -> list[Episode]:
    """Plays worlds in chunks with a progress bar; groups are numbered through."""
    episodes: list[Episode] = []
    starts = range(0, len(worlds), CHUNK)
    with progress(len(worlds), title) as bar:
        for number, start in enumerate(starts):
            chunk = worlds[start : start + CHUNK]
            played = player.play(task, chunk, samples=samples, seed=stream_seed(run, purpose, number))
            for episode in played:
                episode.group += start
            episodes += played
            bar.advance(len(chunk), success=sum(e.success for e in episodes) / len(episodes))
    return episodes
