"""No regular expression of the package backtracks on a text of any length: each takes time in proportion to the text."""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from re import _parser as sre  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import pytest

import spa

SOURCE = Path(spa.__file__).parent
METHODS = ("match", "fullmatch", "search", "sub", "split", "findall", "finditer")
LENGTHS = (25, 500, 8_000)  # short ones first: what takes the cube of it, or more, is found soon
_SIGNS = " a1x=/:.-\n" + "".join(map(chr, range(0x3000)))
FEW = 0.01  # seconds: for 8,000 characters, a linear pattern takes a tenth of it; a quadratic one, ten times as much

# Where what is read is short, and what makes it so.
SHORT = {
    "envs/countdown/arithmetic.py": "MAX_LENGTH",
    "envs/metamathqa/answers.py": "MAX_ANSWER",
    "envs/sudoku/world.py": "MAX_ACTION",
}


class Pattern(NamedTuple):
    file: str
    text: str
    flags: int
    method: str


FILES = sorted(
    path.relative_to(SOURCE).as_posix()
    for path in SOURCE.rglob("*.py")
    if "import re\n" in path.read_text(encoding="utf-8")
)


@cache
def patterns(file: str) -> tuple[Pattern, ...]:
    """Every regular expression written in a file of the package, once for each way in which the file uses it."""
    return tuple(dict.fromkeys(_written_in(SOURCE / file)))


def _written_in(path: Path) -> Iterator[Pattern]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    file = path.relative_to(SOURCE).as_posix()
    compiles = False
    for call in calls:
        if ast.unparse(call.func.value) != "re" or not call.args:
            continue
        if call.func.attr == "compile":
            compiles = True
        elif call.func.attr in METHODS:
            assert isinstance(call.args[0], ast.Constant), f"{file}: give a pattern a name if it is not a literal"
            flags = [
                arg.attr for arg in call.args[1:] if isinstance(arg, ast.Attribute) and ast.unparse(arg.value) == "re"
            ]
            yield Pattern(file, call.args[0].value, getattr(re, flags[0]) if flags else 0, call.func.attr)
    if not compiles:
        return
    module = importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
    for name, value in vars(module).items():
        compiled = [*value.values()] if isinstance(value, dict) else [value]
        used = {call.func.attr for call in calls if re.fullmatch(rf"{name}(\[.*\])?", ast.unparse(call.func.value))}
        for one in compiled:
            if isinstance(one, re.Pattern):
                yield from (Pattern(file, one.pattern, one.flags, method) for method in sorted(used & {*METHODS}))


def pieces(parsed: Any) -> list[str]:
    """A text for each part of a pattern, which that part matches."""
    found: list[str] = []
    word = False  # the last piece is one
    for kind, value in parsed:
        before, word = word, str(kind) == "LITERAL"
        match str(kind):
            case "LITERAL" if before:
                found[-1] += chr(value)
            case "LITERAL":
                found.append(chr(value))
            case "NOT_LITERAL" | "ANY":
                found.append("x")
            case "IN":
                found.append(next(c for c in _SIGNS if re.fullmatch(_class(value), c)))
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                found += pieces(value[2])
            case "SUBPATTERN":
                found += pieces(value[3])
            case "ATOMIC_GROUP":
                found += pieces(value)
            case "ASSERT" | "ASSERT_NOT":
                found += pieces(value[1])
            case "BRANCH":
                found += [piece for branch in value[1] for piece in pieces(branch)]
    return found


def _class(items: Sequence[tuple[Any, Any]]) -> str:
    categories = {"CATEGORY_SPACE": r"\s", "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_WORD": r"\w", "CATEGORY_DIGIT": r"\d"}
    categories["CATEGORY_NOT_WORD"] = r"\W"
    text = ""
    for kind, value in items:
        match str(kind):
            case "NEGATE":
                text += "^"
            case "LITERAL":
                text += re.escape(chr(value))
            case "RANGE":
                text += "-".join(re.escape(chr(end)) for end in value)
            case "CATEGORY":
                text += categories[str(value)]
    return f"[{text}]"


def hostile(parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What a text begins with and what it repeats: a few neighbouring parts of the pattern, after all those before them."""
    parts = [part for i, part in enumerate(parts) if i < 12 or part != parts[i - 1]]
    seen = set()
    for start in range(len(parts)):
        for end in range(start + 1, min(len(parts), start + 4) + 1):
            for begin in ("", "".join(parts[:start])):
                seen.add((begin, "".join(parts[start:end])))
    return iter(sorted(seen))


def seconds(pattern: Pattern, begin: str, unit: str, length: int) -> float:
    text = begin + unit * (length // len(unit)) + "\x01"
    compiled = re.compile(pattern.text, pattern.flags)
    started = time.process_time()
    match pattern.method:
        case "sub":
            compiled.sub("", text)
        case "finditer":
            list(compiled.finditer(text))
        case method:
            getattr(compiled, method)(text)
    return time.process_time() - started


def test_there_are_patterns() -> None:
    assert sum(len(patterns(file)) for file in FILES) > 60
    assert all(patterns(file) for file in ("agent/response.py", "common/secrets.py", *SHORT))


def slow_text(pattern: Pattern) -> tuple[str, str] | None:
    """What a text begins with and repeats that takes the pattern longer than in proportion; None if none is known."""
    for begin, unit in hostile(pieces(sre.parse(pattern.text, pattern.flags))):
        for length in LENGTHS:
            if FEW < (spent := seconds(pattern, begin, unit, length)) < 10 * FEW:
                spent = min(seconds(pattern, begin, unit, length) for _ in range(5))
            if spent > 2 * FEW:
                return begin, unit
    return None


@pytest.mark.parametrize("file", [file for file in FILES if file not in SHORT])
def test_the_time_of_a_pattern_grows_with_the_text_alone(file: str) -> None:
    slow = {pattern: slow_text(pattern) for pattern in patterns(file)}
    assert not {pattern: text for pattern, text in slow.items() if text}


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", "search"),
        (r"<think>.*?</think>", "finditer"),
        (r"[a-z]*://", "search"),
    ],
)
def test_a_slow_pattern_is_found(text: str, method: str) -> None:
    assert slow_text(Pattern("", text, re.DOTALL, method))


@pytest.mark.parametrize("file", sorted(SHORT))
def test_what_is_short_is_made_short(file: str) -> None:
    assert re.search(rf"len\(\w+\) (?:<=|>) {SHORT[file]}", (SOURCE / file).read_text(encoding="utf-8"))
