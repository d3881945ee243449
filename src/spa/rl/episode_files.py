"""The files of training episodes: one a step, thinned out evenly as they become many. Imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from spa.agent.episode import Episode, write_episodes


def step_file(out: Path, step: int) -> Path:
    """The file of a step's first training episodes."""
    return out / "episodes" / f"step_{step:06d}.jsonl"


def step_files(folder: Path) -> dict[int, Path]:
    """The files in ``episodes/`` by step, in order, without those of other names."""
    names = {path.stem.removeprefix("step_"): path for path in folder.glob("step_*.jsonl")}
    return dict(sorted((int(name), path) for name, path in names.items() if name.isdecimal()))


def some_of_each(episodes: Sequence[Episode], tasks: Sequence[int], most: int) -> list[Episode]:
    """The first episodes of each task, as many of one as of another as far as there are."""
    seen: Counter[int] = Counter()
    places = []
    for index, task in enumerate(tasks):
        places.append((seen[task], index))
        seen[task] += 1
    return [episodes[index] for index in sorted(index for _, index in sorted(places)[:most])]


def write_step(out: Path, step: int, episodes: Iterable[Episode], most: int) -> None:
    """Writes the episodes of ``step`` and leaves at most ``most`` files (0: all; else at least 2).

    Left are those of ``step``, of the first step and of every second, fourth, eighth ... after it. Which ones depends on ``step``
    alone, so that a resumed run has the same.
    """
    write_episodes(step_file(out, step), episodes)
    if not most:
        return
    stride = 1
    while (step - 1) // stride + 2 > max(most, 2) and stride < step:
        stride *= 2
    for number, path in step_files(out / "episodes").items():
        if number != step and (number - 1) % stride:
            path.unlink()
