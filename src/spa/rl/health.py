"""Detects policy collapse from metrics over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spa.agent.episode import Episode
from spa.config.schema import PPOConfig

_PERIODS = 8  # tokens in the longest loop detected
_LOOP = 16  # minimum tokens of a loop, with repeats
_TIMES = 4  # minimum repeats of a loop


class TrainingFailed(ValueError):
    """A variant's training cannot continue; the run's other variants can."""


class TrainingCollapsed(TrainingFailed):
    """The policy no longer plays."""


def loops(ids: Sequence[int]) -> bool:
    """Whether a response ends in a loop: up to eight tokens, repeated at least four times over at least 16 tokens."""
    for period in range(1, _PERIODS + 1):
        length = max(_LOOP, _TIMES * period)
        tail = list(ids[-length:])
        if len(tail) == length and tail[period:] == tail[:-period]:
            return True
    return False


def repetition(episodes: Sequence[Episode]) -> float:
    """Share of responses cut off in a loop."""
    looping = turns = 0
    for episode in episodes:
        turns += len(episode.turns)
        cut = {turn.index for turn in episode.turns if turn.finish_reason == "length"}
        for sequence in episode.sequences if cut else ():
            responses: dict[int, list[int]] = {index: [] for index in cut}
            for token, sampled, turn in zip(sequence.ids, sequence.mask, sequence.turns, strict=True):
                if sampled and turn in cut:
                    responses[turn].append(token)
            looping += sum(map(loops, responses.values()))
    return looping / turns if turns else 0.0


_LOOKED_AT = ("train/valid_rate", "train/repetition", "train/entropy", "losses/entropy")


@dataclass
class Health:
    """Watches ``train/valid_rate``, ``train/repetition`` and ``losses/entropy``, in a step without an update ``train/entropy``.

    ``sick`` counts consecutive unhealthy steps; ``healthy_step`` is the last step before them. The valid rate counts only once
    it has reached twice the floor: a base model may start below it.
    """

    config: PPOConfig
    sick: int = 0
    healthy_step: int = 0
    best_valid: float = 0.0
    reason: str = field(default="", init=False)

    def observe(self, step: int, metrics: dict[str, float]) -> bool:
        """Records a step's metrics; True after ``collapse_patience`` unhealthy steps in a row (``reason`` says why)."""
        signs = self._signs(metrics)
        if metrics.keys().isdisjoint(_LOOKED_AT):  # every episode failed, which tells nothing of the policy
            return False
        if not signs:
            self.sick, self.healthy_step = 0, step
            return False
        self.sick += 1
        self.reason = " and ".join(signs)
        return self.sick >= self.config.collapse_patience

    def _signs(self, metrics: dict[str, float]) -> list[str]:
        config, signs = self.config, []
        valid = metrics.get("train/valid_rate")
        if valid is not None:
            self.best_valid = max(self.best_valid, valid)
            if valid < config.min_valid_rate <= self.best_valid / 2:
                signs.append(f"only {valid:.1%} of the turns have a valid action (ppo.min_valid_rate)")
        looping = metrics.get("train/repetition", 0.0)
        if looping > config.max_repetition:
            signs.append(f"{looping:.1%} of the responses end in a loop (ppo.max_repetition)")
        entropy = metrics.get("losses/entropy", metrics.get("train/entropy"))
        if entropy is not None and entropy < config.min_entropy:
            signs.append(f"the entropy is {entropy:.2g} nats a token (ppo.min_entropy)")
        return signs

    def state(self) -> dict[str, Any]:
        return {"sick": self.sick, "healthy_step": self.healthy_step, "best_valid": self.best_valid}

    def load_state(self, state: dict[str, Any]) -> None:
        self.sick, self.healthy_step = int(state["sick"]), int(state["healthy_step"])
        self.best_valid = float(state["best_valid"])
