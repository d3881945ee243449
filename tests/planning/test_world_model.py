"""A model asked "what if?": exact answers where its words are, none where they are not, and each question once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

from spa.agent.policy import Policy, ServedPolicy, make_task
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.common.progress import progress
from spa.config.schema import AgentConfig, EnvConfig, PlannerConfig, SamplingConfig
from spa.data.transitions import RESPONSE_FORMATS, Transition, state_prompt, transition_rows
from spa.engines.base import Completion
from spa.envs.frozen_lake.world import FrozenLake
from spa.evaluate.planned import imagination_metrics
from spa.planning.play import play_with_planner
from spa.planning.search import Choice, Imagined, Move, Worth
from spa.planning.world_model import Headers, Usage, WorldModel
from spa.sft.practice import lesson_rows
from tests.planning.test_transitions import played
from tests.planning.tools import (
    MOVES,
    ByHeart,
    TrueEngine,
    depths,
    merging_chat,
    player_of,
    start_of,
    true_moves,
)
from tests.scripted import CHAT, LAKE, Scripted, lake_task, tiny_config, tiny_policy

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


def by_heart(task: Task, moves: list[Move], value: float) -> tuple[WorldModel, ByHeart]:
    """A model that has learnt the rows of moves, tokenised with merges, and that each move is worth ``value``."""
    chat, form, look = merging_chat(), RESPONSE_FORMATS[task.agent.style], true_moves(task)
    env, rows = task.make_env(), []
    told = dataclasses.replace(task, agent=dataclasses.replace(task.agent, prompt="world_model"))
    for move in moves:
        prompt = chat.opening(told.system, told.header(env) + told.turn_text(1, move.state, told.env.max_actions))
        row = Transition(move.state, move.action, *look(move))
        for response in (form.response(row), form.valued(move.state, move.action, value)):
            rows.append([*prompt, *chat.response_ids(response)])
    engine = ByHeart(chat, rows)
    return WorldModel(Policy(None, chat.tokenizer, chat, engine, SamplingConfig()), task), engine


@pytest.mark.parametrize("style", ["terse", "paper"])
@pytest.mark.parametrize("world", ["lake", "sokoban"])
def test_a_model_is_read_whose_tokens_join_a_question_with_its_answer(world: str, style: str) -> None:
    room = EnvConfig(id="sokoban", tag="Room", settings={"dim_room": [6, 6], "max_moves": 4})
    task = Task(LAKE if world == "lake" else room, AgentConfig(style=style, window=1))
    moves = [Move(start_of(task, World(seed, "w")), action) for seed in range(4) for action in task.make_env().actions]
    model, engine = by_heart(task, moves, -0.25)
    look = true_moves(task)
    for move in moves:
        known = len(engine.written)
        ((one,),) = model.ask([move])
        assert (one.state, one.reward, one.ended) == look(move)
        written = sum(map(len, engine.written[known:]))
        assert one.probability == pytest.approx(0.9**written), "of all tokens that it wrote, as in training"
    assert {engine.chat.decode(ids)[:1] for ids in engine.written} == {">"} if style == "terse" else {">", "\n"}
    assert model.usage.tokens_written == sum(map(len, engine.written))
    assert model.ask([Worth(*move) for move in moves]) == [-0.25] * len(moves)


class GoesOnAlone(ByHeart):
    """Leaves out what it has been asked to begin with."""

    def _complete(self, context: list[int]) -> Any:
        done = super()._complete(context)
        ids = self.chat.encode(self.chat.decode(done.ids)[1:])
        return dataclasses.replace(done, ids=ids, logprobs=[0.0] * len(ids))


def test_a_pair_is_a_move_and_anything_else_no_question() -> None:
    task = lake_task(1)
    model = WorldModel(player_of(TrueEngine(task)), task)
    move = Move(start_of(task, World(1, "w")), "Right")
    assert model.predict([tuple(move)]) == model.predict([move])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a question is a Move, Choice or Worth, not "):
        model.ask([tuple(move)])  # type: ignore[list-item]


def test_an_answer_that_does_not_begin_as_its_question_ends_is_none() -> None:
    model, engine = by_heart(TASK, ASKED, 0.5)
    engine.__class__ = GoesOnAlone
    assert [one.probability for (one,) in model.ask(ASKED)] == [0.0] * len(ASKED)
    assert model.ask([Worth(*move) for move in ASKED]) == [None] * len(ASKED)


@pytest.mark.parametrize("hint", [None, 77])
@pytest.mark.parametrize("mode", ["base", "world_model"])
def test_prompts_are_those_of_the_rows_whatever_the_mode_of_the_task(mode: str, hint: int | None) -> None:
    """In style paper they state a length, which is another in each mode where none is given."""
    cfg = tiny_config()
    cfg = dataclasses.replace(
        cfg,
        env=dataclasses.replace(cfg.env, response_hint=hint),
        agent=AgentConfig(style="paper", window=1),
        sampling=SamplingConfig(max_tokens=400),
    )
    tasks = {name: make_task(cfg, prompt=name) for name in ("base", "world_model")}
    row = transition_rows([played(tasks["world_model"])], tasks["world_model"])[0]
    move: Transition = row.extra["move"]
    shown = {"world_model": row.prompt}
    env = tasks["base"].make_env()
    shown["base"] = state_prompt(tasks["base"], tasks["base"].header(env), move.state, 10)
    assert len({re.search(r"length: (\d+)", prompt[-1]["content"])[1] for prompt in shown.values()}) == 2 - bool(hint)
    texts = {name: CHAT.opening_text(prompt[0]["content"], prompt[1]["content"]) for name, prompt in shown.items()}
    engine = TrueEngine(tasks["world_model"])
    WorldModel(player_of(engine), tasks[mode]).ask([Move(move.state, move.action)])
    assert engine.contexts[0].startswith(texts["world_model"])
    scripted = Scripted(lambda number: "</think><answer>Up</answer>")
    WorldModel(player_of(scripted), tasks[mode], proposals=1).ask([Choice(move.state, 10)])
    assert CHAT.tokenizer.decode(scripted.contexts[0][0]).startswith(texts["base"])


class Numbered(FrozenLake):
    """Has its rules from ``reset`` on, and another number in them for each seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.instruction = f"This is lake {seed}."
        return super().reset(seed=seed, options=options)


def numbered() -> Task:
    return Task(dataclasses.replace(LAKE, id=f"{__name__}:Numbered"), AgentConfig(style="paper", window=1))


@pytest.mark.parametrize("ask", ["play", "practise", "walk"])
def test_questions_are_asked_in_the_words_of_the_world_that_they_are_about(ask: str) -> None:
    task, worlds = numbered(), [World(seed, f"w{seed}") for seed in (3, 4, 5)]
    engine = TrueEngine(task)
    model = WorldModel(player_of(engine), task)
    if ask == "play":
        assert all(one.success for one in play_with_planner(model, task, worlds, "lookahead", PlannerConfig(), seed=0))
    elif ask == "practise":
        lesson_rows(model, task, worlds, PlannerConfig(depth=3), whole=True)
    else:
        imagination_metrics(model, task, worlds, depth=3, seed=0)
    states = {f"This is lake {world.seed}.": depths(task, start_of(task, world)) for world in worlds}
    for context in engine.contexts:
        rules = re.search(r"This is lake \d+\.", context)
        state = re.search(r"\nState:\n(.*?)\nYou have", context, re.DOTALL)
        assert rules and state and state[1] in states[rules[0]]
    assert all(any(rules in context for context in engine.contexts) for rules in states)


def test_a_question_about_no_world_is_asked_in_the_words_of_one_that_has_begun() -> None:
    engine = TrueEngine(numbered())
    WorldModel(player_of(engine), numbered()).ask([ASKED[0]])
    assert "This is lake 0." in engine.contexts[0]


class Lawful(TrueEngine):
    """Answers with the number of the rules that it is shown."""

    def _complete(self, context: str) -> Completion:
        self.contexts.append(context)
        ids = CHAT.encode(f"{'Rules 1.' in context:d}</")
        return Completion(ids, [0.0] * len(ids), "stop")


RULES = [Headers(f"Rules {number}.", f"Rules {number}.") for number in (0, 1)]


@pytest.mark.parametrize("question", [Move(STARTS[0], "Up"), Worth(STARTS[0], "Up")])
def test_one_question_about_two_worlds_is_two_questions(question: Move | Worth) -> None:
    answers: list[Any] = []
    for order in (1, -1):
        model = WorldModel(player_of(engine := Lawful(TASK)), TASK)
        answers.append(model.ask([question, question], RULES[::order])[::order])
        asked = len(engine.contexts)
        assert model.ask([question] * 4, [*RULES, *RULES][::order])[::order] == answers[-1] * 2
        assert (model.usage.questions, model.usage.cached, len(engine.contexts)) == (2, 4, asked)
        assert {"Rules 1." in context for context in engine.contexts} == {True, False}
    assert answers[0] == answers[1] and answers[0][0] != answers[0][1]


@pytest.mark.parametrize("order", [1, -1])
def test_one_choice_in_two_worlds_is_two_choices(order: int) -> None:
    engine = Scripted(lambda number: "hm")
    WorldModel(player_of(engine), TASK, proposals=2).ask([Choice(STARTS[0], 3)] * 2, RULES[::order])
    texts = [CHAT.tokenizer.decode(context) for contexts in engine.contexts for context in contexts]
    assert ["Rules 1." in text for text in texts] == [order < 0, order < 0, order > 0, order > 0]


def test_draws_about_the_usual_world_are_those_of_no_world_and_others_are_drawn_by_themselves(tiny: Policy) -> None:
    def ask(moves: list[Move], headers: list[Headers]) -> list[list[tuple[str, float, bool]]]:
        return plainly(WorldModel(tiny, TASK, samples=3, seed=1).ask(moves, headers))

    usual, other = Headers(actions=tuple(TASK.make_env().actions)), RULES[1]  # the terse prompt has no header
    moves = ASKED[:2]
    assert ask(moves, [usual, usual]) == ask(moves, [])
    both = ask([*moves, *moves], [usual, usual, other, other])
    assert both[:2] == ask(moves, []) and both[2:] == ask(moves, [other, other])


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


def test_what_does_not_fit_into_the_context_is_not_asked_and_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Move(STARTS[0], "Up")

    def limited_to(tokens: int, engine: Any) -> WorldModel:
        monkeypatch.setattr(type(engine), "context_length", tokens)
        return WorldModel(player_of(engine), TASK, proposals=1)

    def predicted(tokens: int) -> tuple[Imagined, list[str]]:
        model = limited_to(tokens, engine := TrueEngine(TASK))
        ((answer,),) = model.ask([question])
        return answer, engine.contexts

    answer, (about_state, about_outcome) = predicted(10**6)
    assert answer.probability == 1
    reserved = player_of(TrueEngine(TASK)).sampling.max_tokens
    longest = len(CHAT.encode(about_outcome)) + reserved
    assert predicted(longest) == (answer, [about_state, about_outcome])
    assert predicted(longest - 1) == (Imagined(answer.state, 0.0, False, 0.0), [about_state])
    assert predicted(len(CHAT.encode(about_state)) + reserved - 1) == (Imagined(question.state, 0.0, False, 0.0), [])

    engine = Scripted(lambda number: "</think><answer>Up</answer>")
    assert limited_to(10**6, engine).ask([Choice(STARTS[0], 3)]) == [{"Up": 1.0}]
    (((asked,),), engine.contexts) = engine.contexts, []
    assert limited_to(len(asked) + reserved - 1, engine).ask([Choice(STARTS[0], 3), Worth(STARTS[0], "Up")]) == [
        {},
        None,
    ]
    assert not any(engine.contexts)


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


@pytest.mark.parametrize(("samples", "temperature"), [(1, 0.0), (3, 1.0)])
def test_one_answer_is_the_likeliest_and_several_are_drawn_from_all_that_the_model_believes(
    samples: int, temperature: float
) -> None:
    asked: list[SamplingConfig] = []

    class Noting(TrueEngine):
        def complete(self, contexts: Any, sampling: SamplingConfig, **more: Any) -> list[Completion]:
            asked.append(sampling)
            return super().complete(contexts, sampling, **more)

    player = player_of(Noting(TASK), temperature=0.7, top_p=0.9, top_k=5)
    WorldModel(player, TASK, samples=samples).ask(ASKED[:1])
    assert {(each.temperature, each.top_p, each.top_k) for each in asked} == {(temperature, 1.0, 0)}


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


def test_the_player_proposes_and_the_world_model_predicts() -> None:
    model_engine, player_engine = TrueEngine(TASK), Scripted(lambda number: "</think><answer>Up</answer>")
    model = WorldModel(player_of(model_engine), TASK, proposals=2, player=player_of(player_engine))
    choice, (imagined,) = model.ask([Choice(STARTS[0], 3), Move(STARTS[0], "Down")])
    assert choice == {"Up": 1.0} and imagined.probability > 0
    assert len(player_engine.contexts) == 1


def test_the_policy_that_proposes_is_prompted_in_its_own_tokens() -> None:
    """And works in as many processes as its engine wants, not the world model's."""
    engine = Scripted(lambda number: "Up</think><answer>Up</answer>")
    player, chat = player_of(engine), merging_chat()
    policy = Policy(None, chat.tokenizer, chat, None, SamplingConfig())  # type: ignore[arg-type]
    model = WorldModel(policy, TASK, proposals=1, player=player)
    assert model.ask([Choice(STARTS[0], 3)]) == [{"Up": 1.0}]
    (((context,),),) = (engine.contexts,)
    assert STARTS[0] in CHAT.decode(context)


def test_without_proposals_nobody_is_asked_what_the_policy_would_do() -> None:
    engine = Scripted(lambda number: "")
    assert WorldModel(player_of(engine), TASK).ask([Choice(STARTS[0], 3), Choice(STARTS[1], 3)]) == [{}, {}]
    assert not engine.contexts


def test_a_model_behind_a_chat_server_is_refused() -> None:
    served = ServedPolicy(None, SamplingConfig())
    assert "ServedPolicy" in repr(served)  # as an interpreter shows it
    refusal = "a planner continues partial responses: use engine=transformers or vllm"
    with pytest.raises(ValueError, match=refusal):
        WorldModel(served, TASK)
    with pytest.raises(ValueError, match=refusal):
        WorldModel(player_of(Scripted(lambda number: "")), TASK, player=served)
