"""Random play with true states, for a model that does not know the format: worked examples and a warm-up."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path

from spa.agent.cold_start import ColdStart
from spa.agent.conversation import Job, converse
from spa.agent.episode import Episode, Turn
from spa.agent.failures import Failures
from spa.agent.host import Hosts
from spa.agent.random_engine import RandomReplies, random_responder
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource
from spa.common.progress import note
from spa.config.schema import Config, SamplingConfig
from spa.data.ground_truth import Row, rejection, rows_of
from spa.data.layouts import write_rows
from spa.data.transitions import RESPONSE_FORMATS
from spa.scale import ranks

POOL = 32  # worlds that examples and warm-up rows come from
_LOOKS = 20  # times POOL candidates that are looked at
_PASSES = 8  # of random play over the worlds, in search of examples


def needs_random_play(cfg: Config) -> bool:
    """Whether the player is helped by random play."""
    return cfg.selfplay.policy == "model" and bool(cfg.selfplay.shots or cfg.selfplay.warmup_rows)


def unplayed_worlds(source: WorldSource, played: Sequence[World]) -> list[World]:
    """Up to ``POOL`` next worlds of the source that pose another problem than those played.

    Raises:
        ValueError: there is none.
    """
    contents = {world.content for world in played}
    worlds: list[World] = []
    for _ in range(_LOOKS):
        worlds += [world for world in source.take(POOL) if world.content not in contents]
        if len(worlds) >= POOL:
            break
    if not worlds:
        raise ValueError(
            "selfplay.shots and selfplay.warmup_rows need worlds of the self-play split beyond those played, and none is left: "
            "lower selfplay.groups, or set both to 0"
        )
    return worlds[:POOL]


def cold_start(cfg: Config, task: Task, worlds: Sequence[World]) -> ColdStart:
    """The help that ``selfplay.shots`` and ``selfplay.tries`` give; the examples are first turns in ``worlds`` in which the world
    accepted every action and changed, as far as ``_PASSES`` have them: a model copies what it is shown."""
    play = cfg.selfplay
    # Greedy sampling would repeat the rejected response.
    tries = play.tries if play.filter and cfg.sampling.temperature else 1
    better: list[Episode] = []
    others: list[Episode] = []
    for episode in islice(random_episodes(task, worlds, cfg.seeds.run), _PASSES * len(worlds) if play.shots else 0):
        first = episode.turns[0]
        (better if not first.invalid and first.next_state != first.state else others).append(episode)
        if len(better) == len(worlds):
            break
    shown = better if len(better) >= play.shots else better + others[: len(worlds)]
    rows = [rows_of(episode, system=task.system, window=1)[0] for episode in shown]
    examples = tuple((row.prompt[-1]["content"], row.response) for row in rows)
    return ColdStart(play.shots, examples, tries, lambda response: rejection(response) is None)


def warm_up(cfg: Config, task: Task, worlds: Sequence[World], out: Path) -> str:
    """Trains a copy of the player on ``selfplay.warmup_rows`` rows for one pass, with stage 2's settings; returns its folder.

    Resumes from what is in ``out``.

    Raises:
        ValueError: as ``run_sft``.
    """
    from spa.sft.stage2 import run_sft

    play = cfg.selfplay
    rows: list[Row] = []
    for episode in random_episodes(task, worlds, cfg.seeds.run):
        rows += rows_of(episode, system=task.system, window=task.agent.window)
        if len(rows) >= play.warmup_rows:
            break
    note(f"self-play: the model is warmed up on {min(len(rows), play.warmup_rows)} rows of random play")
    ranks.on_main(lambda: write_rows(out / "train.parquet", rows[: play.warmup_rows]))
    sft = dataclasses.replace(
        cfg.sft, loss="think_answer", epochs=1, use="last", patience=0, eval_worlds=0, eval_every=0
    )
    model = dataclasses.replace(cfg.model, path=play.model or cfg.model.path)
    cfg = dataclasses.replace(cfg, model=model, sft=sft)
    return str(run_sft(cfg, out, data=out, resume=True, log=lambda step, metrics: None))


def random_episodes(task: Task, worlds: Sequence[World], seed: int) -> Iterator[Episode]:
    """Endless random play, one episode per world and pass, without those that fail. Its responses are in the format of the prompt.

    Raises:
        ValueError: a larger share than ``env.max_failed`` of the episodes fails, or a whole pass.
    """
    engine = RandomReplies(random_responder(task))
    failures = Failures("random play", task.env.max_failed)
    with Hosts(task, 1) as hosts:
        host = hosts.processes[0] if hosts.processes else None
        for member in count():
            before = failures.count
            for group, world in enumerate(worlds):
                job = Job(world, group, member)
                episode = converse(engine, task, job, SamplingConfig(), seed=seed, stop=threading.Event(), host=host)
                failures.add([episode])
                if episode.failed:
                    continue
                for turn in episode.turns:
                    turn.response = _written(task, turn) if turn.executed else turn.response
                yield episode
            failures.say()
            if failures.count - before == len(worlds):
                raise ValueError(str(failures))


def _written(task: Task, turn: Turn) -> str:
    """The response that takes the turn's executed actions, with their names as thought and the true states."""
    form, agent = RESPONSE_FORMATS[task.agent.style], task.agent
    actions = f" {agent.action_sep} ".join(turn.executed)
    if not agent.think:
        return form.answer.format(actions)
    return form.guess(turn.state, actions, turn.next_state) if agent.prompt == "world_model" else form.choice(actions)
