"""Rollouts through a chat API: episodes run concurrently and independently, so a slow reply delays only its own episode."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from spa.agent.episode import Episode
from spa.agent.host import Host, Hosts
from spa.agent.play import Play, new_episode
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import SamplingConfig
from spa.engines.base import ChatEngine, Message, Refused, Reply, RequestFailed


@dataclass(frozen=True)
class Job:
    """An episode to play: its world and its place in the result."""

    world: World
    group: int
    member: int


def converse(
    engine: ChatEngine,
    task: Task,
    job: Job,
    sampling: SamplingConfig,
    *,
    seed: int,
    stop: threading.Event,
    host: Host | None = None,
) -> Episode:
    """Plays one episode: the one ``rollout`` would return for the same texts, but without token ``sequences``.

    Args:
        seed: sampling seed; each request is seeded with it and the group, member, turn and try.
        stop: set by the caller to cancel the engine's work.
        host: where the world lives; None is this process.

    Raises:
        RequestFailed, ServerError: as the engine's ``reply``; the former also after ``engine.episode_timeout`` seconds.
    """
    play = Play.start(task, job.world, job.group, job.member, host)
    deadline = time.monotonic() + engine.episode_timeout
    try:
        for index in range(task.env.max_turns):
            if not play.live:
                break
            messages = _messages(play, index)
            play.open_turn(index, play.user_text(index, play.first_shown(index)))
            key, cooled = [seed, job.group, job.member, index], sampling
            reply: Reply | None = None
            while True:
                if time.monotonic() > deadline:
                    raise RequestFailed(f"more than engine.episode_timeout={engine.episode_timeout:g} seconds")
                try:
                    asked = _request_seed(*key)
                    reply = engine.reply(messages, cooled, forced=task.forced, seed=asked, stop=stop, deadline=deadline)
                except Refused:
                    if reply is None:
                        raise
                    play.episode.turns[-1].tries -= 1
                    break  # some models take no other temperature: the reply that was rejected stays
                if not play.try_again(reply.text):
                    break
                key = [seed, job.group, job.member, index, play.episode.turns[-1].tries]
                cooled = replace(sampling, temperature=play.cooling * sampling.temperature)
            play.answer(reply.text, reply.finish_reason)
    finally:
        play.host.close()
    return play.episode


def _messages(play: Play, index: int) -> list[Message]:
    """The conversation shown in turn ``index``, including the model's earlier responses."""
    first = play.first_shown(index)
    system = play.episode.system
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    messages += play.episode.shots
    for position in range(first, index + 1):
        text = play.user_text(position, first)
        messages.append({"role": "user", "content": play.after_shots(text) if position == first else text})
        if position < index:
            messages.append({"role": "assistant", "content": play.episode.turns[position].response})
    return messages


def _request_seed(*key: int) -> int:
    """A 31-bit seed: servers accept different ranges, and this fits all."""
    return int(np.random.SeedSequence(key).generate_state(1)[0] >> np.uint32(1))


def play_jobs(
    engine: ChatEngine,
    task: Task,
    jobs: Sequence[Job],
    sampling: SamplingConfig,
    *,
    seed: int,
    on_done: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Plays all jobs, ``engine.workers`` at a time; returns their episodes in the order of ``jobs``.

    An episode whose request failed after all retries is replayed once, after all others, unless the server refused it. If it
    fails again, it has ``status="error"`` and no turns.

    Args:
        on_done: called in this thread with every episode as soon as it finishes, except failed ones. If ``play_jobs``
            raises, ``on_done`` has already received every finished episode.

    Raises:
        ServerError: the server refuses the requests or is down.
    """
    episodes: dict[Job, Episode] = {}

    def keep(job: Job, episode: Episode) -> None:
        episodes[job] = episode
        if on_done:
            on_done(episode)

    failed = _play_once(engine, task, jobs, sampling, seed, keep)
    refused = {job: error for job, error in failed.items() if isinstance(error, Refused)}
    again = [job for job in failed if job not in refused]
    failed = refused | _play_once(engine, task, again, sampling, seed, keep)
    for job, error in failed.items():
        episodes[job] = new_episode(task, job.world, job.group, job.member)
        episodes[job].status, episodes[job].error = "error", f"{type(error).__name__}: {error}"
    return [episodes[job] for job in jobs]


def _play_once(
    engine: ChatEngine,
    task: Task,
    jobs: Sequence[Job],
    sampling: SamplingConfig,
    seed: int,
    keep: Callable[[Job, Episode], None],
) -> dict[Job, RequestFailed]:
    """Plays every job once; returns those whose request failed."""
    pending: queue.SimpleQueue[Job] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[Job, Episode | BaseException]] = queue.SimpleQueue()
    for job in jobs:
        pending.put(job)
    stop = threading.Event()

    workers = min(engine.workers, len(jobs))
    hosts = Hosts(task, workers)
    places: list[Host | None] = [*hosts.processes] or [None] * workers

    def work(host: Host | None) -> None:
        while not stop.is_set():
            try:
                job = pending.get_nowait()
            except queue.Empty:
                return
            try:
                results.put((job, converse(engine, task, job, sampling, seed=seed, stop=stop, host=host)))
            except RequestFailed as error:
                results.put((job, error))
            except BaseException as error:  # of a world's code: nobody else would hear of it
                stop.set()
                results.put((job, error))

    # Daemons: a pending request must not keep an interrupted process alive until it times out.
    for host in hosts.processes:
        host.ready()  # before there are threads
    for place in places:
        threading.Thread(target=work, args=(place,), daemon=True).start()
    failed: dict[Job, RequestFailed] = {}
    left = len(jobs)
    try:
        while left:
            try:
                # A Ctrl-C that arrives just before the wait is noticed only when the wait ends.
                job, result = results.get(timeout=0.5)
            except queue.Empty:
                continue
            left -= 1
            if isinstance(result, Episode):
                keep(job, result)
            elif isinstance(result, RequestFailed):
                failed[job] = result
            else:
                raise result
    except BaseException:
        stop.set()  # ends all waits; no thread starts another episode
        for job, result in _waiting(results):
            if isinstance(result, Episode):
                with suppress(Exception):  # it may be what raised, once it has stored the episode
                    keep(job, result)
        raise
    finally:
        hosts.close()
    return failed


def _waiting(
    results: queue.SimpleQueue[tuple[Job, Episode | BaseException]],
) -> list[tuple[Job, Episode | BaseException]]:
    finished = []
    while True:
        try:
            finished.append(results.get_nowait())
        except queue.Empty:
            return finished
