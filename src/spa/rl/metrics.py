"""What a step's training episodes and its update were like."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spa.agent.episode import Episode
from spa.rl.batch import TrainSequence
from spa.rl.health import repetition


@dataclass
class Sums:
    """Running sums for an update's mean metrics: over trained tokens and over the optimizer steps that have them."""

    tokens: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    steps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    num_tokens: int = 0
    num_steps: int = 0
    stopped: bool = False

    def means(self) -> dict[str, float]:
        means = {f"losses/{name}": value / max(1, self.num_tokens) for name, value in self.tokens.items()}
        return means | {name: sum(values) / len(values) for name, values in self.steps.items()}


def rollout_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Means over a step's training episodes, under the names ``train/*``."""
    played = [episode for episode in episodes if not episode.failed]
    metrics = {"train/errors": float(len(episodes) - len(played))}
    if not played:
        return metrics
    turns = [turn for episode in played for turn in episode.turns]
    sequences = [sequence for episode in played for sequence in episode.sequences]
    sampled = [logprob for s in sequences for logprob, is_own in zip(s.logprobs, s.mask, strict=True) if is_own]
    finished = Counter(turn.finish_reason for turn in turns)
    metrics |= {
        "train/success": float(np.mean([episode.success for episode in played])),
        "train/score": float(np.mean([episode.score for episode in played])),
        "train/num_turns": len(turns) / len(played),
        "train/num_actions": sum(len(turn.executed) for turn in turns) / len(played),
        "train/format_rate": float(np.mean([turn.format_ok for turn in turns])),
        "train/valid_rate": float(np.mean([turn.valid for turn in turns])),
        "train/cut_off": finished["length"] / len(turns),
        "train/repetition": repetition(played),
        "train/response_tokens": len(sampled) / len(turns),
        # An estimate, also of a step that is not trained on.
        "train/entropy": 0.0 - float(np.mean(sampled)) if sampled else 0.0,
    }
    return metrics


def values_explained(sequences: Sequence[TrainSequence]) -> dict[str, float]:
    """The share of the returns' variance that a critic's values explain; 0 where the returns are all equal."""
    returns = np.concatenate([sequence.returns[sequence.mask] for sequence in sequences])
    values = np.concatenate([sequence.values[sequence.mask] for sequence in sequences])
    equal = returns.std() < 1e-9  # but for rounding
    return {"losses/explained_variance": 0.0 if equal else float(1 - (returns - values).var() / returns.var())}
