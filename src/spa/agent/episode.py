"""The episode: written by rollouts, read by every stage. Imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from spa.common.files import atomic_write
from spa.common.secrets import redact
from spa.common.typed import KNOWN_KEYS, Finite, Whole, parse


@dataclass
class TokenSequence:
    """Token ids exactly as fed and sampled, append-only.

    ``ids``, ``mask``, ``logprobs`` and ``turns`` have one entry per token. ``mask`` is 1 for tokens that the model sampled,
    0 for forced tags and everything else inserted by the harness. ``logprobs`` are the sampling policy's at its
    temperature (0.0 where mask is 0). ``turns`` is the turn index of a response token, -1 for context. With a history
    window an episode has one sequence per turn; with full history it has one in all.
    """

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[Finite] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def append(
        self, ids: Iterable[int], *, mask: int = 0, logprobs: Iterable[float] | None = None, turn: int = -1
    ) -> None:
        """Appends tokens that share one mask value; ``logprobs`` is required for sampled tokens (mask 1)."""
        new = list(ids)
        scores = list(logprobs) if logprobs is not None else [0.0] * len(new)
        assert len(scores) == len(new), "one log-prob a token"
        assert not mask or logprobs is not None, "sampled tokens need log-probs"
        self.ids += new
        self.mask += [mask] * len(new)
        self.logprobs += scores
        self.turns += [turn] * len(new)

    @property
    def whole(self) -> bool:
        """Whether there is an entry for each token in each list, or a mask alone (stored samples)."""
        lengths = {len(self.ids), len(self.logprobs), len(self.turns)}
        return lengths == {len(self.mask)} or lengths == {0}

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Turn:
    """One turn: the state shown, the response, the executed actions and their outcome."""

    index: int
    state: str  # true state before the response
    user: str  # text of the user message, including the state
    response: str  # assistant text, including the forced first tag
    next_state: str = ""  # true state after all executed actions
    format_ok: bool = False
    observation: str | None = None  # as written by the model
    prediction: str | None = None
    actions: list[str] = field(default_factory=list)  # as parsed
    executed: list[str] = field(default_factory=list)  # in the world's spelling
    between: list[str] = field(default_factory=list)  # true states after each executed action except the last
    rewards: list[Finite] = field(default_factory=list)  # one per executed action
    ended: bool = False  # the last executed action won or lost (not a limit)
    reward: Whole | Finite = 0.0  # sum of the step rewards (raw Python sum; int 0 when nothing ran)
    penalty: Finite = 0.0  # format penalty, not shown to the model
    actions_left: int = 0  # before the response
    finish_reason: str = "stop"  # stop | length
    info: dict[str, Any] = field(default_factory=dict)  # of the last executed action: success, valid, effective, ...
    imagined: dict[str, Any] = field(default_factory=dict)  # what a planner predicted before acting (``Plan.record``)
    tries: int = 1  # responses sampled, of which this is the last (``selfplay.tries``)
    invalid: int = 0  # executed actions that the world called invalid

    @property
    def valid(self) -> bool:
        """Whether an action was executed that the world did not call invalid."""
        return len(self.executed) > self.invalid


@dataclass(repr=False)
class Episode:
    """One episode in one world.

    ``status`` is ``completed`` (the world ended), ``truncated`` (a limit ended it; if that of the model's context, ``error`` says
    so) or ``error`` (the world or the engine failed; ``error`` has the message; such an episode is never trained on and never
    counted as a success).
    ``total_reward`` is the sum of the turns' rewards, ``total_penalty`` the sum of their format penalties.
    ``content`` identifies the world by its content. ``estimates`` holds what PPO made of a training episode that is kept, if it
    was trained on: ``advantages`` and, with a critic, ``values``, by turn one number for each sampled token.
    """

    __pydantic_config__ = KNOWN_KEYS

    task: str
    seed: int
    group: int
    member: int = 0
    noise_seed: int = 0
    content: str = ""
    prompt: str = "base"  # prompt mode
    probe: bool = False  # played to measure the world model, not for a score
    system: str | None = None
    shots: list[dict[str, str]] = field(default_factory=list)  # examples shown before the first turn, as messages
    turns: list[Turn] = field(default_factory=list)
    sequences: list[TokenSequence] = field(default_factory=list)
    success: bool = False
    status: str = "completed"
    error: str = ""
    estimates: dict[str, list[list[Finite]]] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the world or the engine, not the policy, failed."""
        return self.status == "error"

    @property
    def total_reward(self) -> float:
        return float(sum(turn.reward for turn in self.turns))

    @property
    def total_penalty(self) -> float:
        return float(sum(turn.penalty for turn in self.turns))

    @property
    def score(self) -> float:
        """The return that RL maximises: reward plus penalties."""
        return self.total_reward + self.total_penalty

    @property
    def states(self) -> list[str]:
        """True states, one per turn plus the final one: ``len(turns) + 1`` (empty without turns)."""
        return [turn.state for turn in self.turns] + [turn.next_state for turn in self.turns[-1:]]

    def __repr__(self) -> str:
        outcome = "success" if self.success else self.status
        return f"Episode({self.task}, seed {self.seed}: {len(self.turns)} turns, {outcome}, score {self.score:g})"

    def _repr_html_(self) -> str:
        from spa.agent.notebook import episode_html

        return episode_html(self)

    def to_json(self) -> str:
        """One line of JSON; ``from_json`` restores an equal episode, except for secrets in ``error``."""
        return json.dumps(
            vars(self) | {"error": redact(self.error)}, default=vars, ensure_ascii=False, separators=(",", ":")
        )

    @classmethod
    def from_json(cls, line: str | bytes) -> Episode:
        """Reads a line that ``to_json`` wrote.

        Raises:
            ValueError: the line is not a JSON object or not an episode.
        """
        try:
            episode = parse(cls, line)
            if not all(sequence.whole for sequence in episode.sequences):
                raise ValueError("sequences: ids, mask, logprobs and turns differ in length")
            return episode
        except ValueError as error:
            names = ", ".join(f.name for f in fields(cls))
            raise ValueError(f"not an episode ({error}); expected a JSON object with the fields {names}") from None


def write_episodes(path: str | os.PathLike[str], episodes: Iterable[Episode]) -> None:
    """Writes episodes as JSONL, atomically."""
    atomic_write(path, "".join(episode.to_json() + "\n" for episode in episodes))


def read_episodes(path: str | os.PathLike[str]) -> Iterator[Episode]:
    """Reads JSONL episodes one by one.

    Raises:
        ValueError: the file does not exist, or a line is not an episode (the message names the line).
    """
    if not Path(path).is_file():
        raise ValueError(f"no episode file {path}")
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield Episode.from_json(line)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from error
