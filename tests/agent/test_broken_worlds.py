"""A broken world ends its own episode, says what was wrong, and leaves every other episode and the run alone."""

from __future__ import annotations

import enum
import fractions
import json
import math
import os
import re
import signal
import sys
import time
from collections import UserDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spa.agent.episode import Episode
from spa.agent.failures import Failures
from spa.agent.policy import Policy
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource
from spa.cli import main
from spa.config.schema import AgentConfig, EnvConfig, SamplingConfig
from spa.envs import TextEnv
from spa.envs.checked import WorldError, checked_reset, checked_step
from spa.evaluate.play import play_chunks
from tests.scripted import CHAT, Scripted, tiny_config

BAD = 1  # the seed of the world that is broken
FORKS = pytest.mark.skipif(sys.platform != "linux", reason="worlds get processes of their own on Linux only")


class Fine:
    """A world without fault; those of the table differ from it in one way, in the world of seed ``BAD``."""

    actions = ("go",)
    seed: int | None = None

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return (self.bad_reset() if seed == BAD else None) or (f"world {seed}", {})

    def step(self, action):
        return (self.bad_step() if self.seed == BAD else None) or ("next", 0.5, False, False, {})

    def close(self):
        if self.seed == BAD:
            self.bad_close()

    def bad_reset(self) -> Any: ...

    def bad_step(self) -> Any: ...

    def bad_close(self) -> Any: ...


class Odd(str):
    """A text that is no plain one."""

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Hostile(UserDict):
    def __iter__(self):
        raise RuntimeError("not to be read")


class Silent:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def fail(error: BaseException) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        raise error

    return method


def step(state: Any = "next", reward: Any = 0.5, ended: Any = False, cut: Any = False, info: Any = None) -> Any:
    return lambda self: (state, reward, ended, cut, {} if info is None else info)


def forever(self: Any) -> None:
    while True:
        time.sleep(0.01)


def deep(self: Any) -> Any:
    return deep(self)


def nan_of(kind: Callable[[float], Any]) -> Any:
    return step(reward=kind(math.nan))


# name: (method, what it is replaced with, what the error must say)
TABLE: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "ResetRaises": ("reset", fail(RuntimeError("no world")), "reset: RuntimeError: no world"),
    "ResetExits": ("reset", fail(SystemExit(3)), "reset: SystemExit: 3"),
    "ResetHangs": ("reset", forever, "reset: no end within 1 seconds"),
    "ResetNothing": ("reset", lambda self: 7, "reset: reset() must return state, info, not 7"),
    "ResetStateAlone": ("reset", lambda self: "state", "reset() must return state, info, not 'state'"),
    "ResetThree": ("reset", lambda self: ("state", {}, 3), "reset() must return 2 values (state, info), not 3"),
    "ResetNone": ("reset", lambda self: (None, {}), "reset: a state must be text, not None"),
    "ResetContent": ("reset", lambda self: ("state", {"content": Silent()}), "reset: RuntimeError: no text"),
    "ResetSymmetry": ("reset", lambda self: ("state", {"symmetry": "\ud800"}), "info['symmetry'] is not valid Unicode"),
    "ResetInfo": ("reset", lambda self: ("state", None), "reset: info must be a mapping, not None"),
    "StepRaises": ("step", fail(ValueError("fell\napart")), "step: ValueError: fell apart"),
    "StepExits": ("step", fail(SystemExit(0)), "step: SystemExit: 0"),
    "StepStops": ("step", fail(GeneratorExit()), "step: GeneratorExit"),
    "StepIsMute": ("step", fail(Mute()), "step: Mute"),
    "StepSurrogateError": ("step", fail(OSError("bad \ud800 file")), "step: OSError: bad ? file"),
    "StepRecurses": ("step", deep, "step: RecursionError"),
    "StepOutOfMemory": ("step", fail(MemoryError()), "step: MemoryError"),
    "StepHangs": ("step", forever, "step: no end within 1 seconds"),
    "StepFour": ("step", lambda self: ("next", 0.0, False, {}), "step() must return 5 values"),
    "StepText": ("step", lambda self: "12345", "step() must return state, reward, terminated, truncated, info, not"),
    "StateNumber": ("step", step(3), "step: a state must be text, not 3"),
    "StateBytes": ("step", step(b"state"), "a state must be text, not an object of type bytes"),
    "StateArray": ("step", step(np.zeros(2)), "a state must be text, not an object of type ndarray"),
    "StateSurrogate": ("step", step("ab\ud800"), "a state is not valid Unicode: a lone surrogate at character 2"),
    "StateHuge": ("step", step("x" * 2001), "a state has 2001 characters, more than env.max_state_chars=2000"),
    "StateOdd": ("step", step(Odd("x" * 5000)), "a state has 5000 characters"),
    "RewardNone": ("step", step(reward=None), "step: the reward must be a number, not None"),
    "RewardNan": ("step", step(reward=math.nan), "the reward must be a finite number of at most 1e+06, not nan"),
    "RewardNanArray": ("step", nan_of(np.array), "must be a finite number of at most 1e+06, not nan"),
    "RewardNanTensor": ("step", nan_of(torch.tensor), "must be a finite number of at most 1e+06, not nan"),
    "RewardInfinite": ("step", step(reward=-math.inf), "must be a finite number of at most 1e+06, not -inf"),
    "RewardHuge": ("step", step(reward=1e30), "must be a finite number of at most 1e+06, not 1e+30"),
    "RewardHugeInt": ("step", step(reward=10**5000), "the reward must be a finite number of at most 1e+06, not"),
    "RewardText": ("step", step(reward="1.0"), "the reward must be a number, not '1.0'"),
    "RewardComplex": ("step", step(reward=1j), "the reward must be a number, not 1j"),
    "RewardVector": ("step", step(reward=np.ones(2)), "must be a number, not an object of type ndarray"),
    "EndedNone": ("step", step(ended=None), "terminated must be true or false, not None"),
    "EndedText": ("step", step(ended="no"), "terminated must be true or false, not 'no'"),
    "CutNumber": ("step", step(cut=0.5), "truncated must be true or false, not 0.5"),
    "InfoNone": ("step", lambda self: ("next", 0.0, False, False, None), "info must be a mapping, not None"),
    "InfoList": ("step", step(info=[1]), "info must be a mapping, not an object of type list"),
    "InfoKey": ("step", step(info={3: "three"}), "a key of info must be text, not 3"),
    "InfoSurrogate": ("step", step(info={"note": "\udfff"}), "info['note'] is not valid Unicode"),
    "InfoHuge": ("step", step(info={"note": "x" * 5000}), "info['note'] has 5000 characters"),
    "InfoBig": (
        "step",
        step(info={"count": 10**5000}),
        "step: info['count'] has 16610 bits, more than 64",
    ),
    "InfoHostile": ("step", step(info=Hostile()), "RuntimeError: not to be read"),
    "InfoSuccess": ("step", step(info={"success": "yes"}), "info['success'] must be true or false, not 'yes'"),
    "CloseRaises": ("close", fail(OSError("still open")), "close: OSError: still open"),
    "CloseExits": ("close", fail(SystemExit("bye")), "close: SystemExit: bye"),
    "CloseHangs": ("close", forever, "close: no end within 1 seconds"),
}
for _name, (_method, _function, _) in TABLE.items():
    globals()[_name] = type(_name, (Fine,), {f"bad_{_method}": _function})


class ThirdIsNotMade(Fine):
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        if type(self).made == 3:
            raise SystemExit("no more")


class Illegible(TextEnv):
    """Made and reset, but what the prompt needs is missing."""

    def reset(self, *, seed=None, options=None):
        self.actions = ("go",) if seed != BAD else 5
        return f"world {seed}", {}

    def step(self, action):
        return "next", 0.5, False, False, {"success": False}

    def render(self):
        return ""


class SaysNoSuccess(Illegible):
    """The contract's key is misspelt: nothing fills it in for a ``TextEnv``."""

    actions = ("go",)

    def reset(self, *, seed=None, options=None):
        self.key = "succes" if seed == BAD else "success"
        return f"world {seed}", {}

    def step(self, action):
        return "next", 0.5, False, False, {self.key: False}


def die(self: Any) -> None:
    os._exit(7)


def kill(self: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(self: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore(self: Any) -> None:
    while True:
        try:
            time.sleep(0.1)
        except BaseException:
            continue


FATAL: dict[str, tuple[Callable[[Any], Any], str]] = {
    "Dies": (die, "its process died (exit code 7)"),
    "IsKilled": (kill, "its process died (exit code -9)"),
    "Stops": (stop, "its process gave no answer within 2 times env.step_timeout=1 seconds and was killed"),
    "IgnoresTheLimit": (ignore, "its process gave no answer within 2 times env.step_timeout=1 seconds and was killed"),
}
for _name, (_function, _) in FATAL.items():
    globals()[_name] = type(_name, (Fine,), {"bad_step": _function})


def task_of(name: str, **env: Any) -> Task:
    waits = name in FATAL or name.endswith("Hangs")
    values = {"step_timeout": 1.0 if waits else 60.0, "max_state_chars": 2000, "max_turns": 2, **env}
    return Task(EnvConfig(id=f"{__name__}:{name}", tag="B", **values), AgentConfig(style="terse", window=1))


WORLDS = [World(seed, f"w{seed}") for seed in (0, BAD, 2)]


def play(task: Task, worlds: Sequence[World] = WORLDS) -> list[Episode]:
    return rollout(Scripted(lambda i: "</think><answer>go</answer>"), CHAT, task, worlds, SamplingConfig(), seed=0)


def check_alone(episodes: list[Episode], message: str) -> None:
    """The middle one of three failed, and all can be written and read again."""
    assert [episode.status for episode in episodes] == ["truncated", "error", "truncated"]
    assert message in episodes[1].error
    assert "\n" not in episodes[1].error
    assert len(episodes[1].error) < 500
    assert not episodes[1].success
    assert [episode.total_reward for episode in (episodes[0], episodes[2])] == [1.0, 1.0]
    for episode in episodes:
        line = episode.to_json()
        assert Episode.from_json(line.encode().decode()) == episode
        json.loads(line, parse_constant=lambda constant: pytest.fail(f"{constant} is in the file"))
        assert all(math.isfinite(reward) and abs(reward) <= 1e6 for turn in episode.turns for reward in turn.rewards)


@pytest.mark.parametrize("name", TABLE)
def test_a_broken_world_ends_its_own_episode(name: str) -> None:
    check_alone(play(task_of(name)), TABLE[name][2])


@FORKS
@pytest.mark.parametrize(
    "name", ["ResetRaises", "StepExits", "StepHangs", "StateSurrogate", "RewardNan", "CloseRaises"]
)
def test_so_does_one_in_a_process_of_its_own(name: str) -> None:
    check_alone(play(task_of(name, processes=2)), TABLE[name][2])


@FORKS
@pytest.mark.parametrize("name", FATAL)
def test_a_process_that_dies_or_hangs_is_its_own_episodes_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spa.agent.host._GRACE", 0.5)
    check_alone(play(task_of(name, processes=2)), f"run: {FATAL[name][1]}")


class OtherEachTime(Fine):
    """What ``reset`` makes does not depend on the seed alone."""

    def reset(self, *, seed=None, options=None):
        return f"world {seed}", {"content": os.urandom(8).hex()}


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=FORKS)])
def test_a_reset_that_makes_another_world_than_the_one_chosen(processes: int) -> None:
    task = task_of("OtherEachTime", processes=processes)
    episodes = play(task, WorldSource(task, "val", 0).take(3))
    assert {(episode.status, len(episode.turns)) for episode in episodes} == {("error", 0)}
    assert "reset(seed=...) must always give the same one" in episodes[0].error


class FailsFirst(Fine):
    resets = 0

    def reset(self, *, seed=None, options=None):
        type(self).resets += 1
        if type(self).resets == 1:
            raise RuntimeError("not yet")
        return super().reset(seed=seed)


def test_a_world_that_failed_when_it_was_chosen_may_be_any() -> None:
    task = task_of("FailsFirst", disjoint="seed")
    (episode,) = play(task, WorldSource(task, "val", 0).take(1))
    assert episode.status == "truncated"


def test_a_world_that_is_not_made() -> None:
    ThirdIsNotMade.made = 0
    check_alone(play(task_of("ThirdIsNotMade")), "constructor: SystemExit: no more")


def test_a_world_whose_prompt_cannot_be_written() -> None:
    check_alone(play(task_of("Illegible")), "prompt: actions: TypeError: 'int' object is not iterable")


def test_a_world_that_does_not_say_whether_the_goal_is_reached() -> None:
    check_alone(play(task_of("SaysNoSuccess")), "info of step() has no 'success'")


class NeverMade(Fine):
    def __init__(self) -> None:
        sys.exit("not today")


def test_a_world_that_is_never_made_is_an_error_of_the_config() -> None:
    with pytest.raises(
        ValueError, match=r"the world '.*:NeverMade' cannot be made: constructor: SystemExit: not today"
    ):
        task_of("NeverMade")


class NeedsOptions(Fine):
    def reset(self, *, seed=None):
        return super().reset(seed=seed)


def test_a_world_that_can_never_be_reset_is_found_before_the_run(tmp_path, capsys) -> None:
    assert main(["generate", f"{__name__}:NeedsOptions", "--out", str(tmp_path / "run")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error")]
    assert "none of 8 worlds can be reset" in line
    assert "unexpected keyword argument 'options'" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (1, 1),
        (True, 1),
        (0.25, 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), 1),
        (np.array(0.5), 0.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(2), 2),
        (fractions.Fraction(1, 4), 0.25),
    ],
)
def test_numbers_of_other_libraries_are_rewards(reward: Any, expected: float) -> None:
    found = checked_step(("next", reward, np.bool_(True), torch.tensor(False), {"success": np.bool_(True)}))
    assert found == ("next", expected, True, False, {"success": True})
    assert type(found.reward) is type(expected)
    assert type(found.terminated) is type(found.truncated) is type(found.info["success"]) is bool


def test_numbers_of_other_classes_become_plain_ones() -> None:
    """Else a world in a process of its own could not send them."""

    class Share(float):
        pass

    Level = enum.IntEnum("Level", {"LOW": 3})
    info = {"success": True, "level": Level.LOW, "share": Share(0.25)}
    for reward in (Level.LOW, Share(0.25)):
        found = checked_step(("next", reward, False, False, info))
        assert found.reward == reward and type(found.reward) in (int, float)
        assert found.info == {"success": True, "level": 3, "share": 0.25}
        assert [type(value) for value in found.info.values()] == [bool, int, float]


def test_a_text_of_another_class_becomes_a_plain_one() -> None:
    state, _ = checked_reset((Odd("state"), {}))
    assert type(state) is str
    with pytest.raises(WorldError, match="info must be a mapping"):
        checked_reset(("state", [("a", 1)]))


def test_worlds_that_cannot_be_reset_are_played_all_the_same() -> None:
    source = WorldSource(task_of("ResetRaises", disjoint="seed"), "test", 0)
    assert [world.seed for world in source.take(3)] == [0, 1, 2]


def test_a_run_goes_on_with_few_failures_and_stops_with_many() -> None:
    failures = Failures("playing", 0.5, 5)
    good = Episode("T", 1, 0)
    bad, worse, worst = (Episode("T", seed, 0, status="error", error="step: no") for seed in (2, 3, 4))
    failures.add([good, bad, bad])
    told = "; the first: seed 2: step: no | seed 3: step: no | seed 4: step: no (stopped"
    with pytest.raises(ValueError, match=re.escape(f"playing: 4 of 5 episodes failed{told}")):
        failures.add([worse, worst])
    Failures("playing", 1.0, 2).add([bad, bad])
    Failures("training", 0.1).add([bad] * 10)
    with pytest.raises(ValueError, match="training: 11 of 11 episodes failed"):
        Failures("training", 0.1).add([bad] * 11)
    Failures("training", 0.5).add([bad] * 60 + [good] * 200)  # of one batch, whose order does not count


def test_a_resumed_run_remembers_which_failures_it_has_told_of(capsys) -> None:
    before, after = Failures("training", 0.5), Failures("training", 0.5)
    bad = Episode("T", 2, 0, status="error", error="step: no")
    before.add([bad])
    before.say()
    after.load_state(json.loads(json.dumps(before.state())))
    after.say()
    assert capsys.readouterr().err.count("1 of 1 episodes failed; the first: seed 2: step: no") == 1
    assert str(after) == str(before)


class Sometimes(Fine):
    """Fails in a share of the worlds."""

    actions = ("Up", "Down")

    def __init__(self, share: int = 4) -> None:
        self.share = share

    def step(self, action):
        if self.seed % self.share == 0:
            raise RuntimeError("fell apart")
        return f"{action} {self.seed}", 1.0, True, False, {}


def generate(out: Path, share: int) -> list[str]:
    world = [f"env.id={__name__}:Sometimes", f"env.settings={{share: {share}}}", "env.tag=S", "env.disjoint=seed"]
    sizes = ["selfplay.groups=8", "selfplay.group_size=2", "selfplay.policy=random", "env.max_turns=1"]
    return ["generate", "frozen_lake", *world, *sizes, "env.state_format=grid", "--out", str(out)]


def test_failures_are_counted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(generate(tmp_path / "run", 4)) == 0
    assert "self-play: 4 of 16 episodes failed; the first: seed " in capsys.readouterr().err
    assert json.loads((tmp_path / "run/selfplay/stats.json").read_text())["dropped"]["failed episode"] == 4


def test_too_many_failures_end_the_run_with_the_first_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(generate(tmp_path / "run", 1)) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error")]
    assert line.count("step: RuntimeError: fell apart") == 3
    assert "env.max_failed=0.5" in line


def test_an_evaluation_stops_as_soon_as_it_must() -> None:
    policy = Policy.load(tiny_config())
    worlds = [World(BAD, str(place)) for place in range(40)]
    with pytest.raises(ValueError, match="looking: 5 of 40 episodes failed"):
        play_chunks(policy, task_of("ResetRaises", max_failed=0.1), worlds, 1, 0, 0, "looking")
