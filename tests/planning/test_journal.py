"""An interrupted search goes on: the same plans and counts as without the interruption, and no question asked twice."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spa.agent.worlds import World
from spa.config.schema import PlannerConfig
from spa.evaluate.planned import evaluate_planner
from spa.planning.journal import journaled
from spa.planning.search import Choice, Move, Question, Worth
from spa.planning.world_model import Headers, WorldModel
from spa.sft.practice import lesson_rows
from tests.planning.tools import TrueEngine, player_of, start_of
from tests.scripted import lake_task, tiny_config

TASK = lake_task(1)
WORLDS = [World(seed, f"w{seed}") for seed in range(4)]
LAYER = 8  # batches: a state and an outcome for each of four moves


class Ends(TrueEngine):
    """Is interrupted after so many batches."""

    left = 10**9

    def complete(self, *args: Any, **more: Any) -> Any:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().complete(*args, **more)


def plan(path: Path, batches: int = 10**9, identity: str = "a model") -> tuple[Any, WorldModel, Ends]:
    engine = Ends(TASK, sure=0.9)
    engine.left = batches
    model = WorldModel(player_of(engine), TASK)
    with journaled(model, path, identity):
        lessons = lesson_rows(model, TASK, WORLDS, PlannerConfig(depth=4), whole=False)
    return lessons, model, engine


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, WorldModel, Ends]:
    return plan(tmp_path_factory.mktemp("whole") / "answers.jsonl")


def interrupted(path: Path) -> int:
    """Leaves a journal of some batches; returns how many questions were put to the engine."""
    with pytest.raises(KeyboardInterrupt):
        plan(path, batches=2 * LAYER + 1)
    lines = path.read_bytes().splitlines()
    assert len(lines) == 2
    return sum(len(json.loads(line)["answers"]) for line in lines)


def test_an_interrupted_plan_goes_on_where_it_was(tmp_path: Path, whole: tuple[Any, WorldModel, Ends]) -> None:
    path = tmp_path / "answers.jsonl"
    known = interrupted(path)
    lessons, model, engine = plan(path)
    expected, undisturbed, first = whole
    assert lessons == expected and expected.plans
    assert model.usage == undisturbed.usage
    assert 0 < len(engine.contexts) == len(first.contexts) - 2 * known
    again, _, engine = plan(path)
    assert (again, len(engine.contexts)) == (lessons, 0), "a stage that had not written its result yet"


@pytest.mark.parametrize(
    "damage", ["torn", "no end", "nonsense", "other questions", "one answer", "another kind", "text"]
)
def test_from_a_damaged_line_on_questions_are_asked_again(
    tmp_path: Path, whole: tuple[Any, WorldModel, Ends], damage: str
) -> None:
    path = tmp_path / "answers.jsonl"
    interrupted(path)
    first, last = path.read_bytes().splitlines(keepends=True)
    entry = json.loads(last)
    if damage == "other questions":
        entry["asked"] = json.loads(first)["asked"]
    elif damage == "one answer":
        entry["answers"] = entry["answers"][:1]
    elif damage == "another kind":
        entry["answers"][0] = {"Up": 1.0}
    elif damage == "text":
        entry["answers"][0][0][3] = "0.9"
    changed = {"torn": last[: len(last) // 2], "no end": last[:-1], "nonsense": b"{}\n"}
    path.write_bytes(first + changed.get(damage, json.dumps(entry).encode() + b"\n"))
    lessons, model, engine = plan(path)
    expected, undisturbed, fresh = whole
    assert lessons == expected
    assert model.usage == undisturbed.usage
    assert len(engine.contexts) == len(fresh.contexts) - 2 * len(json.loads(first)["answers"])


def test_the_answers_of_another_model_do_not_count(tmp_path: Path, whole: tuple[Any, WorldModel, Ends]) -> None:
    path = tmp_path / "answers.jsonl"
    interrupted(path)
    _, model, engine = plan(path, identity="the same model, trained again")
    assert engine.contexts == whole[2].contexts
    assert model.usage == whole[1].usage


def test_the_answers_about_another_world_do_not_count(tmp_path: Path) -> None:
    question = Move(start_of(TASK, World(0, "w")), "Up")

    def asked(headers: Headers) -> int:
        model = WorldModel(player_of(engine := TrueEngine(TASK)), TASK)
        with suppress(KeyboardInterrupt), journaled(model, tmp_path / "answers.jsonl", "a model"):
            model.ask([question], [headers])
            raise KeyboardInterrupt
        return len(engine.contexts)

    one, other = Headers("Its rules.", "Its rules."), Headers("Other rules.", "Other rules.")
    assert [asked(one), asked(one), asked(other)] == [2, 0, 2]


def test_a_journal_is_whole_again_after_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    interrupted(path)
    before = path.read_bytes()
    path.write_bytes(before[:-9])
    with pytest.raises(KeyboardInterrupt):
        plan(path, batches=LAYER + 1)
    assert path.read_bytes() == before


def test_every_kind_of_answer_is_kept(tmp_path: Path) -> None:
    questions: list[Question] = [Move("a", "Up"), Choice("a", 3), Worth("a", "Up"), Worth("a", "Down")]
    path = tmp_path / "answers.jsonl"

    class Told(WorldModel):
        asked = 0

        def _answer(self, questions: Any) -> None:
            self.asked += 1
            told: list[Any] = [(), {"Up": 0.25}, 0.5, None]
            self._known.update(zip(questions, told, strict=True))

    def ask(end: bool) -> tuple[list[Any], int]:
        model = Told(player_of(TrueEngine(TASK)), TASK, proposals=4)
        try:
            with journaled(model, path, "a model"):
                answers = model.ask(questions)
                assert model.ask(questions) == answers
                if not end:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        return answers, model.asked

    assert ask(end=False) == ([(), {"Up": 0.25}, 0.5, None], 1)
    assert ask(end=True) == ([(), {"Up": 0.25}, 0.5, None], 0)


def test_a_planner_over_another_model_forgets_the_proposals_of_a_policy_that_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = tiny_config()
    cfg.agent.planner, cfg.planner.model, cfg.planner.proposals = "mcts", "simulator", 2
    cfg.planner.simulations, cfg.eval.world_model_worlds = 2, 0
    asked: list[Choice] = []

    def choose(model: WorldModel, choices: Any) -> list[dict[str, float]]:
        asked.extend(choices)
        return [{"Up": 1.0} for _ in choices]

    def played(model: str) -> int:
        asked.clear()
        evaluate_planner(cfg, "any", player_of(TrueEngine(TASK)), TASK, WORLDS[:1], tmp_path, model=model)
        return len(asked)

    monkeypatch.setattr(WorldModel, "_choose", choose)
    questions = played("one")
    assert questions > 0 and [played("one"), played("other")] == [0, questions]
