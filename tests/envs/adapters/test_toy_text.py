"""Gymnasium's toy-text worlds as text, against Gymnasium's own transition tables."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from spa.envs import make_env
from spa.envs.check import check_world

pytest.importorskip("gymnasium", minversion="1.3")  # its first with these games in these versions

TOYS = ["gym:Taxi", "gym:CliffWalking", "gym:CliffWalkingSlippery", "gym:FrozenLake", "gym:FrozenLake8x8"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TOYS)
def test_texts_say_the_whole_state(name):
    """No two states look the same."""
    env = make_env(name, random_start=True)
    states = {}
    for seed in range(1000):
        text, _ = env.reset(seed=seed)
        assert states.setdefault(text, env.inner.s) == env.inner.s
    assert len(states) == len(set(states.values())) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TOYS, "gym:Taxi-rain"])
def test_moves_follow_gymnasiums_table(name):
    """Every outcome is one of P's, with its reward and end; all that are likely are seen."""
    name, _, rain = name.partition("-")
    env = make_env(name, random_start=True, max_steps=None, **({"is_rainy": True} if rain else {}))
    table = env.inner.P
    rng = np.random.default_rng(0)
    seen: dict[tuple[int, int], set[int]] = {}
    for episode in range(40):
        env.reset(seed=episode)
        for _ in range(60):
            s, action = env.inner.s, env.sample_action(rng)
            index = env.actions.index(action)
            _, reward, terminated, truncated, info = env.step(action.upper())
            after = env.inner.s
            assert (after, reward, terminated) in {(int(t), float(r), bool(d)) for _, t, r, d in table[s][index]}
            assert info["effective"] == (after != s) and not truncated
            assert not info["success"] or terminated
            seen.setdefault((s, index), set()).add(after)
            if terminated:
                break
    assert len(seen) > 30
    noisy = bool(rain) or name in ("gym:CliffWalkingSlippery", "gym:FrozenLake", "gym:FrozenLake8x8")
    assert any(len(after) > 1 for after in seen.values()) == noisy


def test_a_ride_in_a_taxi():
    env = make_env("gym:Taxi")
    wanted = "|R:_|_:_:G|\n|_:_|_:_:_|\n|_:_:_:_:_|\n|_|_:_|_:_|\n|T|_:_|B:_|\nPassenger: Y. Destination: R."
    while env.reset()[0] != wanted:
        pass
    assert env.step("pickup")[0] == wanted.replace("r: Y", "r: in the taxi")
    for _ in range(4):
        env.step("Up")
    text, reward, terminated, _, info = env.step("Dropoff")
    assert (reward, terminated, info["success"]) == (20, True, True)
    assert text.startswith("|T:_|") and "Passenger: R. Destination: R." in text
    assert env.legal(text) is None
    assert "Taxi (T) is at (" in make_env("gym:Taxi", state_format="coordinates").reset(seed=0)[0]


def test_the_cliff_and_the_lake():
    cliff = make_env("gym:CliffWalking")
    assert cliff.reset(seed=0)[0] == "____________\n" * 3 + "PCCCCCCCCCCG"
    assert cliff.step("right")[1] == -100
    for action in ("Up", *["Right"] * 11, "Down"):
        text, _, terminated, _, info = cliff.step(action)
    assert text.endswith("SCCCCCCCCCC√") and terminated and info["success"]
    lake = make_env("gym:FrozenLake", desc=["SFH", "HFG"], is_slippery=False, state_format="coordinates")
    sentence = "holes (O) are at (0,2), (1,0); goal (G) is at (1,2)."
    assert lake.reset(seed=0)[0] == f"P_O\nO_G\nPlayer (P) is at (0,0); {sentence}"
    text, _, terminated, _, info = lake.step("Down")
    assert text == f"__O\nX_G\nPlayer (P) is at (1,0); {sentence}" and terminated and not info["success"]


@pytest.mark.parametrize("schedule", [(1, 0, 0), (10, 5, 0), (0, -1, -0.01)])
def test_the_lake_is_won_on_the_goal_whatever_it_pays(schedule):
    settings = {"desc": ["SG", "HF"], "is_slippery": False, "reward_schedule": schedule}
    for action, won in (("Right", True), ("Down", False)):
        env = make_env("gym:FrozenLake", **settings)
        env.reset(seed=0)
        _, reward, terminated, _, info = env.step(action)
        assert (terminated, info["success"], reward) == (True, won, schedule[0 if won else 1])


def test_random_starts_and_worlds():
    contents = {make_env("gym:CliffWalking").reset(seed=seed)[1]["content"] for seed in range(10)}
    assert len(contents) == 1
    env = make_env("gym:CliffWalking", random_start=True)
    resets = [env.reset(seed=seed) for seed in range(200)]
    assert len({state for state, _ in resets}) == len({info["content"] for _, info in resets}) == 37
    taxi = make_env("gym:Taxi")
    assert len({taxi.reset(seed=seed)[0] for seed in range(4000)}) == 300  # Gymnasium's number of starts


def test_time_limits():
    env = make_env("gym:Taxi")
    env.reset(seed=0)
    ends = [env.step("Pickup")[2:4] for _ in range(200)]
    assert ends[-2:] == [(False, False), (False, True)]
    assert make_env("gym:Taxi", max_steps=3).max_steps == 3


def test_blackjack():
    env = make_env("gym:Blackjack")
    wins = 0
    for seed in range(60):
        state, _ = env.reset(seed=seed)
        cards = re.fullmatch(r"You: (\d+), (\d+) \((\d+)\)\. Dealer: (\d+), \?", state)
        assert cards and sum(map(int, cards.groups()[:2])) in (int(cards[3]), int(cards[3]) - 10)
        state, reward, terminated, _, info = env.step("Stick")
        dealer = int(re.search(r"\((\d+)\)$", state)[1])
        assert terminated and dealer >= 17
        mine = int(cards[3])
        natural = mine == 21 and reward == 1  # beats a dealer's 21 of more cards
        assert natural or reward == (1 if dealer > 21 else (mine > dealer) - (mine < dealer))
        assert info["success"] == (reward > 0)
        wins += info["success"]
    assert 0 < wins < 60


LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("gym:CliffWalking", "gym:FrozenLake8x8")]


@pytest.mark.parametrize(
    "name", ["gym:Taxi", "gym:CliffWalkingSlippery", "gym:FrozenLake", "gym:Blackjack-v1", *LARGER]
)
def test_toys_keep_the_contract(name):
    check_env(make_env(name), skip_render_check=True)
    failed = [one.line() for one in check_world(lambda: make_env(name), episodes=3, seeds=2) if one.failed]
    assert failed == []


def test_noise_is_the_noise_seeds():
    env = make_env("gym:CliffWalkingSlippery", random_start=True)

    def walk(seed: int, noise_seed: int) -> list[str]:
        start, _ = env.reset(seed=seed, options={"noise_seed": noise_seed})
        return [start, *(env.step("Up")[0] for _ in range(8))]

    assert walk(1, 5) == walk(1, 5)
    assert walk(1, 5)[0] == walk(1, 6)[0] and walk(1, 5) != walk(1, 6)


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("gym:Taxi-v99", {}, "unknown world 'gym:Taxi-v99'. Did you mean 'gym:Taxi-v4'\\?"),
        ("gym:CartPole-v1", {}, "unknown world 'gym:CartPole-v1'"),
        ("gym:", {}, "unknown world 'gym:'"),
        ("gym:Taxi", {"rainy": True}, "unknown setting 'rainy' of world 'gym:Taxi'. Did you mean 'is_rainy'\\?"),
        ("gym:Blackjack", {"random_start": True}, "unknown setting 'random_start'"),
        (
            "gym:Taxi",
            {"state_format": "random_coordinates"},
            "state_format of Taxi must be one of 'grid', 'coordinates'",
        ),
        ("gym:FrozenLake", {"map_name": "9x9"}, "cannot be made with these settings: KeyError: '9x9'"),
        ("gym:FrozenLake", {"map_name": None}, "needs map_name or desc"),
        ("gym:Taxi", {"max_steps": 0}, "max_steps must be an integer of at least 1"),
    ],
)
def test_mistakes_say_what_to_do(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make_env(name, **settings)
