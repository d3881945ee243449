"""Counts failed episodes and stops a run in which too many fail. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spa.agent.episode import Episode
from spa.common.progress import note
from spa.envs.checked import WorldError

_FEW = 100  # episodes, where it is not known how many there will be


class Failures:
    """The failed episodes of a stage.

    Args:
        what: the stage, in messages.
        limit: the share that may fail (``env.max_failed``).
        total: episodes to be played; 0 = not known.
        unit: what is counted, in messages, where it is not episodes.
    """

    def __init__(self, what: str, limit: float, total: int = 0, *, unit: str = "episodes") -> None:
        self.what, self.limit, self.total, self.unit = what, limit, total, unit
        self.seen = self.count = 0
        self._first: list[str] = []
        self._said = 0

    def add(self, episodes: Iterable[Episode]) -> None:
        """Counts episodes, and judges them together.

        Raises:
            ValueError: whatever follows, more than the share fails; the message has the first three failures.
        """
        for episode in episodes:
            self._count(episode.seed, episode.error if episode.failed else None)
        self._judge()

    @contextmanager
    def alone(self, seed: int) -> Iterator[None]:
        """Within it a world that fails is counted like an episode, and the rest is left out. Raises as ``add``."""
        error = None
        try:
            yield
        except WorldError as failure:
            error = str(failure)
        self._count(seed, error)
        self._judge()

    def _count(self, seed: int, error: str | None) -> None:
        self.seen += 1
        if error is None:
            return
        self.count += 1
        line = f"seed {seed}: {error}"  # a world fails alike in each of its episodes
        if len(self._first) < 3 and line not in self._first:
            self._first.append(line)

    def _judge(self) -> None:
        if self.count > self.limit * (self.total or max(self.seen, _FEW)):
            raise ValueError(
                f"{self} (stopped because of env.max_failed={self.limit:g}). Where it is the world that fails, "
                "spa env check and spa env play show how it behaves"
            )

    def say(self) -> None:
        """Tells of failures on stderr: the first, and when there are ten times as many as last told."""
        if self.count >= max(1, 10 * self._said):
            self._said = self.count
            note(str(self))

    @classmethod
    def check(cls, what: str, limit: float, episodes: Sequence[Episode]) -> None:
        """Counts the episodes of a whole stage or measurement and tells of failures. Raises as ``add``."""
        failures = cls(what, limit, len(episodes))
        failures.add(episodes)
        failures.say()

    def state(self) -> list[Any]:
        """What a checkpoint keeps."""
        return [self.seen, self.count, self._first, self._said]

    def load_state(self, state: list[Any]) -> None:
        self.seen, self.count, self._first, self._said = state

    def __str__(self) -> str:
        return f"{self.what}: {self.count} of {self.total or self.seen} {self.unit} failed; the first: {' | '.join(self._first)}"
