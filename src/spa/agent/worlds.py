"""World splits, disjoint by seed and by content."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spa.agent.task import Task
from spa.common.names import choose
from spa.common.progress import INTERVAL, note, progress
from spa.config.seeds import SEEDS_OF_A_RUN
from spa.envs.checked import WorldError

# Each split's range of content hashes, as shares of all worlds.
SHARES = {"test": (0.0, 0.15), "val": (0.15, 0.25), "selfplay": (0.25, 0.5), "train": (0.5, 1.0)}
SPLITS: tuple[str, ...] = tuple(SHARES)
WORLD_SPLITS = ("train", "val", "test")  # splits that a world may declare
_GIVE_UP = 20_000  # candidates in a row without a new world
_CHECKED, _SECONDS = 500, 2.0  # candidates that a check before the run looks at, and for how long at most
_FEW = 0.8  # share of new worlds among them below which it looks on
_FADING = 0.8  # ratio of the new worlds in two successive doublings of the looks up to which their end is foreseen
_MARGIN = 2.0  # times the worlds that are foreseen
_ALL_NEW = 64  # different ones in a row after which worlds are not few
_TRIED = 8  # worlds of which a check before the run must be able to reset one


@dataclass(frozen=True)
class World:
    """A seed of the task's world and digests of its problem.

    Two worlds have equal ``content`` exactly if they pose the same problem, and equal ``symmetry`` if one is a rotation or
    mirror image of the other (None if the world does not report symmetries). ``from_reset`` says that ``content`` is that of a
    reset, which every other reset of the seed must repeat.
    """

    seed: int
    content: str
    symmetry: str | None = None
    from_reset: bool = False

    def noise_seed(self, member: int) -> int:
        """Seed of the transition noise (slipping) for one member of a group; the world stays the same."""
        return int(np.random.SeedSequence([self.seed, member]).generate_state(1)[0])


def content_key(content: str) -> str:
    """A short, stable digest of a world's content (16 hexadecimal digits)."""
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def content_of(state: str, info: Mapping[str, Any]) -> str:
    """The digest of the content that a reset returned; a world that names none is its first state."""
    return content_key(str(info.get("content", state)))


def split_of(key: str, declared: str | None = None) -> str:
    """The split that a content key belongs to.

    Args:
        declared: the world's own split, ``info["split"]``, if it has one: ``test`` and ``val`` are kept; ``train`` is divided
            between self-play and training one to two, as for hashed worlds.

    Raises:
        ValueError: ``declared`` is none of these.
    """
    position = int(key[:13], 16) / 16**13
    if declared is not None:
        if (named := choose("split of a world", str(declared), WORLD_SPLITS)) != "train":
            return named
        first = SHARES["selfplay"][0]
        position = first + (1 - first) * position
    return next(name for name, (low, high) in SHARES.items() if low <= position < high)


class WorldSource:
    """The worlds of one split, in a fixed order starting at its first seed.

    With ``disjoint="content"`` a candidate seed is used only if its world's content hashes into the split, so no world occurs
    in two splits; with ``"symmetry"`` neither do its rotations and mirror images, if the world reports them
    (``info["symmetry"]``). A world that declares its split in ``info["split"]`` is used there (``split_of``). ``unique`` also
    skips worlds that this source has already returned (evaluation).
    ``cursor`` is the offset of the next candidate: save it and set it to resume.

    Raises:
        ValueError: unknown split, a world that declares an unknown split, or too few distinct worlds.
    """

    def __init__(self, task: Task, split: str, first_seed: int, *, unique: bool = False) -> None:
        self.task = task
        self.split = choose("split", split, SPLITS)
        self.disjoint = task.env.disjoint
        self.first_seed = first_seed
        self.unique = unique and self.disjoint != "seed"  # when split by seed alone, worlds may repeat
        self.cursor = 0
        self.failure = ""  # of the last world that could not be reset
        self._env = task.make_env()
        self._taken: set[str] = set()

    def take(self, count: int, bar: progress | None = None, *, setting: str | None = None) -> list[World]:
        """The next ``count`` worlds, as ``setting`` asks; ``bar`` shows how many have been found."""
        worlds: list[World] = []
        fruitless, began, noted = 0, self.cursor, time.monotonic()
        while len(worlds) < count:
            if bar is None and time.monotonic() > noted + INTERVAL:
                note(f"worlds for split {self.split!r}: {len(worlds)}/{count}, {self.cursor - began} seeds looked at")
                noted = time.monotonic()
            if self.cursor >= SEEDS_OF_A_RUN:
                raise ValueError(f"the seeds of split {self.split!r} are used up")
            if fruitless >= _GIVE_UP:
                found = len(self._taken) if self.unique else len(worlds)
                raise ValueError(_too_few(self.task, (self.split, found, count, setting)))
            seed = self.first_seed + self.cursor
            self.cursor += 1
            world, key, split = self.look(seed)
            if split != self.split or (self.unique and key in self._taken):
                fruitless += 1
                continue
            fruitless = 0
            if self.unique:
                self._taken.add(key)
            worlds.append(world)
            if bar:
                bar.advance()
        return worlds

    def look(self, seed: int) -> tuple[World, str, str]:
        """The world of a seed, the key that tells it from others, and the split that it belongs to.

        One that fails has a content of its own: whoever plays it gets an episode with the error.
        """
        try:
            state, info = self._env.reset(seed=seed)
        except WorldError as failure:
            self.failure = f"seed {seed}: {failure}"
            world, own_split = World(seed, content_key(f"failed {seed}")), None
        else:
            symmetry = info.get("symmetry")
            symmetry_key = None if symmetry is None else content_key(str(symmetry))
            world, own_split = World(seed, content_of(state, info), symmetry_key, from_reset=True), info.get("split")
        key = (world.symmetry or world.content) if self.disjoint == "symmetry" else world.content
        return world, key, self.split if self.disjoint == "seed" else split_of(key, own_split)


def check_enough(
    task: Task, counts: Mapping[str, int], first_seed: int, settings: Mapping[str, str] | None = None
) -> None:
    """Refuses a task whose worlds cannot be reset, or are clearly too few, before a source looks for them in vain.

    It looks at 500 seeds, fewer where all worlds differ, more where many are alike, for at most two seconds, and judges only where
    the last half gave no new world, or clearly fewer than the quarter before it: then a geometric series over further doublings
    of the looks gives how many more to expect. Where some worlds are very rare, new ones keep turning up, and nothing is judged.

    Args:
        counts: distinct worlds needed, by split.
        settings: the settings that ask for them, by split.

    Raises:
        ValueError: a split has fewer, or none of the first worlds can be reset.
    """
    if not any(counts.values()):
        return
    source = WorldSource(task, "val", first_seed)
    known: set[str] = set()
    seen = [0]  # how many worlds after each look
    missing = Counter(counts)
    looks = 0
    begun = False
    end = time.monotonic() + _SECONDS
    while (+missing or not begun) and time.monotonic() < end and not len(known) == looks == _ALL_NEW:
        if looks >= _CHECKED and (seen[-1] == seen[looks // 2] or len(known) > _FEW * looks):
            break
        world, key, split = source.look(first_seed + looks)
        looks += 1
        begun = begun or world.from_reset
        if not begun and looks == _TRIED:
            raise ValueError(
                f"{task.env.id}: none of {looks} worlds can be reset, the last: {source.failure}; spa env check shows more"
            )
        if begun and task.env.disjoint == "seed":
            return
        if key not in known:
            known.add(key)
            missing[split] -= 1
        seen.append(len(known))
    before, last = seen[looks // 2] - seen[looks // 4], seen[-1] - seen[looks // 2]
    ratio = (last + 1) / (before + 1)
    if looks < _CHECKED or (last and ratio > _FADING):
        return
    unseen = _MARGIN * last * ratio / (1 - ratio) if last else 0.0
    few = []
    for split, count in (+missing).items():
        found = counts[split] - count
        if count > unseen * (found + 1) / (len(known) + 1):
            few.append((split, found, counts[split], (settings or {}).get(split)))
    if few:
        raise ValueError(_too_few(task, *few))


def _too_few(task: Task, *few: tuple[str, int, int, str | None]) -> str:
    """Of splits, each with the worlds that were found and asked for, and the setting that asks."""
    parts = [
        f"{found} distinct worlds for split {split!r} ({count} asked for{f' by {setting}' if setting else ''})"
        for split, found, count, setting in few
    ]
    fewer = "ask for fewer, " if all(found for _, found, _, _ in few) else ""
    return (
        f"world {task.env.id!r} gave only {' and '.join(parts)}: {fewer}choose larger worlds or set env.disjoint=seed"
    )


def world_keys(worlds: Iterable[World]) -> dict[str, str | None]:
    """The record of the worlds used by a stage: content -> symmetry, sorted."""
    return dict(sorted((world.content, world.symmetry) for world in worlds))


def overlaps(contents: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """The number of worlds shared by each pair of splits: ``{"train&test": 0, ...}``."""
    sets = {name: set(keys) for name, keys in contents.items()}
    names = list(sets)
    return {f"{a}&{b}": len(sets[a] & sets[b]) for i, a in enumerate(names) for b in names[i + 1 :]}
