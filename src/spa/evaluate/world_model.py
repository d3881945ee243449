"""How well a model's observations and predictions agree with what the world really showed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spa.agent.episode import Episode, Turn
from spa.data.states import cell_accuracy, changed_cell_accuracy, exact

PREFIX = "world_model/"


@dataclass
class _Means:
    """Running means by name; a name without values is absent, so nothing is ever divided by zero."""

    values: dict[str, list[float]]

    def add(self, names: Iterable[str], value: float | None) -> None:
        if value is not None:
            for name in names:
                self.values[name].append(float(value))

    def result(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.values.items() if values}


Legal = Callable[[str, str], bool | None]


def _score(turn: Turn, position: int, means: _Means, legal: Legal | None) -> None:
    groups = ("", f"turn_{position + 1}/", f"actions_{len(turn.executed)}/")
    changed = not exact(turn.next_state, turn.state)
    means.add([f"{group}coverage" for group in groups], turn.prediction is not None)
    means.add(["observation_coverage"], turn.observation is not None)
    if turn.observation is not None:
        means.add([f"{group}observation_em" for group in groups], exact(turn.observation, turn.state))
        means.add([f"{group}observation_cell_acc" for group in groups], cell_accuracy(turn.observation, turn.state))
        if legal is not None:
            means.add([f"{group}observation_legal" for group in groups], legal(turn.observation, turn.state))
    if turn.prediction is not None:
        match = exact(turn.prediction, turn.next_state)
        means.add([f"{group}prediction_em" for group in groups], match)
        means.add([f"{group}prediction_cell_acc" for group in groups], cell_accuracy(turn.prediction, turn.next_state))
        if legal is not None:
            means.add([f"{group}prediction_legal" for group in groups], legal(turn.prediction, turn.state))
        means.add(["changed"], changed)
        if changed:
            means.add(["prediction_em_changed"], match)
            share = changed_cell_accuracy(turn.prediction, turn.next_state, turn.state)
            means.add(["prediction_cell_acc_changed"], share)


def world_model_metrics(episodes: Iterable[Episode], legal: Legal | None = None) -> dict[str, float]:
    """World-model accuracy over all turns of all episodes; every turn counts once.

    All names start with ``world_model/``; all values but the counts are shares in [0, 1]:

    * ``observation_em``, ``prediction_em``: exact match (up to surrounding white space) of the observation with the
      turn's true state, and of the prediction with the true state after all executed actions; over the turns that
      wrote one.
    * ``prediction_em_changed``: the same over the turns whose state really changed: copying the state scores 0 here.
    * ``observation_cell_acc``, ``prediction_cell_acc``: ``cell_accuracy``, mean over the same turns; and
      ``prediction_cell_acc_changed``, over the cells that changed only.
    * ``observation_legal``, ``prediction_legal``: share of those written that ``legal(written, true state)`` does not rule out
      (``TextEnv.legal``: one player, all boxes there, walls and targets where they were); absent where it cannot say.
    * ``coverage``, ``observation_coverage``: share of turns that wrote a prediction, an observation.
    * ``changed``: share of the turns with a prediction whose state changed. ``1 - changed`` is what a model would score
      in ``prediction_em`` by copying the state.
    * ``turn_{i}/...`` with ``i`` counted from 1, and ``actions_{m}/...`` for turns that executed m actions: the same for
      a part of the turns.
    * ``turns``, ``observations``, ``predictions``, ``changed_predictions``: counts.

    A metric that no turn supports is absent. Episodes with status ``error`` are left out.
    """
    means = _Means(defaultdict(list))
    for episode in episodes:
        if episode.status != "error":
            for position, turn in enumerate(episode.turns):
                _score(turn, position, means, legal)
    counts = {
        "turns": len(means.values["coverage"]),
        "observations": len(means.values["observation_em"]),
        "predictions": len(means.values["prediction_em"]),
        "changed_predictions": len(means.values["prediction_em_changed"]),
    }
    return {PREFIX + name: value for name, value in {**dict(sorted(means.result().items())), **counts}.items()}
