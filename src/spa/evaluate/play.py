"""``spa eval``: a model on the test worlds."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from spa.agent.episode import Episode, write_episodes
from spa.agent.episode_store import EpisodeStore, Key
from spa.agent.failures import Failures
from spa.agent.policy import Policy, ServedPolicy, counter, local_engine, make_task
from spa.agent.rollout import OnTurn
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource, world_keys
from spa.common.progress import note, progress
from spa.config.schema import Config, VariantConfig
from spa.config.seeds import EVAL, PROBE, stream_seed
from spa.engines.base import ServerError
from spa.evaluate.probe import measure_episodes
from spa.evaluate.samples import SAMPLES, write_samples
from spa.evaluate.summary import EvalResult
from spa.models.folders import identity
from spa.scale import ranks

CHUNK = 32  # worlds played at once


def evaluate_model(cfg: Config, variant: VariantConfig, model: str | None, out: Path) -> dict[str, Any]:
    """Plays ``eval.worlds`` distinct test worlds ``eval.samples`` times each, and measures the world model on some of them.

    ``model`` None is the model behind the chat server of ``engine``; the server plays no other model.

    Writes ``result.json`` and ``episodes.jsonl`` (one sample per world); with ``agent.planner`` also that planner's result on
    the same worlds (``evaluate_planner``). Finished episodes are stored in ``*.partial.jsonl``; a resumed evaluation of the same
    model does not replay them, except a planner's.

    Returns:
        the stage's record: model, Pass@k, world keys.

    Raises:
        ValueError: an unusable model, world or setting; also what ``play_chunks`` raises.
    """
    with closing(Policy.load(cfg, model, engine=local_engine(cfg) if model else cfg.engine)) as policy:
        return _evaluate(cfg, variant, model, policy, out)


def _evaluate(cfg: Config, variant: VariantConfig, model: str | None, policy: Policy, out: Path) -> dict[str, Any]:
    task = make_task(cfg, state_format=variant.state_format)
    worlds = WorldSource(task, "test", cfg.seeds.test, unique=True).take(cfg.eval.worlds, setting="eval.worlds")
    store, probed = (_unfinished(out, model, part) for part in ("episodes", "probe"))
    title = f"evaluating {variant.name}"
    episodes = play_chunks(policy, task, worlds, cfg.eval.samples, cfg.seeds.run, EVAL, title, store)
    if all(episode.failed for episode in episodes):
        raise ValueError(f"every episode failed; the first error: {episodes[0].error}")
    probe: list[Episode] = []
    measured: dict[str, float] = {}
    if cfg.eval.world_model_worlds:
        probe_task = make_task(cfg, state_format=variant.state_format, prompt="world_model")
        chosen = worlds[: cfg.eval.world_model_worlds]
        title = f"world model of {variant.name}"
        probe = play_chunks(policy, probe_task, chosen, 1, cfg.seeds.run, PROBE, title, probed)
        measured = measure_episodes(cfg, policy, probe_task, probe, chosen, cfg.seeds.run)
        for episode in probe:
            episode.probe = True
    name = policy.server.name if isinstance(policy, ServedPolicy) else model
    record = {"model": name, "worlds": {"test": world_keys(worlds)}}
    if not ranks.is_main():
        return record
    result = EvalResult.from_episodes(variant.name, episodes, cfg.eval.ks, cfg.eval.bootstrap, cfg.seeds.run, measured)
    result.write(out / "result.json")
    # One sample per world, and as many from the probe, which shows predictions: enough for inspection.
    shown = [episode for episode in episodes if episode.member == 0] + probe
    write_episodes(out / "episodes.jsonl", shown)
    write_samples(out / SAMPLES, episodes)  # enough to compute the result again
    scores = {f"pass@{k}": result.metrics[f"pass@{k}"] for k in result.ks}
    if cfg.agent.planner != "none":
        from spa.evaluate.planned import evaluate_planner

        scores["planner"] = evaluate_planner(cfg, variant.name, policy, task, worlds, out, model).metrics["pass@1"]
    return {"model": name, **scores, "worlds": record["worlds"]}


def _unfinished(out: Path, model: str | None, part: str) -> EpisodeStore:
    """The episodes that an interrupted evaluation of the same model has played; those of another model are deleted."""
    name = f"{part}-{zlib.crc32(identity(model).encode()):08x}.partial.jsonl"
    for other in out.glob(f"{part}-*.partial.jsonl"):
        if other.name != name and ranks.is_main():
            note(f"{other} is of other weights: its episodes are deleted and played again")
            other.unlink(missing_ok=True)
    return EpisodeStore(out / name)


def play_chunks(
    policy: Policy,
    task: Task,
    worlds: list[World],
    samples: int,
    run: int,
    purpose: int,
    title: str,
    store: EpisodeStore | None = None,
    watch: OnTurn | None = None,
) -> list[Episode]:
    """Plays worlds with a progress bar; groups are numbered consecutively.

    Args:
        store: finished episodes, which are not replayed. New ones are added as they finish. A policy that cannot skip episodes
            (``Policy.skips``) replays a chunk that is not complete.
        watch: called after every turn, of a server's episodes at their end; what it raises ends the play.

    Raises:
        ValueError: a larger share than ``env.max_failed`` of the episodes fails.
        ServerError: the server of a ``ServedPolicy`` refuses the requests, or is dead.
    """

    def play(chunk: Sequence[World], seed: int, on_turn: OnTurn, skip: Container[Key]) -> list[Episode]:
        return policy.play(task, chunk, samples=samples, seed=seed, on_turn=on_turn, skip=skip if policy.skips else ())

    size = len(worlds) if isinstance(policy, ServedPolicy) else CHUNK  # no request waits for the end of a chunk
    return in_chunks(
        play, worlds, samples, run, purpose, title, store, watch, size=size, max_failed=task.env.max_failed
    )


Play = Callable[[Sequence[World], int, OnTurn, Container[Key]], list[Episode]]


def in_chunks(
    play: Play,
    worlds: Sequence[World],
    samples: int,
    run: int,
    purpose: int,
    title: str,
    store: EpisodeStore | None,
    watch: OnTurn | None = None,
    *,
    size: int,
    max_failed: float,
) -> list[Episode]:
    """Episodes from calling ``play`` on ``size`` worlds and a seed at a time, ``samples`` per world, numbered consecutively.

    ``play`` is also given what to call after every turn, and the episodes of the chunk that are stored already.

    Raises:
        ValueError: a larger share than ``max_failed`` of the episodes fails.
    """
    store = EpisodeStore() if store is None else store
    failures = Failures(title, max_failed, len(worlds) * samples)
    failures.add(store.in_order())
    with progress(len(worlds) * samples, title) as bar:
        count = counter(bar)

        def seen(episode: Episode, ended: bool) -> None:
            if (episode.group, episode.member) in store:
                return
            if ended:
                store.add([episode])
                failures.add([episode])
                bar.values["success"] = store.success
            count(episode, ended)
            if watch:
                watch(episode, ended)

        bar.advance(len(store), **({"success": store.success} if len(store) else {}))
        for number, start in enumerate(range(0, len(worlds), size)):
            chunk = worlds[start : start + size]
            keys = [(group, member) for group in range(len(chunk)) for member in range(samples)]
            before = {(group, member) for group, member in keys if (start + group, member) in store}
            if len(before) == len(keys):
                continue

            def on_turn(episode: Episode, ended: bool, start: int = start) -> None:
                seen(replace(episode, group=episode.group + start), ended)

            # The seed belongs to the chunk, and an episode's samples to its place in it.
            try:
                played = play(chunk, stream_seed(run, purpose, number), on_turn, before)
            except ServerError as error:
                kept = f"{len(store)} of {len(worlds) * samples} episodes are kept; continue with --resume"
                raise ServerError(f"{error}. {kept}") from error
            for episode in played:
                on_turn(episode, True)  # those that a fork played, or whose world failed at once
    failures.say()
    return store.in_order()
