"""From the run folders of a reproduction to its numbers: means over seeds, paired differences, learning curves, times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spa.evaluate.bootstrap import Interval
from spa.evaluate.passk import pass_at_k
from spa.evaluate.summary import EvalResult
from spa.reproduce.scale import BASELINE, Cell
from spa.runs.arms import needs_sft, selfplay_folder, sft_folder
from spa.runs.clock import Spent
from spa.runs.config import load_arm, load_config
from spa.runs.metrics import read_metrics
from spa.runs.schema import ArmConfig
from spa.runs.stage import read_done

Curve = list[tuple[float, float]]
Passes = Mapping[int, NDArray[np.float64]]  # k -> Pass@k of every world
Tables = Mapping[int, Passes]  # seed -> that


@dataclass
class ArmNumbers:
    """One arm in one world: shares in [0, 1], means over the seeds that are finished.

    ``passes`` is Pass@k by k, ``differences`` to other arms, by their names, the same on the worlds and seeds that both have;
    ``by_seed`` the Pass@1 of each seed. ``actions_by_seed`` are the actions a turn on the test worlds: whether a policy acts
    step by step or writes whole plans can differ between seeds, and counts for much.
    ``seconds`` is what the arm's stages took by the wall, ``cpu_seconds`` in processor time, mean over seeds, without
    validation. Curves are means over seeds, where all have the point: of validation Pass@1 by PPO step, and of world-model accuracy
    by PPO step.
    """

    seeds: list[int] = field(default_factory=list)
    passes: dict[int, Interval] = field(default_factory=dict)
    differences: dict[str, dict[int, Interval]] = field(default_factory=dict)
    by_seed: dict[int, float] = field(default_factory=dict)
    actions_by_seed: dict[int, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    world_model: dict[str, float] = field(default_factory=dict)


Numbers = dict[str, dict[str, ArmNumbers]]  # world -> arm


def two_way(values_SW: NDArray[np.float64], *, resamples: int = 4000, seed: int = 0, level: float = 0.95) -> Interval:
    """The mean of values of (seeds, worlds), with a bootstrap interval in which seeds and worlds are both drawn again.

    What a world makes hard is common to all seeds, what a training run makes of it to all its worlds: both count. With one seed
    the spread over seeds is unknown, and the interval is that over worlds.

    Raises:
        ValueError: not a full table of finite numbers.
    """
    values = np.asarray(values_SW, dtype=np.float64)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ValueError(f"values must be a table (seeds, worlds) of finite numbers, got the shape {values.shape}")
    rng = np.random.default_rng(seed)
    seeds, worlds = values.shape
    draws = np.empty(resamples)
    for i in range(resamples):
        chosen = values[rng.integers(0, seeds, seeds)]
        draws[i] = chosen[:, rng.integers(0, worlds, worlds)].mean()
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(float(values.mean()), float(low), float(high))


def collect_cells(cells: Sequence[Cell], versus: Sequence[str] = (BASELINE,)) -> Numbers:
    """The numbers of all finished arms; the worlds and arms in the order of the scale, the base first.

    Args:
        versus: names of the arms that differences are taken to.
    """
    numbers: Numbers = {}
    for world in dict.fromkeys(cell.world for cell in cells):
        folders = {cell.seed: cell.folder for cell in cells if cell.world == world}
        arms = next(cell.arms for cell in cells if cell.world == world)
        found_arms = {load_arm(arm).name: arm for arm in dict.fromkeys(["base", *arms])}
        tables = {name: _tables(folders, name) for name in found_arms}
        numbers[world] = {
            name: _arm_numbers(folders, load_arm(found_arms[name]), found) for name, found in tables.items() if found
        }
        for name, found in numbers[world].items():
            for other in versus:
                if other != name and (paired := _paired(tables[name], tables.get(other, {}))):
                    found.differences[other] = paired
    return numbers


def _tables(folders: Mapping[int, Path], arm: str) -> Tables:
    """seed -> k -> Pass@k of every world, in the order of the worlds' seeds."""
    out: dict[int, Passes] = {}
    for seed, folder in folders.items():
        path = folder / "arms" / arm / "eval" / "result.json"
        if not path.is_file():
            continue
        result = EvalResult.read(path)
        worlds = sorted(result.worlds, key=lambda world: world.seed)
        successes = np.array([world.successes for world in worlds], dtype=np.int64)
        samples = np.array([world.samples for world in worlds], dtype=np.int64)
        out[seed] = {k: pass_at_k(successes, samples, k) for k in result.ks}
    return out


def _stack(tables: Sequence[Passes], k: int) -> NDArray[np.float64] | None:
    """(seeds, worlds), or None if not all have this k and as many worlds."""
    found = [table[k] for table in tables if k in table]
    if len(found) < len(tables) or len({len(values) for values in found}) != 1:
        return None
    return np.stack(found)


def _arm_numbers(folders: Mapping[int, Path], arm: ArmConfig, tables: Tables) -> ArmNumbers:
    out = ArmNumbers(seeds=sorted(tables))
    for k in next(iter(tables.values())):
        values = _stack([tables[seed] for seed in out.seeds], k)
        if values is not None:
            out.passes[k] = two_way(values)
    out.by_seed = {seed: float(tables[seed][1].mean()) for seed in out.seeds}
    done = [folders[seed] for seed in out.seeds]
    times = [_spent(folder, arm) for folder in done]
    for stage in dict.fromkeys(name for found in times for name in found):
        spent = sum((found.get(stage, Spent()) for found in times), Spent())
        out.seconds[stage], out.cpu_seconds[stage] = spent.wall / len(times), spent.cpu / len(times)
    records = [read_metrics(folder / "arms" / arm.name / "ppo" / "metrics.jsonl") for folder in done]
    for name in ("val/pass@1", "world_model/prediction_em", "world_model/observation_em", "calibration/top1"):
        curve = _mean_curve([_curve(rows, name) for rows in records])
        if curve:
            out.curves[name] = curve
    results = [EvalResult.read(folder / "arms" / arm.name / "eval" / "result.json") for folder in done]
    for seed, result in zip(out.seeds, results, strict=True):
        if turns := result.metrics.get("num_turns"):
            out.actions_by_seed[seed] = result.metrics["num_actions"] / turns
    models = [result.world_model for result in results]
    shared = set.intersection(*(set(each) for each in models)) if models else set()
    out.world_model = {name: float(np.mean([each[name] for each in models])) for name in sorted(shared)}
    return out


def _paired(ours: Tables, theirs: Tables) -> dict[int, Interval]:
    """k -> the mean difference on the seeds that both have."""
    seeds = [seed for seed in sorted(ours) if seed in theirs]
    out: dict[int, Interval] = {}
    for k in ours[seeds[0]] if seeds else ():
        mine, others = _stack([ours[s] for s in seeds], k), _stack([theirs[s] for s in seeds], k)
        if mine is not None and others is not None and mine.shape == others.shape:
            out[k] = two_way(mine - others)
    return out


def _spent(folder: Path, arm: ArmConfig) -> dict[str, Spent]:
    """What each stage of an arm took; stages that it shares with others count in full."""
    cfg = load_config(folder / "config.yaml")
    stages = {}
    if needs_sft(cfg, arm):
        stages = {"self-play": selfplay_folder(folder, arm), "SFT": sft_folder(folder, arm)}
    if arm.rl:
        stages["PPO"] = folder / "arms" / arm.name / "ppo"
    found = {name: read_done(stage) for name, stage in stages.items()}
    return {name: Spent.of(done) for name, done in found.items() if done}


def _curve(rows: Sequence[Mapping[str, Any]], name: str) -> dict[float, float]:
    return {float(row["step"]): float(row[name]) for row in rows if row.get(name) is not None}


def _mean_curve(curves: Sequence[Mapping[float, float]]) -> Curve:
    if not curves:
        return []
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return [(step, float(np.mean([curve[step] for curve in curves]))) for step in steps]


def to_json(numbers: Numbers) -> str:
    """All numbers as JSON."""
    return json.dumps(
        {w: {a: asdict(n) for a, n in arms.items()} for w, arms in numbers.items()}, indent=1, allow_nan=False
    )
