"""Reading a response looks at each character a bounded number of times: counted, not timed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spa.agent import response
from spa.agent.response import parse_response
from spa.data import ground_truth as truth
from spa.report import turns
from tests.agent.test_reading import _PIECES, _STATES, KINDS, turn

MOST = 40  # looks at a character
looks = 0  # at any character


def look(characters: int) -> None:
    global looks
    looks += max(characters, 0)


class Text(str):
    """A text that counts how many of its characters are looked at or copied."""

    def find(self, sub: str, start: Any = 0, end: Any = None) -> int:
        place = super().find(sub, start, end)
        look((place + len(sub) if place >= 0 else len(self)) - (start or 0))
        return place

    def __getitem__(self, key: SupportsIndex | slice) -> Text:
        part = Text(super().__getitem__(key))
        look(len(part))
        return part

    def split(self, sep: Any = None, maxsplit: SupportsIndex = -1) -> list[str]:
        look(len(self))
        return [Text(part) for part in super().split(sep, maxsplit)]

    def _whole(name: str) -> Callable[..., Text]:  # type: ignore[misc]
        def method(self: Text, *args: Any) -> Text:
            look(len(self))
            return Text(getattr(str, name)(self, *args))

        return method

    lower, strip, lstrip, rstrip = map(_whole, ("lower", "strip", "lstrip", "rstrip"))


class Pattern:
    """A pattern that counts the characters from where it is told to begin to where it ends."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def search(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        match = self.pattern.search(text, start, end)
        look((match.end() if match else min(end, len(text))) - start)
        return match

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        look(len(text))
        return self.pattern.finditer(text)

    def sub(self, new: str, text: str) -> Text:
        look(len(text))
        return Text(self.pattern.sub(new, text))


READERS: dict[str, Callable[[str], object]] = {
    "parse": lambda text: [parse_response(text, mode) for mode in ("base", "world_model")],
    "parse the answer": lambda text: parse_response(text, think=False),
    "ground truth": lambda text: truth.ground_truth(turn(text)),
    "rejection": truth.rejection,
    "mark tags": turns.mark_response,
}


@pytest.fixture(scope="module", autouse=True)
def _counting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (response, truth, turns):
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern):
                    patch.setattr(module, name, Pattern(value))
        for patterns in (response._OPEN, response._CLOSE):
            for tag, pattern in list(patterns.items()):
                patch.setitem(patterns, tag, Pattern(pattern))
        yield


def looked(reader: str, begin: str, first: str, second: str, repeated: int) -> tuple[int, int]:
    """How many characters a reader looks at in a text, and the text's length."""
    global looks
    text = Text(begin + first * repeated + second * repeated)
    looks = 0
    READERS[reader](text)
    return looks, len(text)


def check(begin: str, first: str, second: str, repeated: int) -> None:
    for reader in READERS:
        half, _ = looked(reader, begin, first, second, repeated)
        whole, length = looked(reader, begin, first, second, 2 * repeated)
        assert whole <= 2.5 * half, f"{reader}: twice the text, {whole / half:.2f} times the work"
        assert whole <= MOST * length, f"{reader}: {whole / length:.0f} looks at a character"


@pytest.mark.parametrize("name", KINDS)
def test_twice_the_text_is_twice_the_work(name: str) -> None:
    begin, first, second = KINDS[name]
    check(begin, first, second, 25_000 // len(first + second) + 20)


_part = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=3).map("".join)


@settings(max_examples=60)
@given(begin=st.just("") | _part, first=_part, second=_part)
@example(begin="", first="<think></think><answer>", second=_STATES)
def test_so_it_is_of_any_repeated_text(begin: str, first: str, second: str) -> None:
    check(begin, first, second, 40)


def test_work_that_grows_faster_is_found() -> None:
    def each_to_its_end(text: str) -> None:
        place = text.find("<")
        while place >= 0:
            text.find("</answer>", place)
            place = text.find("<", place + 1)

    READERS["quadratic"] = each_to_its_end
    try:
        with pytest.raises(AssertionError, match="quadratic: twice the text"):
            check("", "<think>", "x", 100)
    finally:
        del READERS["quadratic"]
