"""Data sets of reasoning-gym: one question, one answer."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from typing import Any

import numpy as np

from spa.envs.adapters.guard import RandomGuard, build, check_settings, find_name, import_library, untouched
from spa.envs.seeded import Outcome, SeededEnv

MAX_ANSWER = 2000  # characters; anything longer is no answer

# reasoning-gym's scorers of these data sets evaluate the answer as Python code. They see only answers for which that is harmless.
_LISTS = frozenset({"string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})
_SUMS = frozenset({"countdown", "puzzle24"})
# These evaluate something else than the answer.
_HARMLESS = frozenset({"basic_arithmetic", "bitwise_arithmetic", "codeio", "number_sorting", "propositional_logic"})
_EVALUATES = re.compile(r"\b(?<!def )(?:eval|exec|parse_expr|sympify)\(")
_PLAIN = re.compile(r"[A-Za-z0-9_\s]*", re.ASCII)
_ARITHMETIC = re.compile(r"[0-9+\-*/()\s]{1,200}", re.ASCII)


class Question(SeededEnv):
    """A question of a reasoning-gym data set; the answer is judged by the data set's own scorer.

    An action is the answer, free text of up to 2,000 characters; an empty one, and one that the scorer cannot read, is not valid.
    The state is the question and, after the answer, a line with it. The reward is the scorer's, from 0 to 1; ``success`` means a
    full 1. Terminated after the first valid answer.

    Some scorers evaluate the answer as Python code. Of those, some see only answers that hold nothing but numbers, operators or
    Python literals (any other answer is not valid); the other data sets are refused.

    Args:
        name: the name of the data set.
        settings: those of the data set, but for ``seed`` and ``size``.

    Raises:
        ValueError: reasoning-gym is not installed, or there is no such data set or setting.

    Source: ``reasoning_gym.create_dataset``.
    """

    actions = ()

    def __init__(self, name: str, /, **settings: Any) -> None:
        super().__init__(state_format="grid", max_steps=None, render_mode="ansi")
        world = f"reasoning_gym:{name}"
        sets = import_library("reasoning_gym.factory", "reasoning-gym").DATASETS
        find_name(world, name, (known for known in sets if known != "composite"))
        source = inspect.getsource(sys.modules[sets[name][0].__module__])
        if name not in _LISTS | _SUMS | _HARMLESS and _EVALUATES.search(source):
            raise ValueError(f"{world} is not offered: its scorer evaluates the answer as Python code")
        settings.pop("render_mode", None)
        for reserved in ("seed", "size"):
            if reserved in settings:
                raise ValueError(f"{reserved!r} is not a setting of {world!r}: reset(seed=) chooses the question")
        check_settings(world, settings, sets[name][1], ())
        self.name, self._settings = world, settings
        self.rules = "Answer the question. An action is the whole answer and nothing else."
        self._guard = RandomGuard()
        self._entry: dict[str, Any] = {"question": "", "answer": ""}
        self._data: Any = None
        self._answer: str | None = None
        self._score = 0.0
        build(world, self._ask, {"world_seed": 0})

    def render(self) -> str:
        """The question and, once it was given, the answer."""
        question = str(self._entry["question"])
        return question if self._answer is None else f"{question}\nAnswer: {self._answer}"

    def sample_action(self, rng: np.random.Generator) -> str:
        """The data set's answer to another question."""
        with RandomGuard(int(rng.integers(2**31))):
            answer = self._dataset(int(rng.integers(2**31)))[0]["answer"]
        return str(answer or "0")[:MAX_ANSWER]

    def _dataset(self, seed: int) -> Any:
        library = import_library("reasoning_gym", "reasoning-gym")
        return library.create_dataset(self.name.partition(":")[2], seed=seed, size=1, **self._settings)

    def _ask(self, world_seed: int) -> None:
        self._guard.seed(world_seed)
        with untouched(), self._guard:
            self._data = self._dataset(world_seed % 2**31)
            self._entry = self._data[0]

    def _make(self, world_seed: int) -> None:
        self._ask(world_seed)
        self._answer, self._score = None, 0.0

    def _play(self, action: str) -> Outcome | None:
        answer = action.strip()
        if not answer or len(answer) > MAX_ANSWER or not self._harmless(answer):
            return None
        try:
            with self._guard:
                score = float(self._data.score_answer(answer, self._entry))
        except Exception:  # what the scorer cannot read
            return None
        self._answer, self._score = answer, score
        return Outcome(score, True, True)

    def _harmless(self, answer: str) -> bool:
        """Whether the scorer may see an answer: no expression with names or calls is ever evaluated."""
        name = self.name.partition(":")[2]
        if name in _SUMS:
            return bool(_ARITHMETIC.fullmatch(answer)) and "**" not in answer
        if name in _LISTS and not _PLAIN.fullmatch(answer):
            try:
                ast.literal_eval(answer)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return False
        return True

    def _success(self) -> bool:
        return self._score >= 1.0

    def _finished(self) -> bool:
        return self._answer is not None

    def _problem(self) -> str:
        return f"\n{self._entry['question']}"
