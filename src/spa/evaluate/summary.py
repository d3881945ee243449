"""One variant's evaluation, its result file, and the comparison of variants."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spa.agent.episode import Episode
from spa.common.files import atomic_write
from spa.common.tables import text_table
from spa.common.text import clean
from spa.common.typed import KNOWN_KEYS, Finite, Whole, parse
from spa.config.fields import Positive
from spa.evaluate.bootstrap import Interval, bootstrap_mean, percent
from spa.evaluate.passk import pass_at_k
from spa.evaluate.roles import BASE
from spa.evaluate.verdict import VariantScore, counterparts, main_variant, verdict
from spa.runs.trainings import NO_TRAINING, Training


@dataclass(frozen=True)
class WorldResult:
    """All samples of one world: ``successes`` of ``samples``; an episode with an error is a sample without success."""

    group: int
    seed: int
    content: str
    successes: int
    samples: int


def group_worlds(episodes: Sequence[Episode]) -> list[WorldResult]:
    """Groups episodes by ``episode.group``, in ascending order.

    Raises:
        ValueError: a group mixes seeds (episodes of several evaluations were mixed).
    """
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    worlds = []
    for group, members in sorted(groups.items()):
        seeds = {episode.seed for episode in members}
        if len(seeds) > 1:
            raise ValueError(f"group {group} holds episodes of several seeds: {sorted(seeds)[:5]}")
        content = next((episode.content for episode in members if episode.content), "")
        successes = sum(episode.success and not episode.failed for episode in members)
        worlds.append(WorldResult(group, members[0].seed, content, successes, len(members)))
    return worlds


def _passes(worlds: Sequence[WorldResult], k: int) -> NDArray[np.float64]:
    """Pass@k of each world."""
    return pass_at_k([world.successes for world in worlds], [world.samples for world in worlds], k)


def pass_interval(worlds: Sequence[WorldResult], k: int, num_resamples: int, seed: int) -> Interval:
    """Pass@k over ``worlds``, each with equally many samples, with its 95% bootstrap interval.

    Raises:
        ValueError: ``k`` is larger than the samples of some world.
    """
    return bootstrap_mean(_passes(worlds, k), num_resamples, seed, least=0, most=1)


def allowed_ks(worlds: Sequence[WorldResult], ks: Sequence[int]) -> tuple[list[int], list[int]]:
    """``ks`` (sorted, unique, always with 1) for which every world has enough samples, and the remaining ks."""
    fewest = min((world.samples for world in worlds), default=0)
    wanted = sorted({1, *ks})
    return [k for k in wanted if 1 <= k <= fewest], [k for k in wanted if not 1 <= k <= fewest]


def play_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """How the episodes were played: means over the episodes without an error, or over their turns.

    Per episode: ``num_turns``, ``num_actions`` (executed), ``reward`` and ``penalty`` (totals). Per turn:
    ``format_rate`` (share), ``changed_turns`` (share whose state changed), ``response_chars``, ``response_tokens``
    (sampled ones, where token sequences were kept), ``cut_off`` (share that hit the token limit). ``valid_actions``: share
    of the parsed actions that the world executed and did not call invalid; the rest were unknown to it, or came
    after the end or the limit. A metric without any episode, turn or action is absent.
    """
    played = [episode for episode in episodes if not episode.failed]
    turns = [turn for episode in played for turn in episode.turns]
    executed = sum(len(turn.executed) for turn in turns)
    refused = sum(turn.invalid for turn in turns)
    sampled = sum(sum(sequence.mask) for episode in played for sequence in episode.sequences)
    sums = {  # name -> sum, count
        "num_turns": (len(turns), len(played)),
        "num_actions": (executed, len(played)),
        "reward": (sum(episode.total_reward for episode in played), len(played)),
        "penalty": (sum(episode.total_penalty for episode in played), len(played)),
        "format_rate": (sum(turn.format_ok for turn in turns), len(turns)),
        "valid_actions": (executed - refused, sum(len(turn.actions) for turn in turns)),
        "changed_turns": (sum(turn.next_state != turn.state for turn in turns), len(turns)),
        "response_chars": (sum(len(turn.response) for turn in turns), len(turns)),
        "cut_off": (sum(turn.finish_reason == "length" for turn in turns), len(turns)),
        "response_tokens": (sampled, len(turns) if sampled else 0),
    }
    return {name: total / count for name, (total, count) in sums.items() if count}


def summarize(
    episodes: Sequence[Episode], ks: Sequence[int] = (1, 8), bootstrap: int = 2000, seed: int = 0
) -> dict[str, float]:
    """All metrics of one evaluation, flat and finite, ready for logging.

    ``pass@{k}``, ``pass@{k}_low``, ``pass@{k}_high`` for 1 and every k of ``ks`` for which each world has enough samples
    (``allowed_ks`` names the others, ``EvalResult.skipped_ks`` keeps them); ``success`` (mean over all samples, = Pass@1);
    ``worlds``, ``samples``, ``errors``, ``status/*`` (counts); and ``play_metrics``. An episode with status ``error``
    counts as a failure in ``success`` and ``pass@k`` and is left out of ``play_metrics``. Without episodes: counts of 0.

    Args:
        episodes: samples of worlds, grouped by ``episode.group``.
        ks: the k of Pass@k.
        bootstrap: resamples of the worlds for the 95% intervals.
        seed: of the resampling.

    Raises:
        ValueError: a group mixes seeds.
    """
    worlds = group_worlds(episodes)
    out: dict[str, float] = {}
    for k in allowed_ks(worlds, ks)[0]:
        interval = pass_interval(worlds, k, bootstrap, seed)
        out |= {f"pass@{k}": interval.mean, f"pass@{k}_low": interval.low, f"pass@{k}_high": interval.high}
    if episodes:
        out["success"] = sum(world.successes for world in worlds) / len(episodes)
    out |= play_metrics(episodes)
    out |= {"worlds": len(worlds), "samples": len(episodes), "errors": sum(episode.failed for episode in episodes)}
    counts = Counter(episode.status for episode in episodes)
    return out | {f"status/{status}": count for status, count in sorted(counts.items())}


@dataclass
class EvalResult:
    """The result of one variant's evaluation, with every world's successes: enough to compare variants later.

    ``metrics`` is the result of ``summarize``, ``world_model`` that of ``spa.evaluate.probe`` (empty if nothing was written).
    ``skipped_ks`` are the requested k for which some world had too few samples.
    """

    __pydantic_config__ = KNOWN_KEYS

    name: str
    task: str
    worlds: list[WorldResult]
    metrics: dict[str, Whole | Finite] = field(default_factory=dict)
    world_model: dict[str, Whole | Finite] = field(default_factory=dict)
    ks: list[int] = field(default_factory=lambda: [1])
    skipped_ks: list[int] = field(default_factory=list)
    bootstrap: Positive = 2000
    seed: int = 0

    @classmethod
    def from_episodes(
        cls,
        name: str,
        episodes: Sequence[Episode],
        ks: Sequence[int] = (1, 8),
        bootstrap: int = 2000,
        seed: int = 0,
        world_model: Mapping[str, float] | None = None,
    ) -> EvalResult:
        """Summarises ``episodes``; ``world_model`` was measured separately.

        Raises:
            ValueError: as ``summarize``.
        """
        worlds = group_worlds(episodes)
        allowed, skipped = allowed_ks(worlds, ks)
        return cls(
            name=name,
            task=episodes[0].task if episodes else "",
            worlds=worlds,
            metrics=summarize(episodes, ks, bootstrap, seed),
            world_model=dict(world_model or {}),
            ks=allowed,
            skipped_ks=skipped if worlds else [],
            bootstrap=bootstrap,
            seed=seed,
        )

    @property
    def pass_1(self) -> float:
        """The share of all samples that succeeded."""
        return sum(world.successes for world in self.worlds) / sum(world.samples for world in self.worlds)

    @property
    def tokens(self) -> float:
        """Tokens written per episode, a planner's included; 0 if unknown."""
        written = self.metrics.get("response_tokens", 0.0) * self.metrics.get("num_turns", 0.0)
        return self.metrics.get("planner/tokens_written", written)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the result as JSON, atomically."""
        atomic_write(path, json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> EvalResult:
        """Reads a result file.

        Raises:
            ValueError: no such file, or it is not an evaluation result.
        """
        if not Path(path).is_file():
            raise ValueError(f"no evaluation result {path}")
        try:
            result = parse(cls, Path(path).read_bytes())
            if not all(0 <= world.successes <= world.samples > 0 for world in result.worlds):
                raise ValueError("a world with more successes than samples, or without samples")
        except ValueError as error:
            raise ValueError(f"{path} is not an evaluation result: {error}") from None
        return result


@dataclass(frozen=True)
class ComparisonRow:
    """One variant of the comparison. Shares in [0, 1]; differences are ``variant - baseline`` on the same worlds.

    ``k`` is the same in every row: the largest that all variants with more than one sample per world allow (1: only Pass@1).
    ``pass_k`` is None if a variant (a planner) was played once. Differences are None for the baseline itself, without a
    baseline, and if the worlds differ; ``diff_base`` is the difference in Pass@1 to the untrained base. ``differences`` are those
    that the verdict names, of the recipe's variant alone; ``training`` is what the variant took; ``tokens`` and
    ``cut_off`` as of ``EvalResult``.
    """

    variant: str
    worlds: int
    samples: int
    errors: int
    pass_1: Interval | None
    k: int
    pass_k: Interval | None
    baseline: str = ""
    diff_1: Interval | None = None
    diff_k: Interval | None = None
    diff_base: Interval | None = None
    differences: Mapping[str, Interval] = field(default_factory=dict)
    training: Training = NO_TRAINING
    tokens: float = 0.0
    cut_off: float = 0.0
    reward: float | None = None


def _pairs(result: EvalResult, baseline: EvalResult) -> tuple[list[WorldResult], list[WorldResult]] | None:
    """The worlds of both in the same order, or None if they differ."""
    ours, theirs = ({world.seed: world for world in r.worlds} for r in (result, baseline))
    repeated = len(ours) < len(result.worlds) or len(theirs) < len(baseline.worlds)
    if not ours or repeated or set(ours) != set(theirs):
        return None
    if any(ours[seed].content != theirs[seed].content for seed in ours):
        return None
    return [ours[seed] for seed in sorted(ours)], [theirs[seed] for seed in sorted(ours)]


def paired_difference(result: EvalResult, baseline: EvalResult, k: int) -> Interval | None:
    """Pass@k of ``result`` minus that of ``baseline``, with a paired 95% interval.

    None if the two were not played on the same worlds (same seeds, same content) or some world has fewer than k samples.
    """
    pairs = _pairs(result, baseline)
    if pairs is None or min(world.samples for side in pairs for world in side) < k:
        return None
    ours, theirs = (_passes(worlds, k) for worlds in pairs)
    return bootstrap_mean(ours - theirs, result.bootstrap, result.seed, least=-1, most=1)


def comparison_table(
    results: Mapping[str, EvalResult], baseline: str = "vanilla", trained: Mapping[str, Training] | None = None
) -> list[ComparisonRow]:
    """One row per variant, in the order of ``results``; differences to ``baseline`` if that variant is present.

    ``trained`` is what the variants took (``spa.runs.trainings.trainings``), for the verdict.
    """
    played = [result for result in results.values() if result.worlds]
    sampled = [result for result in played if result.ks != [1]]
    shared = [k for k in (sampled[0].ks if sampled else []) if all(k in result.ks for result in sampled)]
    k = max(shared, default=1)
    reference = results.get(baseline)
    means = {variant: result.pass_1 for variant, result in results.items() if result.worlds}
    judged, rivals = main_variant(means), counterparts(means)
    rows = []
    for variant, result in results.items():
        settings = (result.bootstrap, result.seed)
        diff_1 = diff_k = diff_base = pass_1 = pass_k = None
        if BASE in results and variant != BASE:
            diff_base = paired_difference(result, results[BASE], 1)
        if reference is not None and variant != baseline:
            diff_1 = paired_difference(result, reference, 1)
            diff_k = paired_difference(result, reference, k) if k > 1 else None
        if result.worlds:
            pass_1 = pass_interval(result.worlds, 1, *settings)
            pass_k = pass_interval(result.worlds, k, *settings) if k in result.ks and k > 1 else None
        samples, errors = sum(world.samples for world in result.worlds), int(result.metrics.get("errors", 0))
        versus = baseline if diff_1 is not None else ""
        passes = (pass_1, k, pass_k, versus, diff_1, diff_k, diff_base)
        named = {o: d for o in rivals if variant == judged and (d := paired_difference(result, results[o], 1))}
        training = (trained or {}).get(variant, NO_TRAINING)
        cost = result.tokens, result.metrics.get("cut_off", 0.0), result.metrics.get("reward")
        rows.append(ComparisonRow(variant, len(result.worlds), samples, errors, *passes, named, training, *cost))
    return rows


def scores(rows: Sequence[ComparisonRow]) -> dict[str, VariantScore]:
    """The rows as one run's scores, for ``verdict``."""
    out = {}
    for row in rows:
        if row.pass_1 is not None:
            differences = {BASE: row.diff_base, row.baseline: row.diff_1, **row.differences}
            out[row.variant] = VariantScore(
                {0: row.pass_1.mean},
                {name: d for name, d in differences.items() if d is not None},
                row.training.steps,
                row.training.seconds,
                row.tokens,
                cut_off=row.cut_off,
                reward=row.reward,
            )
    return out


def render_text(rows: Sequence[ComparisonRow]) -> str:
    """The comparison for a terminal: the verdict, then a table of percentages with 95% intervals; no trailing newline."""
    if not rows:
        return "nothing was evaluated"
    header, cells = comparison_cells(rows)
    table = text_table(["variant", *header], [[row.variant, *line] for row, line in zip(rows, cells, strict=True)])
    sentences = verdict(scores(rows))
    note = "Percent, with 95% intervals over worlds: other training runs would differ by more."
    return clean("\n".join([*sentences, *([""] if sentences else []), *table, note]))


def comparison_cells(rows: Sequence[ComparisonRow]) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of the comparison, without the variants' names; empty columns are left out."""
    k, baseline = rows[0].k, next((row.baseline for row in rows if row.baseline), "")
    columns: dict[str, list[str]] = {"Pass@1": [percent(row.pass_1) for row in rows]}
    if k > 1:
        columns[f"Pass@{k}"] = [percent(row.pass_k) for row in rows]
    if any(row.diff_base for row in rows):
        columns[f"Pass@1 - {BASE}"] = [percent(row.diff_base, sign=True) for row in rows]
    if baseline and baseline != BASE:
        columns[f"Pass@1 - {baseline}"] = [percent(row.diff_1, sign=True) for row in rows]
    if baseline and k > 1:
        columns[f"Pass@{k} - {baseline}"] = [percent(row.diff_k, sign=True) for row in rows]
    if any(row.tokens for row in rows):
        columns["tokens"] = [f"{row.tokens:,.0f}" if row.tokens else "-" for row in rows]
    columns |= {"worlds": [str(row.worlds) for row in rows], "samples": [str(row.samples) for row in rows]}
    if any(row.errors for row in rows):
        columns["errors"] = [str(row.errors) for row in rows]
    return list(columns), [list(line) for line in zip(*columns.values(), strict=True)]
