"""Rollout at the contract: tokens are append-only, limits and penalties hold, failures are data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.agent.episode import Episode, TokenSequence, Turn, read_episodes, write_episodes
from spa.agent.failures import Failures
from spa.agent.host import LocalHost
from spa.agent.play import Play
from spa.agent.policy import Policy, sampling_for
from spa.agent.rollout import rollout
from spa.agent.take_over import play_with_person
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource, overlaps, split_of
from spa.common.progress import progress
from spa.config.schema import AgentConfig, EnvConfig, SamplingConfig
from spa.envs import make_env
from spa.envs.checked import Step
from spa.envs.frozen_lake.world import FrozenLake
from tests.scripted import CHAT, LAKE, TOKENIZER, Scripted, lake_task

SAMPLING = SamplingConfig()
WORLDS = [World(seed, f"w{seed}") for seed in range(3)]


def answer(actions: str) -> str:
    return f"</think><answer>{actions}</answer>"


def play(engine, task, worlds=WORLDS, **kwargs) -> list[Episode]:
    return rollout(engine, CHAT, task, worlds, SAMPLING, seed=0, **kwargs)


RESPONSES = st.lists(
    st.sampled_from(
        [answer("Up"), answer("Left || Down"), answer("x"), "</think>", "P√ 1,2", "", answer("Right || no")]
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40)
@given(RESPONSES, st.booleans(), st.sampled_from(["terse", "paper"]))
def test_every_context_is_a_prefix_of_all_that_follows(responses, end, style) -> None:
    engine = Scripted(lambda i: responses[i % len(responses)], end=end)
    episodes = play(engine, lake_task(style=style))
    for episode in episodes:
        (sequence,) = episode.sequences
        ids = sequence.ids
        position = 0
        for turn in episode.turns:
            context = next(c for c in engine.contexts[turn.index] if ids[: len(c)] == c and len(c) > position)
            sampled = [i for i, t in enumerate(sequence.turns) if t == turn.index and sequence.mask[i]]
            assert sampled == list(range(len(context), len(context) + len(sampled)))
            assert [sequence.logprobs[i] for i in sampled] == [-float(ids[i]) for i in sampled]
            assert "<think>" + CHAT.decode([ids[i] for i in sampled]) == turn.response
            forced = len(CHAT.forced_ids)
            assert ids[len(context) - forced : len(context)] == CHAT.forced_ids
            assert not any(sequence.mask[position : len(context)])
            position = len(context) + len(sampled)
        assert position == len(ids)


@pytest.mark.parametrize("window", [1, 2])
def test_a_window_gives_a_sequence_a_turn_and_trains_each_token_once(window: int) -> None:
    engine = Scripted(lambda i: answer("x"))
    full = play(Scripted(lambda i: answer("x")), lake_task(0))[0]
    episode = play(engine, lake_task(window))[0]
    assert len(episode.sequences) == len(episode.turns) == 5
    assert sum(map(sum, (s.mask for s in episode.sequences))) == sum(full.sequences[0].mask)
    for index, sequence in enumerate(episode.sequences):
        assert {t for t, m in zip(sequence.turns, sequence.mask, strict=True) if m} == {index}
        shown = min(index + 1, window)
        assert sequence.ids.count(CHAT.tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2 * shown


def test_turn_numbers_start_at_one_within_the_window() -> None:
    episode = play(Scripted(lambda i: answer("x")), lake_task(2, "paper"))[0]
    text = CHAT.tokenizer.decode(episode.sequences[3].ids)
    assert "Turn 1:" in text
    assert "Turn 2:" in text
    assert "Turn 3:" not in text
    assert text.count("Reward:\n0\n") == 1


def test_limits_on_actions() -> None:
    actions = " || ".join(["Up", "Down"] * 4)
    sokoban = Task(EnvConfig(id="sokoban", tag="S", max_actions=7), AgentConfig(style="terse", window=1))
    for episode in play(Scripted(lambda i: answer(actions)), sokoban):
        if episode.status == "truncated":
            assert [len(turn.executed) for turn in episode.turns] == [5, 2]
            assert [turn.actions_left for turn in episode.turns] == [7, 2]
            assert all(turn.penalty == 0 for turn in episode.turns)
        assert all(len(turn.actions) <= 5 for turn in episode.turns)


class Limited(FrozenLake):
    """Ends after a move: by a limit of its own, or for good."""

    def step(self, action: str) -> Any:
        state, reward, _, _, info = super().step(action)
        return state, reward, action == "Up", action != "Up", info


@pytest.mark.parametrize(("action", "status"), [("Up", "completed"), ("Down", "truncated")])
def test_an_end_by_the_world_s_own_limit_cuts_the_episode_off(action: str, status: str) -> None:
    task = Task(EnvConfig(id=f"{__name__}:Limited", tag="L"), AgentConfig(style="terse", window=1))
    for episode in play(Scripted(lambda i: answer(action)), task):
        assert (episode.status, len(episode.turns), episode.turns[0].ended) == (status, 1, action == "Up")


def test_what_follows_the_world_s_own_limit_is_not_run() -> None:
    env = EnvConfig(id="sokoban", tag="S", settings={"max_steps": 1})
    task = Task(env, AgentConfig(style="terse", window=1))
    (episode,) = play(Scripted(lambda i: answer("Up || Down")), task, WORLDS[:1])
    assert (episode.status, episode.error, episode.turns[0].executed) == ("truncated", "", ["Up"])


@pytest.mark.parametrize(
    ("text", "penalty"),
    [(answer("Up"), 0.0), (answer("up"), 0.0), (answer("Up || x"), -0.1), (answer("x || y"), -0.1), ("Up", -0.1)],
)
def test_the_penalty_comes_once_a_turn_and_is_not_in_the_reward(text: str, penalty: float) -> None:
    turn = play(Scripted(lambda i: text), lake_task(1))[0].turns[0]
    assert turn.penalty == penalty
    assert turn.reward == 0


@pytest.mark.parametrize("penalized", [True, False])
def test_more_actions_than_a_turn_may_have_cost_the_penalty_if_the_config_says_so(penalized: bool) -> None:
    env = EnvConfig(id="sokoban", tag="S", max_actions_per_turn=2)
    task = Task(env, AgentConfig(style="terse", window=1, penalize_extra_actions=penalized))
    text = {2: answer("Up || Down"), 3: answer("Up || Down || Up")}
    for names, penalty in ((2, 0.0), (3, -0.1 if penalized else 0.0)):
        turn = play(Scripted(lambda i, names=names: text[names]), task)[0].turns[0]
        assert (turn.executed, turn.penalty, turn.format_ok) == (["Up", "Down"], penalty, True)


def test_an_action_of_which_the_world_says_nothing_is_not_invalid() -> None:
    play = Play.start(lake_task(1), WORLDS[0], 0, 0)
    play.open_turn(0, "")
    play.choose(f"<think>{answer('Up')}", "stop")
    play.learn([Step("state", 0.0, False, False, {"success": False})], "")
    (turn,) = play.episode.turns
    assert (turn.invalid, turn.valid) == (0, True)


def test_rewards_and_success_come_from_the_world() -> None:
    for seed in range(200):
        env = make_env("frozen_lake", size=4, is_slippery=False)
        env.reset(seed=seed)
        _, reward, terminated, _, info = env.step("Up")
        if terminated and info["success"]:
            break
    episode = play(Scripted(lambda i: answer("Up || Down")), lake_task(1), [World(seed, "w")])[0]
    assert (episode.success, episode.status, episode.total_reward) == (True, "completed", 1.0)
    assert episode.turns[0].executed == ["Up"]  # what follows the end is not run
    assert "√" in episode.turns[0].next_state
    assert reward == 1.0


class Broken:
    """Fails in odd-seeded worlds."""

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        if seed == 3:
            raise RuntimeError("no world")
        return "state", {}

    def step(self, action):
        if self.seed % 2:
            raise RuntimeError("fell apart")
        return "state", 1.0, True, False, {"success": True, "valid": True, "effective": True}

    def close(self):
        pass


def test_a_broken_world_ends_its_own_episode_only() -> None:
    task = Task(EnvConfig(id=f"{__name__}:Broken", tag="B"), AgentConfig(style="terse", window=1))
    episodes = play(Scripted(lambda i: answer("go")), task, [World(s, str(s)) for s in range(4)])
    assert [e.status for e in episodes] == ["completed", "error", "completed", "error"]
    assert [e.success for e in episodes] == [True, False, True, False]
    assert "fell apart" in episodes[1].error
    assert "no world" in episodes[3].error


def test_an_episode_that_fails_after_its_world_was_won_is_no_success() -> None:
    play = Play.start(lake_task(1), WORLDS[0], 0, 0)
    play.episode.success = True
    play.fail("close: OSError")
    assert (play.episode.success, play.episode.status, play.live) == (False, "error", False)


def test_a_person_s_world_that_fails_at_once_is_an_episode_too() -> None:
    task = Task(EnvConfig(id=f"{__name__}:Broken", tag="B"), AgentConfig(style="terse", window=1))
    policy = Policy(None, TOKENIZER, CHAT, Scripted(lambda i: answer("go")), SAMPLING)
    seen: list[str] = []
    worlds = [World(seed, str(seed)) for seed in (2, 3)]
    play_with_person(
        policy, task, worlds, lambda state: "", seed=0, on_turn=lambda episode, _: seen.append(episode.status)
    )
    assert seen[-1] == "error" and "completed" in seen


def test_a_person_is_shown_the_states_that_are_played() -> None:
    shown: list[str] = []
    policy = Policy(None, TOKENIZER, CHAT, Scripted(lambda i: answer("x")), SAMPLING)

    def ask(state: str) -> str:
        shown.append(state)
        return "Left"

    episodes = play_with_person(policy, lake_task(1, max_turns=2), WORLDS[1:], ask, seed=0)
    assert shown == [turn.state for episode in episodes for turn in episode.turns] and len(set(shown)) > 1


def test_a_group_shares_its_world_but_not_its_luck() -> None:
    task = lake_task(1, settings={"size": 4, "is_slippery": True})
    episodes = play(Scripted(lambda i: answer("Right")), task, WORLDS[:2], group_size=8)
    for group in (0, 1):
        members = [e for e in episodes if e.group == group]
        assert len({e.turns[0].state for e in members}) == 1
        assert len({e.turns[0].next_state for e in members}) > 1
        assert len({e.noise_seed for e in members}) == 8


def test_worlds_do_not_share_their_luck() -> None:
    assert len({World(seed, "w").noise_seed(member) for seed in range(8) for member in range(8)}) == 64


def test_the_same_arguments_give_the_same_episodes() -> None:
    task = lake_task(1, settings={"size": 4, "is_slippery": True})
    first = play(Scripted(lambda i: answer("Right")), task, group_size=2)
    assert first == play(Scripted(lambda i: answer("Right")), task, group_size=2)


def test_json_lines_round_trip(tmp_path) -> None:
    episodes = play(Scripted(lambda i: answer("Right || \\1 √ \n")), lake_task(0))
    write_episodes(tmp_path / "e.jsonl", episodes)
    assert list(read_episodes(tmp_path / "e.jsonl")) == episodes


@given(st.text(), st.lists(st.integers(0, 9), max_size=4))
def test_any_episode_survives_json(text: str, ids: list[int]) -> None:
    sequence = TokenSequence(ids, [1] * len(ids), [-0.1] * len(ids), [0] * len(ids))
    episode = Episode(
        "T", 1, 0, turns=[Turn(0, text, text, text, text, reward=-0.30000000000000004)], sequences=[sequence]
    )
    assert Episode.from_json(episode.to_json()) == episode


def test_a_bad_line_is_named(tmp_path) -> None:
    path = tmp_path / "e.jsonl"
    good = Episode("T", 1, 0).to_json()
    for bad in ["{", json.dumps({"task": "x"}), "3"]:
        path.write_text(good + "\n" + bad + "\n")
        with pytest.raises(ValueError, match="line 2: not an episode"):
            list(read_episodes(path))


def test_splits_share_no_content_and_the_cursor_continues() -> None:
    task = lake_task()
    sources = {name: WorldSource(task, name, 10**9 * i) for i, name in enumerate(["test", "val", "selfplay", "train"])}
    taken = {name: source.take(40) for name, source in sources.items()}
    found = overlaps({name: [w.content for w in worlds] for name, worlds in taken.items()})
    assert set(found.values()) == {0}
    assert len(found) == 6
    assert all(split_of(w.content) == name for name, worlds in taken.items() for w in worlds)
    images = overlaps({name: [str(w.symmetry) for w in worlds] for name, worlds in taken.items()})
    assert sum(images.values()) > 0, "of the same lakes turned around some are in two splits"
    first = WorldSource(task, "train", 3 * 10**9)
    part = first.take(15)
    second = WorldSource(task, "train", 3 * 10**9)
    second.cursor = first.cursor
    with progress(25, "worlds") as bar:
        rest = second.take(25, bar)
    assert bar.done == 25
    assert part + rest == taken["train"]


def test_overlaps_are_counted() -> None:
    assert overlaps({"a": "xyz", "b": "yz", "c": "q"}) == {"a&b": 2, "a&c": 0, "b&c": 0}


@pytest.mark.slow
def test_evaluation_worlds_are_distinct_and_running_out_is_said() -> None:
    small = lake_task(settings={"size": 2, "p": 0.9})
    with pytest.raises(ValueError, match="distinct worlds for split 'test'"):
        WorldSource(small, "test", 0, unique=True).take(100)
    worlds = WorldSource(Task(LAKE, AgentConfig()), "test", 0, unique=True).take(60)
    assert len({w.content for w in worlds}) == 60


@pytest.mark.parametrize(
    ("prompt", "limit", "seen"), [("base", 12, 12), ("base", 0, 200), ("base", 900, 900), ("world_model", 12, 200)]
)
def test_plain_answers_have_a_limit_of_their_own(prompt: str, limit: int, seen: int) -> None:
    task = Task(LAKE, AgentConfig(style="terse", prompt=prompt))
    found = sampling_for(task, SamplingConfig(max_tokens=200, max_tokens_base=limit, temperature=0.7))
    assert (found.max_tokens, found.temperature) == (seen, 0.7)
    assert sampling_for(task, SamplingConfig(), 0.0).temperature == 0.0


@pytest.mark.parametrize("window", [0, 1])
def test_an_episode_ends_where_the_model_cannot_read_its_context(window: int, monkeypatch) -> None:
    """Positions that a model was not trained on would be measured without a word."""
    task = lake_task(window, max_actions_per_turn=1, max_turns=8)
    engine = Scripted(lambda i: "</think><answer>nowhere</answer>")
    (whole,) = rollout(engine, CHAT, task, [World(3, "w")], SamplingConfig(), seed=0)
    lengths = [len(context) for (context,) in engine.contexts]
    assert len(lengths) == len(whole.turns) == 8

    class Short(Scripted):
        context_length = lengths[4] + 99

    closed: list[LocalHost] = []
    monkeypatch.setattr(LocalHost, "close", lambda host: closed.append(host))
    (episode,) = rollout(Short(engine.text), CHAT, task, [World(3, "w")], SamplingConfig(max_tokens=100), seed=0)
    if window:
        assert lengths[4] == lengths[0] and episode.turns == [] and "turn 1 has" in episode.error
        assert "window=1" not in episode.error and "use a model with a longer context" in episode.error
    else:
        assert len(episode.turns) == 4 and f"{lengths[4]} tokens, which leaves no room" in episode.error
        assert "set agent.window=1" in episode.error
    # A policy that writes too much is to be judged by it; a prompt that cannot be read is not its doing.
    assert episode.status == ("error" if window else "truncated") and len(closed) == 1


def test_an_episode_that_was_cut_off_did_not_fail() -> None:
    failures = Failures("play", 0.0, 1)
    failures.add([Episode("T", 1, 0, status="truncated", error="the context of turn 5 has 900 tokens")])
    assert failures.count == 0
