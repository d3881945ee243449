"""What every built-in world keeps of the contract in ``spa.envs.base``."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.envs import STATE_FORMATS, TextEnv, env_names, make_env
from spa.envs.check import check_world
from spa.envs.registry import BUILT_IN
from spa.envs.sokoban.generator import make_room

GOLDEN = Path(__file__).with_name("golden_states.json")
WORLDS = ["sokoban", "frozen_lake", "sudoku"]  # those with several state formats
VARIANTS = [(name, fmt) for name in WORLDS for fmt in STATE_FORMATS]
# Things a model may say, sensible and not.
PHRASES = ["Up", "down ", "LEFT", "Right", "1,3,2", "2 2 4", "row 3 col 1 value 4", "4,4,1", "[1,2,3]", "", "||", "√"]


def fingerprint() -> list[list[str]]:
    """First states and a short play of every world: what must be the same in every process."""
    played = []
    for name in WORLDS:
        env = make_env(name, state_format="coordinates")
        for seed in (0, 1, 123, 2**40):
            state, info = env.reset(seed=seed)
            states = [state, info["content"], env.reset()[0]]
            for action in PHRASES:
                state, _, terminated, truncated, _ = env.step(action)
                states.append(state)
                if terminated or truncated:
                    break
            played.append(states)
    return played


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_check_of_the_contract_fails_nowhere(name):
    """Some have warnings, such as that ice is slippery."""
    if name == "webshop":
        pytest.importorskip("bm25s")
    findings = check_world(lambda: make_env(name), episodes=60, seeds=3)
    assert [one.line() for one in findings if not (one.ok or one.warning)] == []


@pytest.mark.parametrize("name, state_format", VARIANTS)
def test_gymnasium_checks(name, state_format):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gymnasium.make(BUILT_IN[name][0], state_format=state_format)
        check_env(made.unwrapped)
        warnings.filterwarnings("ignore", message=".*(is different from the unwrapped version)")
        check_env(made)
        warnings.filterwarnings("ignore", message=".*(not having a spec)")
        check_env(make_env(name, state_format=state_format))


@pytest.mark.parametrize("name, state_format", VARIANTS)
def test_reset_and_step(name, state_format):
    env = make_env(name, state_format=state_format)
    assert isinstance(env, TextEnv) and env.state_format == state_format and env.rules
    with pytest.raises(ResetNeeded, match="has no episode"):
        env.step("Up")
    for seed in range(20):
        state, info = env.reset(seed=seed)
        assert state == env.render() and state in env.observation_space
        assert ("\n" in state and state.endswith(").")) == (state_format != "grid")
        assert {k: v for k, v in info.items() if k not in ("content", "symmetry")} == {
            "success": False,
            "valid": True,
            "effective": False,
        }
        after, reward, terminated, truncated, info = env.step("nothing of the kind")
        assert (after, reward, terminated, truncated, info["valid"]) == (state, 0.0, False, False, False)
        assert after == env.render() and info["effective"] is False
        assert env.action_space.contains((env.actions or ["1,1,1"])[0])


@pytest.mark.parametrize("name", WORLDS)
def test_finished_worlds_need_a_reset(name):
    env = make_env(name, **({} if name == "frozen_lake" else {"max_steps": 1}))
    env.reset(seed=1)
    actions = env.actions or [f"{r},{c},{v}" for r in (1, 2, 3, 4) for c in (1, 2, 3, 4) for v in (1, 2, 3, 4)]
    ended = False
    for step in range(1000):
        *_, terminated, truncated, _ = env.step(actions[step % len(actions)])
        ended = terminated or truncated
        if ended:
            break
    assert ended
    with pytest.raises(ResetNeeded, match="has ended"):
        env.step(actions[0])
    env.reset()
    env.step(actions[0])


@pytest.mark.parametrize("name, state_format", VARIANTS)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**64),
    actions=st.lists(st.one_of(st.sampled_from(PHRASES), st.text(max_size=30)), max_size=25),
)
def test_any_string_may_be_played(name, state_format, seed, actions):
    env, twin = (make_env(name, state_format=state_format) for _ in range(2))
    state, info = env.reset(seed=seed)
    assert (state, info) == twin.reset(seed=seed)
    content = info["content"]
    for action in actions:
        outcome = env.step(action)
        assert outcome == twin.step(action)
        after, reward, terminated, truncated, info = outcome
        assert after == env.render() and after in env.observation_space
        assert isinstance(reward, float) and type(terminated) is type(truncated) is bool
        assert info["effective"] == (after != state) and info["content"] == content
        if not info["valid"]:
            assert (after, reward, terminated, truncated) == (state, 0.0, False, False)
        if info["success"]:
            assert terminated and not truncated
        if terminated or truncated:
            break
        state = after


@pytest.mark.parametrize("not_text", [None, 3, ["Up"]])
@pytest.mark.parametrize("name", WORLDS)
def test_actions_that_are_no_text(name, not_text):
    env = make_env(name)
    state, _ = env.reset(seed=0)
    after, reward, _, _, info = env.step(not_text)
    assert (after, reward, info["valid"]) == (state, 0.0, False)


@pytest.mark.parametrize("name", WORLDS)
def test_generator_does_not_depend_on_cache_options_or_play(name):
    make_room.cache_clear()
    env = make_env(name)
    first, _ = env.reset(seed=5)
    after = env.np_random.bit_generator.state
    second, third = env.reset()[0], env.reset()[0]
    again, _ = env.reset(seed=5, options={"noise_seed": 9})  # now from the cache
    assert again == first and env.np_random.bit_generator.state == after
    for _ in range(5):
        if env.step((env.actions or ["1,1,1"])[0])[2]:
            break
    assert env.reset()[0] == second
    env.reset(seed=5, options={"state": third})
    assert env.reset()[0] == second
    assert len({env.reset(seed=seed)[0] for seed in range(10)}) > 5


@pytest.mark.parametrize("name", WORLDS)
def test_pickles_in_the_middle_of_an_episode(name):
    lake = {"size": 8, "p": 1.0} if name == "frozen_lake" else {}  # no hole to end in at once
    env = make_env(name, state_format="coordinates", **lake)
    env.reset(seed=11)
    for action in PHRASES[:2]:
        env.step(action)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.render() == env.render()
    for action in PHRASES:
        outcome = env.step(action)
        assert outcome == copy.step(action)
        if outcome[2]:
            break
    assert env.reset() == copy.reset()
    pickle.loads(pickle.dumps(make_env(name))).reset(seed=0)  # never reset, too


@pytest.mark.parametrize("name", WORLDS)
def test_bad_options(name):
    env = make_env(name)
    with pytest.raises(ValueError, match="Did you mean 'noise_seed'"):
        env.reset(options={"noiseseed": 1})
    with pytest.raises(ValueError, match="noise_seed must be an integer of at least 0"):
        env.reset(options={"noise_seed": -1})
    with pytest.raises(ValueError, match="must be text"):
        env.reset(options={"state": 5})
    with pytest.raises(ValueError, match="render_mode"):
        make_env(name, render_mode="human")


def test_same_worlds_in_every_process():
    code = "import json, test_worlds; print(json.dumps(test_worlds.fingerprint()))"
    here = json.loads(json.dumps(fingerprint()))
    for hash_seed in ("0", "4242"):
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
        shown = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True, encoding="utf-8"
        )
        assert json.loads(shown.stdout) == here


def test_golden_states():
    """Frozen: a change here makes other worlds of the same seeds, and no old result could be repeated."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {entry["name"] for entry in golden} == set(WORLDS)
    for entry in golden:
        env = make_env(entry["name"], state_format="coordinates", **entry["settings"])
        assert env.reset(seed=entry["seed"])[0] == entry["state"], entry


def test_worlds_need_no_torch():
    code = "import sys, spa.envs; spa.envs.make_env('sokoban').reset(seed=0); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)


def test_gymnasium_can_import_the_worlds_itself():
    code = "import gymnasium; print(gymnasium.make('spa.envs:spa/Sudoku-v0').reset(seed=0)[0])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    assert shown.stdout == make_env("sudoku").reset(seed=0)[0] + "\n"


def test_names():
    assert env_names()[:3] == ["sokoban", "frozen_lake", "sudoku"]
