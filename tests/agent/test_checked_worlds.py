"""The calls of worlds outside rollouts: a broken world is left out and counted there, too."""

from __future__ import annotations

import sqlite3
from typing import Any

import numpy as np
import pytest

from spa.agent.conversation import Job, play_jobs
from spa.agent.episode import Episode, Turn
from spa.agent.failures import Failures
from spa.agent.random_engine import RandomReplies, random_responder
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import AgentConfig, EnvConfig, PlannerConfig, SamplingConfig
from spa.data.transitions import transition_rows
from spa.envs import TextEnv
from spa.envs.checked import CheckedEnv, WorldError
from spa.evaluate.calibration import cases, corruptions
from spa.evaluate.perplexity import sample_states
from spa.evaluate.planned import imagination_metrics
from spa.planning.search import Imagined, Move
from spa.planning.simulator import Simulator
from spa.sft.practice import lesson_rows
from spa.sft.warmup import random_episodes
from tests.agent.test_broken_worlds import BAD, TABLE, Fine
from tests.planning.tools import Asked, player_of, seen
from tests.scripted import Scripted

BROKEN = "tests.agent.test_broken_worlds"
WORLDS = [World(seed, f"w{seed}") for seed in (0, BAD, 2)]


def task_of(name: str, style: str = "terse", **env: Any) -> Task:
    values = {"step_timeout": 0.1 if name.endswith("Hangs") else 60.0, "max_state_chars": 2000, "max_turns": 2, **env}
    id_ = name if ":" in name else f"{BROKEN}:{name}"
    return Task(EnvConfig(id=id_, tag="B", **values), AgentConfig(style=style, window=1))  # type: ignore[arg-type]


def start_and_step(env: TextEnv) -> None:
    env.reset(seed=BAD)
    env.step("go")


def message(name: str) -> str:
    return TABLE[name][2].replace("1 seconds", "0.1 seconds")


@pytest.mark.parametrize("name", [name for name in TABLE if not name.startswith("Close")])
def test_whatever_goes_wrong_is_a_world_error_and_the_next_reset_plays(name: str) -> None:
    env = task_of(name).make_env()
    with pytest.raises(WorldError) as raised:
        start_and_step(env)
    assert message(name) in str(raised.value)
    assert env.reset(seed=2)[0] == "world 2"
    assert env.step("go").reward == 0.5
    env.close()


def test_a_world_whose_constructor_fails_once_is_made_again() -> None:
    made = []

    def make() -> Any:
        made.append(1)
        if len(made) == 1:
            raise SystemExit("not yet")
        return Legal()

    env = CheckedEnv(make)
    with pytest.raises(WorldError, match="constructor: SystemExit: not yet"):
        env.reset(seed=0)
    assert env.reset(seed=0)[0] == "ab"


class OfOneThread(TextEnv):
    """Belongs to the thread that made it, as connections of SQLite do."""

    actions = ("go",)

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")

    def reset(self, *, seed=None, options=None):
        return str(self.database.execute("select 7").fetchone()[0]), {}

    def step(self, action):
        return self.reset()[0], 1.0, False, True, {"success": False}

    def close(self) -> None:
        self.database.close()


def test_a_world_of_one_thread_is_played_with_a_server() -> None:
    jobs = [Job(World(seed, f"w{seed}"), seed, 0) for seed in range(3)]
    task = task_of(f"{__name__}:OfOneThread")
    episodes = play_jobs(
        RandomReplies(lambda rng: "<think></think><answer>go</answer>"), task, jobs, SamplingConfig(), seed=1
    )
    assert [(episode.error, episode.status) for episode in episodes] == [("", "truncated")] * 3
    assert all(turn.executed for episode in episodes for turn in episode.turns)


class Legal(TextEnv):
    """Says what is legal until it fails."""

    actions = ("go",)
    asked = 0

    def reset(self, *, seed=None, options=None):
        return "ab", {}

    def step(self, action):
        return "ba", 0.0, False, False, {}

    def render(self):
        return "ab"

    def legal(self, state, before=None):
        type(self).asked += 1
        if state == "bad":
            raise RuntimeError("cannot tell")
        return state == "ab"


def test_a_world_that_fails_to_say_what_is_legal_is_not_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    env = CheckedEnv(Legal)
    assert [env.legal(state) for state in ("ab", "ba", "bad", "ab")] == [True, False, None, None]
    assert Legal.asked == 3
    assert capsys.readouterr().err.count("legal: RuntimeError: cannot tell") == 1


def model() -> Asked:
    return Asked(lambda move: (seen("end", 1.0, True),), ("go",))


@pytest.mark.parametrize("name", ["ResetRaises", "ResetExits", "ResetNone", "ResetHangs"])
def test_practice_leaves_a_broken_start_out(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lessons = lesson_rows(model(), task_of(name), WORLDS, PlannerConfig(), whole=False)  # type: ignore[arg-type]
    assert {row.extra["seed"] for row in lessons.plans} == {0, 2}
    assert f"planning: 1 of 3 worlds failed; the first: seed {BAD}: {message(name)}" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"planning: 1 of 3 .* \(stopped because of env.max_failed=0.1\)"):
        lesson_rows(model(), task_of(name, max_failed=0.1), WORLDS, PlannerConfig(), whole=False)  # type: ignore[arg-type]


def test_transitions_of_a_world_that_fails_when_its_prompt_is_written_are_left_out(capsys: Any) -> None:
    turn = Turn(0, "a", "", "", "b", executed=["go"], rewards=[0.5])
    episodes = [Episode("B", world.seed, 0, turns=[turn]) for world in WORLDS]
    rows = transition_rows(episodes, task_of("ResetRaises"))
    assert [row.extra["seed"] for row in rows] == [0, 2]
    assert "transitions: 1 of 3 worlds failed" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["StepExits", "RewardNan", "StepHangs", "StateSurrogate"])
def test_random_walks_end_where_the_world_fails(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    task = task_of(name)
    assert sample_states(task, WORLDS, seed=0, moves=1) == ["world 0", "next", "world 1", "world 2", "next"]
    found = imagination_metrics(model(), task, WORLDS, depth=1, seed=0, walks=1)  # type: ignore[arg-type]
    assert found["imagination/depth_1/walks"] == 2
    said = capsys.readouterr().err
    assert f"random play: 1 of 3 worlds failed; the first: seed {BAD}" in said
    assert f"random play: 1 of 3 walks failed; the first: seed {BAD}" in said


class Settable(Fine):
    """Can be set to a state; in the state ``bad`` a step fails."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def reset(self, *, seed=None, options=None):
        self.state = (options or {}).get("state", f"world {seed}")
        if self.state == "none":
            raise ValueError("no such state")
        return self.state, {}

    def step(self, action):
        return (sys_exit() if self.state == "bad" else "next"), 0.5, False, False, {}


def sys_exit() -> None:
    raise SystemExit(1)


def test_the_simulator_gives_a_broken_state_no_probability(capsys: pytest.CaptureFixture[str]) -> None:
    silent = player_of(Scripted(lambda number: ""))
    simulator = Simulator(silent, task_of(f"{__name__}:Settable"))
    made = Settable.made
    found = simulator.predict([Move(state, "go") for state in ("world 0", "none", "bad", "world 2")])
    assert found == [(Imagined(state, reward, False, p),) for state, reward, p in [
        ("next", 0.5, 1.0), ("none", 0.0, 0.0), ("bad", 0.0, 0.0), ("next", 0.5, 1.0)
    ]]  # fmt: skip
    assert Settable.made == made + 1, "a refused state does not cost a world, a broken one does"
    assert "simulator: 1 of 4 moves failed; the first: seed 0: step: SystemExit: 1" in capsys.readouterr().err


@pytest.mark.parametrize("error", [SystemExit(2), None])
def test_a_turn_whose_corrupted_states_break_the_world_is_not_judged(
    error: BaseException | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Breaks(Legal):
        def reset(self, *, seed=None, options=None):
            if error is None:
                return None, {}
            raise error

    with pytest.raises(WorldError):
        corruptions(CheckedEnv(Breaks), "ab", ["go"], "ba", np.random.default_rng(0))
    response = "<think><observation>ab</observation>go<prediction>ba</prediction></think><answer>go</answer>"
    turn = Turn(0, "ab", "", response, "ba", prediction="ba", executed=["go"])
    monkeypatch.setattr("spa.evaluate.calibration._context", lambda episode, turn: [1])
    assert cases(lambda: CheckedEnv(Breaks), [Episode("B", 5, 0, turns=[turn])], 0) == []
    assert "corrupted states: 1 of 1 turns failed; the first: seed 5: reset: " in capsys.readouterr().err
    assert len(cases(lambda: CheckedEnv(Legal), [Episode("B", 5, 0, turns=[turn])], 0)) == 1


def test_random_play_for_a_warm_up_goes_on_without_broken_worlds() -> None:
    episodes = random_episodes(task_of("ResetRaises"), WORLDS, 0)
    assert [next(episodes).seed for _ in range(3)] == [0, 2, 0]
    with pytest.raises(ValueError, match="random play: 1 of 1 episodes failed"):
        next(random_episodes(task_of("ResetRaises", max_failed=1.0), WORLDS[1:2], 0))


def test_a_measurement_stops_like_a_stage() -> None:
    bad = Episode("T", 2, 0, status="error", error="step: no")
    Failures.check("validation", 0.5, [bad, Episode("T", 1, 0)])
    with pytest.raises(ValueError, match=r"validation: 3 of 3 episodes failed; the first: seed 2: step: no \(stopped"):
        Failures.check("validation", 0.5, [bad, bad, bad])


@pytest.mark.parametrize("name", ["rules", "instruction", "symbols"])
def test_texts_outside_of_states_are_checked_too(name: str) -> None:
    class Odd(Legal):
        pass

    setattr(Odd, name, {"P": "\ud800"} if name == "symbols" else "\ud800")
    with pytest.raises(WorldError, match=f"{name}: .* is not valid Unicode"):
        getattr(CheckedEnv(Odd), name)


class Counted(TextEnv):
    """Holds something until it is closed."""

    open = 0
    actions = ("go",)

    def __init__(self, state_format: str = "grid") -> None:
        self.state_format = state_format
        Counted.open += 1

    def reset(self, *, seed=None, options=None):
        return "state", {}

    def close(self) -> None:
        Counted.open -= 1


@pytest.mark.parametrize("state_format", ["grid", "coordinates"])
def test_a_world_is_made_in_its_format_and_every_one_is_closed(state_format: str) -> None:
    env = Task(EnvConfig(id=f"{__name__}:Counted", tag="C", state_format=state_format), AgentConfig()).make_env()
    assert (env.state_format, Counted.open) == (state_format, 1)
    env.close()
    assert Counted.open == 0


class Rarely(TextEnv):
    """Its random actions fail now and then."""

    share = 0.3
    actions = ("go", "stay")

    def reset(self, *, seed=None, options=None):
        return "state", {}

    def sample_action(self, rng):
        if rng.random() < self.share:
            raise RuntimeError("rare")
        return super().sample_action(rng)


def test_random_actions_that_fail_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    respond = random_responder(task_of(f"{__name__}:Rarely"))
    assert all("go" in text or "stay" in text for text in (respond(np.random.default_rng(i)) for i in range(50)))
    monkeypatch.setattr(Rarely, "share", 1.0)
    with pytest.raises(WorldError, match="sample_action: RuntimeError: rare"):
        respond(np.random.default_rng(0))
