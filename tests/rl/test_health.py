"""Signs of collapse, and what becomes of a run that shows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spa.agent.episode import Episode, TokenSequence, Turn
from spa.config.schema import PPOConfig
from spa.rl.health import Health, loops, repetition


def config(**ppo: object) -> PPOConfig:
    return PPOConfig(**{"collapse_patience": 2, **ppo})


@given(st.lists(st.integers(0, 9), min_size=0, max_size=12), st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_a_loop_is_found_behind_anything(before: list[int], unit: list[int]) -> None:
    times = max(4, -(-16 // len(unit)))
    assert loops(before + unit * times)


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [1] * 15,  # too short
        [1, 2, 3] * 5,
        list(range(9)) * 6,  # too long a period
        [7] * 40 + [1],  # it ended
        list(range(100)),
    ],
)
def test_what_is_no_loop(ids: list[int]) -> None:
    assert not loops(ids)


def test_only_responses_that_were_cut_off_count_as_loops() -> None:
    def turn(index: int, finish: str) -> Turn:
        return Turn(index, "", "", "", finish_reason=finish)

    both = Episode("T", 0, 0, turns=[turn(0, "length"), turn(1, "length"), turn(2, "stop")])
    sequence = TokenSequence()
    sequence.append([5] * 30)  # context loops as it likes
    sequence.append([1, 2] * 10, mask=1, logprobs=[0.0] * 20, turn=0)
    sequence.append(range(20), mask=1, logprobs=[0.0] * 20, turn=1)
    sequence.append([3] * 20, mask=1, logprobs=[0.0] * 20, turn=2)
    both.sequences = [sequence]
    assert repetition([both]) == pytest.approx(1 / 3)
    assert repetition([]) == 0


def test_a_valid_rate_counts_once_it_was_twice_the_floor() -> None:
    """A base model may start below it."""
    health = Health(config(min_valid_rate=0.1))
    assert not any(health.observe(step, {"train/valid_rate": 0.0}) for step in range(1, 9))
    assert not health.observe(9, {"train/valid_rate": 0.2})
    assert not health.observe(10, {"train/valid_rate": 0.05})
    assert health.observe(11, {"train/valid_rate": 0.05})
    assert "only 5.0% of the turns" in health.reason
    assert health.healthy_step == 9


def test_one_good_step_begins_anew() -> None:
    health = Health(config(max_repetition=0.5))
    bad, good = {"train/repetition": 0.9}, {"train/repetition": 0.1}
    assert [health.observe(i, m) for i, m in enumerate([bad, good, bad, bad], 1)] == [False, False, False, True]
    assert health.healthy_step == 2


def test_a_step_in_which_every_episode_failed_is_no_good_one() -> None:
    health = Health(config())
    bad = {"train/valid_rate": 0.0}
    steps = [{"train/valid_rate": 0.9}, bad, {"train/errors": 8.0}, bad]
    assert [health.observe(step, metrics) for step, metrics in enumerate(steps, 1)] == [False, False, False, True]
    assert health.healthy_step == 1


def test_entropy_floor() -> None:
    health = Health(config(min_entropy=0.01))
    assert not health.observe(1, {})  # every episode failed
    assert not health.observe(2, {"losses/entropy": 0.001})
    assert health.observe(3, {"losses/entropy": 0.001})
    assert not any(Health(config()).observe(step, {"losses/entropy": 0.0}) for step in range(1, 9))


def test_a_policy_that_always_plays_the_same_is_not_updated_and_yet_seen() -> None:
    health = Health(config(min_entropy=0.01))
    assert not health.observe(1, {"losses/entropy": 0.001, "train/entropy": 0.5})
    assert health.observe(2, {"train/entropy": 0.0})
    assert not Health(config(min_entropy=0.01)).observe(1, {"losses/entropy": 0.5, "train/entropy": 0.0})


def test_what_was_seen_survives_a_resume() -> None:
    one, other = Health(config()), Health(config())
    one.observe(1, {"train/valid_rate": 0.9})
    one.observe(2, {"train/valid_rate": 0.0})
    other.load_state(one.state())
    assert other.observe(3, {"train/valid_rate": 0.0})
    assert other.healthy_step == 1
