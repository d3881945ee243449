"""What is fuzzed: each target takes any bytes, and raises nothing where the package keeps its promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spa.agent.episode import Episode, Turn
from spa.agent.response import parse_response
from spa.data.ground_truth import body_spans, ground_truth, rejection, rows_of
from spa.envs import make_env
from spa.envs.countdown.arithmetic import parse_expression
from spa.evaluate.summary import EvalResult
from spa.report.data import ReportData, VariantReport
from spa.report.html import render_report
from spa.report.turns import mark_response

CORPUS = Path(__file__).parent / "corpus"


def check_message(error: ValueError) -> None:
    assert "\n" not in str(error)


def parser(data: bytes) -> None:
    text = data.decode(errors="replace")
    for mode in ("base", "world_model"):
        parsed = parse_response(text, mode)
        assert parsed.format_ok or not parsed.actions
        assert all(0 <= start <= end <= len(text) for start, end in parsed.spans.values())
    parse_response(text, think=False)
    assert "".join(part for part, _ in mark_response(text)) == text
    corrected = ground_truth(Turn(0, "ab\ncd", "user", text, "ef\ngh"))
    if rejection(text) is None:  # so it is trained on: no state in it is the model's own
        for tag, truth in (("observation", "ab\ncd"), ("prediction", "ef\ngh")):
            assert all(corrected[start:end] == truth for start, end in body_spans(corrected, tag))


def levels(data: bytes) -> None:
    text = data.decode(errors="replace")
    for world, option in (("sokoban", "level"), ("frozen_lake", "map"), ("sudoku", "board")):
        env = make_env(world)
        try:
            state, _ = env.reset(seed=0, options={option: text})
        except ValueError as error:
            check_message(error)
        else:
            assert env.legal(state)
            env.step(env.actions[0] if env.actions else "1,1,1")


def countdown(data: bytes) -> None:
    text = data.decode(errors="replace")
    read = parse_expression(text)
    if read is not None:
        assert parse_expression(read.text) == read
    env = make_env("countdown", max_tries=5)
    state, _ = env.reset(seed=1)
    state, *_ = env.step(text)
    assert env.legal(state)
    try:
        env.reset(seed=1, options={"state": text})
    except ValueError as error:
        check_message(error)


def episodes(data: bytes) -> None:
    """A line that is read as an episode can be summed up, shown, and made into rows of stage 1."""
    try:
        episode = Episode.from_json(data.decode(errors="replace"))
    except ValueError as error:
        check_message(error)
        return
    assert Episode.from_json(episode.to_json()).to_json() == episode.to_json()
    rows_of(episode, system=None, window=0)
    result = EvalResult.from_episodes("spa", [episode], [1], bootstrap=2)
    render_report(ReportData("run", variants={"spa": VariantReport((), result, [episode], [(1, episode)])}))


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (parser, levels, countdown, episodes)
}
