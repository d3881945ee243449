"""Shares of a rollout in processes of their own: the same episodes, and none lost when a process is."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from typing import Any

import pytest
import torch

from spa.agent.worlds import World
from spa.common.signals import terminated_as_interrupted
from spa.config.schema import SamplingConfig
from spa.engines import processes, transformers
from spa.engines.base import BrokenModel
from spa.engines.processes import can_fork, in_processes
from spa.engines.transformers import TransformersEngine
from tests.models.networks import network
from tests.scripted import lake_task, tiny_policy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def test_results_come_in_order_from_other_processes() -> None:
    found = in_processes(lambda number: (number, os.getpid()), 3)
    assert [number for number, _ in found] == [0, 1, 2]
    assert len({process for _, process in found}) == 3
    assert found[0][1] == os.getpid()


def test_a_process_has_no_processes_of_its_own() -> None:
    assert can_fork()
    assert in_processes(lambda number: can_fork(), 2) == [True, False]


@pytest.mark.parametrize("error", [ValueError("the 7th world"), BrokenModel("not finite")])
@pytest.mark.parametrize("where", [0, 1])
def test_errors_of_a_share_are_raised(error: Exception, where: int) -> None:
    def work(number: int) -> int:
        if number == where:
            raise error
        return number

    with pytest.raises(type(error), match=str(error)):
        in_processes(work, 2)


class Stubborn(Exception):
    """Can be pickled but not read again."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a}, {b}")


def lost(number: int, how: str, home: int) -> Any:
    if os.getpid() == home:
        return number
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs":
        time.sleep(600)
    if how == "fails unreadably":
        raise Stubborn(1, 2)
    return lambda: number  # cannot be pickled


@pytest.mark.parametrize("how", ["dies", "hangs", "fails unreadably", "cannot be sent"])
def test_a_lost_share_is_done_again(monkeypatch, how: str) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    home = os.getpid()
    with pytest.warns(RuntimeWarning, match="done again"):
        assert in_processes(lambda number: lost(number, how, home), 3) == [0, 1, 2]


@pytest.mark.parametrize("window", [0, 1])
def test_episodes_do_not_depend_on_the_processes(window: int) -> None:
    policy = tiny_policy()
    worlds = [World(s, str(s)) for s in range(5)]
    found = []
    for count in (1, 2, 3, 9):
        policy.sampling = dataclasses.replace(policy.sampling, processes=count)
        found.append(policy.play(lake_task(window), worlds, samples=2, seed=1))
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            assert (a.group, a.member, a.content, a.success) == (b.group, b.member, b.content, b.success)
            assert [turn.response for turn in a.turns] == [turn.response for turn in b.turns]
            assert [s.ids for s in a.sequences] == [s.ids for s in b.sequences]
            torch.testing.assert_close(
                torch.tensor([x for s in a.sequences for x in s.logprobs]),
                torch.tensor([x for s in b.sequences for x in s.logprobs]),
                rtol=0,
                atol=1e-4,
            )


def test_weights_are_those_of_the_call() -> None:
    policy = tiny_policy()
    worlds = [World(s, str(s)) for s in range(4)]
    policy.sampling = dataclasses.replace(policy.sampling, processes=2)
    first = policy.play(lake_task(1), worlds, samples=1, seed=1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(0.5)
    second = policy.play(lake_task(1), worlds, samples=1, seed=1)
    assert all(a.turns[0].response != b.turns[0].response for a, b in zip(first, second, strict=True))


def test_a_process_for_each_thread_where_it_helps(monkeypatch) -> None:
    engine = TransformersEngine(network(), 0)
    auto = SamplingConfig()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert engine.split(auto, 64, 8) == 4
    assert engine.split(auto, 3, 64) == 3, "a group is not divided"
    assert engine.split(auto, 6, 8) == 3, "too few episodes for four"
    assert engine.split(auto, 2, 64) == 1, "two threads would have no work"
    assert engine.split(auto, 1, 8) == 1
    assert engine.split(dataclasses.replace(auto, processes=1), 64, 8) == 1
    assert engine.split(dataclasses.replace(auto, processes=6), 64, 8) == 6
    monkeypatch.setattr(transformers, "_SMALL", 10)
    assert engine.split(auto, 64, 8) == 1, "large weights are read once, by all threads"
    monkeypatch.setattr(transformers, "can_fork", lambda: False)
    assert engine.split(dataclasses.replace(auto, processes=6), 64, 8) == 1


def test_processes_share_threads_and_memory(monkeypatch) -> None:
    engine, before = TransformersEngine(network(), 0), torch.get_num_threads()
    size = 2 * 2 * 2 * 8 * 4 * 72  # keys and values, layers, heads, width, bytes, positions
    monkeypatch.setattr(transformers, "free_memory", lambda device: int(16 * size / 0.6))
    allocate, slots = transformers.Decoder.allocate, []
    monkeypatch.setattr(transformers.Decoder, "allocate", lambda self, s, c: (slots.append(s), allocate(self, s, c)))

    def play() -> None:
        assert engine.decoder is not None
        engine.decoder.free()
        engine.generate([[6, 7, 8, 9, 10, 11, 12, 13]] * 32, SamplingConfig(max_tokens=1), stop_ids=frozenset(), seed=0)

    torch.set_num_threads(4)
    try:
        with engine.alone(2):
            assert torch.get_num_threads() == 1, "OpenMP hangs in a fork with more"
            play()
        with engine.alone(1):
            assert torch.get_num_threads() == 4
        assert torch.get_num_threads() == 4
        play()
    finally:
        torch.set_num_threads(before)
    assert slots == [5, 9]  # halves of 32 until they fit: 8 and the common beginning's are 9 <= 16, 16 are too many


class Terminates:
    """Ends its process by SIGTERM when it is about to be sent."""

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        return Terminates, ()


def test_a_terminated_process_says_nothing(capfd) -> None:
    with terminated_as_interrupted(), pytest.warns(RuntimeWarning, match="done again"):
        in_processes(lambda number: Terminates(), 2)
    assert capfd.readouterr().err == ""
