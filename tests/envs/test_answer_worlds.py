"""What Countdown, MetamathQA and Bandit keep of the contract, and that they are played through a task and the command line."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scripted import CHAT, Scripted

from spa.agent.random_engine import RandomEngine, random_responder
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import WorldSource
from spa.config.load import load_config
from spa.config.schema import AgentConfig, SamplingConfig
from spa.envs import TextEnv, make_env
from spa.envs.registry import BUILT_IN

TRIES = {"max_tries": 3}
VARIANTS: list[tuple[str, dict[str, object]]] = [
    ("countdown", {}),
    ("countdown", TRIES),
    ("metamathqa", {}),
    ("metamathqa", TRIES),
    ("bandit", {}),
]
CONFIGS = ["countdown", "metamathqa", "bandit", "bandit_test"]
PHRASES = [
    "(1 + 2) * 3",
    "7",
    "1/0",
    "12 apples",
    "Dragon",
    "phoenix",
    "Up",
    "",
    "||",
    "\\boxed{4}",
    "$5$",
    "= 3",
    "1 +",
]


def fingerprint() -> list[list[str]]:
    played = []
    for name, options in VARIANTS:
        env, rng = make_env(name, **options), np.random.default_rng(0)
        for seed in (0, 1, 123, 2**40):
            states = [env.reset(seed=seed)[0], env.reset()[1]["content"], env.reset(seed=seed)[0]]
            for _ in range(3):
                state, reward, terminated, *_ = env.step(env.sample_action(rng))
                states += [state, repr(reward)]
                if terminated:
                    break
            played.append(states)
    return played


def test_same_worlds_in_every_process() -> None:
    code = (
        "import json, numpy as np\nfrom spa.envs import make_env\n"
        f"VARIANTS = {VARIANTS!r}\n{inspect.getsource(fingerprint)}\nprint(json.dumps(fingerprint()))"
    )
    path = os.pathsep.join(sys.path)
    environment = os.environ | {"PYTHONHASHSEED": "4242", "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    shown = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, encoding="utf-8"
    )
    assert json.loads(shown.stdout) == fingerprint()


FIRST_STATES = {
    "countdown": "Target: 40, nums: [85, 57, 68]",
    "metamathqa": (
        "Lena shares 110 marbles equally among 9 children, as many as can be shared, and keeps what is left over: 2. "
        "How many marbles does each child get?"
    ),
    "bandit": "Two arms: Phoenix, Dragon. What an arm pays fits what its name stands for.",
}


@pytest.mark.parametrize("name", FIRST_STATES)
def test_golden_states(name: str) -> None:
    """Frozen: a change here makes other worlds of the same seeds, and no old result could be repeated."""
    assert make_env(name).reset(seed=7)[0] == FIRST_STATES[name]


@pytest.mark.parametrize("name, options", VARIANTS)
def test_gymnasium_checks(name: str, options: dict[str, object]) -> None:
    import gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(BUILT_IN[name][0], **options).unwrapped)
        warnings.filterwarnings("ignore", message=".*(not having a spec)")
        check_env(make_env(name, **options))


@pytest.mark.parametrize("name, options", VARIANTS)
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**64),
    actions=st.lists(st.one_of(st.sampled_from(PHRASES), st.text(max_size=30), st.none()), max_size=12),
)
def test_any_string_may_be_played(name: str, options: dict[str, object], seed: int, actions: list[str]) -> None:
    env, twin = (make_env(name, **options) for _ in range(2))
    state, info = env.reset(seed=seed)
    assert (state, info) == twin.reset(seed=seed)
    assert state in env.observation_space and env.legal(state) is True
    content = info["content"]
    for action in actions:
        outcome = env.step(action)
        assert outcome == twin.step(action)
        after, reward, terminated, truncated, info = outcome
        assert after == env.render() and after in env.observation_space
        assert type(reward) is float and type(terminated) is type(truncated) is bool
        assert info["effective"] == (after != state) == info["valid"] and info["content"] == content
        assert env.legal(after, state) is True
        if not info["valid"]:
            assert (after, reward, terminated, truncated) == (state, 0.0, False, False)
        if terminated:
            assert not truncated
            with pytest.raises(ResetNeeded, match="has ended"):
                env.step(action)
            break
        state = after


@settings(max_examples=60)
@given(st.sampled_from(VARIANTS), st.text(max_size=60))
def test_any_text_has_a_legality(variant: tuple[str, dict[str, object]], text: str) -> None:
    env = make_env(variant[0], **variant[1])
    state, _ = env.reset(seed=0)
    assert env.legal(text) is False
    assert env.legal(state, text) is None
    assert env.render() == state


@pytest.mark.parametrize("name, options", VARIANTS)
def test_a_state_says_all_there_is(name: str, options: dict[str, object]) -> None:
    """A world set to a written state goes on as the one that wrote it: what a world model needs is in the text."""
    env, twin, rng = make_env(name, **options), make_env(name, **options), np.random.default_rng(1)
    for seed in range(30):
        state, info = env.reset(seed=seed, options={"noise_seed": seed})
        action = env.sample_action(rng)
        while True:
            shown, given = twin.reset(seed=seed + 1, options={"state": f"{state}\n", "noise_seed": seed})
            assert (shown, given["content"]) == (state, info["content"])
            outcome = env.step(action)
            assert twin.step(action)[0] == outcome[0]
            state, action = outcome[0], env.sample_action(rng)
            if outcome[2]:
                break


@pytest.mark.parametrize("name, options", VARIANTS)
def test_seeds_options_and_play_do_not_mix(name: str, options: dict[str, object]) -> None:
    env, rng = make_env(name, **options), np.random.default_rng(2)
    with pytest.raises(ResetNeeded, match="has no episode"):
        env.step("7")
    first = env.reset(seed=5)[0]
    after = env.np_random.bit_generator.state
    second, third = env.reset()[0], env.reset()[0]
    assert env.reset(seed=5, options={"noise_seed": 9})[0] == first and env.np_random.bit_generator.state == after
    env.step(env.sample_action(rng))
    assert env.reset()[0] == second
    env.reset(seed=5, options={"state": third})
    assert env.reset()[0] == second
    assert len({env.reset(seed=seed)[0] for seed in range(30)}) == (2 if name == "bandit" else 30)
    with pytest.raises(ValueError, match="Did you mean 'noise_seed'"):
        env.reset(options={"noiseseed": 1})
    with pytest.raises(ValueError, match="must be text"):
        env.reset(options={"state": 5})
    with pytest.raises(ValueError, match="render_mode"):
        make_env(name, render_mode="human")


@pytest.mark.parametrize("name, options", VARIANTS)
def test_pickles_in_the_middle_of_an_episode(name: str, options: dict[str, object]) -> None:
    env = make_env(name, **options)
    env.reset(seed=11)
    if options:
        env.step("7")
    written = pickle.dumps(env)
    assert len(written) < 20_000  # the data is not carried along
    copy = pickle.loads(written)
    assert copy.render() == env.render()
    for action in PHRASES:
        outcome = env.step(action)
        assert outcome == copy.step(action)
        if outcome[2]:
            break
    assert env.reset() == copy.reset()


def task_of(config: str, prompt: str = "world_model", style: str = "terse") -> Task:
    return Task(load_config(config).env, AgentConfig(style=style, prompt=prompt, window=1))


@pytest.mark.parametrize("style", ["terse", "paper"])
@pytest.mark.parametrize("config", CONFIGS)
def test_random_play_through_a_task(config: str, style: str) -> None:
    task = task_of(config, style=style)
    worlds = WorldSource(task, "train", 0).take(6)
    episodes = rollout(
        RandomEngine(CHAT, random_responder(task)), CHAT, task, worlds, SamplingConfig(), seed=3, group_size=2
    )
    assert len(episodes) == 12
    for episode in episodes:
        (turn,) = episode.turns
        assert (episode.status, turn.format_ok, turn.info["valid"], turn.penalty) == ("completed", True, True, 0.0)
        assert turn.next_state.startswith(turn.state + "\n") and turn.executed[0].split()[0] in turn.next_state
    if config.startswith("bandit"):
        assert {episode.success for episode in episodes} == {True, False}


def solved(env: TextEnv) -> str:
    """The right answer of a world that was reset."""
    return {"countdown": "6 / 3 * 4", "metamathqa": getattr(env, "problem", ("", ""))[1]}.get(
        env.name.lower(), "Dragon"
    )


@pytest.mark.parametrize("config", ["countdown", "metamathqa", "bandit"])
def test_a_right_answer_through_a_task(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(config, prompt="base", style="paper")
    if config == "countdown":
        monkeypatch.setattr("spa.envs.countdown.world.generate", lambda *_: (8, (6, 3, 4)))
        task = replace(task, env=replace(task.env, disjoint="seed"))
    (world,) = WorldSource(task, "test", 50).take(1)
    env = task.make_env()
    env.reset(seed=world.seed)
    engine = Scripted(lambda _: f"I see.</think><answer> {solved(env.unwrapped)} </answer>")
    (episode,) = rollout(engine, CHAT, task, [world], SamplingConfig(), seed=0)
    assert (episode.success, episode.status) == (True, "completed")
    assert episode.total_reward in ((0.0, 1.0) if config == "bandit" else (1.0,))
    user = episode.turns[0].user
    assert "You have 1 actions left" in user
    assert episode.turns[0].state in user


def test_several_tries_are_several_turns() -> None:
    env = load_config("countdown", ["env.max_turns=3", "env.max_actions=3", "env.settings.max_tries=3"]).env
    task = Task(env, AgentConfig(style="paper", prompt="base"))
    answers = iter(["1 + 1", "what?", "2"])
    engine = Scripted(lambda _: f"I see.</think><answer>{next(answers)}</answer>")
    (episode,) = rollout(engine, CHAT, task, WorldSource(task, "train", 0).take(1), SamplingConfig(), seed=0)
    assert [turn.info["valid"] for turn in episode.turns] == [True, False, True]
    assert "Try 1: 1 + 1 = 2 (wrong numbers)\nYou have 2 actions left" in episode.turns[1].user
    assert episode.turns[1].next_state == episode.turns[1].state  # what is no answer costs no try
    assert "Try 2: 2 = 2 (wrong numbers)" in episode.turns[2].next_state
    assert (episode.success, episode.status) == (False, "truncated")


def test_the_prompt_lists_the_arms_in_the_order_of_the_world() -> None:
    task = task_of("bandit_test", prompt="base", style="paper")
    texts = set()
    for seed in range(10):
        env = task.make_env()
        env.reset(seed=seed)
        texts.add(task.header(env).split("Your available actions are:\n")[1].split("\n")[0])
    assert texts == {"Trader, Librarian", "Librarian, Trader"}
    assert "fits its name" in task.header(task.make_env())


@pytest.mark.parametrize("config", ["countdown", "metamathqa"])
def test_splits_share_no_problem(config: str) -> None:
    task = task_of(config)
    taken = [
        {world.content for world in WorldSource(task, split, 0).take(40)}
        for split in ("train", "val", "test", "selfplay")
    ]
    assert not any(one & other for i, one in enumerate(taken) for other in taken[:i])
    assert len({w.content for w in WorldSource(task, "test", 0, unique=True).take(128)}) == 128


@pytest.mark.parametrize("config", CONFIGS)
def test_evaluation_finds_its_worlds(config: str) -> None:
    settings = load_config(config)
    task = Task(settings.env, settings.agent)
    for split, count in (("test", settings.eval.worlds), ("val", settings.sft.eval_worlds)):
        assert len(WorldSource(task, split, 0, unique=True).take(count)) == count


@pytest.mark.parametrize("config", CONFIGS)
def test_self_play_through_the_command_line(config: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from spa.cli import main

    settings = ["selfplay.policy=random", "selfplay.groups=4", "selfplay.group_size=2"]
    assert main(["generate", config, *settings, "--out", str(tmp_path)]) == 0
    rows = [
        row for name in ("train", "val") for row in pq.read_table(tmp_path / "selfplay" / f"{name}.parquet").to_pylist()
    ]
    assert len(rows) == 8
    mark = "You pulled" if config.startswith("bandit") else "Try 1: "
    assert all(mark in row["response"].split("<prediction>")[1] for row in rows)


@pytest.mark.parametrize("name", ["countdown", "metamathqa", "bandit"])
def test_the_worlds_pass_the_check_of_the_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from spa.cli import main

    assert main(["env", "check", name]) == 0
    assert "FAILED" not in capsys.readouterr().out
