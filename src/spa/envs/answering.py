"""Base class of worlds that ask one question: a limit on tries, and a state that lists them."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any, NamedTuple

from spa.envs.seeded import Outcome, SeededEnv, at_least

RIGHT = "right"
_TRY = re.compile(r"Try ([0-9]{1,6}): (.*) \(([a-z ]+)\)")


class Try(NamedTuple):
    """One answer and what the world made of it."""

    answer: str  # one line, as the state shows it
    verdict: str  # RIGHT, or what is wrong with it


class AnswerEnv(SeededEnv):
    """A world that asks one question and takes at most ``max_tries`` answers.

    The state is the question and a line for every try: ``Try 1: 3 + 4 = 7 (wrong value)``. The task ends with the right answer or
    with the last try. Text that is no answer at all is not valid and costs no try.
    """

    def __init__(self, *, max_tries: int, render_mode: str | None) -> None:
        super().__init__(state_format="grid", max_steps=None, render_mode=render_mode)
        self.max_tries = at_least("max_tries", max_tries, 1)
        self.tries: tuple[Try, ...] = ()

    def render(self) -> str:
        """The true state: the question and the tries so far."""
        shown = (f"Try {number}: {made.answer} ({made.verdict})" for number, made in enumerate(self.tries, 1))
        return "\n".join([self._question(), *shown])

    def _make(self, world_seed: int) -> None:
        self._ask(world_seed)
        self.tries = ()

    def _load(self, text: str) -> None:
        lines = text.strip().split("\n")
        shown: list[re.Match[str]] = []
        while len(lines) > 1 and (match := _TRY.fullmatch(lines[-1].rstrip())):
            shown.insert(0, match)
            lines.pop()
            if len(shown) > self.max_tries:
                raise ValueError(f"a state must show at most max_tries={self.max_tries} tries")
        self._take_question("\n".join(lines).strip())
        tries: list[Try] = []
        for number, match in enumerate(shown, 1):
            made = Try(match[2], match[3])
            if int(match[1]) != number or (tries and tries[-1].verdict == RIGHT) or self._judge(made.answer) != made:
                raise ValueError(f"{match[0]!r} is not a possible try {number}")
            tries.append(made)
        self.tries = tuple(tries)

    def _keeps(self, earlier: Any) -> bool:
        return bool(self._question() == earlier._question() and self.tries[: len(earlier.tries)] == earlier.tries)

    def _play(self, action: str) -> Outcome | None:
        made = self._judge(action)
        if made is None:
            return None
        reward = self._reward(made)
        self.tries = (*self.tries, made)
        return Outcome(reward, True, self._finished())

    def _success(self) -> bool:
        return bool(self.tries) and self.tries[-1].verdict == RIGHT

    def _finished(self) -> bool:
        return self._success() or len(self.tries) >= self.max_tries

    @abstractmethod
    def _ask(self, world_seed: int) -> None:
        """Chooses the question of this seed."""

    @abstractmethod
    def _question(self) -> str:
        """The question, as the state begins."""

    @abstractmethod
    def _take_question(self, text: str) -> None:
        """Takes over a written question; raises ValueError where it is none."""

    @abstractmethod
    def _judge(self, action: str) -> Try | None:
        """An answer and its verdict; None where the text is no answer. An answer judged again, as shown, gives the same."""

    @abstractmethod
    def _reward(self, made: Try) -> float:
        """The reward of a try that is about to be added to ``self.tries``."""
