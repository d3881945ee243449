"""Progress in a log file and on a terminal."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator

import pytest

from spa.common import progress as module
from spa.common.progress import count_tokens, duration, note, print_due, progress, set_quiet, show
from spa.engines.processes import in_processes


class Clock:
    """Advances by ``step`` seconds at every look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    yield
    set_quiet(False)
    assert module._open == []
    assert module._display is None


def test_lines_are_rare_and_the_last_one_comes() -> None:
    out, clock = io.StringIO(), Clock()
    with progress(100, "PPO", file=out, clock=clock) as bar:
        for step in range(100):
            clock.now += 1.0
            bar.advance(loss=0.123456, success=step)
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "PPO: 10/100 (10%), 10 s, 1 min 30 s left, loss 0.1235, success 9"
    assert lines[-1] == "PPO: 100/100, 1 min 40 s, loss 0.1235, success 99"


@pytest.mark.parametrize("width", [80, 160])
def test_a_narrow_terminal_shows_count_and_time_before_the_numbers(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    out, numbers = Terminal(), {"success": 0.125, "format": 0.2581, "score": -0.2125, "entropy": 0.6365}
    with progress(40, "PPO, variant vanilla", file=out) as bar:
        bar.advance(13, **numbers)
    line = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).split("PPO, variant vanilla")[-1].splitlines()[0]
    assert re.search(r" 13/40 +0:00:\d\d +\S+ success 0.125, ", line), line
    assert ("entropy" in line) == (width == 160)


def test_iteration_gives_the_items_and_counts() -> None:
    out = io.StringIO()
    assert list(progress([3, 1, 2], "SFT", file=out)) == [3, 1, 2]
    assert out.getvalue() == "SFT: 3/3, 0 s\n"


def test_iteration_inside_a_context_can_post() -> None:
    out = io.StringIO()
    with progress("ab", "load", file=out) as bar:
        for letter in bar:
            bar.post(at=letter)
    assert out.getvalue() == "load: 2/2, 0 s, at b\n"


def test_numbers_are_shown_next_to_the_innermost_bar_if_there_is_one() -> None:
    show(questions=1)
    with progress(1, "outer") as outer:
        with progress(1, "inner") as inner:
            show(questions=2)
        show(questions=3)
    assert (outer.values, inner.values) == ({"questions": 3}, {"questions": 2})


def test_unknown_length() -> None:
    out = io.StringIO()
    assert sum(progress((n for n in range(4)), "count", file=out)) == 6
    assert out.getvalue() == "count: 4, 0 s\n"


def test_a_line_says_what_the_inner_bars_are_at() -> None:
    out, clock = io.StringIO(), Clock()
    with progress(2, "outer", file=out, clock=clock) as bar:
        for seconds in (0.5, 12.0):
            with progress(2, "inner", file=out, clock=clock) as inner:
                for _ in range(2):
                    clock.now += seconds
                    inner.advance()
            bar.advance()
    assert out.getvalue().splitlines() == [
        "outer: 1/2 (50%), 13 s; inner 1/2",
        "outer: 1/2 (50%), 25 s; inner 2/2",
        "outer: 2/2, 25 s",
    ]


def test_a_slow_step_prints_a_line_every_ten_seconds() -> None:
    """Forward passes of two seconds within a step; tokens are a rate."""
    out, clock = io.StringIO(), Clock()
    with progress(1, "PPO", file=out, clock=clock) as bar:
        with progress(4, "playing", file=out, clock=clock) as inner:
            for _ in range(12):
                clock.now += 2.0
                count_tokens(100)
                print_due()
            inner.advance(4, turns=7)
        for _ in range(6):  # the update after it
            clock.now += 2.0
            print_due()
        bar.advance()
    assert out.getvalue().splitlines() == [
        "PPO: 0/1, 10 s; playing, tokens/s 50",
        "PPO: 0/1, 20 s; playing, tokens/s 50",
        "PPO: 0/1, 30 s",
        "PPO: 1/1, 36 s",
    ]


def test_the_lines_need_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass may take minutes."""
    monkeypatch.setattr(module, "INTERVAL", 0.5)
    out = io.StringIO()
    with progress(1, "SFT", file=out):
        time.sleep(1.5)
    assert out.getvalue().startswith("SFT: 0/1, 1 s\n")


def test_a_fork_prints_nothing() -> None:
    out, clock = io.StringIO(), Clock()

    def work(number: int) -> int:
        clock.now += 20.0
        count_tokens(500)
        print_due()
        return number

    with progress(1, "outer", file=out, clock=clock) as bar:
        assert in_processes(work, 2) == [0, 1]
        bar.advance()
    assert out.getvalue().splitlines() == ["outer: 0/1, 20 s, tokens/s 25", "outer: 1/1, 20 s, tokens/s 25"]


def test_work_done_before_does_not_count_for_the_time_left() -> None:
    out, clock = io.StringIO(), Clock()
    with progress(100, "PPO", file=out, clock=clock) as bar:
        bar.advance(90)
        for _ in range(2):
            clock.now += 6.0
            bar.advance()
        assert out.getvalue() == "PPO: 92/100 (92%), 12 s, 48 s left\n"


def test_failure_prints_no_final_line() -> None:
    out = io.StringIO()
    with pytest.raises(RuntimeError), progress(2, "work", file=out):
        raise RuntimeError
    assert out.getvalue() == ""


def test_quiet() -> None:
    out = io.StringIO()
    set_quiet()
    assert list(progress(range(3), "x", file=out, clock=Clock(20))) == [0, 1, 2]
    note("hello", file=out)
    assert out.getvalue() == ""
    set_quiet(False)
    note("hello", file=out)
    assert out.getvalue() == "hello\n"


def test_bars_on_a_terminal_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with progress(2, "outer", file=out) as bar:
        for _ in range(2):
            for _ in progress(range(3), "inner", file=out):
                pass
            bar.advance(reward=0.5)
    text = out.getvalue()
    assert "\x1b[" in text
    assert "outer" in text
    assert "2/2" in text
    assert "reward 0.5" in text


def test_dumb_terminals_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    list(progress([1], "work", file=out))
    assert out.getvalue() == "work: 1/1, 0 s\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
