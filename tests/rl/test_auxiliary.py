"""The auxiliary world-model loss trains what stage 2 would have trained."""

from __future__ import annotations

import numpy as np
import pytest

from spa.agent.episode import Turn
from spa.agent.response import parse_response
from spa.agent.worlds import World
from spa.config.schema import SFTConfig
from spa.data.encode import encode_row, encode_rows
from spa.data.ground_truth import rejection, rows_of
from spa.rl.auxiliary import true_response, world_model_examples, world_model_rows
from tests.scripted import CHAT, Scripted, lake_task, tiny_policy

BOTH = "<observation>wrong</observation>I go.<prediction>wrong too</prediction></think><answer>Up</answer>"
PLAIN = "I go.</think><answer>Up || Left</answer>"
WORLDS = [World(s, str(s)) for s in range(3)]


def turn(response: str) -> Turn:
    return Turn(0, "before\n_P", "user", response, "after\nP_")


@pytest.mark.parametrize("style", ["terse", "paper"])
def test_a_plain_response_gets_the_true_states_around_its_thoughts(style: str) -> None:
    text = true_response(turn("<think> I go. </think> <answer>Up || Left</answer>"), style)
    assert text is not None
    assert rejection(text) is None
    parsed = parse_response(text, "world_model")
    assert parsed.format_ok
    assert (parsed.observation, parsed.prediction) == ("before\n_P", "after\nP_")
    assert parsed.actions == ("Up", "Left")
    assert "I go." in text


def test_a_response_that_writes_states_keeps_the_rest() -> None:
    assert true_response(turn("<think>" + BOTH)) == (
        "<think><observation>before\n_P</observation>I go.<prediction>after\nP_</prediction></think><answer>Up</answer>"
    )


@pytest.mark.parametrize(
    "response",
    [
        "<think>no end",
        "<think>no answer</think>",
        "<think><observation>only one</observation></think><answer>Up</answer>",
        "<think><prediction>a</prediction><observation>b</observation></think><answer>Up</answer>",
        "<answer>Up</answer>",
        "<think><prediction>p</think><answer>Up</answer>",
        "<think>o</observation></think><answer>Up</answer>",
        "<think>I go.</think><answer>Up<observation>o</observation></answer>",
        f"<think>{BOTH}<observation><prediction>o</observation>t<prediction>p</prediction>",
        "<think>a</think>b</think><answer>Up</answer>",
        "",
    ],
)
def test_a_response_in_neither_format_is_left_out(response: str) -> None:
    assert true_response(turn(response)) is None


@pytest.mark.parametrize("response", ["<think>" + BOTH, PLAIN])
def test_a_state_that_contains_a_tag_is_left_out(response: str) -> None:
    assert true_response(Turn(0, "S", "user", response, "S </prediction> T")) is None


@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize("style", ["terse", "paper"])
def test_rows_are_those_of_stage_1(window: int, style: str) -> None:
    """Played with the plain prompt or with the world model's, the row is what self-play would have made of it."""
    policy = tiny_policy()
    policy.engine = Scripted(lambda i: BOTH)
    told = lake_task(window, style)
    told = type(told)(told.env, type(told.agent)(**{**vars(told.agent), "prompt": "world_model"}), told.max_tokens)
    plain = lake_task(window, style)
    lengths = []
    for episode_told, episode_plain in zip(
        policy.play(told, WORLDS, samples=1, seed=0), policy.play(plain, WORLDS, samples=1, seed=0), strict=True
    ):
        wanted = [
            (row.prompt, row.response) for row in rows_of(episode_told, system=episode_told.system, window=window)
        ]
        assert [(row.prompt, row.response) for row in world_model_rows(episode_told, told)] == wanted
        assert [(row.prompt, row.response) for row in world_model_rows(episode_plain, told)] == wanted
        lengths.append(len(wanted))
    assert max(lengths) > 1


def test_examples_train_the_states_alone() -> None:
    policy = tiny_policy()
    policy.engine = Scripted(lambda i: PLAIN)
    task = lake_task(1)
    episodes = policy.play(task, WORLDS, samples=2, seed=0)
    tasks = [task] * len(episodes)
    rng = np.random.default_rng(0)
    examples = world_model_examples(episodes, tasks, CHAT, fraction=1.0, rng=rng)
    states = [text for episode in episodes for t in episode.turns for text in (t.state, t.next_state)]
    trained = sorted(CHAT.decode([e.ids[p] for p in e.positions]) for e in examples)
    wanted = sorted(a + b for a, b in zip(states[::2], states[1::2], strict=True))
    assert trained == wanted
    rows = [row for episode in episodes for row in world_model_rows(episode, task)]
    merged, _ = encode_rows(rows, CHAT, SFTConfig(loss="state", train_end=False, max_length=10_000))
    assert sorted(e.ids for e in examples) == sorted(e.ids for e in merged)
    assert encode_row(rows[0], CHAT, loss="state", train_end=True).positions  # no end of turn among them


@pytest.mark.parametrize("transitions", [False, True])
def test_a_row_longer_than_the_context_is_left_out(transitions: bool) -> None:
    policy = tiny_policy()
    policy.engine = Scripted(lambda i: PLAIN)
    task = lake_task(1)
    episodes = policy.play(task, WORLDS, samples=1, seed=0)

    def lengths(context: int | None) -> list[int]:
        rng = np.random.default_rng(0)
        examples = world_model_examples(
            episodes, [task] * len(episodes), CHAT, fraction=1.0, rng=rng, transitions=transitions, context=context
        )
        return [len(example.ids) for example in examples]

    every = lengths(None)
    assert lengths(max(every)) == every
    assert lengths(max(every) - 1) == [length for length in every if length < max(every)]


def test_a_share_of_the_episodes_is_drawn_and_failed_ones_never() -> None:
    policy = tiny_policy()
    policy.engine = Scripted(lambda i: PLAIN)
    task = lake_task(1)
    episodes = policy.play(task, WORLDS, samples=4, seed=0)
    for episode in episodes[:6]:
        episode.status = "error"

    def drawn(fraction: float, seed: int) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        return [e.ids for e in world_model_examples(episodes, [task] * 12, CHAT, fraction=fraction, rng=rng)]

    every = drawn(1.0, 0)
    assert len(every) == sum(len(e.turns) for e in episodes[6:])
    assert 0 < len(drawn(0.5, 0)) < len(every)
    assert drawn(0.5, 0) == drawn(0.5, 0)
    assert drawn(0.01, 0)
    for episode in episodes:
        episode.status = "error"
    assert drawn(1.0, 0) == []
