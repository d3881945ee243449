"""The numbers of a reproduction in a file, and joined from several: seeds or variants run on several machines, or later.

A file holds the measurements (successes in every test world) and the numbers computed from them, so that tables can be rebuilt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spa.common.names import choose
from spa.common.progress import note
from spa.common.typed import parse
from spa.evaluate.roles import PLANNED
from spa.reproduce.results import Curve, Numbers, VariantNumbers, compute, evaluated, unequal
from spa.reproduce.scale import Scale


def to_json(numbers: Numbers) -> str:
    """All numbers as JSON; the successes of a seed's worlds are one line of text."""
    data = {world: {name: asdict(entry) for name, entry in variants.items()} for world, variants in numbers.items()}
    for variants in data.values():
        for entry in variants.values():
            entry["successes"] = {seed: " ".join(map(str, row)) for seed, row in entry["successes"].items()}
    return json.dumps(data, indent=1, allow_nan=False)


def from_json(text: str) -> Numbers:
    """Reads the output of ``to_json``, without what ``compute`` sets.

    Raises:
        ValueError: an invalid file; the message says what is wrong.
    """
    try:
        numbers = parse(Numbers, text)
        for variants in numbers.values():
            for entry in variants.values():
                entry.passes, entry.differences, entry.by_seed = {}, {}, {}
                _check(entry)
    except ValueError as error:
        raise ValueError(f"not the numbers of a reproduction: {error}") from error
    return numbers


def _check(entry: VariantNumbers) -> None:
    if entry.failed and not entry.successes:
        return
    if len({len(row) for row in entry.successes.values()}) != 1 or entry.samples < 1:
        raise ValueError("every seed must have the same worlds")
    if not all(0 <= wins <= entry.samples for row in entry.successes.values() for wins in row):
        raise ValueError(f"a world was won more often than its {entry.samples} samples, or less than never")


def read_numbers(paths: Sequence[Path], scale: Scale, asked: Sequence[str] = ()) -> Numbers:
    """The numbers of files with different seeds or variants, for the worlds, variants and comparisons of a scale.

    Raises:
        ValueError: no such file, not the numbers of a reproduction, of none of the scale's worlds, files that cannot be joined, or
            one of the variants ``asked`` for is in no world.
    """
    stored: Numbers = {}
    for path in paths:
        try:
            stored = join(stored, from_json(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    if cut := [
        world
        for world, variants in stored.items()
        if len({len(e.successes[e.seeds[0]]) for e in evaluated(variants).values()}) > 1
    ]:
        raise ValueError(f"{', '.join(map(str, paths))}: variants of {', '.join(cut)} have different numbers of worlds")
    names = {world: ("base", *(Path(name).stem for name in scale.variants_of(world))) for world in scale.worlds}
    chosen = {
        # Including their planners' numbers, named "variant+planner".
        world: {
            variant: entry for variant, entry in stored[world].items() if variant.partition(PLANNED)[0] in names[world]
        }
        for world in scale.worlds
        if world in stored
    }
    if not chosen:
        raise ValueError(f"{paths[0]} has no world of scale {scale.name} (it has {', '.join(stored)})")
    there = dict.fromkeys(name.partition(PLANNED)[0] for world in chosen for name in stored[world])
    for variant in asked:
        choose("variant of the numbers", Path(variant).stem, there)
    for world, variants in chosen.items():
        if others := [name for name in stored[world] if name not in variants]:
            note(f"{world}: left out, since they are not among the variants of scale {scale.name}: {', '.join(others)}")
    compute(chosen, scale.compared)
    return chosen


def fewer(path: Path, numbers: Numbers) -> str:
    """``"1 of 2 worlds, 1 of 3 seeds"`` where ``numbers`` lack what the file at ``path`` has; empty where they lack nothing, or
    there is no such file."""
    try:
        before = _extent(from_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return ""
    now = _extent(numbers)
    lacking = [what for what in now if before[what] - now[what]]
    return ", ".join(f"{len(now[what])} of {len(before[what] | now[what])} {what}" for what in lacking)


def _extent(numbers: Numbers) -> dict[str, set[Any]]:
    entries = [(name.partition(PLANNED)[0], entry) for variants in numbers.values() for name, entry in variants.items()]
    return {
        "worlds": set(numbers),
        "variants": {name for name, _ in entries},
        "seeds": {seed for _, entry in entries for seed in (*entry.seeds, *entry.failed)},
    }


def join(first: Numbers, second: Numbers) -> Numbers:
    """The numbers of both, without what ``compute`` sets; means weigh each part by its seeds.

    A variant with the same results may be in both (the base, where others were run later) if one has all seeds of the other. A
    seed that failed in one and has a result in the other did not fail.

    Raises:
        ValueError: a seed of a variant is otherwise in both, was evaluated on other worlds or with another number of samples, or
            the variant was run with other settings. Those of the base are the runs', so that its results may be the same and other
            variants still not comparable.
    """
    joined: Numbers = {}
    for world in dict.fromkeys([*first, *second]):
        one, other = first.get(world, {}), second.get(world, {})
        joined[world] = {}
        for name in dict.fromkeys([*one, *other]):
            if name in one and name in other:
                try:
                    both = _joined(one[name], other[name])
                except ValueError as error:
                    raise ValueError(f"{world}, variant {name}: {error}") from error
                failed = one[name].failed | other[name].failed
                failed = {seed: why for seed, why in failed.items() if seed not in both.successes}
                joined[world][name] = replace(both, failed=failed)
            else:
                joined[world][name] = one.get(name) or other[name]
    return joined


def _joined(one: VariantNumbers, other: VariantNumbers) -> VariantNumbers:
    if one.successes and other.successes and (one.worlds, one.samples) != (other.worlds, other.samples):
        raise ValueError("the files are of different worlds or numbers of samples")
    if text := unequal(one.settings, other.settings):
        raise ValueError(f"the files are of runs with other settings: {text}")
    for part, whole in ((one, other), (other, one)):
        if part.successes.items() <= whole.successes.items():
            return whole
    if twice := one.successes.keys() & other.successes.keys():
        raise ValueError(f"seed {min(twice)} is in both files, with other results or among other seeds")
    share = len(one.seeds) / (len(one.seeds) + len(other.seeds))

    def mean(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
        return {name: share * a.get(name, 0.0) + (1 - share) * b.get(name, 0.0) for name in dict.fromkeys([*a, *b])}

    out = VariantNumbers(
        one.worlds,
        one.samples,
        one.successes | other.successes,
        actions_by_seed=one.actions_by_seed | other.actions_by_seed,
        tokens_by_seed=one.tokens_by_seed | other.tokens_by_seed,
        cut_off_by_seed=one.cut_off_by_seed | other.cut_off_by_seed,
        reward_by_seed=one.reward_by_seed | other.reward_by_seed,
        actions=mean(one.actions, other.actions) if one.actions and other.actions else {},
        seconds=mean(one.seconds, other.seconds),
        cpu_seconds=mean(one.cpu_seconds, other.cpu_seconds),
        settings=one.settings if other.settings else {},
    )
    out.world_model = mean(
        *({k: e.world_model[k] for k in one.world_model.keys() & other.world_model.keys()} for e in (one, other))
    )
    for name in one.curves.keys() & other.curves.keys():
        a, b = dict(one.curves[name]), dict(other.curves[name])
        out.curves[name] = [(step, share * a[step] + (1 - share) * b[step]) for step in sorted(a.keys() & b.keys())]
        by_seed = _by_seed(one, name) | _by_seed(other, name)
        if len(by_seed) == len(out.seeds):
            out.curves_by_seed[name] = [by_seed[seed] for seed in out.seeds]
    return out


def _by_seed(entry: VariantNumbers, name: str) -> dict[int, Curve]:
    """Each seed's curve; empty where only their mean was stored."""
    curves = entry.curves_by_seed.get(name) or ([entry.curves[name]] if len(entry.seeds) == 1 else [])
    return dict(zip(entry.seeds, curves, strict=False))
