"""Worlds in processes of their own: the same episodes as in this one, and their steps at the same time."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from spa.agent.conversation import Job, play_jobs
from spa.agent.episode import Episode
from spa.agent.host import ProcessHost
from spa.agent.random_engine import RandomEngine, RandomReplies, random_responder
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import AgentConfig, EnvConfig, SamplingConfig
from tests.scripted import CHAT, LAKE, Scripted, lake_task, tiny_policy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worlds are forked on Linux only")

WORLDS = [World(seed, f"w{seed}") for seed in range(4)]
SLIPPERY = {"size": 4, "is_slippery": True}


class Slow:
    """A step takes its time, and tells its process and when it was."""

    actions = ("go",)

    def reset(self, *, seed=None, options=None):
        return f"{seed}", {}

    def step(self, action):
        begun = time.monotonic()
        time.sleep(0.5)
        return f"{os.getpid()} {begun} {time.monotonic()}", 1.0, False, False, {}


class TellsItsProcess:
    actions = ("go",)

    def reset(self, *, seed=None, options=None):
        return f"{os.getpid()}", {}

    def step(self, action):
        return f"{os.getpid()}", 1.0, False, False, {}


class DiesWithAChildLeft(TellsItsProcess):
    """The child keeps the pipe open that the world's own process has left."""

    def step(self, action):
        if os.fork():
            os._exit(3)
        time.sleep(600)


class Interrupts(TellsItsProcess):
    def step(self, action):
        raise KeyboardInterrupt


class StartsAProcess(TellsItsProcess):
    """Its state is the number of a process that it does not end."""

    def reset(self, *, seed=None, options=None):
        self.child = subprocess.Popen(["sleep", "1000"])
        return f"{self.child.pid}", {}


def in_processes(task: Task, count: int) -> Task:
    return dataclasses.replace(task, env=dataclasses.replace(task.env, processes=count))


@pytest.mark.parametrize("window", [0, 1])
def test_the_same_episodes_as_in_this_process(window: int) -> None:
    policy = tiny_policy()
    task = lake_task(window, settings=SLIPPERY, max_turns=3)

    def play(count: int) -> tuple[list[Episode], list[tuple[tuple[int, int], bool]]]:
        ends: list[tuple[tuple[int, int], bool]] = []
        episodes = policy.play(
            in_processes(task, count),
            WORLDS,
            samples=2,
            seed=3,
            on_turn=lambda episode, ended: ends.append(((episode.group, episode.member), ended)),
        )
        return episodes, sorted(ends)

    (expected, told), *others = [play(count) for count in (0, 3, 100)]
    assert len({turn.response for episode in expected for turn in episode.turns}) > 4
    for episodes, ends in others:
        for episode, same in zip(episodes, expected, strict=True):
            for one, two in zip(episode.sequences, same.sequences, strict=True):
                assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)  # another batch is rounded differently
                one.logprobs = two.logprobs
        assert episodes == expected
        assert ends == told
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("engine", ["random", "rounds"])
def test_so_do_engines_that_play_turn_by_turn(engine: str) -> None:
    """However many play at once: none repeats what another has drawn."""
    policy, task = tiny_policy(), lake_task(settings=SLIPPERY, max_turns=3)
    policy.engine.decoder = None
    chosen = policy.engine if engine == "rounds" else RandomEngine(CHAT, random_responder(task))
    played = [
        [
            [turn.response for turn in episode.turns]
            for episode in rollout(
                chosen, CHAT, in_processes(task, count), WORLDS, policy.sampling, seed=0, group_size=4
            )
        ]
        for count in (0, 1, 3)
    ]
    assert played[0] == played[1] == played[2]
    assert len({tuple(responses) for responses in played[0][:4]}) > 1


def test_steps_of_different_worlds_take_place_at_the_same_time() -> None:
    task = Task(
        EnvConfig(id=f"{__name__}:Slow", tag="S", max_turns=2, processes=16), AgentConfig(style="terse", window=1)
    )
    engine = Scripted(lambda i: "</think><answer>go</answer>")
    episodes = rollout(engine, CHAT, task, WORLDS, SamplingConfig(), seed=0, group_size=4)
    for turn in range(2):
        said = [episode.turns[turn].next_state.split() for episode in episodes]
        assert len({process for process, _, _ in said} - {str(os.getpid())}) == 16
        spans = [(float(begun), float(ended)) for _, begun, ended in said]
        at_once = [sum(begun <= moment < ended for begun, ended in spans) for moment, _ in spans]
        assert max(at_once) >= 4  # all 16, on a machine that has nothing else to do


def test_conversations_use_them_too() -> None:
    task = Task(dataclasses.replace(LAKE, settings=SLIPPERY), AgentConfig(style="terse"))
    jobs = [Job(world, group, 0) for group, world in enumerate(WORLDS)]
    played = [
        play_jobs(RandomReplies(random_responder(task)), in_processes(task, count), jobs, SamplingConfig(), seed=1)
        for count in (0, 2)
    ]
    assert played[0] == played[1]
    assert not multiprocessing.active_children()


def tells_task() -> Task:
    return Task(
        EnvConfig(id=f"{__name__}:TellsItsProcess", tag="P", max_turns=2, processes=2), AgentConfig(style="terse")
    )


@pytest.mark.parametrize("limit", [0.0, 300.0])
def test_a_dead_process_is_noticed_while_its_child_lives(limit: float) -> None:
    settings = {"max_turns": 2, "processes": 1, "step_timeout": limit}
    host = ProcessHost(
        Task(EnvConfig(id=f"{__name__}:DiesWithAChildLeft", tag="P", **settings), AgentConfig(style="terse"))
    )
    host.start(0, 0)
    assert host.run(["go"], True) == ([], "run: its process died (exit code 3)")


def test_an_interrupt_in_a_conversations_world_is_not_waited_for() -> None:
    task = Task(EnvConfig(id=f"{__name__}:Interrupts", tag="P", max_turns=2), AgentConfig(style="terse"))
    with pytest.raises(KeyboardInterrupt):
        play_jobs(RandomReplies(random_responder(task)), task, [Job(WORLDS[0], 0, 0)], SamplingConfig(), seed=1)


def test_conversations_go_on_in_the_same_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    ready = ProcessHost.ready

    def counted(host: ProcessHost) -> None:
        before = host._process
        ready(host)
        if host._process is not before:
            started.append(threading.current_thread() is threading.main_thread())

    monkeypatch.setattr(ProcessHost, "ready", counted)
    monkeypatch.setattr(RandomReplies, "workers", 2)
    jobs = [Job(World(seed, f"w{seed}"), seed, 0) for seed in range(8)]
    replies = RandomReplies(lambda rng: "<answer>go</answer>")
    episodes = play_jobs(replies, tells_task(), jobs, SamplingConfig(), seed=1)
    assert {(episode.status, len(episode.turns)) for episode in episodes} == {("truncated", 2)}
    assert started == [True, True], "as often as there are processes, and where no other thread runs"


def runs(number: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    try:
        return "(zombie)" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def test_what_a_world_has_started_ends_with_its_process() -> None:
    task = Task(EnvConfig(id=f"{__name__}:StartsAProcess", tag="P"), AgentConfig(style="terse"))
    host = ProcessHost(task)
    child = int(host.start(0, 0).state)
    assert runs(child)
    host.kill()
    deadline = time.monotonic() + 10
    while runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = not runs(child)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    assert ended


def test_an_episode_that_is_given_up_leaves_its_process() -> None:
    host = ProcessHost(tells_task())
    process = host.start(0, 0).state
    host.close()
    host.close()
    assert host.start(1, 0).state == process
    host.kill()
    host.close()
    assert not multiprocessing.active_children()
