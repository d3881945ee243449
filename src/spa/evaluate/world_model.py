"""How well a model's observations and predictions agree with what the world really showed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spa.agent.episode import Episode, Turn

PREFIX = "world_model/"
_SENTENCE = re.compile(r"\s*(?:Player \(.+?\) is at|Empty positions? to be filled|No empty positions? found)")

_IN_SENTENCES = ("Player (", "mpty position")  # looked for first: most states have none, and some have very many lines


def grid_part(state: str) -> str:
    """The lines of a state before its coordinate sentence, without surrounding white space.

    The sentence is the first line that starts with ``Player (P) is at`` (Sokoban, FrozenLake; any symbol), ``Empty
    position``, ``Empty positions to be filled`` or ``No empty positions found`` (Sudoku). A state without one is returned
    whole.
    """
    lines = state.strip().splitlines()
    if any(words in state for words in _IN_SENTENCES):
        lines = lines[: next((i for i, line in enumerate(lines) if _SENTENCE.match(line)), len(lines))]
    return "\n".join(lines).strip()


def is_board(grid: str) -> bool:
    """Whether a grid part is written as ``| a b c | ...``: rows after a bar, cells between spaces (Sudoku)."""
    return re.match(r"\|\s+\S", grid) is not None


def cells(state: str, board: bool | None = None) -> list[list[str]]:
    """Rows of cells of a state's grid part.

    A board (``is_board``; ``board`` overrides the guess) has its rows between bars and its cells between spaces. In every
    other grid a line is a row and a character a cell.
    """
    grid = grid_part(state)
    if is_board(grid) if board is None else board:
        return [row.split() for row in grid.split("|") if row.strip()]
    return [list(line.rstrip()) for line in grid.splitlines()]


def _is_grid(rows: Sequence[Sequence[str]]) -> bool:
    return len(rows) > 1 and len(rows[0]) > 1 and all(len(row) == len(rows[0]) and " " not in row for row in rows)


def cell_accuracy(written: str, truth: str) -> float | None:
    """Share of the cells of ``truth``'s grid that ``written`` has right at the same row and column.

    A cell that ``written`` lacks is wrong; cells beyond the true grid are ignored (exact match punishes those). None where
    ``truth`` is not a rectangular grid (free text worlds).
    """
    return _cell_accuracy(written, truth, None)


def changed_cell_accuracy(written: str, truth: str, before: str) -> float | None:
    """As ``cell_accuracy``, over the cells in which ``truth`` differs from ``before``; None where none does."""
    return _cell_accuracy(written, truth, before)


def _cell_accuracy(written: str, truth: str, before: str | None) -> float | None:
    board = is_board(grid_part(truth))
    true_rows, rows = cells(truth, board), cells(written, board)
    old_rows = cells(before, board) if before is not None else None
    if not _is_grid(true_rows):
        return None
    right = total = 0
    for r, true_row in enumerate(true_rows):
        row = rows[r] if r < len(rows) else []
        for c, cell in enumerate(true_row):
            if old_rows is not None and r < len(old_rows) and old_rows[r][c : c + 1] == [cell]:
                continue
            total += 1
            right += row[c : c + 1] == [cell]
    return right / total if total else None


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


def exact(written: str, truth: str) -> bool:
    """Equality up to surrounding white space."""
    return written.strip() == truth.strip()


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
