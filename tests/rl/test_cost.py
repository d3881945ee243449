"""The estimate of time: rounded honestly, and left out where it would not be sound."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from spa.agent.chat import Chat
from spa.agent.task import Task
from spa.config.load import load_config, load_variant
from spa.data.encode import encode_row
from spa.data.layouts import read_rows
from spa.models.load import load_tokenizer
from spa.rl import cost
from spa.rl.cost import Speed, about, lengths, selfplay_lengths, time_estimates
from spa.sft.selfplay import selfplay


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.1, "1 min"),
        (200, "3 min"),
        (7600, "2 h"),
        (40 * 3600, "40 h"),
        (5 * 86400, "5 days"),
        (123456789, "1400 days"),
    ],
)
def test_one_or_two_digits(seconds: float, text: str) -> None:
    assert about(seconds) == text


@pytest.mark.parametrize("settings", [[], ["model=org/not-downloaded-1b"]])
def test_no_time_for_tiny_and_unknown_models(settings: list[str]) -> None:
    assert time_estimates(load_config("sokoban", settings), "run", [load_variant("spa")]) == []


RANDOM = ["selfplay.policy=random", "selfplay.groups=24", "selfplay.group_size=1", "selfplay.val_fraction=0.0"]


def test_lengths_are_those_of_self_play(tmp_path: Path) -> None:
    cfg = load_config("sokoban", [*RANDOM, "sft.merge_turns=false"])
    chat = Chat(load_tokenizer(cfg.model.path, cfg.model), forced="<think>")
    selfplay(cfg, tmp_path)
    rows, *_ = read_rows(tmp_path / "train.parquet")
    tokens = sum(len(encode_row(row, chat).ids) for row in rows) / 24
    estimate = selfplay_lengths(cfg, chat)
    assert estimate.rows == pytest.approx(tokens, rel=0.3)
    assert estimate.written == estimate.turns * cfg.sampling.max_tokens
    plain = dataclasses.replace(cfg.sampling, max_tokens_base=7)
    episode = lengths(
        dataclasses.replace(cfg, sampling=plain, agent=dataclasses.replace(cfg.agent, prompt="base")), chat
    )
    assert episode.written == episode.turns * 7


def _days(settings: list[str], variant: str = "spa") -> dict[str, float]:
    line, *_ = time_estimates(load_config("sokoban", settings), "run", [load_variant(variant)])
    return {stage: float(days) for stage, days in re.findall(r"(\w+) (\d+) days", line)}


def test_times_follow_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "TOO_SMALL", 0)
    monkeypatch.setattr(cost, "measure", lambda *_: Speed(1e5, 1e5))
    monkeypatch.setattr(cost, "load_tokenizer", lambda path, model, *, local_only: local_only and load_tokenizer(path))
    once = _days([])
    assert set(once) == {"generate", "sft", "ppo", "eval"}
    more = _days(["sft.epochs=10", "ppo.steps=400", "eval.samples=32", "selfplay.policy=random"])
    cfg = load_config("sokoban", [])
    assert more["sft"] / once["sft"] == pytest.approx(10 / cfg.sft.epochs, rel=0.1)
    assert more["ppo"] / once["ppo"] == pytest.approx(400 / cfg.ppo.steps, rel=0.1)
    assert more["eval"] / once["eval"] == pytest.approx(32 / cfg.eval.samples, rel=0.1)
    assert "generate" not in more, "random play costs no pass of the model"
    assert set(_days([], "vanilla")) == {"ppo", "eval"}


def test_given_rows_are_counted_whatever_stage_1_would_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "TOO_SMALL", 0)
    monkeypatch.setattr(cost, "measure", lambda *_: Speed(1e4, 1e4))
    given = f"sft.data={tmp_path / 'train.parquet'}"
    selfplay(load_config("sokoban", [*RANDOM, "sft.merge_turns=false"]), tmp_path)
    played = _days([*RANDOM, "sft.merge_turns=false", "sft.epochs=200"])["sft"]
    once = _days(["sft.merge_turns=false", "sft.epochs=200", given])
    assert "generate" not in once and once["sft"] == pytest.approx(played, rel=0.3)
    assert _days(["sft.merge_turns=false", "sft.epochs=200", given, "selfplay.groups=9"])["sft"] == once["sft"]
    assert _days(["sft.merge_turns=false", "sft.epochs=400", given])["sft"] == pytest.approx(2 * once["sft"], rel=0.1)


def test_each_stage_takes_the_time_of_its_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "TOO_SMALL", 0)
    monkeypatch.setattr(cost, "measure", lambda device, dtype, rows: Speed(*[{2: 4e5, 4: 1e5}[dtype.itemsize]] * 2))
    monkeypatch.setattr(cost, "has_bfloat16", lambda device: False)
    full = _days([])
    half = _days(["sft.precision=bfloat16"])
    assert half["sft"] / full["sft"] == pytest.approx(1 / 4, rel=0.1)
    assert {**half, "sft": 0} == {**full, "sft": 0}
    half = _days(["ppo.precision=bfloat16"])
    assert full["ppo"] / 4 < half["ppo"] < full["ppo"], "only the update is faster, not the rollouts"
    assert {**half, "ppo": 0} == {**full, "ppo": 0}
    assert _days(["model.dtype=bfloat16"])["sft"] / full["sft"] == pytest.approx(1 / 4, rel=0.1)
    small = ["planner.depth=3", "practice.rehearsal=0"]
    half, full = (_days([*small, f"sft.precision={name}"], "plan") for name in ("bfloat16", "float32"))
    assert full["practice"] / 4 < half["practice"] < full["practice"], "plans are queried in the model's own precision"


@pytest.mark.parametrize(
    ("settings", "variant", "units", "gain", "said"),
    [
        ([], "spa", True, 2.0, True),
        ([], "spa", True, 1.4, False),
        ([], "spa", False, 2.0, False),
        (["sft.precision=bfloat16"], "spa", True, 2.0, False),
        (["model.dtype=bfloat16"], "spa", True, 2.0, False),
        ([], "vanilla", True, 2.0, False),
    ],
)
def test_faster_products_are_named(
    monkeypatch: pytest.MonkeyPatch, settings: list[str], variant: str, units: bool, gain: float, said: bool
) -> None:
    monkeypatch.setattr(cost, "TOO_SMALL", 0)
    monkeypatch.setattr(cost, "has_bfloat16", lambda device: units)
    monkeypatch.setattr(
        cost, "measure", lambda device, dtype, rows: Speed(*[{2: gain, 4: 1.0}[dtype.itemsize] * 1e9] * 2)
    )
    lines = time_estimates(load_config("sokoban", settings), "run", [load_variant(variant)])
    assert [line for line in lines if "sft.precision=bfloat16" in line] == (
        [f"time: products are {gain:.1f} times as fast in bfloat16 (sft.precision=bfloat16; weights stay float32)"]
        if said
        else []
    )


def test_no_time_where_random_moves_are_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    def free_text(task: Task) -> None:
        raise ValueError("the world has free-text actions and no sample_action")

    monkeypatch.setattr(cost, "TOO_SMALL", 0)
    monkeypatch.setattr(cost, "random_responder", free_text)
    assert time_estimates(load_config("sokoban", []), "ppo", [load_variant("vanilla")]) == []


def test_practice_and_planners_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "TOO_SMALL", 0)
    monkeypatch.setattr(cost, "measure", lambda *_: Speed(1e5, 1e5))
    small = ["planner.depth=3", "practice.worlds=800", "eval.worlds=64", "practice.epochs=1", "practice.rehearsal=0"]
    once = _days(small, "plan")
    assert set(once) == {"generate", "sft", "practice", "planner", "eval"}
    assert _days([*small, "eval.worlds=640"], "plan")["planner"] / once["planner"] == pytest.approx(10, rel=0.1)
    more = _days([*small, "practice.worlds=8000"], "plan")["practice"]
    assert more / once["practice"] == pytest.approx(10, rel=0.1)
    assert _days([*small, "practice.epochs=2"], "plan")["practice"] < 2 * once["practice"], "plans are made once"
    rounds = _days([*small, "practice.rounds=3", "practice.groups=1", "practice.group_size=1"], "plan")["practice"]
    assert rounds == pytest.approx(3 * once["practice"] + 2 * once["sft"], rel=0.1)
    assert "planner" not in _days(small, "spa")
    by_planner = ["selfplay.policy=planner", "agent.planner=lookahead", "planner.model=/models/mine"]
    assert _days([*small, *by_planner], "spa")["planner"] > once["planner"], "it plays stage 1, too"
    simulated = _days([*small, "planner.model=simulator"], "search")
    assert "planner" not in simulated and "practice" not in simulated, "the true world costs no pass of the model"


def test_a_world_without_states_to_set_says_that_planners_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsettable(*_: object) -> None:
        raise ValueError("this world cannot be set to a state")

    monkeypatch.setattr(cost, "TOO_SMALL", 0)
    monkeypatch.setattr(cost, "Forecast", unsettable)
    line, *_ = time_estimates(load_config("sokoban", []), "run", [load_variant("plan")])
    assert "planners and practice not counted" in line and "sft" in line
    line, *_ = time_estimates(load_config("sokoban", []), "run", [load_variant("spa")])
    assert "not counted" not in line
