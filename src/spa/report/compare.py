"""Compares run folders: paired differences on the test worlds that they all played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spa.common.secrets import redact, shown
from spa.common.tables import text_table
from spa.common.text import clean
from spa.config.schema import Config
from spa.evaluate.bootstrap import Interval, bootstrap_mean, percent
from spa.evaluate.passk import pass_at_k
from spa.evaluate.roles import BASE, CONTROLS, COORDINATES, EQUAL_TIME, PLAIN_RL
from spa.evaluate.summary import EvalResult
from spa.evaluate.two_way import two_way
from spa.evaluate.verdict import VariantScore, verdict
from spa.report.charts import Chart, chart, mean, series, variant_colors
from spa.report.collect import read_aloud, read_results
from spa.report.html import flatten, render
from spa.report.svg import Axes, Line, interval_chart
from spa.runs.folder import RunFolder, changed_settings, failure, flat_definition, variant_names, variants_folder
from spa.runs.metrics import read_metrics
from spa.runs.trainings import NO_TRAINING, trainings

_NOT_TRAINING = ("name", "seeds.run", "eval.")  # runs that differ in these alone are the same recipe
_NOTE = (
    "Percent, with 95% intervals: for other seeds and other worlds where there are several seeds, else for other worlds alone "
    "(other training runs would differ by more). Differences are paired by world and by seed; of several seeds each, none of them "
    "shared, they are of independent means."
)
WorldKey = tuple[int, str]  # seed and content


@dataclass
class Group:
    """Runs of one recipe: their configs and variants differ in nothing that matters but the seed.

    ``variants`` holds the definitions of the evaluated variants (``flat_definition``), as far as they are known; ``results`` the
    evaluations by variant and seed.
    """

    label: str
    config: Config
    folders: dict[int, Path]
    variants: dict[str, dict[str, Any]]
    results: dict[str, dict[int, EvalResult]] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupResult:
    """A group's results for a variant, on the compared worlds; shares in [0, 1]. ``differences`` (by k) are to the first group;
    ``same``: it is 0 in every world."""

    label: str
    by_seed: Mapping[int, float]
    passes: Mapping[int, Interval]
    differences: Mapping[int, Interval]
    shared_seeds: int  # with the first group
    same: bool


@dataclass(frozen=True)
class VariantTable:
    """One variant in the groups that evaluated it, the first of which is the reference."""

    variant: str
    worlds: int
    played: Mapping[str, int]  # worlds by group
    groups: Sequence[GroupResult]

    @property
    def ks(self) -> list[int]:
        return list(self.groups[0].passes)

    def sentences(self) -> list[str]:
        """What the differences in Pass@1 to the first group say, one sentence per other group."""
        first, *others = self.groups
        out = []
        for row in others:
            difference = row.differences[1]
            if row.same:
                relation = "wins every world as often as"
            elif difference.low > 0 or difference.high < 0:
                relation = "is above" if difference.low > 0 else "is below"
            else:
                relation = "is not clearly different from"
            text = f"{self.variant}: {row.label} {relation} {first.label}: {percent(difference, sign=True)}"
            out.append(f"{text} on {self.worlds} common worlds, {_rests_on(row, first)}.")
        return out

    @property
    def header(self) -> list[str]:
        """Differences first; without the column of the groups' names."""
        return [f"Pass@{k}{end}" for end in (" - first", "") for k in self.ks] + ["by seed"]

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """Name and cells of each group."""
        return [(group.label, self._cells(group)) for group in self.groups]

    def _cells(self, group: GroupResult) -> list[str]:
        seeds = ", ".join(f"{100 * value:.1f}" for _, value in sorted(group.by_seed.items()))
        changes = [percent(group.differences.get(k), sign=True) for k in self.ks]
        return [*changes, *(percent(group.passes[k]) for k in self.ks), seeds]


def _rests_on(row: GroupResult, first: GroupResult) -> str:
    if row.shared_seeds > 1:
        return f"{row.shared_seeds} seeds"
    if not row.shared_seeds and min(len(row.by_seed), len(first.by_seed)) > 1:
        return f"{len(row.by_seed)} and {len(first.by_seed)} seeds, none of them shared"
    if len(row.by_seed) == len(first.by_seed) == 1:
        return "one training run each: this compares these models, not their settings"
    return "fewer than two seeds in common: this compares these models, not their settings"


@dataclass(frozen=True)
class RunComparison:
    """The comparison of runs: prints as its tables, and shows so in a notebook.

    ``settings`` are those that differ: name -> value in each group.
    """

    groups: Sequence[Group]
    tables: Sequence[VariantTable]
    verdicts: Mapping[str, Sequence[str]]
    settings: Mapping[str, Sequence[str]]

    def __str__(self) -> str:
        lines = [self._worlds(), ""]
        for table in self.tables:
            rows = [[label, *cells] for label, cells in table.rows]
            lines += [*table.sentences(), "", *text_table([table.variant, *table.header], rows), ""]
        for label, sentences in self.verdicts.items():
            lines.append(f"Within {label}: {' '.join(sentences)}")
        for group in self.groups:
            if len(group.folders) > 1:
                lines.append(f"{group.label}: {', '.join(str(path) for _, path in sorted(group.folders.items()))}")
        if self.settings:
            labels = [group.label for group in self.groups]
            lines += ["", *text_table(["setting", *labels], [[key, *values] for key, values in self.settings.items()])]
        return clean(redact("\n".join([*lines, _NOTE])))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _worlds(self) -> str:
        counts = dict.fromkeys(table.worlds for table in self.tables)
        played = {label: number for table in self.tables for label, number in table.played.items()}
        of = ", ".join(f"{label} played {number}" for label, number in played.items())
        return f"Compared on {' or '.join(map(str, counts))} test worlds that all played ({of})."

    def html(self) -> str:
        """The comparison as one HTML document that loads nothing."""
        # By number: a + in a label is no planner.
        numbered = variant_colors([str(number) for number in range(len(self.groups))])
        colors = dict(zip([group.label for group in self.groups], numbered.values(), strict=True))
        return render(
            "compare.html.jinja",
            redact(" against ".join(group.label for group in self.groups)),
            about=redact(self._worlds()),
            tables=self.tables,
            charts={table.variant: self._charts(table, colors) for table in self.tables},
            verdicts=self.verdicts,
            groups=self.groups,
            settings=self.settings,
            colors=colors,
            note=_NOTE,
        )

    def _charts(self, table: VariantTable, colors: Mapping[str, str]) -> list[Chart]:
        intervals = {row.label: {f"Pass@{k}": value for k, value in row.passes.items()} for row in table.groups}
        note = "Pass@1 filled." if len(table.ks) == 1 else f"Pass@1 filled, Pass@{table.ks[-1]} hollow."
        lines = []
        for group in self.groups:
            files = [variants_folder(path) / table.variant / "ppo" / "metrics.jsonl" for path in group.folders.values()]
            curves = [curve for file in files if (curve := series(read_metrics(file), "val/pass@1"))]
            behind = curves if len(curves) > 1 else ()
            lines.append(Line(group.label, mean(curves), colors[group.label], seeds=behind))
        drawn = Chart("", note, interval_chart(intervals, colors, "success on the common worlds"))
        thin = "Thin lines: single seeds." if any(line.seeds for line in lines) else ""
        return [drawn, *chart("Validation Pass@1", thin, lines, Axes("PPO step", "Pass@1"))]


def compare_runs(folders: Sequence[str | Path]) -> RunComparison:
    """Compares the evaluated variants of at least two runs; later runs with the first.

    Runs whose configs and variants differ in their seed alone are taken together, as seeds of one recipe, unless all do.

    Raises:
        ValueError: fewer than two runs, a folder without one, or runs that cannot be compared: other tasks, no variant or no test
            world in common.
    """
    paths = [Path(folder) for folder in folders]
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        raise ValueError("compare at least two different run folders")
    groups = _groups(paths)
    every = [group.results.keys() for group in groups]
    names = [name for name in dict.fromkeys(n for names in every for n in names) if sum(name in n for n in every) > 1]
    if not names:
        have = "; ".join(f"{group.label} has {', '.join(group.results) or 'no evaluation'}" for group in groups)
        raise ValueError(f"no variant was evaluated in two of the runs: {have}")
    tables = [_compare(name, [group for group in groups if name in group.results]) for name in names]
    return RunComparison(groups, tables, _verdicts(groups), _settings(groups))


def _groups(paths: Sequence[Path]) -> list[Group]:
    runs = []
    for path in paths:
        config = RunFolder(path).config()
        evaluations = [variants_folder(path) / name / "eval" for name in variant_names(path, config)]
        for folder in evaluations:
            read_aloud(folder)
        results = read_results(*evaluations)
        runs.append((path, config, config.seeds.run, _definitions(path, config), results))
    groups: list[Group] = []
    for path, config, seed, variants, results in runs:
        group = next((g for g in groups if seed not in g.folders and _same_recipe(g, config, variants)), None)
        if group is None:
            group = Group("", config, {}, {})
            groups.append(group)
        group.folders[seed] = path
        group.variants = variants | group.variants
        for name, result in results.items():
            group.results.setdefault(name, {})[seed] = result
    if len(groups) == 1:  # seeds of one recipe: each is compared by itself
        groups = [
            Group("", config, {seed: path}, variants, {name: {seed: result} for name, result in results.items()})
            for path, config, seed, variants, results in runs
        ]
    for group in groups:
        first = next(iter(group.folders.values()))
        group.label = f"{first} ({len(group.folders)} seeds)" if len(group.folders) > 1 else str(first)
    return groups


def _settings(groups: Sequence[Group]) -> dict[str, list[str]]:
    """The settings in which groups differ, those of variants included (``mine: settings.ppo.lam``), with their values."""
    changed = tuple(
        {key for group in groups[1:] for key in changed_settings(groups[0].config, group.config)} - {"name"}
    )
    flat = [flatten(shown(group.config)) for group in groups]
    values = {key: [each.get(key, "-") for each in flat] for key in {name: 0 for each in flat for name in each}}
    several = any(len(group.folders) > 1 for group in groups)
    settings = {
        key: each
        for key, each in values.items()
        if len(set(each)) > 1 and key.startswith(changed) and not (several and key == "seeds.run")
    }
    for name in {name: 0 for group in groups for name in group.variants}:
        definitions = [flatten(group.variants.get(name, {})) for group in groups]  # empty where it is not known
        for key in {key: 0 for each in definitions for key in each}:
            if len({each.get(key) for each in definitions if each}) > 1:
                settings[f"{name}: {key}"] = [each.get(key, "-") for each in definitions]
    return settings


def _same_recipe(group: Group, config: Config, variants: Mapping[str, Mapping[str, Any]]) -> bool:
    changed = changed_settings(group.config, config)
    for name in group.variants.keys() & variants.keys():
        one, other = group.variants[name], variants[name]
        changed += [key.partition(".")[2] for key in {**one, **other} if one.get(key) != other.get(key)]
    return not [key for key in changed if not key.startswith(_NOT_TRAINING)]


def _definitions(path: Path, config: Config) -> dict[str, dict[str, Any]]:
    """``Group.variants`` of a run."""
    known = RunFolder(path).definitions()
    files = {name: variants_folder(path) / name / "eval" / "result.json" for name in variant_names(path, config)}
    return {name: flat_definition(known[name]) for name, file in files.items() if name in known and file.is_file()}


def _worlds(results: Mapping[int, EvalResult]) -> set[WorldKey]:
    """The worlds that every seed played."""
    return set.intersection(*({(world.seed, world.content) for world in result.worlds} for result in results.values()))


def _common(variant: str, groups: Sequence[Group]) -> set[WorldKey]:
    """The worlds that all groups which evaluated a variant played."""
    return set.intersection(*(_worlds(group.results[variant]) for group in groups if variant in group.results))


def _compare(variant: str, groups: Sequence[Group]) -> VariantTable:
    """Raises ValueError if there is nothing to compare the groups on."""
    tasks = {group.label: next(iter(group.results[variant].values())).task for group in groups}
    if len(set(tasks.values())) > 1:
        played = ", ".join(f"{label} played {task}" for label, task in tasks.items())
        raise ValueError(f"different tasks cannot be compared: {played}")
    worlds = {group.label: _worlds(group.results[variant]) for group in groups}
    common = sorted(_common(variant, groups))
    if not common:
        same_seeds = set.intersection(*({seed for seed, _ in keys} for keys in worlds.values()))
        why = (
            "their seeds are the same, the worlds are not: compare env.settings" if same_seeds else "compare seeds.test"
        )
        raise ValueError(f"{variant}: {' and '.join(worlds)} have no test world in common ({why})")
    first = groups[0].results[variant]
    ks = sorted(set.intersection(*(set(result.ks) for group in groups for result in group.results[variant].values())))
    ks = [1, *ks[-1:]] if ks[-1:] != [1] else [1]
    rows = []
    for group in groups:
        results = group.results[variant]
        passes = {k: _interval(_table(results, sorted(results), common, k), 0) for k in ks}
        apart = {k: _difference(results, first, common, k) for k in ks} if group is not groups[0] else {}
        by_seed = {seed: float(_table(results, [seed], common, 1).mean()) for seed in results}
        same = bool(apart) and not _paired(results, first, common, 1).any()
        rows.append(GroupResult(group.label, by_seed, passes, apart, len(results.keys() & first.keys()), same))
    return VariantTable(variant, len(common), {label: len(keys) for label, keys in worlds.items()}, rows)


def _table(
    results: Mapping[int, EvalResult], seeds: Sequence[int], worlds: Sequence[WorldKey], k: int
) -> NDArray[np.float64]:
    """Pass@k of (seeds, worlds)."""
    out = []
    for seed in seeds:
        by_key = {(world.seed, world.content): world for world in results[seed].worlds}
        played = [by_key[key] for key in worlds]
        out.append(pass_at_k([world.successes for world in played], [world.samples for world in played], k))
    return np.stack(out)


def _interval(values_SW: NDArray[np.float64], least: float) -> Interval:
    """For other seeds and worlds; for other worlds alone where there is one seed, as in a run's report."""
    return two_way(values_SW, least, 1) if len(values_SW) > 1 else bootstrap_mean(values_SW[0], least=least, most=1)


def _difference(
    results: Mapping[int, EvalResult], first: Mapping[int, EvalResult], worlds: Sequence[WorldKey], k: int
) -> Interval:
    """Paired by seed and world. Several seeds on each side and none shared: of independent means, each with its interval for other
    seeds and worlds (MOVER: Zou and Donner 2008), which does without the pairing by world and is wider for it."""
    if results.keys() & first.keys() or min(len(results), len(first)) < 2:
        return _interval(_paired(results, first, worlds, k), -1)
    mine, theirs = (_interval(_table(side, sorted(side), worlds, k), 0) for side in (results, first))
    mean = mine.mean - theirs.mean
    down = np.hypot(mine.mean - mine.low, theirs.high - theirs.mean)
    up = np.hypot(mine.high - mine.mean, theirs.mean - theirs.low)
    return Interval(mean, float(mean - down), float(mean + up))


def _paired(
    results: Mapping[int, EvalResult], first: Mapping[int, EvalResult], worlds: Sequence[WorldKey], k: int
) -> NDArray[np.float64]:
    """(seeds, worlds), paired by both; one row of the mean over each side's seeds if they share no seed."""
    if shared := sorted(results.keys() & first.keys()):
        return _table(results, shared, worlds, k) - _table(first, shared, worlds, k)
    mine, theirs = (_table(side, sorted(side), worlds, k) for side in (results, first))
    return np.asarray(mine.mean(axis=0) - theirs.mean(axis=0))[np.newaxis]


def _verdicts(groups: Sequence[Group]) -> dict[str, list[str]]:
    """What each group says by itself of the recipe against its base, plain RL and controls, on the worlds that all groups which
    evaluated a variant played."""
    out = {}
    for group in groups:
        if not group.results:  # not evaluated yet
            continue
        scores: dict[str, VariantScore] = {}
        trained = {seed: trainings(path) for seed, path in group.folders.items()}
        # One set of worlds for all sentences, as far as there is one.
        shared = set.intersection(*(_common(name, groups) for name in group.results))
        for name, mine in group.results.items():
            common, apart = shared or _common(name, groups), {}
            if not common:
                continue
            for other in (BASE, PLAIN_RL, EQUAL_TIME, COORDINATES, *CONTROLS):
                if other != name and (theirs := group.results.get(other)):
                    both = sorted(common & _worlds(theirs))
                    if both:
                        apart[other] = _difference(mine, theirs, both, 1)
            by_seed = {seed: float(_table(mine, [seed], sorted(common), 1).mean()) for seed in mine}
            failed = any(failure(path, name) for seed, path in group.folders.items() if seed not in mine)
            took = [trained[seed].get(name, NO_TRAINING) for seed in mine]
            scores[name] = VariantScore(
                by_seed,
                apart,
                steps=max(each.steps for each in took),
                seconds=float(np.mean([each.seconds for each in took])),
                tokens=float(np.mean([result.tokens for result in mine.values()])),
                failed=failed,
                cut_off=float(np.mean([result.metrics.get("cut_off", 0.0) for result in mine.values()])),
                reward=float(np.mean([result.metrics.get("reward", 0.0) for result in mine.values()])),
            )
        if sentences := verdict(scores):
            out[group.label] = sentences
    return out
