"""Rows of single moves: what they say is what a second copy of the world does."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.agent.play import Play
from spa.agent.response import parse_response
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import AgentConfig, EnvConfig, SelfPlayConfig
from spa.data.ground_truth import Row
from spa.data.layouts import read_rows, write_rows
from spa.data.select import select_rows
from spa.data.transitions import (
    RESPONSE_FORMATS,
    STARTS_OF_OUTCOMES,
    Transition,
    each_move_once,
    outcome_text,
    read_outcome,
    repeat_rare,
    shuffle_moves,
    starts_of_states,
    transition_rows,
    transitions_of,
)
from spa.sft.selfplay import training_rows
from tests.planning.tools import merging_chat
from tests.scripted import CHAT, LAKE, lake_task, tiny_config

MERGING = merging_chat()
ROOM = EnvConfig(id="sokoban", tag="Room", settings={"dim_room": [6, 6], "max_steps": 7, "max_moves": 6})
FRESH = ("between", "rewards", "ended", "imagined")  # fields of a turn that older versions did not write
WALK = ["Right || Down || Left", "Up", "nowhere", "Down || Down || Right || Up", "Left || Left"]


def task_of(world: str, style: str = "terse", prompt: str = "world_model") -> Task:
    slippery = {"settings": {"size": 4, "is_slippery": world == "slippery"}}
    env = ROOM if world == "sokoban" else lake_task(**slippery).env
    return Task(env, AgentConfig(style=style, window=1, prompt=prompt))


def written(actions: str, states: bool = True) -> str:
    told = "<observation> I see </observation>so<prediction>\nI guess </prediction>" if states else ""
    return f"<think>{told}</think><answer>{actions}</answer>"


def played(task: Task, seed: int = 0, member: int = 0, responses: list[str] | None = None) -> Episode:
    """An episode of hand-written responses, until it ends."""
    play = Play.start(task, World(seed, f"world {seed}"), seed, member)
    for index, response in enumerate(responses or [written(actions) for actions in WALK]):
        if play.live:
            play.open_turn(index, play.user_text(index, index))
            play.answer(response, "stop")
    return play.episode


def replayed(task: Task, episode: Episode) -> list[list[Transition]]:
    """The true moves of each turn, made again in another copy of the world."""
    env = task.make_env()
    state, _ = env.reset(seed=episode.seed, options={"noise_seed": episode.noise_seed})
    turns = []
    for turn in episode.turns:
        moves = []
        for action in turn.executed:
            after, reward, terminated, _, _ = env.step(action)
            moves.append(Transition(state, action, after, float(reward), terminated))
            state = after
        turns.append(moves)
    return turns


def parts(row: Row) -> tuple[str, str]:
    """The states that a row's response names, as it is read."""
    parsed = parse_response(row.response, "world_model")
    assert parsed.format_ok
    assert parsed.observation is not None
    assert parsed.prediction is not None
    return parsed.observation.strip("\n"), parsed.prediction.strip("\n")


REWARDS = st.floats(-999_999_999_999, 999_999_999_999).map(lambda reward: round(reward, 6))


@given(REWARDS | st.floats(-20, 20).map(lambda reward: round(reward, 6)), st.booleans())
def test_an_outcome_is_read_as_it_was_written(reward: float, ended: bool) -> None:
    assert read_outcome(outcome_text(reward, ended)) == (reward, ended)


@given(st.floats(-1000, 1000), st.booleans())
def test_rewards_are_written_to_six_decimals(reward: float, ended: bool) -> None:
    found = read_outcome(outcome_text(reward, ended))
    assert found is not None
    assert found[0] == pytest.approx(reward, abs=5.01e-7)
    assert "e-" not in outcome_text(reward, False)


def test_how_outcomes_look() -> None:
    shown = [outcome_text(*one) for one in [(-0.1, False), (10.9, True), (1.0, True), (-1e-9, False), (1e-6, False)]]
    assert shown == ["-0.1", "10.9 end", "1 end", "0", "0.000001"]
    assert read_outcome(" 10.9 end\n") == (10.9, True)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf"), 1e12, -1e300])
def test_a_reward_that_could_not_be_read_again_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="a reward must be a finite number"):
        outcome_text(reward, False)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "end", "-", "1 END", "1  end", "1end", "1 end end", "1 ended", "1\nend"),
        *(
            "+1",
            ".5",
            "1.",
            "1e3",
            "--1",
            "1 2",
            "1,5",
            "nan",
            "inf",
            "\u0661",
            "1" * 13,
            "0." + "1" * 13,
            "1</",
            "<1>",
        ),
    ],
)
def test_nonsense_is_no_outcome(text: str) -> None:
    assert read_outcome(text) is None


@pytest.mark.parametrize("style", RESPONSE_FORMATS)
@pytest.mark.parametrize("world", ["sokoban", "lake"])
@pytest.mark.parametrize("chat", [CHAT, MERGING], ids=["characters", "merging"])
def test_a_question_is_the_beginning_of_its_row_in_characters_and_in_tokens(chat: Chat, world: str, style: str) -> None:
    form = RESPONSE_FORMATS[style]
    moves = [move for seed in range(4) for turn in played(task_of(world), seed).turns for move in transitions_of(turn)]
    left = set()
    for move in moves:
        question = form.question(move.state, move.action)
        known = form.predicted(move.state, move.action, move.next_state)
        whole = form.response(move)
        assert whole.startswith(known)
        assert known.startswith(question)
        valued = form.valued(move.state, move.action, -0.25)
        parts = [
            (question, starts_of_states(move.state), whole),
            (known, STARTS_OF_OUTCOMES, whole),
            (form.worth(move.state, move.action), STARTS_OF_OUTCOMES, valued),
        ]
        for part, following, row in parts:
            asked, rest = chat.unfinished(part, following)
            assert chat.encode_response(row).ids[: len(asked)] == asked
            assert chat.decode(asked) + rest == part
            left.add(rest)
        parsed = parse_response(whole, "world_model")
        assert (parsed.format_ok, parsed.actions) == (True, (move.action,))
        assert parsed.observation is not None
        assert parsed.prediction is not None
        assert parsed.observation.strip("\n") == move.state
        assert parsed.prediction.strip("\n") == move.next_state
        assert whole.partition("<outcome>")[2].partition("</outcome>")[0] == outcome_text(move.reward, move.ended)
    assert left == ({""} if chat is CHAT else {">"} if style == "terse" else {">", "\n"})


@pytest.mark.parametrize("style", RESPONSE_FORMATS)
def test_a_question_says_nothing_of_what_comes(style: str) -> None:
    assert "NEXT" not in RESPONSE_FORMATS[style].question("NOW", "Up")
    known = RESPONSE_FORMATS[style].predicted("NOW", "Up", "NEXT")
    assert known.index("NOW") < known.index("Up") < known.index("NEXT")
    assert known.endswith("<outcome>")


@pytest.mark.parametrize("world", ["lake", "slippery", "sokoban"])
def test_a_turn_keeps_the_state_the_reward_and_the_end_of_each_of_its_moves(world: str) -> None:
    task = task_of(world)
    several = ends = 0
    for seed in range(12):
        episode = played(task, seed, member=seed)
        for turn, moves in zip(episode.turns, replayed(task, episode), strict=True):
            assert turn.between == [move.next_state for move in moves[:-1]]
            assert turn.rewards == [move.reward for move in moves]
            assert turn.ended == any(move.ended for move in moves)
            assert transitions_of(turn) == moves
            several += len(moves) > 1
            ends += turn.ended
    assert several
    assert ends or world == "sokoban"


def test_a_world_that_a_limit_cuts_off_has_not_ended() -> None:
    task = task_of("sokoban")
    episode = played(task, responses=[written("Up || Up || Up || Up")] * 2)
    assert episode.status == "truncated"  # by the world, after its seven steps
    assert [len(turn.executed) for turn in episode.turns] == [4, 3]
    assert not any(turn.ended for turn in episode.turns)


@pytest.mark.parametrize("style", RESPONSE_FORMATS)
@pytest.mark.parametrize("world", ["slippery", "sokoban"])
def test_rows_are_the_true_moves_each_in_the_prompt_of_its_own_state(world: str, style: str) -> None:
    task = task_of(world, style)
    episodes = [played(task, seed, member=1) for seed in range(3)]
    moves = [move for episode in episodes for turn in replayed(task, episode) for move in turn]
    rows = transition_rows(episodes, task)
    assert [row.response for row in rows] == [RESPONSE_FORMATS[style].response(move) for move in moves]
    assert [row.extra["executed"] for row in rows] == [[move.action] for move in moves]
    number = 0
    for episode in episodes:
        env = task.make_env()
        env.reset(seed=episode.seed)
        for left in range(10, 10 - sum(len(turn.executed) for turn in episode.turns), -1):
            row, move = rows[number], moves[number]
            number += 1
            user = row.prompt[-1]["content"]
            if style == "terse":
                assert user == f"{move.state}\n{left} left\n<think><observation><prediction><answer>"
                assert len(row.prompt) == 1
            else:
                assert f"\nTurn 1:\nState:\n{move.state}\nYou have {left} actions left. " in user
                assert user.startswith(task.header(env))
                assert [message["role"] for message in row.prompt] == ["system", "user"]
    assert number == len(rows)


def test_shuffled_rows_pair_states_of_other_moves_and_keep_their_prompts() -> None:
    task = task_of("lake", "paper")
    episodes = [played(task, seed) for seed in range(12)]
    true = transition_rows(episodes, task)
    mixed, again, other = (shuffle_moves(true, "paper", seed) for seed in (1, 1, 2))
    assert [row.prompt for row in mixed] == [row.prompt for row in true]
    told = {"outcome": "", "move": None}
    assert [row.extra | told for row in mixed] == [row.extra | told for row in true]
    assert all(f"<outcome>{row.extra['outcome']}</outcome>" in row.response for row in [*mixed, *true])
    for place in (0, 1):
        assert Counter(parts(row)[place] for row in mixed) == Counter(parts(row)[place] for row in true)
    assert Counter(row.response.partition("<outcome>")[2].partition("<")[0] for row in mixed) == Counter(
        row.response.partition("<outcome>")[2].partition("<")[0] for row in true
    )
    known = {parts(row) for row in true}
    assert len(true) > 30
    assert sum(parts(row) in known for row in mixed) < len(mixed) / 4, "state and next state are drawn apart"
    assert [row.response.rpartition("<answer>")[2] for row in mixed] == [
        f"{row.extra['executed'][0]}</answer>" for row in true
    ]
    assert again == mixed != other


@pytest.mark.parametrize("only", [{}, {"success_only": True}, {"balance": "turn"}])
def test_the_control_has_the_same_moves_with_the_states_of_others(only: dict[str, Any]) -> None:
    """Whatever is selected, and with what is played twice kept once."""
    task = task_of("lake")
    episodes = [played(task, seed, responses=[written("Down || Right")] * 4) for seed in [*range(60), *range(60)]]
    cfg = tiny_config()
    rows = {}
    for states in ("truth", "shuffled"):
        play = SelfPlayConfig(rows="transitions", deduplicate=True, filter=False, states=states, **only)
        rows[states] = training_rows(dataclasses.replace(cfg, selfplay=play), episodes)
    (true, why), (mixed, other) = rows["truth"], rows["shuffled"]
    assert (why, [row.prompt for row in true]) == (other, [row.prompt for row in mixed])
    assert why["duplicate"] >= len(true) > 10
    for place in (0, 1):
        assert Counter(parts(row)[place] for row in mixed) == Counter(parts(row)[place] for row in true)
    assert sum(one.response == two.response for one, two in zip(true, mixed, strict=True)) < len(true) / 2


@pytest.mark.parametrize("share", [0.5, 100.0])
def test_well_formed_answers_to_the_plain_prompt_are_added_in_proportion(share: float) -> None:
    """As many as there are, at most."""
    task = task_of("lake", prompt="base")
    responses = [written("Down", states=False), "no format", written("Right", states=False)] * 2
    episodes = [played(task, seed, responses=responses) for seed in range(8)]
    play = SelfPlayConfig(rows="transitions", prompt="base", filter=False, deduplicate=False, plain_rows=share)
    rows, _ = training_rows(dataclasses.replace(tiny_config(), selfplay=play), episodes)
    plain = [row for row in rows if "outcome" not in row.extra]
    well_formed = sum(turn.format_ok for episode in episodes for turn in episode.turns)
    assert len(plain) == min(round(share * (len(rows) - len(plain))), well_formed) > 1
    assert all(row.extra["format_ok"] for row in plain)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
def test_rare_outcomes_are_repeated_up_to_their_share(share: float) -> None:
    told = [*("-0.1",) * 90, *("10.9 end",) * 3, *("-1.1",) * 7]
    rows = [Row("Lake", [], str(number), {"outcome": outcome}) for number, outcome in enumerate(told)]
    plain = [Row("Lake", [], "an answer", {})] * 20
    found = repeat_rare([*rows, *plain], share)
    assert found[:120] == [*rows, *plain], "what there is stays, and its order"
    wanted = math.ceil(share * 120)
    counts = Counter(row.extra.get("outcome") for row in found)
    assert counts == {"-0.1": max(90, wanted), "10.9 end": max(3, wanted), "-1.1": max(7, wanted), None: 20}
    wins = Counter(row.response for row in found if row.extra.get("outcome") == "10.9 end")
    assert len(wins) == 3 and max(wins.values()) - min(wins.values()) <= 1, "each as often as the others"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_where_rewards_hardly_repeat_those_of_one_sign_are_repeated_together(share: float) -> None:
    rewards = [number / 1000 for number in range(1, 940)]
    told = [outcome_text(reward, False) for reward in rewards] + [
        outcome_text(-reward, True) for reward in rewards[:61]
    ]
    rows = [Row("Lake", [], str(number), {"outcome": outcome}) for number, outcome in enumerate(told)]
    found = repeat_rare(rows, share)
    assert found[:1000] == rows
    again = Counter(row.response for row in found[1000:])
    assert again.total() == max(0, 1000 * share - 61), "not each reward so often"
    assert set(again) <= {str(number) for number in range(939, 1000)}


def test_belief_keeps_what_was_written_of_single_moves_and_drops_all_others() -> None:
    task = task_of("sokoban")
    episode = played(
        task, responses=[written("Up"), written("Down || Left"), written("Left", states=False), written("Down")]
    )
    assert [len(turn.executed) for turn in episode.turns] == [1, 2, 0, 1]
    rows = transition_rows([episode], task, "belief")
    assert [row.extra["turn"] for row in rows] == [0, 3]
    true = replayed(task, episode)
    assert true[3][0].ended
    for row in rows:
        (move,) = true[row.extra["turn"]]
        assert parts(row) == ("I see", "I guess")
        assert f"<outcome>{outcome_text(move.reward, move.ended)}</outcome>" in row.response, "nobody wrote one"
        assert row.prompt[-1]["content"].startswith(move.state)


def test_a_single_move_without_written_states_has_no_belief() -> None:
    told = task_of("sokoban")
    episode = played(task_of("sokoban", prompt="base"), responses=[written("Up", states=False), written("Down")])
    assert [len(turn.executed) for turn in episode.turns] == [1, 1]
    assert [row.extra["turn"] for row in transition_rows([episode], told, "belief")] == [1]
    assert len(transition_rows([episode], told)) == 2


def test_episodes_survive_json_with_what_single_moves_did() -> None:
    for world in ("slippery", "sokoban"):
        episode = played(task_of(world), 3)
        episode.turns[0].imagined = {"path": [{"action": "Up", "probability": 0.5}], "values": {"Up": -1.0}}
        again = Episode.from_json(episode.to_json())
        assert again == episode
        assert [transitions_of(turn) for turn in again.turns] == [transitions_of(turn) for turn in episode.turns]


def test_episodes_of_older_versions_are_read_and_say_what_they_lack() -> None:
    task = task_of("lake")
    data = json.loads(played(task, 3).to_json())
    for turn in data["turns"]:
        for name in FRESH:
            del turn[name]
    old = Episode.from_json(json.dumps(data))
    assert all((turn.between, turn.rewards, turn.ended, turn.imagined) == ([], [], False, {}) for turn in old.turns)
    assert old.turns[0].executed
    with pytest.raises(ValueError, match=r"hold no rewards of single moves: make them again with `spa generate`"):
        transition_rows([old], task)


@pytest.mark.parametrize(("style", "told"), [("paper", 2), ("terse", 1)])
def test_equal_moves_under_other_rules_are_other_moves(tmp_path: Path, style: str, told: int) -> None:
    """Also where a later round reads them again. In style terse the rules are not told."""
    rows: list[Row] = []
    for rules in ("The ice is thin.", "The ice is thick.", "The ice is thin."):
        env = dataclasses.replace(LAKE, instruction_world_model=rules)
        task = Task(env, AgentConfig(style=style, window=1, prompt="world_model"))
        rows += transition_rows([played(task)], task)
    write_rows(tmp_path / "rows.parquet", rows)
    for moves in (rows, read_rows(tmp_path / "rows.parquet")[0]):
        assert len(each_move_once(moves)) == told * len({row.response for row in rows})


def test_a_file_with_plain_rows_keeps_each_move_once_too() -> None:
    task = Task(LAKE, AgentConfig(style="terse", window=1, prompt="world_model"))
    plain = [Row("Lake", [{"role": "user", "content": "go"}], answer, {}) for answer in ("Up", "Down", "Up")]
    moves = transition_rows([played(task)], task)
    kept, dropped = select_rows(
        [*moves, plain[0], *moves, *plain[1:]], SelfPlayConfig(filter=False, deduplicate=True), 0
    )
    assert kept == [*each_move_once(moves), *plain[:2]]
    assert sum(dropped.values()) == 2 * len(moves) - len(each_move_once(moves)) + 1
