"""The shipped catalogue, the contract of a world, and episodes of a model."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import runpy
import subprocess
import sys
import warnings
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.webshop.goods import shopper, webshop_task
from tests.scripted import CHAT, Scripted

from spa.agent.prompt import instruction
from spa.agent.rollout import rollout
from spa.agent.worlds import WorldSource
from spa.config.schema import SamplingConfig
from spa.envs import make_env
from spa.envs.webshop import WebShop
from spa.envs.webshop.catalogue import SHIPPED, load_products
from spa.envs.webshop.reward import same, same_option, type_factor

ROOT = Path(__file__).parents[3]


def test_the_script_makes_the_shipped_catalogue():
    script = runpy.run_path(str(ROOT / "scripts" / "make_webshop_catalogue.py"))
    lines = gzip.decompress(SHIPPED.read_bytes()).decode().splitlines()
    assert [json.loads(line) for line in lines] == script["make_catalogue"]()


def test_the_shipped_catalogue_is_unambiguous():
    stock = load_products(SHIPPED)
    assert 300 <= len(stock) == len({product.title for product in stock})
    for product in stock:
        for _, values in product.options:
            assert len(values) > 1
            assert not [pair for pair in combinations(values, 2) if same_option(*pair)]
        assert not [pair for pair in combinations(product.attributes, 2) if same(*pair)]
    for one, other in combinations(stock, 2):
        assert (type_factor(one, other) == 1) == (one.query == other.query), (one.title, other.title)


@pytest.mark.slow
def test_every_shipped_goal_can_be_won_in_nine_actions():
    env = WebShop()
    for number in range(env.num_goals):
        env.reset(seed=0, options={"goal": number})
        actions = shopper(env.unwrapped.goal)
        assert len(actions) <= 9
        for action in actions:
            state, earned, terminated, _, info = env.step(action)
            assert info["valid"], (number, action, state)
        assert (earned, terminated, info["success"]) == (1.0, True, True), number


def test_a_shopper_who_does_not_look_does_not_win():
    """Buys the first thing that a search for the instruction finds, with no option chosen."""
    env = WebShop()
    earned = []
    for seed in range(300):
        env.reset(seed=seed)
        state = env.step(f"search[{env.goal.text.partition(' with ')[0]}]")[0]
        env.step(f"click[{re.search(r'^.(S[0-9A-F]{9}). ', state, re.MULTILINE)[1]}]")
        earned.append(env.step("click[buy now]")[1])
    assert max(earned) < 1 and 0.3 < np.mean(earned) < 0.8


def test_gymnasium_checks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(not having a spec)")
        check_env(WebShop())


def test_names_and_spaces():
    env = make_env("webshop")
    assert isinstance(env, WebShop) and env.rules and env.actions == () and env.num_cell_values is None
    state, info = env.reset(seed=0)
    assert state in env.observation_space and info["content"].startswith("WebShop S")
    assert "click[< prev]" in env.action_space and "search[men's t-shirts]" in env.action_space


def test_the_blind_policy_is_a_shopper():
    env, rng = WebShop(), np.random.default_rng(0)
    actions = [env.sample_action(rng) for _ in range(2000)]
    again = np.random.default_rng(0)
    assert actions[:50] == [WebShop().sample_action(again) for _ in range(50)]
    assert all(action in env.action_space for action in actions)
    bought = 0
    for seed in range(60):
        env.reset(seed=seed)
        bought += any(env.step(env.sample_action(rng))[2] for _ in range(60))
    assert bought > 5


@settings(max_examples=60)
@given(
    st.integers(0, 2**64),
    st.lists(
        st.one_of(
            st.sampled_from(
                ["search[shoe]", "click[back to search]", "click[next >]", "click[< prev]", "click[]", "]["]
            ),
            st.text(max_size=40),
            st.text(max_size=20).map(lambda text: f"search[{text}]"),
            st.text(max_size=20).map(lambda text: f"click[{text}]"),
        ),
        max_size=12,
    ),
)
def test_any_string_may_be_played(seed, actions):
    env, twin = WebShop(), WebShop()
    state, info = env.reset(seed=seed)
    assert (state, info) == twin.reset(seed=seed)
    for action in actions:
        outcome = env.step(action)
        assert outcome == twin.step(action)
        after, earned, _, _, info = outcome
        assert after == env.render() and after in env.observation_space and env.legal(after)
        assert info["effective"] == (after != state) and (info["valid"] or (after, earned) == (state, 0.0))
        state = after


def test_an_episode_is_cut_off():
    env = WebShop(max_steps=2)
    env.reset(seed=0)
    assert env.step("nothing")[3] is False
    assert env.step("search[tea]")[3] is False
    _, _, terminated, truncated, _ = env.step("click[back to search]")
    assert truncated and not terminated


def test_pickles_without_the_shop():
    env = WebShop()
    env.reset(seed=11)
    env.step("search[tea]")
    data = pickle.dumps(env)
    assert len(data) < 20_000
    copy = pickle.loads(data)
    assert copy.render() == env.render() and copy._shop is env._shop  # loaded once
    assert copy.step("click[next >]") == env.step("click[next >]") and copy.reset() == env.reset()


FINGERPRINT = r"""
import json, re
from spa.envs.webshop import WebShop
env = WebShop()
played = []
for seed in (0, 1, 2**40):
    played.append(env.reset(seed=seed))
    for action in (f"search[{env.goal.text}]", "click[next >]", None, "click[features]", "click[< prev]", "click[buy now]"):
        found = re.findall(r"^.(S\w+). ", env.render(), re.MULTILINE)
        played.append(env.step(action or f"click[{found[3]}]"))
print(json.dumps([*played, env.reset()]))
"""


def test_the_same_in_every_process():
    shown = []
    for hash_seed in ("0", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", FINGERPRINT], env=environment, capture_output=True, check=True)
        shown.append(json.loads(done.stdout))
    assert shown[0] == shown[1]
    assert [outcome[2] for outcome in shown[0][6:21:7]] == [True] * 3  # each bought something


def test_the_search_is_not_imported_before_it_is_needed():
    code = "import sys, spa.envs; assert not {'bm25s', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)


def test_the_config():
    task = webshop_task(style="paper", state_format="coordinates")  # it has no coordinates
    env = task.make_env()
    assert isinstance(env.unwrapped, WebShop)
    assert (task.tag, task.env.max_turns, task.env.max_actions_per_turn, task.env.max_actions) == ("WebShop", 9, 1, 9)
    assert "search[words]" in task.header(env) and "{" not in task.header(env)


def test_an_episode_of_a_scripted_engine():
    task = webshop_task()
    (world,) = WorldSource(task, "test", 0, unique=True).take(1)
    env = task.make_env()
    env.reset(seed=world.seed)
    script = shopper(env.unwrapped.goal)
    engine = Scripted(lambda i: f"</think><answer>{script[len(engine.contexts) - 1]}</answer>")
    (episode,) = rollout(engine, CHAT, task, [world], SamplingConfig(), seed=0, group_size=1)
    assert (episode.status, episode.success, episode.total_reward) == ("completed", True, 1.0)
    assert [turn.executed for turn in episode.turns] == [[action] for action in script]
    assert all(turn.state in env.unwrapped.observation_space for turn in episode.turns)
    assert episode.turns[-1].next_state.endswith("Score: 1.00")


def test_nine_turns_without_a_purchase():
    task = webshop_task()
    engine = Scripted(lambda i: "</think><answer>search[tea] || click[back to search]</answer>")
    worlds = WorldSource(task, "train", 0).take(1)
    (episode,) = rollout(engine, CHAT, task, worlds, SamplingConfig(), seed=0, group_size=1)
    assert (len(episode.turns), episode.status, episode.success, episode.total_reward) == (9, "truncated", False, 0)


def test_the_example_of_the_instruction_is_true():
    task = webshop_task("world_model", "paper")
    env = task.make_env()
    example = instruction(task.env, "world_model", env).partition("\nExample:\n")[2]
    before = example.partition("<observation>\n")[2].partition("\n</observation>")[0]
    after = example.partition("<prediction>\n")[2].partition("\n</prediction>")[0]
    action = example.partition("<answer>")[2].partition("</answer>")[0]
    _, info = env.reset(seed=0, options={"state": before})
    assert info["split"] == "train"
    state, _, _, _, info = env.step(action)
    assert state == after and info["valid"] and info["effective"]
