"""Predictions beside the truth, and stage 1's corrections: the examples that the report shows outside its theatre."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from markupsafe import Markup

from spa.agent.episode import Episode, Turn
from spa.envs.states import bare, cell_accuracy, exact, same
from spa.evaluate.roles import BASE, MAIN_VARIANTS, PLANNED
from spa.report.boards import Alphabet, board
from spa.report.data import SelfPlay, VariantReport
from spa.report.theatre import imagined
from spa.report.turns import Segment, cut, mark_differences

Picture = Markup | list[list[Segment]]
"""A board, or text with the differences marked."""


@dataclass(frozen=True)
class Example:
    """A turn's prediction beside the actual state; ``cells`` is the share of its cells that are right, None without a grid."""

    seed: int
    before: Picture
    actions: Sequence[str]
    predicted: Picture
    actual: Picture
    exact: bool
    cells: float | None


def examples(
    variants: Mapping[str, VariantReport], letters: Alphabet, most: int = 3
) -> list[tuple[str, list[Example]]]:
    """The first ``most`` predictions, each of another world, where an action changed the state: of the base, then of the
    recipe's variant, then of those with a planner, whose imagined states count as predictions."""
    main = [name for name in MAIN_VARIANTS if name in variants][:1]
    planned = [name for name in variants if PLANNED in name]
    chosen = []
    for name in dict.fromkeys([BASE, *main, *planned]):
        shown = list(islice(_examples(variants[name].episodes, letters), most)) if name in variants else []
        if shown:
            chosen.append((name, shown))
    return chosen


def _examples(episodes: Sequence[Episode], letters: Alphabet) -> Iterator[Example]:
    for episode in episodes:
        for turn in episode.turns:
            written = expected(turn)
            if written is not None and turn.executed and not same(turn.next_state, turn.state):
                yield _example(episode.seed, turn, written, letters)
                break


def expected(turn: Turn) -> str | None:
    """The next state that the model wrote or a planner imagined, or None; what the planner remembered is no prediction."""
    if turn.prediction is not None:
        return bare(turn.prediction, turn.next_state, turn.state)
    plan = imagined(turn)
    return None if plan.get("remembered") else plan.get("state") or None


def _example(seed: int, turn: Turn, written: str, letters: Alphabet) -> Example:
    before, actual, predicted = cut(turn.state), cut(turn.next_state), cut(written)
    drawn = board(actual, letters)
    return Example(
        seed,
        board(before, letters) or mark_differences(before, before),
        turn.executed,
        board(predicted, letters, actual) or mark_differences(predicted, actual),
        drawn or mark_differences(actual, predicted),
        exact(written, turn.next_state, turn.state),
        cell_accuracy(written, turn.next_state),
    )


@dataclass(frozen=True)
class Pair:
    """A response of stage 1 before and after its correction, the differences marked; ``before`` None: nothing was written."""

    before: list[list[Segment]] | None
    after: list[list[Segment]]
    actions: Sequence[str]


def pairs(stage: SelfPlay) -> list[Pair]:
    out = []
    for sample in stage.samples:
        after = cut(sample.trained)
        before = None if sample.written is None else cut(sample.written)
        out.append(
            Pair(
                None if before is None else mark_differences(before, after),
                mark_differences(after, after if before is None else before),
                sample.executed,
            )
        )
    return out


def kept(stage: SelfPlay) -> list[tuple[str, str]]:
    """What stage 1 played and kept, as shown: label and value."""
    stats = stage.stats
    facts = [
        (label, f"{stats[key]:,}")
        for key, label in (("episodes", "episodes"), ("worlds", "worlds"), ("turns", "turns"))
        if isinstance(stats.get(key), int)
    ]
    rows = [stats[key] for key in ("rows_train", "rows_val") if isinstance(stats.get(key), int)]
    facts += [("rows kept", " + ".join(f"{n:,}" for n in rows))] if rows else []
    for key, label in (("format_rate", "format right"), ("success", "success")):
        if isinstance(stats.get(key), float):
            facts.append((label, f"{100 * stats[key]:.1f}%"))
    dropped = stats.get("dropped")
    if isinstance(dropped, Mapping):
        counts = [f"{count:,} {reason}" for reason, count in dropped.items() if isinstance(count, int)]
        facts += [("dropped", ", ".join(counts))] if counts else []
    return facts
