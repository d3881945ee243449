"""What an update made of a training episode, kept with it for the report's theatre."""

from __future__ import annotations

from collections.abc import Sequence

from spa.agent.episode import Episode
from spa.rl.batch import TrainSequence

_DIGITS = 3  # a reader compares colours; more would make the files of episodes larger


def record_estimates(
    episodes: Sequence[Episode], by_episode: Sequence[Sequence[TrainSequence]], *, values: bool
) -> None:
    """Sets ``Episode.estimates``: the advantages and, with ``values``, the critic's values of each turn's sampled tokens."""
    for episode, sequences in zip(episodes, by_episode, strict=True):
        for name in ("advantages", "values") if values else ("advantages",):
            by_turn: list[list[float]] = [[] for _ in episode.turns]
            for sequence in sequences:
                for turn, value in zip(sequence.turns, getattr(sequence, name), strict=True):
                    if turn >= 0:
                        by_turn[turn].append(round(float(value), _DIGITS))
            episode.estimates[name] = by_turn
