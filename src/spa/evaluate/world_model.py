"""Accuracy of a model's observations and predictions against the true states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from spa.agent.episode import Episode, Turn
from spa.envs.states import cell_accuracy, exact, same

PREFIX = "world_model/"


Legal = Callable[[str, str], bool | None]


def _score(turn: Turn, position: int, values: dict[str, list[float]], legal: Legal | None) -> None:
    """Adds a turn to the values of each metric."""
    groups = ("", f"turn_{position + 1}/", f"actions_{len(turn.executed)}/")

    def add(name: str, value: float | None, groups: Sequence[str] = groups) -> None:
        if value is not None:
            for group in groups:
                values[group + name].append(float(value))

    add("coverage", turn.prediction is not None)
    add("observation_coverage", turn.observation is not None, ("",))
    if turn.observation is not None:
        add("observation_em", exact(turn.observation, turn.state, turn.next_state))
        add("observation_cell_acc", cell_accuracy(turn.observation, turn.state))
        add("observation_legal", legal(turn.observation, turn.state) if legal else None)
    if turn.prediction is not None:
        match = exact(turn.prediction, turn.next_state, turn.state)
        changed = not same(turn.next_state, turn.state)
        add("prediction_em", match)
        add("prediction_cell_acc", cell_accuracy(turn.prediction, turn.next_state))
        add("prediction_legal", legal(turn.prediction, turn.state) if legal else None)
        add("changed", changed, ("",))
        if changed:
            share = cell_accuracy(turn.prediction, turn.next_state, turn.state)
            add("prediction_em_changed", match, ("",))
            add("prediction_cell_acc_changed", share, ("",))


def world_model_metrics(episodes: Iterable[Episode], legal: Legal | None = None) -> dict[str, float]:
    """World-model accuracy over all turns of all episodes; every turn counts once.

    All names start with ``world_model/``; all values but the counts are shares in [0, 1]:

    * ``observation_em``, ``prediction_em``: exact match (up to surrounding white space) of the observation with the
      turn's true state, and of the prediction with the true state after all executed actions; over the turns that
      wrote one.
    * ``prediction_em_changed``: the same over the turns whose state changed: copying the state scores 0 here.
    * ``observation_cell_acc``, ``prediction_cell_acc``: ``cell_accuracy``, mean over the same turns; and
      ``prediction_cell_acc_changed``, over the cells that changed only.
    * ``observation_legal``, ``prediction_legal``: share of those written that ``legal(written, true state)`` does not rule out
      (``TextEnv.legal``: one player, all boxes present, walls and targets unmoved); absent if the world cannot tell.
    * ``coverage``, ``observation_coverage``: share of turns that wrote a prediction, an observation.
    * ``changed``: share of the turns with a prediction whose state changed. ``1 - changed`` is what a model would score
      in ``prediction_em`` by copying the state.
    * ``turn_{i}/...`` with ``i`` counted from 1, and ``actions_{m}/...`` for turns that executed m actions: the same for
      a subset of the turns.
    * ``turns``, ``observations``, ``predictions``, ``changed_predictions``: counts.

    Metrics without any turn are absent. Episodes with status ``error`` are left out.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        if not episode.failed:
            for position, turn in enumerate(episode.turns):
                _score(turn, position, values, legal)
    counts = {
        "turns": len(values["coverage"]),
        "observations": len(values["observation_em"]),
        "predictions": len(values["prediction_em"]),
        "changed_predictions": len(values["prediction_em_changed"]),
    }
    means = {name: sum(entries) / len(entries) for name, entries in sorted(values.items()) if entries}
    return {PREFIX + name: value for name, value in {**means, **counts}.items()}
