"""MetamathQA: word problems with an answer that can be checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spa.common.errors import error_message
from spa.common.files import expanded
from spa.envs.answering import RIGHT, AnswerEnv, Try
from spa.envs.base import Example
from spa.envs.metamathqa.answers import MAX_ANSWER, is_number, same_answer, tidy
from spa.envs.seeded import attempts, pick
from spa.envs.tables import SUFFIXES, Row, data_file, read_rows, version

PROBLEMS = Path(__file__).with_name("problems.jsonl.gz")
WRONG = "wrong"
MARK = "The answer is:"
MAX_QUERY = 20_000  # characters

_COLUMNS, _OPTIONAL = ("query", "response"), ("original_question",)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


class Problem(NamedTuple):
    """A question, its right answer, and the question it is a variant of (often itself)."""

    query: str
    answer: str
    original: str


@dataclass(frozen=True, eq=False)
class Problems:
    """All problems of a data set."""

    all: tuple[Problem, ...]

    @cached_property
    def by_question(self) -> dict[str, Problem]:
        """Of equal questions the first."""
        return {problem.query: problem for problem in reversed(self.all)}


class MetamathQA(AnswerEnv):
    """Mathematical word problems, answered in words.

    See ``docs/worlds/metamathqa.md``. An action is the answer; where the right answer is a number, one that cannot be read as
    a number is not valid. A state is the question, and a line for every try::

        A box holds 6 pens. How many pens are in 7 boxes?
        Try 1: 13 (wrong)
        Try 2: 42 (right)

    1 for the right answer (``answers.same_answer``) in the first try, 1/2 in the second, 1/4 in the third and so on.

    Args:
        data: None for our own 2,000 problems (made by ``scripts/make_word_problems.py``), a file (``.parquet``, ``.jsonl``,
            ``.json``), or the name of a data set on the Hugging Face hub, whose split ``train`` is read. Columns: ``query`` and
            ``response``, in which the right answer follows the last ``The answer is:``.
        max_tries: answers that an episode may take.
        skip_bad_rows: leave out rows of ``data`` without a question or an answer, instead of refusing the data.
        render_mode: ``"ansi"`` or None; ``render()`` returns the text either way.

    Raises:
        ValueError: settings out of range; data that is missing or malformed (file, row and reason are named).

    Source: RAGEN's MetamathQA on the data of meta-math.
    """

    name = "MetamathQA"
    rules = "Solve the mathematical problem. Answer with the final result alone, such as 42."
    instruction = (
        "You are solving math problems. Think step by step, then answer with the final result alone. "
        "Example answer format: <answer>42</answer>"
    )
    example = Example(
        "A box holds 6 pens. How many pens are in 7 boxes?",
        "7 boxes of 6 pens hold 7 * 6 = 42 pens.",
        "A box holds 6 pens. How many pens are in 7 boxes?\nTry 1: 42 (right)",
        "42",
    )

    def __init__(
        self,
        data: str | None = None,
        max_tries: int = 1,
        skip_bad_rows: bool = False,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(max_tries=max_tries, render_mode=render_mode)
        if data is not None and (not isinstance(data, str) or not data):
            raise ValueError(f"data must be a file, the name of a data set or None, got {data!r}")
        if skip_bad_rows and data is None:
            raise ValueError("skip_bad_rows applies only to data: omit it, or set data")
        self.data, self.skip_bad_rows = data, bool(skip_bad_rows)
        self.problem = Problem("", "", "")
        self._problems()

    def sample_action(self, rng: np.random.Generator) -> str:
        """A random whole number up to 100, blind to the question."""
        return str(int(rng.integers(101)))

    def _problems(self) -> Problems:
        # Not kept in the world: it is pickled and copied, the problems are shared.
        if self.data is None:
            return _own()
        if _is_file(self.data):
            return _from_file(self.skip_bad_rows, *version(data_file(self.data)))
        return _from_hub(self.data, self.skip_bad_rows)

    def _ask(self, world_seed: int) -> None:
        problems = self._problems().all
        self.problem = problems[pick(next(attempts(world_seed, 1)).random(), len(problems))]

    def _question(self) -> str:
        return self.problem.query

    def _take_question(self, text: str) -> None:
        if text == self.problem.query:
            return
        problem = self._problems().by_question.get(text)
        if problem is None:
            raise ValueError(f"a state must begin with a question from the data, got {text[:200]!r}")
        self.problem = problem

    def _judge(self, action: str) -> Try | None:
        answer = tidy(action)
        if answer is None or (is_number(self.problem.answer) and not is_number(answer)):
            return None
        return Try(answer, RIGHT if same_answer(answer, self.problem.answer) else WRONG)

    def _reward(self, made: Try) -> float:
        return 0.5 ** len(self.tries) if made.verdict == RIGHT else 0.0

    def _problem(self) -> str:
        return self.problem.original


def gold_answer(response: str) -> str | None:
    """What follows the last ``The answer is:``; None where there is nothing."""
    _, mark, rest = response.rpartition(MARK)
    return tidy(rest) if mark else None


@lru_cache(1)
def _own() -> Problems:
    return _read(read_rows(PROBLEMS), str(PROBLEMS), skip_bad_rows=False)


@lru_cache(4)
def _from_file(skip_bad_rows: bool, path: str, modified: int, size: int) -> Problems:
    """The problems of a file; ``modified`` and ``size`` make a changed file another one."""
    return _read(read_rows(data_file(path), _COLUMNS, _OPTIONAL), path, skip_bad_rows)


@lru_cache(4)
def _from_hub(name: str, skip_bad_rows: bool) -> Problems:
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"the data set {name} needs the package datasets: pip install 'spa-agent[data]', or give a file as data"
        ) from None
    try:
        table = datasets.load_dataset(name, split="train")
    except Exception as error:  # no network, no such data set, no such split: all the user's to know
        raise ValueError(f"the data set {name} cannot be loaded: {error_message(error)}") from error
    for column in _COLUMNS:
        if column not in table.column_names:
            raise ValueError(f"the data set {name} has no column {column!r}, only {', '.join(table.column_names)}")
    rows = table.select_columns([name for name in (*_COLUMNS, *_OPTIONAL) if name in table.column_names])
    return _read(((f"{name}, row {number}", row) for number, row in enumerate(rows, 1)), name, skip_bad_rows)


def _read(rows: Iterable[Row], name: str, skip_bad_rows: bool) -> Problems:
    problems = []
    first = ""
    for where, row in rows:
        try:
            problems.append(_problem_of(row))
        except ValueError as error:
            if not skip_bad_rows:
                raise ValueError(f"{where}: {error}; skip_bad_rows=true drops such rows") from None
            first = first or f"{where}: {error}"
    if not problems:
        raise ValueError(f"{name} has no problems" + (f"; {first}" if first else ""))
    return Problems(tuple(problems))


def _problem_of(row: Mapping[str, Any]) -> Problem:
    query, response = row["query"], row["response"]
    if not isinstance(query, str) or not query.strip() or len(query) > MAX_QUERY:
        raise ValueError(f"query must be text of 1 to {MAX_QUERY} characters")
    try:
        query.encode()
    except UnicodeEncodeError:
        raise ValueError("query contains a lone surrogate") from None
    answer = gold_answer(response) if isinstance(response, str) else None
    if answer is None:
        raise ValueError(f"response must end in {MARK!r} and an answer of at most {MAX_ANSWER} characters")
    original = row.get("original_question")
    return Problem(
        query.strip(), answer, original.strip() if isinstance(original, str) and original.strip() else query.strip()
    )


def _is_file(data: str) -> bool:
    """Whether ``data`` means a file: there is one, or it is written like one."""
    path = expanded(data)
    return path.is_file() or path.suffix in SUFFIXES or _HUB_NAME.fullmatch(data) is None
