"""Practice: lessons are what the shortest ways teach, in the prompts that the policy will see, and rounds can be gone on with."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from spa.agent.policy import make_task
from spa.agent.response import parse_response
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World, split_of
from spa.config.schema import (
    AgentConfig,
    Config,
    EnvConfig,
    ModelConfig,
    PlannerConfig,
    PracticeConfig,
    SamplingConfig,
    SelfPlayConfig,
)
from spa.data.ground_truth import Row
from spa.data.layouts import read_rows, write_rows
from spa.data.transitions import RESPONSE_FORMATS, transition_rows
from spa.models.load import load_model, load_tokenizer, save_model
from spa.planning.search import Imagined, Move, Worth, best_actions
from spa.planning.world_model import WorldModel
from spa.sft import practice as module
from spa.sft.practice import imagine, lesson_rows, practice
from tests.planning.test_planned_play import Watched, of_class
from tests.planning.test_transitions import played
from tests.planning.tools import (
    Asked,
    TrueEngine,
    depths,
    finish,
    of_table,
    oracle,
    player_of,
    seen,
    shortest,
    start_of,
    true_moves,
)
from tests.scripted import CHAT, LAKE, Scripted, lake_task, tiny_config

WORLDS = [World(seed, f"w{seed}") for seed in range(16)]


def lessons(task: Task, root: str, depth: int, whole: bool) -> dict[str, tuple[int, set[str]]]:
    """What is taught of each state: how many actions after the start it was met, and the best actions."""
    model = oracle(task)
    found = finish(imagine(root, model.actions, PlannerConfig(), depth, depth, whole=whole), model)
    assert len({lesson.state for lesson in found}) == len(found)
    return {lesson.state: (lesson.met, set(best_actions(lesson.values))) for lesson in found}


@pytest.mark.parametrize("whole", [True, False])
def test_every_lesson_is_the_beginning_of_a_shortest_way(whole: bool) -> None:
    """With ``whole`` of all ways there are, without of those through states met before the goal is."""
    task = lake_task(1)
    taught = several = 0
    for world in WORLDS:
        root = start_of(task, world)
        met = depths(task, root)
        goal, _ = shortest(task, met)[root]
        known = {state for state, depth in met.items() if whole or depth < goal}
        expected = {state: (met[state], best) for state, (_, best) in shortest(task, known).items()}
        assert lessons(task, root, 16, whole) == expected
        taught += len(expected)
        several += sum(len(best) > 1 for _, best in expected.values())
    assert taught > 3 * len(WORLDS)
    assert several > 5


def test_ways_whose_sums_differ_in_rounding_alone_are_equally_good() -> None:
    """0.1 + 0.2 is a little more than 0.3."""
    end = {name: (seen("end", 0.0, True),) for name in "ab"}
    table = {
        "0": {"a": (seen("1", 0.1),), "b": (seen("2", 0.3),)},
        "1": {name: (seen("end", 0.2, True),) for name in "ab"},
        "2": end,
    }
    model = of_table(table)
    found = finish(imagine("0", model.actions, PlannerConfig(gamma=1.0), 3, 3, whole=True), model)
    assert (found[0].state, found[0].met, best_actions(found[0].values)) == ("0", 0, ["a", "b"])


def test_boxes_are_taught_to_be_pushed_home() -> None:
    room = {"id": "sokoban", "tag": "Room", "settings": {"dim_room": [6, 6], "max_moves": 4}}
    task = Task(EnvConfig(**room), AgentConfig(style="terse", window=1))
    root = start_of(task, World(2, "w"))
    met = depths(task, root)
    goal, _ = (ways := shortest(task, met, won=lambda move: move.ended))[root]
    found = lessons(task, root, 6, False)
    on_the_way = {state for state, (far, _) in ways.items() if met[state] + far == goal}
    assert on_the_way <= set(found)
    assert all(found[state] == (met[state], ways[state][1]) for state in on_the_way)


def test_without_discount_a_leaf_is_no_gain() -> None:
    model = Asked(lambda move: (seen(f"{move.state}{move.action}"),), "ab")
    assert finish(imagine("0", model.actions, PlannerConfig(gamma=1.0), 2, 2, whole=True), model) == []


def test_out_of_reach_nothing_is_taught() -> None:
    task = lake_task(1)
    for world in WORLDS:
        root = start_of(task, world)
        goal, _ = shortest(task, depths(task, root))[root]
        assert (root in lessons(task, root, goal, False)) and not (goal > 1 and lessons(task, root, goal - 1, False))


def path_to(task: Task, root: str, state: str) -> list[str]:
    """A shortest way from the start to a state."""
    met, look, actions = depths(task, root), true_moves(task), task.make_env().actions
    way: list[str] = []
    while state != root:
        before, name = next(
            (other, action)
            for other in met
            if met[other] == met[state] - 1
            for action in actions
            if look(Move(other, action))[::2] == (state, False)
        )
        way.insert(0, name)
        state = before
    return way


def walker(way: list[str]) -> Scripted:
    """Goes a way, an action a turn, and then nowhere."""

    def text(number: int) -> str:
        turn = len(engine.contexts) - 1
        return f"</think><answer>{way[turn] if turn < len(way) else 'nowhere'}</answer>"

    engine = Scripted(text)
    return engine


@pytest.mark.parametrize("style", ["terse", "paper"])
def test_lessons_are_in_the_prompts_that_a_rollout_shows(style: str) -> None:
    """After as many actions as led to the state, one a turn."""
    task = lake_task(1, style, max_actions_per_turn=1, max_turns=10)
    worlds = [WORLDS[7], WORLDS[3]]
    found = lesson_rows(oracle(task), task, worlds, PlannerConfig(), whole=False)
    rows = found.plans
    assert (found.solved, found.values) == (2, [])
    assert max(row.extra["turn"] for row in rows) >= 2
    for row in rows:
        world = next(world for world in worlds if world.seed == row.extra["seed"])
        root = start_of(task, world)
        text = "".join(message["content"] for message in row.prompt)
        state = next(state for state in depths(task, root) if f"{state}\n" in text)
        way = path_to(task, root, state)
        assert row.extra["turn"] == len(way)
        engine = walker(way)
        rollout(engine, CHAT, task, [world], SamplingConfig(), seed=0)
        system = row.prompt[0]["content"] if len(row.prompt) > 1 else None
        asked = CHAT.opening(system, row.prompt[-1]["content"]) + CHAT.forced_ids
        assert engine.contexts[len(way)] == [asked]


def test_a_row_answers_with_one_best_action() -> None:
    task = lake_task(1)
    rows = lesson_rows(oracle(task), task, WORLDS, PlannerConfig(), whole=True).plans
    taught = {}
    for row in rows:
        parsed = parse_response(row.response, "base")
        assert parsed.format_ok
        assert list(parsed.actions) == row.extra["executed"]
        state, _, rest = row.prompt[-1]["content"].partition("\n" + str(10 - row.extra["turn"]) + " left\n")
        assert rest == "<think><answer>"
        taught.setdefault((row.extra["seed"], state), set()).add(parsed.actions[0])
    for world in WORLDS:
        ways = shortest(task, met := depths(task, start_of(task, world)))
        within = {state: best for state, (_, best) in ways.items() if met[state] < 10}
        assert {state: best for (seed, state), best in taught.items() if seed == world.seed} == within
    assert len(rows) == sum(map(len, taught.values()))


@pytest.mark.parametrize("hint", [None, 77])
def test_lessons_state_the_length_and_the_actions_left_of_their_own_prompts(hint: int | None) -> None:
    cfg = tiny_config()
    cfg = dataclasses.replace(
        cfg,
        env=dataclasses.replace(cfg.env, response_hint=hint, max_actions=20),
        agent=AgentConfig(style="paper", window=1),
        sampling=SamplingConfig(max_tokens=400),
    )
    task, told = (make_task(cfg, prompt=mode) for mode in ("base", "world_model"))
    model = Asked(oracle(task).answer, (), lambda choice: dict.fromkeys(task.make_env().actions, 0.25))
    found = lesson_rows(model, task, WORLDS[:3], PlannerConfig(depth=8), whole=True, values=True)
    asked = {(choice.state, choice.actions_left) for choice in model.choices}
    for rows, own in ((found.plans, task), (found.values, told)):
        for row in rows:
            header, state, left = parted(row)
            assert row.prompt[-1]["content"] == header + own.turn_text(1, state, left)
            assert (state, left) in asked, "what the policy is asked to propose is what it is taught"
    assert (task.stated_length == told.stated_length) == bool(hint)
    assert {left for _, left in asked} >= {20, 19, 18}


def parted(row: Row) -> tuple[str, str, int]:
    """The header, the state and the actions left of a prompt of style paper."""
    match = re.fullmatch(
        r"(.*)\nTurn 1:\nState:\n(.*?)\nYou have (\d+) actions left\..*", row.prompt[-1]["content"], re.DOTALL
    )
    assert match
    return match[1], match[2], int(match[3])


def test_rows_that_worlds_share_are_kept_once() -> None:
    task, once = lake_task(1), WORLDS[:2]
    rows, others = (
        lesson_rows(oracle(task), task, worlds, PlannerConfig(), whole=True, values=True)
        for worlds in (once, [*once, WORLDS[0], WORLDS[1]])
    )
    assert (others.plans, others.values) == (rows.plans, rows.values)
    assert (rows.solved, others.solved) == (2, 4)


def test_without_thoughts_the_lesson_is_the_answer_alone() -> None:
    task = Task(LAKE, AgentConfig(style="terse", window=1, think=False))
    rows = lesson_rows(oracle(task), task, WORLDS[:1], PlannerConfig(), whole=False).plans
    assert (
        {row.response for row in rows}
        == {f"<answer>{' || '.join(row.extra['executed'])}</answer>" for row in rows}
        != set()
    )


def test_starts_are_looked_at_and_nothing_else() -> None:
    truth, task = oracle(lake_task(1)), of_class("Watched")
    Watched.log.clear()
    lesson_rows(truth, task, WORLDS[:4], PlannerConfig(), whole=False)
    assert Watched.log == ["reset"] * 4


def test_a_start_counts_as_solved_where_a_gain_was_imagined_from_it() -> None:
    task = lake_task(1)
    near = sum(shortest(task, depths(task, root))[root][0] <= 2 for root in (start_of(task, world) for world in WORLDS))
    found = lesson_rows(oracle(task), task, WORLDS, PlannerConfig(depth=2), whole=False)
    assert 0 < found.solved == near < len(WORLDS)
    assert {row.extra["turn"] for row in found.plans} == {0, 1}


def test_a_start_from_which_the_gain_does_not_pay_is_not_solved() -> None:
    task = lake_task(1)
    model = Asked(lambda move: (seen("end", 0.5, True) if move.state == "far" else seen("far", -1.0),), "a")
    found = lesson_rows(model, task, WORLDS[:1], PlannerConfig(), whole=True)
    assert (found.solved, [row.extra["turn"] for row in found.plans]) == (0, [1])


@pytest.mark.parametrize("style", ["terse", "paper"])
def test_what_moves_are_worth_is_taught_as_it_is_asked(style: str) -> None:
    """0.95 to the power of the actions to go, nothing into a hole, in the words that ``WorldModel`` continues."""
    task = lake_task(1, style)
    found = lesson_rows(oracle(task), task, WORLDS[:4], PlannerConfig(optimism=0.0), whole=True, values=True)
    look, told = true_moves(task), set()
    for row in found.values:
        root = start_of(task, next(world for world in WORLDS if world.seed == row.extra["seed"]))
        ways = shortest(task, met := depths(task, root))
        (action,) = row.extra["executed"]
        state = next(state for state in met if row.response.startswith(RESPONSE_FORMATS[style].worth(state, action)))
        after = look(Move(state, action))
        far = 0 if after.reward else ways[after.state][0] if after.state in ways and not after.ended else None
        assert f"<value>{0 if far is None else round(0.95**far, 2):g}</value>" in row.response
        engine = Scripted(lambda number: "0.5</")
        assert WorldModel(player_of(engine), task).ask([Worth(state, action)]) == [0.5]
        system = row.prompt[0]["content"] if len(row.prompt) > 1 else None
        prompt = CHAT.opening(system, row.prompt[-1]["content"])
        shown = [*prompt, *CHAT.response_ids(RESPONSE_FORMATS[style].worth(state, action))]
        left = f"{10 - row.extra['turn']} "
        assert CHAT.tokenizer.decode(engine.contexts[0][0]) == CHAT.tokenizer.decode(shown).replace(left, "10 ", 1)
        told.add((row.extra["seed"], state, action))
    assert len(told) == len(found.values) == 4 * len({row[:2] for row in told}), "every action of every state"
    assert {row.extra["turn"] for row in found.plans} == {row.extra["turn"] for row in found.values}


# All rounds, with a world model that is right and a policy that is as small as can be.


def small(**sft: Any) -> Config:
    cfg = tiny_config()
    return dataclasses.replace(
        cfg,
        sampling=SamplingConfig(max_tokens=12, stop=["</answer>"]),
        selfplay=dataclasses.replace(cfg.selfplay, groups=2, state_format="grid", rows="transitions"),
        sft=dataclasses.replace(cfg.sft, epochs=1, batch_size=32, lr=1e-3, eval_worlds=0, **sft),
        planner=PlannerConfig(depth=4),
        practice=PracticeConfig(rounds=2, worlds=3, epochs=1, groups=2, group_size=2, rehearsal=0.5, values=0.25),
    )


@pytest.fixture
def start(tmp_path: Path) -> dict[str, Any]:
    """What stage 2 leaves: a model and its data."""
    told = lake_task(1)
    told = dataclasses.replace(told, agent=dataclasses.replace(told.agent, prompt="world_model"))
    (tmp_path / "selfplay").mkdir()
    rows = transition_rows([played(told, seed) for seed in range(4)], told)
    plain = [Row("T", [{"role": "user", "content": f"state {number}"}], "Left", {}) for number in range(200)]
    write_rows(tmp_path / "selfplay" / "train.parquet", [*rows, *plain])
    model = tmp_path / "sft" / "model"
    save_model(load_model(ModelConfig(device="cpu")), load_tokenizer("builtin:tiny"), model, {})
    return {"model": str(model), "data": tmp_path / "selfplay", "rows": rows, "plain": plain}


def without_time(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if "seconds" not in name}


def rows_in(folder: Path) -> list[Any]:
    return read_rows(folder / "train.parquet")[0]


def test_two_rounds_and_going_on_with_them(tmp_path: Path, start: dict[str, Any], monkeypatch: Any) -> None:
    planned: list[World] = []

    def world_model(policy: Any, task: Task, **settings: Any) -> Asked:
        assert settings == {"samples": 1, "proposals": 0, "seed": 0}
        return oracle(task)

    def noted(model: Any, task: Task, worlds: list[World], *args: Any, **kwargs: Any) -> Any:
        planned.extend(worlds)
        return lesson_rows(model, task, worlds, *args, **kwargs)

    monkeypatch.setattr(module, "WorldModel", world_model)
    monkeypatch.setattr(module, "lesson_rows", noted)
    # Settings that need validation rows, which practice has none of.
    cfg, out = small(use="best", patience=2), tmp_path / "practice"
    result = practice(cfg, out, model=start["model"], data=start["data"])

    first, second = result["rounds"]
    assert len(planned) == first["worlds_planned"] + second["worlds_planned"] == 6
    assert {split_of(world.content) for world in planned} == {"selfplay", "train"}
    assert {world.content for world in planned} <= set().union(*result["worlds"].values()), "the report counts them"
    assert (first["actions"], first["solved"] <= 3) == (0, True)
    task = lake_task(1)
    lessons = lesson_rows(oracle(task), task, planned[:3], cfg.planner, whole=False, values=True)
    expected = lessons.plans
    assert first["lessons"] == second["lessons"] == len(expected) > 0
    seen_before, new = start["rows"], rows_in(out / "round_2" / "play")
    assert second["actions"] == result["actions"] == len(new) > 0
    assert all(f"<outcome>{row.extra['outcome']}<" in row.response for row in new), "which rare ones are repeated by"
    assert [row.response for row in rows_in(out / "round_2" / "transitions")] == [
        row.response for row in [*seen_before, *start["plain"], *new]
    ]
    for number, known in ((1, seen_before), (2, [*seen_before, *new])):
        rows = rows_in(out / f"round_{number}" / "plans")
        assert [row.response for row in rows[: len(expected)]] == [row.response for row in expected]
        told = {(row.prompt[-1]["content"], row.response) for row in known}
        count = min(len(known), round(0.5 * len(expected)))
        rehearsed, valued = rows[len(expected) : len(expected) + count], rows[len(expected) + count :]
        assert {(row.prompt[-1]["content"], row.response) for row in rehearsed} <= told, "no answers of before practice"
        assert {row.response for row in valued} <= {row.response for row in lessons.values}
        assert len(valued) == round(0.25 * len(expected)) > 0
    model = out / result["model"]
    assert model.parts[-4:-2] == ("round_2", "policy")
    weights = load_model(ModelConfig(path=str(model), device="cpu")).state_dict()

    others = {path: path.read_bytes() for path in out.glob("round_*/*/done.json") if path.parent.name != "policy"}
    assert len(others) == 5
    last = out / "round_2" / "policy"
    for lost in (last / "done.json", last):
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
        again = practice(cfg, out, model=start["model"], data=start["data"])
        assert without_time(again) == without_time(result)
        other = load_model(ModelConfig(path=str(out / again["model"]), device="cpu")).state_dict()
        assert all(torch.equal(weights[name], other[name]) for name in weights)
    assert {path: path.read_bytes() for path in others} == others, "what was finished is not done again"
    done = [json.loads(path.read_text()) for path in out.glob("round_*/*/done.json")]
    assert again["seconds"] == pytest.approx(sum(one["seconds"] for one in done), abs=0.1)


def test_a_round_without_lessons_keeps_the_policy_of_the_last(
    tmp_path: Path, start: dict[str, Any], monkeypatch: Any
) -> None:
    hopeless = Asked(lambda move: (seen(move.state),), ("Up", "Down"))
    models = iter([oracle(lake_task(1)), hopeless])
    monkeypatch.setattr(module, "WorldModel", lambda policy, task, **settings: next(models))
    result = practice(small(), tmp_path / "practice", model=start["model"], data=start["data"])
    assert [each["lessons"] > 0 for each in result["rounds"]] == [True, False]
    assert Path(result["model"]).parts[:2] == ("round_1", "policy")


def test_moves_of_a_later_round_are_kept_once_in_the_control_too(tmp_path: Path) -> None:
    cfg = small()
    counts = {}
    for states, once in (("truth", False), ("truth", True), ("shuffled", True)):
        play = dataclasses.replace(cfg.selfplay, states=states, deduplicate=once)
        out = tmp_path / f"{states} {once}"
        module._play(dataclasses.replace(cfg, selfplay=play), "builtin:tiny", 2, out)
        module._join([out / "train.parquet"], play, out)
        counts[states, once] = len(rows_in(out))
    every, true, mixed = counts.values()
    assert true - 2 <= mixed <= true < every - 5, "two that are shuffled may be alike by chance"
    even = dataclasses.replace(cfg.selfplay, balance="turn", deduplicate=False)  # as in stage 1
    module._play(dataclasses.replace(cfg, selfplay=even), "builtin:tiny", 2, tmp_path / "even")
    assert 0 < len(rows_in(tmp_path / "even")) < every


def test_the_control_of_a_later_round_has_false_states(tmp_path: Path) -> None:
    cfg, true = small(), {}
    for states in ("truth", "shuffled"):
        play = dataclasses.replace(cfg.selfplay, states=states)
        module._play(dataclasses.replace(cfg, selfplay=play), "builtin:tiny", 2, tmp_path / states)
        rows = rows_in(tmp_path / states)
        told = [re.findall("<observation>(.*)</observation>", row.response, re.DOTALL)[0] for row in rows]
        prompts = [row.prompt[-1]["content"] for row in rows]
        true[states] = sum(state in prompt for state, prompt in zip(told, prompts, strict=True)) / len(rows)
    assert true["shuffled"] < 0.5 < true["truth"] == 1


def test_a_later_round_repeats_rare_outcomes_too(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "state"}]
    rows = [Row("T", prompt, f"move {number}", {"outcome": str(int(number == 0))}) for number in range(20)]
    write_rows(tmp_path / "in.parquet", rows)
    module._join([tmp_path / "in.parquet"], SelfPlayConfig(rows="transitions", outcome_share=0.5), tmp_path)
    assert [row.response for row in rows_in(tmp_path)].count("move 0") == 10


def test_rows_of_the_plain_prompt_are_no_repetitions(tmp_path: Path) -> None:
    """They are answered by an action alone, so many have the same answer."""

    def row(content: str, response: str, **extra: Any) -> Row:
        return Row("T", [{"role": "user", "content": content}], response, extra)

    moves = [row(f"{left} actions left", f"move {number}", outcome="0") for left in (2, 1) for number in (0, 1)]
    plain = [row(f"state {number}", "Left") for number in range(3)]
    write_rows(tmp_path / "in.parquet", [*moves, *plain])
    module._join([tmp_path / "in.parquet"], SelfPlayConfig(rows="transitions", deduplicate=True), tmp_path)
    assert [(one.prompt[0]["content"], one.response) for one in rows_in(tmp_path)] == [
        *(("2 actions left", f"move {number}") for number in (0, 1)),
        *((f"state {number}", "Left") for number in range(3)),
    ]


def test_practice_plans_without_the_values_that_it_teaches(
    tmp_path: Path, start: dict[str, Any], monkeypatch: Any
) -> None:
    model = oracle(lake_task(1))
    monkeypatch.setattr(module, "WorldModel", lambda policy, task, **settings: model)
    cfg = small()
    cfg.planner.values = True
    module._plan(cfg, start["model"], [start["data"] / "train.parquet"], tmp_path / "plans")
    assert model.moves and not any(isinstance(question, Worth) for call in model.calls for question in call)


def test_interrupted_planning_goes_on(tmp_path: Path, start: dict[str, Any], monkeypatch: Any) -> None:
    class Interrupted(TrueEngine):
        left = 20

        def complete(self, *args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return super().complete(*args, **more)

    engine: TrueEngine = Interrupted(lake_task(1))
    monkeypatch.setattr(module, "WorldModel", lambda _, task, **more: WorldModel(player_of(engine), task, **more))
    cfg, out = small(), tmp_path / "practice"
    cfg.practice.rounds = 1
    with pytest.raises(KeyboardInterrupt):
        practice(cfg, out, model=start["model"], data=start["data"])
    plans = out / "round_1" / "plans"
    known = len((plans / "answers.jsonl").read_bytes().splitlines())
    assert known > 0
    engine = TrueEngine(lake_task(1))
    resumed = practice(cfg, out, model=start["model"], data=start["data"])["rounds"]
    assert 0 < len(engine.contexts) < 2 * resumed[0]["questions"], "stored answers are not asked for again"
    assert not (plans / "answers.jsonl").exists()
    engine = TrueEngine(lake_task(1))
    asked = engine.contexts
    assert practice(cfg, tmp_path / "whole", model=start["model"], data=start["data"])["rounds"] == resumed
    assert rows_in(plans) == rows_in(tmp_path / "whole" / "round_1" / "plans")
    assert len(asked) == 2 * resumed[0]["questions"]


def test_without_a_gain_in_sight_the_world_model_stays(tmp_path: Path, start: dict[str, Any], monkeypatch: Any) -> None:
    hopeless = Asked(lambda move: (Imagined("?", 1.0, True, 0.1), seen("?")), ("Up", "Down"))
    monkeypatch.setattr(module, "WorldModel", lambda policy, task, **settings: hopeless)
    cfg, out = small(), tmp_path / "practice"
    cfg.practice.rounds = 1
    cfg.planner.depth = 1
    result = practice(cfg, out, model=start["model"], data=start["data"])
    assert (result["rounds"][0]["lessons"], result["rounds"][0]["solved"]) == (0, 0)
    assert (out / result["model"]).resolve() == Path(start["model"]).resolve()
    assert not (out / "round_1" / "policy").exists()
