"""A model asked "what if?": exact answers where its words are, none where they are not, and each question once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spa.agent.policy import Policy, ServedPolicy
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.common.progress import progress
from spa.config.schema import AgentConfig, EnvConfig, SamplingConfig
from spa.planning.search import Choice, Imagined, Move
from spa.planning.world_model import Usage, WorldModel
from tests.planning.tools import MOVES, TrueEngine, player_of, start_of, true_moves
from tests.scripted import CHAT, Scripted, lake_task, tiny_policy

TASK = lake_task(1)
STARTS = [start_of(TASK, World(seed, "w")) for seed in range(6)]
ASKED = [Move(state, action) for state in STARTS[:3] for action in MOVES]


@pytest.fixture(scope="module")
def tiny() -> Policy:
    """Untrained for this: it writes something that looks like a lake, and no outcome."""
    return tiny_policy()


def plainly(answers: list[tuple[Imagined, ...]]) -> list[list[tuple[str, float, bool]]]:
    """Without probabilities, whose last digits depend on what is multiplied beside them."""
    return [[(one.state, one.reward, one.ended) for one in answer] for answer in answers]


@pytest.mark.parametrize("style", ["terse", "paper"])
@pytest.mark.parametrize("format_", ["grid", "coordinates"])
def test_who_writes_the_truth_predicts_it(style: str, format_: str) -> None:
    task = lake_task(1, style, state_format=format_)
    engine = TrueEngine(task, sure=0.9)
    moves = [Move(start_of(task, World(seed, "w")), action) for seed in range(6) for action in MOVES]
    look = true_moves(task)
    answers = WorldModel(player_of(engine), task).ask(moves)
    assert [(one.state, one.reward, one.ended) for (one,) in answers] == [look(move) for move in moves]
    assert [one.probability for (one,) in answers] == pytest.approx([0.81] * len(moves)), (
        "of state and outcome together"
    )
    assert any(one.ended and one.reward == 1 for (one,) in answers)
    assert any(one.ended and one.reward == 0 for (one,) in answers)


# Right pushes a box off its target; Down solves all; Left and Down push one of two boxes home.
ROOMS = [
    "######\n#P√__#\n#__X_#\n#__O_#\n#____#\n######",
    "######\n#_√P_#\n#__X_#\n#__O_#\n#____#\n######",
    "######\n#OXP_#\n#__X_#\n#__O_#\n#____#\n######",
]


@pytest.mark.parametrize("style", ["terse", "paper"])
def test_rewards_of_all_sizes_and_signs_are_read(style: str) -> None:
    boxes = EnvConfig(id="sokoban", tag="Boxes", settings={"dim_room": [6, 6], "num_boxes": 2})
    task = Task(boxes, AgentConfig(style=style, window=1))
    moves = [Move(room, action) for room in ROOMS for action in task.make_env().actions]
    look = true_moves(task)
    answers = WorldModel(player_of(TrueEngine(task)), task).ask(moves)
    found = [(one.state, one.reward, one.ended) for (one,) in answers]
    assert found == [(true.state, round(true.reward, 6), true.ended) for true in map(look, moves)]
    assert {(reward, ended) for _, reward, ended in found} == {(-0.1, False), (-1.1, False), (0.9, False), (10.9, True)}


def test_what_is_asked_is_the_prompt_of_the_rows_and_the_beginning_of_their_response() -> None:
    engine = TrueEngine(TASK)
    WorldModel(player_of(engine), lake_task(5)).ask([Move(STARTS[0], "Up")])  # neither the window nor the mode matters
    first, second = engine.contexts
    prompt = CHAT.opening_text(None, f"{STARTS[0]}\n10 left\n<think><observation><prediction><answer>")
    assert first == f"{prompt}<think><observation>{STARTS[0]}</observation>Up<prediction>"
    after = true_moves(TASK)(ASKED[3]).state
    assert second == f"{first}{after}</prediction><outcome>"


def unclosed(move: Move, text: str) -> str:
    return text.partition("</")[0]


@pytest.mark.parametrize(
    "words",
    [
        {"state": unclosed},
        {"outcome": unclosed},
        {"outcome": lambda move, text: "won</"},
        {"outcome": lambda move, text: "</"},
        {"outcome": lambda move, text: f"{text[:-2]} finished</"},
    ],
    ids=["state without an end", "outcome without an end", "no number", "empty", "more than an outcome"],
)
def test_an_answer_that_cannot_be_read_has_no_probability(words: dict[str, Callable[[Move, str], str]]) -> None:
    astray = {
        name: lambda move, text, say=say: say(move, text) if move.action == "Up" else text
        for name, say in words.items()
    }
    answers = WorldModel(player_of(TrueEngine(TASK, **astray)), TASK).ask(ASKED)
    for move, (one,) in zip(ASKED, answers, strict=True):
        assert one.probability == (0.0 if move.action == "Up" else 1.0)
        if move.action == "Up":
            assert (one.reward, one.ended) == (0.0, False)


def test_questions_are_asked_once_until_they_are_forgotten() -> None:
    engine = TrueEngine(TASK)
    model = WorldModel(player_of(engine), TASK)
    first = model.ask([*ASKED[:4], *ASKED[:2]])
    assert first[4:] == first[:2]
    assert (model.usage.questions, model.usage.cached, len(engine.contexts)) == (4, 2, 8)
    assert model.ask(ASKED[2:6]) == [*first[2:4], *model.ask(ASKED[4:6])]
    assert (model.usage.questions, model.usage.cached, len(engine.contexts)) == (6, 6, 12)
    model.forget()
    model.ask(ASKED[:4])
    assert (model.usage.questions, len(engine.contexts)) == (10, 20)
    assert model.ask([]) == []


def test_a_bar_shows_the_questions_before_the_first_episode_ends() -> None:
    with progress(64, "planning") as bar:
        WorldModel(player_of(TrueEngine(TASK)), TASK).ask(ASKED[:4])
        assert (bar.done, bar.values) == (0, {"questions": 4})


def test_usage_counts_what_was_read_and_written() -> None:
    engine = TrueEngine(TASK)
    model = WorldModel(player_of(engine), TASK)
    model.ask(ASKED[:1])
    first, second = (CHAT.tokenizer(text, add_special_tokens=False)["input_ids"] for text in engine.contexts)
    look = true_moves(TASK)(ASKED[0])
    written = [
        CHAT.encode(f"{look.state}</prediction>"),
        CHAT.encode("0</" if not look.ended else f"{look.reward:g} end</"),
    ]
    assert model.usage.tokens_written == sum(map(len, written))
    assert model.usage.tokens_read == len(second) - len(written[0]), "what was read or written is not read again"
    assert len(second) > len(first) + len(written[0])
    assert model.usage.tokens == model.usage.tokens_read + model.usage.tokens_written


def test_usage_adds_up() -> None:
    one, other = Usage(1, 2, 3, 4), Usage(10, 20, 30, 40)
    assert one + other == Usage(11, 22, 33, 44)
    assert Usage() + one == one
    assert other.tokens == 70


def test_answers_do_not_depend_on_what_is_asked_beside_them_or_before(tiny: Policy) -> None:
    together = WorldModel(tiny, TASK).ask(ASKED)
    alone = [WorldModel(tiny, TASK).ask([move])[0] for move in ASKED[:4]]
    backwards = WorldModel(tiny, TASK).ask(ASKED[::-1])[::-1]
    assert plainly(together) == plainly(backwards)
    assert plainly(together[:4]) == plainly(alone)
    for answer, other in zip(together, backwards, strict=True):
        assert answer[0].probability == pytest.approx(other[0].probability, abs=1e-4)


def test_drawn_answers_follow_from_the_seed_and_the_question_alone(tiny: Policy) -> None:
    def ask(moves: list[Move], seed: int) -> list[list[tuple[str, float, bool]]]:
        return plainly(WorldModel(tiny, TASK, samples=3, seed=seed).ask(moves))

    drawn = ask(ASKED[:5], 1)
    assert [len(answer) for answer in drawn] == [3] * 5
    assert drawn == ask(ASKED[:5], 1)
    assert drawn[2:4] == ask(ASKED[2:4], 1) == ask(ASKED[3:1:-1], 1)[::-1]
    assert drawn != ask(ASKED[:5], 2)
    assert len({state for answer in drawn for state, *_ in answer}) > 5, "each is drawn by itself"


def test_the_likeliest_answer_is_the_same_for_every_seed(tiny: Policy) -> None:
    assert plainly(WorldModel(tiny, TASK, seed=1).ask(ASKED[:4])) == plainly(
        WorldModel(tiny, TASK, seed=2).ask(ASKED[:4])
    )


def test_the_usage_of_a_real_engine_is_counted(tiny: Policy) -> None:
    model = WorldModel(tiny, TASK, samples=2)
    model.ask([*ASKED[:2], ASKED[0]])
    assert (model.usage.questions, model.usage.cached) == (4, 1)
    assert model.usage.tokens_read > 0
    assert model.usage.tokens_written > 0


def test_choices_are_the_shares_of_the_first_actions_that_are_named() -> None:
    said = ["</think><answer>Up</answer>", "</think><answer>down || Up</answer>", "</think><answer>fly</answer>", "hm"]
    engine = Scripted(lambda number: said[number % 4])
    model = WorldModel(player_of(engine), TASK, proposals=8)
    assert model.ask([Choice(STARTS[0], 3)]) == [{"Up": 0.5, "Down": 0.5}]
    ((context, *others),) = engine.contexts
    assert len(others) == 7
    shown = CHAT.opening_text(None, f"{STARTS[0]}\n3 left\n<think><answer>")
    assert CHAT.tokenizer.decode(context) == f"{shown}<think>"
    assert model.ask([Choice(STARTS[0], 3), Choice(STARTS[0], 2)])[0] == {"Up": 0.5, "Down": 0.5}
    assert (len(engine.contexts), model.usage.cached, model.usage.questions) == (2, 1, 16)


def test_without_proposals_nobody_is_asked_what_the_policy_would_do() -> None:
    engine = Scripted(lambda number: "")
    assert WorldModel(player_of(engine), TASK).ask([Choice(STARTS[0], 3), Choice(STARTS[1], 3)]) == [{}, {}]
    assert not engine.contexts


def test_a_model_behind_a_chat_server_is_refused() -> None:
    with pytest.raises(ValueError, match="a planner continues partial responses: use engine=transformers or vllm"):
        WorldModel(ServedPolicy(None, SamplingConfig()), TASK)
