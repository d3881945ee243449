"""Reading responses and writing prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spa.agent.prompt import instruction
from spa.agent.response import parse_response, replace_spans
from spa.agent.task import Task
from spa.config.schema import AgentConfig, EnvConfig
from spa.envs import make_env
from spa.envs.actions import check_names, match_action, split_actions

SOKOBAN = EnvConfig(id="sokoban", tag="SimpleSokoban")


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("<think>x</think><answer>Up || Left</answer>", ("Up", "Left")),
        ("<think>x</think> \n <answer>Up</answer> and more", ("Up",)),
        ("noise <think>a</think>b</think><answer>Down</answer>", ("Down",)),  # a stray inner tag is tolerated
        ("<think>x</think> text <answer>Up</answer>", None),  # text between the spans is not
        ("<answer>Up</answer>", None),
        ("<think>x</think><answer>Up", None),
        ("", None),
        ("<think>a\nb</think><answer>\nUp\n||\n</answer>", ("Up",)),
        ("<think>x</think><answer></answer>", ()),
        ("<think>x</think><answer>1||2||3||4||5||6||7</answer>", ("1", "2", "3", "4", "5")),
        ("<think>x</think><answer>Up<|im_end|> || <think>Left</answer>", ("Up", "Left")),
    ],
)
def test_base_mode(text: str, actions: tuple[str, ...] | None) -> None:
    parsed = parse_response(text)
    assert parsed.format_ok == (actions is not None)
    assert parsed.actions == (actions or ())


@pytest.mark.parametrize(
    ("inside", "ok"),
    [
        ("<observation>a</observation>t<prediction>b</prediction>", True),
        ("<observation>a</observation>", False),
        ("<prediction>b</prediction>", False),
        ("<prediction>b</prediction><observation>a</observation>", False),
        ("", False),
    ],
)
def test_world_model_mode_wants_observation_then_prediction(inside: str, ok: bool) -> None:
    text = f"<think>{inside}</think><answer>Up</answer>"
    parsed = parse_response(text, "world_model")
    assert parsed.format_ok is ok
    assert parsed.actions == (("Up",) if ok else ())
    assert parse_response(text, "base").format_ok


def test_an_unmatched_answer_is_not_iterated_by_character() -> None:
    assert parse_response("<answer>1,1,1</answer>", "world_model").actions == ()


def test_spans_point_at_the_parts() -> None:
    text = "<think><observation>P_</observation>go<prediction>_P</prediction></think> <answer>Up</answer>"
    spans = parse_response(text, "world_model").spans
    assert {name: text[a:b] for name, (a, b) in spans.items()} == {
        "think": text[: text.index(" ")],
        "observation": "P_",
        "prediction": "_P",
        "answer": "<answer>Up</answer>",
    }


def test_without_think_only_the_answer_counts() -> None:
    parsed = parse_response("<answer>Up</answer>", think=False)
    assert parsed.format_ok
    assert parsed.actions == ("Up",)


TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<observation>", "</observation>", "<prediction>", "||", "Up"]


@given(st.lists(st.one_of(st.sampled_from(TAGS), st.text(max_size=4)), max_size=20).map("".join))
def test_no_text_raises_and_spans_lie_within(text: str) -> None:
    for mode in ("base", "world_model"):
        parsed = parse_response(text, mode)
        assert all(0 <= a <= b <= len(text) for a, b in parsed.spans.values())
        assert parsed.format_ok or parsed.actions == ()


def test_split_actions_uses_the_separator() -> None:
    assert split_actions("a;b;;c", ";") == ("a", "b", "c")


@pytest.mark.parametrize(("most", "played", "extra"), [(1, ("Up",), 2), (3, ("Up", "x", "Down"), 0)])
def test_actions_beyond_the_limit_are_counted(most: int, played: tuple[str, ...], extra: int) -> None:
    parsed = parse_response("<think></think><answer>Up || x || || Down</answer>", max_actions=most)
    assert (parsed.format_ok, parsed.actions, parsed.extra_actions) == (True, played, extra)


def test_match_action() -> None:
    assert match_action("uP", ("Up", "Down")) == "Up"
    assert match_action("Upp", ("Up", "Down")) is None
    assert match_action("1,2,3", ()) == "1,2,3"
    assert [match_action(name, ("a", "A", " go on ")) for name in ("a", "A", "Go on")] == ["a", "A", " go on "]


@pytest.mark.parametrize("names", [("Up", ""), ("a || b",), ("Up", "up "), ("<think>",), ("x", "x ")])
def test_names_that_no_answer_can_give(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="no answer can name the action"):
        check_names(names, "||")
    check_names(("Up", "go north", "a", "A", "1,2", "x|y"), "||")


def test_replacement_is_literal_and_refuses_overlaps() -> None:
    assert replace_spans("abcd", [((2, 3), "\\1"), ((0, 1), "12")]) == "12b\\1d"
    for spans in ([((0, 2), ""), ((1, 3), "")], [((3, 9), "")]):
        with pytest.raises(ValueError, match="overlap or lie outside"):
            replace_spans("abcd", spans)


def task(style: str = "paper", prompt: str = "base", **env: object) -> Task:
    return Task(EnvConfig(**{"id": "sokoban", "tag": "SimpleSokoban", **env}), AgentConfig(style=style, prompt=prompt))


def test_the_paper_prompt_in_order() -> None:
    t = task(response_hint=100)
    env = t.make_env()
    text = t.header(env) + t.turn_text(1, "STATE", 10)
    pieces = [
        "You are solving the Sokoban puzzle.",
        "\nThe meaning of each symbol in the state is:\n#: wall, _: empty, O: target",
        "\nYour available actions are:\nUp, Down, Left, Right",
        '\nYou can make up to 10 actions, separated by the action separator " || "\n',
        "\nTurn 1:\nState:\nSTATE\nYou have 10 actions left. Always output: "
        "<think> [Your thoughts] </think> <answer> [your answer] </answer> with no extra text. "
        "Strictly follow this format. Max response length: 100 words (tokens).\n",
    ]
    positions = [text.index(piece) for piece in pieces]
    assert positions == sorted(positions)
    assert text.endswith(pieces[-1])
    assert t.system == "You're a helpful assistant. "


def test_symbols_and_actions_come_from_the_world_itself() -> None:
    t = task(settings={"grid_vocab": "W.GCBA@", "action_names": ["Left", "Right", "Up", "Down"]})
    header = t.header(t.make_env())
    assert "W: wall, .: empty, G: target" in header
    assert "Left, Right, Up, Down" in header


def test_reward_is_the_raw_python_number() -> None:
    assert task().reward_text(sum([-0.1, -0.1, -0.1])) == "Reward:\n-0.30000000000000004\n"
    assert task().reward_text(0) == "Reward:\n0\n"


def test_world_model_format_string() -> None:
    assert (
        "<think> <observation> [current state] </observation> [Your thoughts] <prediction> [next state]</prediction> "
        "</think> <answer> [your answer] </answer>"
    ) in task(prompt="world_model").turn_text(1, "S", 1)


def test_terse_prompt_is_state_actions_left_and_tags() -> None:
    t = task("terse", "world_model")
    assert t.header(t.make_env()) + t.turn_text(1, "S", 7) == "S\n7 left\n<think><observation><prediction><answer>"
    assert t.system is None


def test_an_unknown_world_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'sokoban'"):
        task(id="sokban")


@pytest.mark.parametrize("world", ["sokoban", "frozen_lake", "sudoku"])
@pytest.mark.parametrize("states", ["grid", "coordinates"])
def test_worked_examples_are_what_the_world_does(world: str, states: str) -> None:
    settings = {"is_slippery": False} if world == "frozen_lake" else {}
    env = make_env(world, state_format=states, **settings)
    state, _, after, actions, positions = env.example
    if states == "coordinates":
        state, after = f"{state}\n{positions[0]}", f"{after}\n{positions[1]}"
    assert env.reset(seed=0, options={"state": state})[0] == state
    for action in actions.split(" || "):
        shown, *_ = env.step(action)
    assert shown == after


def test_a_world_without_a_text_is_never_given_an_empty_instruction() -> None:
    env = make_env("bandit")
    text = instruction(EnvConfig(id="bandit"), "world_model", env)
    assert env.rules in text
    assert "<observation>" in text


@pytest.mark.parametrize("world", ["sokoban", "frozen_lake", "sudoku"])
def test_a_worlds_own_text_separates_actions_as_asked(world: str) -> None:
    env = make_env(world)
    for mode in ("base", "world_model"):
        usual, other = (instruction(EnvConfig(id=world), mode, env, separator) for separator in ("||", ";"))
        assert " || " in usual and "||" not in other and other == usual.replace(" || ", " ; ")
