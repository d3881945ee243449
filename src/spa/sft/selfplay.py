"""Stage 1: the model plays worlds of the self-play split, writing its observations and predictions."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from spa.agent.chat import Chat
from spa.agent.episode import Episode, write_episodes
from spa.agent.episode_store import EpisodeStore, Key
from spa.agent.lengths import length_notes
from spa.agent.policy import Policy, make_task, sampling_for
from spa.agent.random_engine import RandomEngine, random_responder
from spa.agent.rollout import OnTurn
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource, world_keys
from spa.common.files import atomic_write
from spa.common.progress import note
from spa.config.schema import Config, SelfPlayConfig
from spa.config.seeds import SELFPLAY, first_seed
from spa.data.ground_truth import Row, rows_of, shuffle_states
from spa.data.layouts import write_rows
from spa.data.select import select_rows, split_rows
from spa.data.transitions import repeat_rare, shuffle_moves, transition_rows
from spa.engines.base import check_engine
from spa.engines.constrained import check_installed
from spa.envs.checked import WorldError
from spa.evaluate.planned import plan_chunks, planning_model
from spa.evaluate.play import CHUNK, in_chunks, play_chunks
from spa.evaluate.world_model import world_model_metrics
from spa.runs.folder import selection
from spa.runs.record import PLAYED
from spa.scale import ranks
from spa.sft.early import EarlyReport, distinct_states, remedies, summary, too_few, why_dropped
from spa.sft.explore import play_exploring
from spa.sft.stage2 import history
from spa.sft.warmup import cold_start, needs_random_play, unplayed_worlds, warm_up


def row_window(cfg: Config) -> int:
    """``history``, as far as stage 1 makes such rows.

    Raises:
        ValueError: neither 0 (all turns) nor 1.
    """
    window = history(cfg)
    if window not in (0, 1):
        raise ValueError(f"stage 1 makes rows with all turns or one: set sft.window=0 or sft.window=1, not {window}")
    return window


def selfplay_task(cfg: Config) -> tuple[Config, Task]:
    """What stage 1 plays: the config with ``row_window`` as ``agent.window``, and its task.

    Raises:
        ValueError: as ``row_window``, or a world that cannot be made.
    """
    cfg = dataclasses.replace(cfg, agent=dataclasses.replace(cfg.agent, window=row_window(cfg)))
    return cfg, make_task(cfg, state_format=cfg.selfplay.state_format, prompt=cfg.selfplay.prompt)


def is_served(cfg: Config) -> bool:
    """Whether a chat server plays, so that no local model or tokenizer is needed."""
    return cfg.engine.kind == "openai" and cfg.selfplay.policy == "model"


def check_source(cfg: Config) -> None:
    """Checks, without loading weights, that the player is available and rows can be made.

    Raises:
        ValueError: as ``row_window``; an engine without its package or settings, or a local model beside a chat server; random
            play in a world without random actions; responses that have no place for states.
    """
    play = cfg.selfplay
    row_window(cfg)
    if play.policy == "planner" and (cfg.agent.planner == "none" or cfg.engine.kind == "openai"):
        raise ValueError("selfplay.policy=planner needs agent.planner and no chat server")
    if play.constrained and play.policy == "model":
        if cfg.engine.kind != "transformers":
            raise ValueError("selfplay.constrained needs engine=transformers: set it to false")
        check_installed()
    if play.policy == "model":
        check_engine(cfg.engine)
    if needs_random_play(cfg) or play.without_model:
        try:
            random_responder(make_task(cfg))
        except ValueError as error:
            raise ValueError(f"random play ({_asking(play)}): {error}") from error
    if play.states == "belief" and play.without_model:
        raise ValueError(
            "selfplay.states=belief keeps the states that a model wrote, and random play writes none: set "
            "selfplay.policy=model or selfplay.states=truth"
        )
    if play.states == "belief" and play.prompt == "base":
        raise ValueError(
            "selfplay.states=belief keeps the states that a model wrote, and selfplay.prompt=base asks for none: set "
            "selfplay.prompt=world_model or selfplay.states=truth"
        )
    if play.filter and play.rows == "written" and not cfg.agent.think:
        raise ValueError(
            "stage 1 keeps responses that write states, and with agent.think=false there is no place for them: set "
            "agent.think=true, or train without stages 1 and 2 ('variants=[vanilla]')"
        )
    if is_served(cfg) and play.warmup_rows:
        raise ValueError("selfplay.warmup_rows trains a model here, and with engine=openai a server plays: set it to 0")
    if is_served(cfg) and play.model:
        raise ValueError(
            f"with engine=openai the server plays, and selfplay.model={play.model} would not: set engine.model instead"
        )


def _asking(play: SelfPlayConfig) -> str:
    """The setting that asks for random play."""
    wanted = ("selfplay.shots", play.shots), ("selfplay.warmup_rows", play.warmup_rows)
    return next((name for name, value in wanted if value and play.policy == "model"), f"selfplay.policy={play.policy}")


def selfplay(cfg: Config, out: Path) -> dict[str, Any]:
    """Plays, corrects, selects, splits; writes train.parquet, val.parquet, episodes.jsonl and stats.json to ``out``.

    Finished episodes are stored in ``episodes.partial.jsonl``. A resumed run replays only failed ones, and none where it selects
    other rows of a finished stage (``reopen_episodes``).

    Returns:
        the stage's record: counts and the keys of the worlds played.

    Raises:
        ValueError: a setting, model or world that cannot be used, a server that gives no answers, or no row left to train on.
    """
    check_source(cfg)
    cfg, task = selfplay_task(cfg)
    for text in length_notes(task, cfg):
        note(text)
    complete = ranks.on_main(lambda: (out / PLAYED).is_file())
    store = EpisodeStore(out / (PLAYED if complete else "episodes.partial.jsonl"), retry=not complete)
    worlds, shown, episodes = _play(cfg, task, store, out / "warmup")
    return ranks.on_main(lambda: _write(cfg, out, worlds, shown, episodes))


def _write(cfg: Config, out: Path, worlds: list[World], shown: list[World], episodes: list[Episode]) -> dict[str, Any]:
    """Corrects, selects and splits the episodes; returns the stage's record."""
    play = cfg.selfplay
    write_episodes(out / "episodes.jsonl", episodes)

    played = [episode for episode in episodes if not episode.failed]
    if not played:
        raise ValueError(f"every episode of self-play failed; the first error: {episodes[0].error}")
    train, val, reasons = rows_for_training(cfg, played)
    dropped = {**({"failed episode": len(episodes) - len(played)} if len(played) < len(episodes) else {}), **reasons}
    turns = [turn for episode in episodes for turn in episode.turns]
    kept = sum(why_dropped(turn, play) is None for turn in turns) / max(1, len(turns))
    if not train:
        raise ValueError(f"self-play left no row to train on; dropped: {dropped}. {remedies(cfg, turns)}")
    note(summary(cfg, episodes, dropped, len(train) + len(val)))
    if kept < play.min_kept:
        raise too_few(cfg, turns)
    write_rows(out / "train.parquet", train)
    write_rows(out / "val.parquet", val)
    stats: dict[str, Any] = {
        **episode_statistics(episodes),
        "kept": kept,
        "rows_train": len(train),
        "rows_val": len(val),
        "dropped": dropped,
    }
    atomic_write(out / "stats.json", json.dumps(stats, indent=1) + "\n")
    return {
        "rows_train": len(train),
        "rows_val": len(val),
        "actions": sum(len(turn.executed) for episode in episodes for turn in episode.turns),
        "dropped": dropped,
        "selection": selection(cfg),
        "worlds": {"selfplay": world_keys([*worlds, *shown])},
    }


def episode_statistics(episodes: list[Episode]) -> dict[str, Any]:
    """Of the episodes of stage 1, for ``stats.json``: counts, shares and the accuracy of the states that the model wrote."""
    turns = [turn for episode in episodes for turn in episode.turns]
    return {
        "episodes": len(episodes),
        "worlds": len({episode.content for episode in episodes}),
        "turns": len(turns),
        "distinct_states": distinct_states(episodes),
        "tries": sum(turn.tries for turn in turns),
        "format_rate": sum(turn.format_ok for turn in turns) / max(1, len(turns)),
        "valid_rate": sum(turn.valid for turn in turns) / max(1, len(turns)),
        "success": sum(e.success for e in episodes) / len(episodes),
        "belief": world_model_metrics(episodes),
    }


def rows_for_training(cfg: Config, played: list[Episode]) -> tuple[list[Row], list[Row], Counter[str]]:
    """Training rows (rare outcomes repeated), validation rows and the number of dropped rows by reason."""
    rows, reasons = training_rows(cfg, played)
    train, val = split_rows(rows, cfg.selfplay.val_fraction, cfg.seeds.run)
    return repeat_rare(train, cfg.selfplay.outcome_share), val, reasons


def _plain_rows(episodes: list[Episode], system: str | None, count: int, seed: int) -> list[Row]:
    """``count`` random well-formed answers to the plain prompt: a model trained on transitions alone forgets how to answer."""
    rows = [
        row
        for episode in episodes
        for row in rows_of(episode, system=system, window=1, states="belief")
        if row.extra["format_ok"]
    ]
    chosen = np.random.default_rng(np.random.SeedSequence([seed, 0x91A1])).permutation(len(rows))[:count]
    return [rows[i] for i in sorted(chosen)]


def training_rows(cfg: Config, played: list[Episode]) -> tuple[list[Row], Counter[str]]:
    """The training rows that stage 1's settings select from episodes, and the number of dropped rows by reason."""
    play, seed, system = cfg.selfplay, cfg.seeds.run, make_task(cfg).system
    if play.rows == "transitions":
        world_model_task = make_task(cfg, state_format=play.state_format, prompt="world_model")
        moves, dropped = select_rows(transition_rows(played, world_model_task, play.states), play, seed)
        if play.states == "shuffled":  # after the selection: the control has the same moves
            moves = shuffle_moves(moves, cfg.agent.style, seed)
        plain, more = select_rows(_plain_rows(played, system, round(play.plain_rows * len(moves)), seed), play, seed)
        return moves + plain, dropped + more
    shown = shuffle_states(played, seed) if play.states == "shuffled" else played
    window = row_window(cfg)
    rows = [row for episode in shown for row in rows_of(episode, system=system, window=window, states=play.states)]
    return select_rows(rows, play, seed)


def _play(cfg: Config, task: Task, store: EpisodeStore, warmup: Path) -> tuple[list[World], list[World], list[Episode]]:
    """The split's worlds, those of the random play that helped the model, and the episodes played in the former."""
    play = cfg.selfplay
    source = WorldSource(task, "selfplay", first_seed(cfg.seeds, "selfplay"))
    worlds = source.take(play.groups)
    shown = unplayed_worlds(source, worlds) if needs_random_play(cfg) else []
    total = len(worlds) * play.group_size
    if len(store):
        note(f"self-play: {len(store)} of {total} episodes were played before")
    if len(store) == total:
        return worlds, shown, store.in_order()
    if play.policy == "explore":
        return worlds, shown, _explore(cfg, task, worlds, store)
    player = play.model
    if play.policy == "model":
        if play.warmup_rows:
            player = warm_up(cfg, task, shown, warmup)
        task = dataclasses.replace(task, cold_start=cold_start(cfg, task, shown))
    policy = Policy.load(cfg, player, engine=cfg.engine if play.policy == "model" else None)
    if play.policy == "random":
        policy.engine = RandomEngine(policy.chat, _random_play(cfg, task, policy.chat))
    elif play.constrained and play.policy == "model":
        policy.constrain(task)
    try:
        if play.policy == "planner":
            with planning_model(cfg, policy, task) as asked:
                episodes = plan_chunks(cfg, asked, task, worlds, play.group_size, SELFPLAY, "self-play", store)
        else:
            served = cfg.engine.concurrency if cfg.engine.kind == "openai" else cfg.sampling.batch_size
            at_once = min(served, CHUNK * play.group_size)
            watch = EarlyReport(cfg, total, at_once) if play.policy == "model" and not len(store) else None
            watch = watch if ranks.is_main() else None
            episodes = play_chunks(
                policy, task, worlds, play.group_size, cfg.seeds.run, SELFPLAY, "self-play", store, watch
            )
    finally:
        policy.close()
    return worlds, shown, episodes


def _random_play(cfg: Config, task: Task, chat: Chat) -> Callable[[np.random.Generator], str]:
    """Random responses; plain ones without the thought if with it they are longer than the model may write afterwards."""
    respond = random_responder(task)
    if task.agent.prompt == "world_model":
        return respond
    limit = sampling_for(task, cfg.sampling).max_tokens
    with suppress(WorldError):  # which ends an episode of its own
        drawn = [chat.encode_response(respond(np.random.default_rng(seed))) for seed in range(8)]
        if any(len(each.ids) - each.num_forced >= limit for each in drawn):
            return random_responder(task, thought="")
    return respond


def _explore(cfg: Config, task: Task, worlds: list[World], store: EpisodeStore) -> list[Episode]:
    """The episodes of ``selfplay.policy=explore``."""
    size, run, most = cfg.selfplay.group_size, cfg.seeds.run, task.env.max_failed

    def play(chunk: Sequence[World], seed: int, on_turn: OnTurn, skip: Container[Key]) -> list[Episode]:
        # All of them, since a world's later episodes need the earlier.
        return play_exploring(task, chunk, seed=seed, group_size=size, on_turn=on_turn)

    return in_chunks(play, worlds, size, run, SELFPLAY, "self-play", store, size=CHUNK, max_failed=most)
