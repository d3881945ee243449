"""Answers of a world model on disk, in the order of its questions, so that an interrupted search can be resumed.

A search is deterministic: with the same answers it asks the same questions. A resumed one is therefore the uninterrupted one,
its counts included.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spa.common.clock import work_stored
from spa.common.files import append, no_link
from spa.common.typed import Finite, parse
from spa.planning.search import Answer, Imagined, Move, Question

if TYPE_CHECKING:
    from spa.planning.world_model import Asked, WorldModel

_Stored = list[tuple[str, Finite, bool, Finite]] | dict[str, Finite] | Finite | None


@dataclass(frozen=True)
class _Entry:
    asked: str
    usage: tuple[int, int, int, int]
    answers: list[_Stored]
    written: list[int]


class Journal:
    """An append-only JSONL file with a line for each batch of questions.

    Args:
        path: read if it exists. From the first line that is damaged, half-written or about other questions, it is written anew.
        model: the model's ``identity``; the answers of another one do not count.
    """

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self.model = model
        self._lines = deque(path.read_bytes().splitlines(keepends=True) if path.is_file() else ())
        self._read = 0

    def replay(self, asked: Sequence[Asked[Question]]) -> tuple[list[Answer], list[int], tuple[int, ...]] | None:
        """The stored answers to the next batch of questions, their tokens and the usage up to them; None if there are none."""
        if not self._lines:
            return None
        line = self._lines.popleft()
        try:
            entry = parse(_Entry, line)
            if entry.asked != self._digest(asked) or len(entry.written) != len(asked) or not line.endswith(b"\n"):
                raise ValueError("other questions")
            answers = [_answer(question, stored) for (question, _), stored in zip(asked, entry.answers, strict=True)]
        except ValueError:
            self._lines.clear()
            with open(self.path, "r+b", opener=no_link) as file:
                file.truncate(self._read)
            return None
        self._read += len(line)
        return answers, entry.written, entry.usage

    def add(
        self,
        asked: Sequence[Asked[Question]],
        answers: Sequence[Answer],
        written: Sequence[int],
        usage: tuple[int, ...],
    ) -> None:
        """Appends a batch: questions, their answers, the tokens written for each and the usage so far."""
        stored = [
            [(one.state, one.reward, one.ended, one.probability) for one in answer]
            if isinstance(answer, tuple)
            else answer
            for answer in answers
        ]
        entry = {"asked": self._digest(asked), "usage": usage, "answers": stored, "written": list(written)}
        append(self.path, json.dumps(entry, allow_nan=False) + "\n")
        work_stored()

    def _digest(self, asked: Sequence[Asked[Question]]) -> str:
        numbers = {headers: number for number, headers in enumerate(dict.fromkeys(headers for _, headers in asked))}
        text = repr((self.model, [(question, numbers[headers]) for question, headers in asked], list(numbers)))
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _answer(question: Question, stored: _Stored) -> Answer:
    if isinstance(question, Move) != isinstance(stored, list):
        raise ValueError("an answer to another question")
    return tuple(Imagined(*one) for one in stored) if isinstance(stored, list) else stored


@contextmanager
def journaled(world_model: WorldModel, path: Path, model: str) -> Iterator[None]:
    """Keeps the answers in ``path`` while the block runs, and replays those of an interrupted stage, whose record ends their use
    (``runs.record.unfinished_work``).

    Args:
        model: ``identity`` of the model that answers.
    """
    world_model.journal = Journal(path, model)
    yield
    world_model.journal = None
