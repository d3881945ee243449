"""Bandit: payouts, their luck, the order of the arms."""

from __future__ import annotations

import pytest

from spa.envs import Bandit, make_env


def test_the_low_arm_always_pays_the_same() -> None:
    env = Bandit()
    for seed in range(20):
        env.reset(seed=seed)
        state, reward, terminated, truncated, info = env.step("Phoenix")
        assert (reward, terminated, truncated, info["success"], info["effective"]) == (0.1, True, False, False, True)
        assert state.endswith("\nYou pulled Phoenix. It paid 0.1.")


def test_the_high_arm_pays_by_luck_and_is_the_right_choice_either_way() -> None:
    env, won = Bandit(), 0
    for noise in range(2000):
        env.reset(seed=7, options={"noise_seed": noise})
        state, reward, terminated, _, info = env.step(" dragon ")
        assert terminated and info["success"] and reward in (0.0, 1.0)
        assert state.endswith(f"\nYou pulled Dragon. It paid {reward:g}.")
        won += reward == 1.0
    assert 420 < won < 580  # 500 expected, four standard deviations


def test_luck_follows_the_seed_or_the_noise_seed_alone() -> None:
    env = Bandit()

    def paid(seed: int, **options: int) -> float:
        env.reset(seed=seed, options=options)
        return env.step("Dragon")[1]

    assert [paid(seed) for seed in range(50)] == [paid(seed) for seed in range(50)]
    assert len({paid(seed) for seed in range(50)}) == 2
    assert len({paid(seed, noise_seed=4) for seed in range(50)}) == 1


def test_the_order_of_the_arms_is_shuffled_and_nothing_else_is_told() -> None:
    env = Bandit(lo_arm_name="Trader", hi_arm_name="Librarian")
    orders = []
    for seed in range(200):
        state, info = env.reset(seed=seed)
        assert info["content"] == f"Bandit {', '.join(env.actions)}"
        assert state == f"Two arms: {', '.join(env.actions)}. What an arm pays fits what its name stands for."
        orders.append(env.actions)
    assert set(orders) == {("Trader", "Librarian"), ("Librarian", "Trader")}
    assert 70 < orders.count(("Trader", "Librarian")) < 130


def test_payoffs_are_settings() -> None:
    env = Bandit(lo_arm_score=-1, hi_arm_loscore=2, hi_arm_hiscore=3.5, hi_arm_hiscore_prob=1)
    env.reset(seed=0)
    assert env.step("Dragon")[1] == 3.5
    env.reset(seed=0)
    assert env.step("Phoenix")[1] == -1.0
    never = Bandit(hi_arm_loscore=0.2, hi_arm_hiscore_prob=0)
    never.reset(seed=0)
    assert never.step("Dragon")[1] == 0.2


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hi_arm_name": "phoenix"}, "lo_arm_name and hi_arm_name must differ"),
        ({"hi_arm_name": " "}, "hi_arm_name must be a name of 1 to 40 characters in one line"),
        ({"lo_arm_name": "a\nb"}, "lo_arm_name must be a name"),
        ({"lo_arm_name": 3}, "lo_arm_name must be a name"),
        ({"hi_arm_hiscore_prob": 1.5}, "hi_arm_hiscore_prob must be a number from 0 to 1"),
        (
            {"hi_arm_hiscore_prob": 0.1},
            "the high arm must pay more than the low one on average, but pays 0.1 against 0.1",
        ),
        ({"lo_arm_score": "much"}, "lo_arm_score must be a number"),
        ({"hi_arm_hiscore": float("inf")}, "hi_arm_hiscore must be a number"),
        ({"hi_arm": "x"}, "unknown setting 'hi_arm'"),
    ],
)
def test_bad_settings(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env("bandit", **change)


ARMS = "Two arms: Dragon, Phoenix. What an arm pays fits what its name stands for."


@pytest.mark.parametrize(
    "state, before, legal",
    [
        (ARMS, None, True),
        (f"{ARMS}\nYou pulled Dragon. It paid 1.", ARMS, True),
        (f"{ARMS}\nYou pulled Dragon. It paid 0.", ARMS, True),
        (f"{ARMS}\nYou pulled Phoenix. It paid 0.1.", ARMS, True),
        (f"{ARMS}\nYou pulled Phoenix. It paid 1.", ARMS, False),
        (f"{ARMS}\nYou pulled Dragon. It paid 0.5.", ARMS, False),
        (ARMS, ARMS.replace("Dragon, Phoenix", "Phoenix, Dragon"), False),
        (ARMS, f"{ARMS}\nYou pulled Dragon. It paid 1.", False),
        (ARMS.replace("Dragon", "Griffin"), None, False),
    ],
)
def test_legality(state: str, before: str | None, legal: bool) -> None:
    assert Bandit().legal(state, before) is legal


def test_a_given_state_is_played_on() -> None:
    env = Bandit()
    assert env.reset(seed=0, options={"state": ARMS})[0] == ARMS
    assert env.step("Dragon")[2] is True
    with pytest.raises(ValueError, match="a state must be written like 'Two arms: Phoenix, Dragon"):
        env.reset(options={"state": "Three arms"})
