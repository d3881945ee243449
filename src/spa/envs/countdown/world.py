"""Countdown: reach a target number with given numbers and the four basic operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from spa.envs.answering import RIGHT, AnswerEnv, Try
from spa.envs.base import Example
from spa.envs.countdown.arithmetic import MAX_LENGTH, parse_expression
from spa.envs.seeded import attempts, pick, real_number
from spa.envs.tables import data_file, read_rows, version

WRONG_VALUE, WRONG_NUMBERS = "wrong value", "wrong numbers"
MAX_NUMBERS, MAX_NUMBER = 10, 10**6  # so that every solution fits into the length of an answer

_DEFAULTS = {"numbers": (3, 4), "number_range": (1, 99), "target_range": (10, 100)}
_DRAWS = 20_000  # instances drawn before a world gives up
_CLAIM = re.compile(r"[-−]?\s*[0-9]+(?:\s*/\s*[0-9]+|\.[0-9]+)?")
_QUESTION = re.compile(r"Target: ([0-9]{1,9}), nums: \[([0-9]{1,9}(?:, [0-9]{1,9}){0,99})\]")

Instance = tuple[int, tuple[int, ...]]
"""Target and numbers."""


class Countdown(AnswerEnv):
    """Countdown, the number puzzle.

    See ``docs/worlds/countdown.md``. An action is an expression that ``parse_expression`` reads and that uses every given
    number exactly once; ``= 9`` may follow and is not looked at. A state is target and numbers, and a line for every try with
    its true value::

        Target: 9, nums: [1, 2, 3]
        Try 1: 1 + 2 / 3 = 5/3 (wrong value)
        Try 2: 3 * 3 = 9 (wrong numbers)
        Try 3: (1 + 2) * 3 = 9 (right)

    With several tries a reward is what a try adds to the best one before, so that the return is that of the best try.

    Args:
        numbers: least and most numbers of a generated instance, from 2 to 6.
        number_range: least and greatest of the numbers.
        target_range: least and greatest target.
        data: a file (``.parquet``, ``.jsonl``, ``.json``) with the columns ``target`` (int) and ``nums`` (list of int), instead
            of generated instances. That they can be solved is not checked.
        max_tries: answers that an episode may take.
        score: reward of a solution.
        format_score: reward of the right numbers with the wrong value, at most ``score``.
        render_mode: ``"ansi"`` or None; ``render()`` returns the text either way.

    Raises:
        ValueError: settings out of range or without an instance; a data file that is missing or malformed (file, row and reason
            are named).

    Source: RAGEN's Countdown (TinyZero's task), without its ``eval``.
    """

    name = "Countdown"
    rules = (
        "Write an arithmetic expression that equals the target and uses every one of the given numbers exactly once, with "
        "+, -, *, / and parentheses."
    )
    instruction = (
        "You are solving the Countdown puzzle. Write an arithmetic expression that equals the target. Use every number of nums "
        "exactly once, with +, -, *, / and parentheses. Example answer format: <think>For the target 8 with nums [6, 3, 4], I try "
        "6 / 3 = 2 and 2 * 4 = 8.</think><answer>6 / 3 * 4</answer>"
    )
    example = Example(
        "Target: 8, nums: [6, 3, 4]",
        "6 / 3 = 2, and 2 * 4 = 8.",
        "Target: 8, nums: [6, 3, 4]\nTry 1: 6 / 3 * 4 = 8 (right)",
        "6 / 3 * 4",
    )

    def __init__(
        self,
        numbers: Sequence[int] = _DEFAULTS["numbers"],
        number_range: Sequence[int] = _DEFAULTS["number_range"],
        target_range: Sequence[int] = _DEFAULTS["target_range"],
        data: str | Path | None = None,
        max_tries: int = 1,
        score: float = 1.0,
        format_score: float = 0.1,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(max_tries=max_tries, render_mode=render_mode)
        self.numbers = _range("numbers", numbers, 2, 6)
        self.number_range = _range("number_range", number_range, 1, MAX_NUMBER)
        self.target_range = _range("target_range", target_range, 1, MAX_NUMBER)
        self.score, self.format_score = real_number("score", score, 0), real_number("format_score", format_score, 0)
        if self.format_score > self.score:
            raise ValueError(f"format_score must be at most score ({self.score:g}), got {format_score!r}")
        if data is not None and not isinstance(data, (str, Path)):
            raise ValueError(f"data must be a file or None, got {data!r}")
        self.data = data
        if data is None:
            generate(0, self.numbers, self.number_range, self.target_range)
        else:
            for setting, default in _DEFAULTS.items():
                if getattr(self, setting) != default:
                    raise ValueError(f"{setting} applies to generated instances: omit either it or data")
            self._instances()
        self.target = 0
        self.nums: tuple[int, ...] = ()

    def sample_action(self, rng: np.random.Generator) -> str:
        """The world's numbers (before the first reset: any) in random order with random operations, blind to the target."""
        low, high = self.number_range
        nums = self.nums or tuple(
            int(n) for n in rng.integers(low, high + 1, size=int(rng.integers(self.numbers[0], self.numbers[1] + 1)))
        )
        order = [str(nums[int(i)]) for i in rng.permutation(len(nums))]
        text = order[0]
        for number in order[1:]:
            text = f"{text} {'+-*/'[int(rng.integers(4))]} {number}"
        return text

    def _ask(self, world_seed: int) -> None:
        if self.data is None:
            self.target, self.nums = generate(world_seed, self.numbers, self.number_range, self.target_range)
        else:
            instances = self._instances()
            draw = next(attempts(world_seed, 1)).random()
            self.target, self.nums = instances[pick(draw, len(instances))]

    def _instances(self) -> tuple[Instance, ...]:
        # Not kept in the world: it is pickled and copied, the file's content is shared.
        assert self.data is not None
        return _read(*version(data_file(self.data)))

    def _question(self) -> str:
        return f"Target: {self.target}, nums: [{', '.join(map(str, self.nums))}]"

    def _take_question(self, text: str) -> None:
        match = _QUESTION.fullmatch(text)
        if match is None:
            raise ValueError(f"a state must begin like 'Target: 9, nums: [1, 2, 3]', got {text!r}")
        target, nums = int(match[1]), [int(number) for number in match[2].split(", ")]
        reason = _problem_with(target, nums)
        if reason:
            raise ValueError(f"{text!r} is not an instance: {reason}")
        self.target, self.nums = target, tuple(nums)

    def _judge(self, action: str) -> Try | None:
        if len(action) > 8 * MAX_LENGTH:
            return None
        left, equals, claim = action.partition("=")
        expression = parse_expression(left.strip())
        if expression is None or expression.value is None or (equals and not _CLAIM.fullmatch(claim.strip())):
            return None
        if sorted(expression.numbers) != sorted(self.nums):
            verdict = WRONG_NUMBERS
        else:
            verdict = RIGHT if expression.value == self.target else WRONG_VALUE
        return Try(f"{expression.text} = {expression.value}", verdict)

    def _reward(self, made: Try) -> float:
        points = {RIGHT: self.score, WRONG_VALUE: self.format_score}
        best = max((points.get(earlier.verdict, 0.0) for earlier in self.tries), default=0.0)
        return max(0.0, points.get(made.verdict, 0.0) - best)

    def _problem(self) -> str:
        return f"{self.target} from {' '.join(map(str, sorted(self.nums)))}"


@lru_cache(1024)
def generate(
    world_seed: int, numbers: tuple[int, int], number_range: tuple[int, int], target_range: tuple[int, int]
) -> Instance:
    """The instance of a seed, which has a solution; raises ValueError where the settings seem to allow none."""
    rng = next(attempts(world_seed, 1))
    count = _between(rng, numbers)
    for _ in range(_DRAWS):
        nums = [_between(rng, number_range) for _ in range(count)]
        target = _combine(rng, list(nums))
        if target is not None and target_range[0] <= target <= target_range[1]:
            return target, tuple(nums)
    raise ValueError(
        f"no target in target_range {target_range} was found for numbers in number_range {number_range}: widen one of them"
    )


def _combine(rng: np.random.Generator, left: list[int]) -> int | None:
    """Joins all numbers by random operations; None where a division has a remainder."""
    while len(left) > 1:
        a = left.pop(pick(rng.random(), len(left)))
        b = left.pop(pick(rng.random(), len(left)))
        a, b = max(a, b), min(a, b)
        operation = pick(rng.random(), 4)
        if operation == 3 and (b == 0 or a % b):
            return None
        left.append((a + b, a - b, a * b, a // (b or 1))[operation])
    return left[0]


def _between(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return low + pick(rng.random(), high - low + 1)


@lru_cache(4)
def _read(path: str, modified: int, size: int) -> tuple[Instance, ...]:
    """The instances of a file; ``modified`` and ``size`` make a changed file another one."""
    instances = []
    for where, row in read_rows(data_file(path), ("target", "nums"), ()):
        reason = _problem_with(row["target"], row["nums"])
        if reason:
            raise ValueError(f"{where}: {reason}")
        instances.append((row["target"], tuple(row["nums"])))
    if not instances:
        raise ValueError(f"{path} has no rows")
    return tuple(instances)


def _problem_with(target: Any, nums: Any) -> str:
    if not _is_number(target):
        return f"target must be a whole number from 0 to {MAX_NUMBER}, not {target!r}"
    if not isinstance(nums, list) or not 2 <= len(nums) <= MAX_NUMBERS:
        return f"nums must be a list of 2 to {MAX_NUMBERS} numbers, not {nums!r}"
    return next(
        (f"nums must hold whole numbers from 0 to {MAX_NUMBER}, not {n!r}" for n in nums if not _is_number(n)), ""
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def _range(setting: str, value: Any, low: int, high: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(pair) != 2 or not all(_is_number(number) for number in pair) or not low <= pair[0] <= pair[1] <= high:
        raise ValueError(f"{setting} must be two integers, least and greatest, from {low} to {high}, got {value!r}")
    return pair
