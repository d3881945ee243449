"""What stage 2 has taught, in a few lines: predictions against the truth before and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spa.agent.episode import Episode
from spa.common.tables import side_by_side
from spa.envs.states import exact

Measured = tuple[dict[str, float], list[Episode]]
"""Metrics of the world model, and the episodes that they were measured on."""
_LINES = 16  # of a state
_LONGEST = 960  # characters


def shown(before: Measured | None, after: Measured) -> str:
    """The share of exact predictions before and after stage 2, and one prediction of each beside the actual state.

    It is the first prediction of a turn that changed the state, right or wrong. ``before`` is None in a resumed stage.
    """
    stages = {name: stage for name, stage in (("before SFT", before), ("after SFT", after)) if stage is not None}
    shares = ", ".join(f"{_exact(metrics)} {name}" for name, (metrics, _) in stages.items())
    lines = [f"world model, predictions that are exact on validation worlds: {shares}"]
    for name, (_, episodes) in stages.items():
        lines += _example(name, episodes)
    return "\n".join(lines)


def _exact(metrics: Mapping[str, float]) -> str:
    """``"98.2% (97.1% of 75 that change the state)"``; a turn that wrote no prediction is not counted."""
    if not metrics.get("world_model/predictions"):
        return "none written"
    text = f"{metrics['world_model/prediction_em']:.1%}"
    changed = metrics.get("world_model/changed_predictions")
    if not changed:
        return text
    return f"{text} ({metrics['world_model/prediction_em_changed']:.1%} of {changed:.0f} that change the state)"


def _example(name: str, episodes: Sequence[Episode]) -> list[str]:
    turn = next((t for e in episodes for t in e.turns if t.prediction is not None and t.next_state != t.state), None)
    if turn is None:
        return []
    prediction = turn.prediction or ""
    verdict = "right" if exact(prediction, turn.next_state, turn.state) else "wrong"
    columns = [("state", turn.state), ("predicted", prediction.strip()), ("actual", turn.next_state)]
    cut = [(title, "\n".join(text[:_LONGEST].splitlines()[:_LINES])) for title, text in columns]
    return [f"  {name}, {', '.join(turn.executed)} ({verdict}):", *(f"  {line}" for line in side_by_side(cut))]
