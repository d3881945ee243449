"""From the run folders of a reproduction to its numbers: means over seeds, paired differences, learning curves, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict

from spa.agent.worlds import content_key
from spa.common.clock import Elapsed
from spa.common.progress import note
from spa.common.secrets import shown
from spa.common.typed import KNOWN_KEYS, Finite, Whole
from spa.config.load import load_variant
from spa.config.schema import Config, VariantConfig
from spa.config.variants import variant_config
from spa.evaluate.bootstrap import Interval
from spa.evaluate.passk import pass_at_k
from spa.evaluate.roles import CONTROLS
from spa.evaluate.summary import EvalResult
from spa.evaluate.two_way import two_way
from spa.evaluate.verdict import counterparts, main_variant
from spa.report.charts import mean, series
from spa.reproduce.scale import BASELINE, Cell
from spa.runs.folder import RunFolder, changed_settings, failure, variants_folder
from spa.runs.metrics import read_metrics
from spa.runs.trainings import stage_records

Number = Whole | Finite
Curve = list[tuple[Number, Number]]
Wins = Annotated[list[int], BeforeValidator(lambda row: [*map(int, row.split())] if isinstance(row, str) else row)]


@dataclass
class VariantNumbers:
    """One variant in one world, as shares in [0, 1]. Values not listed by seed are means over the finished seeds.

    Attributes:
        worlds: digest of the test worlds; the same in all seeds and variants that are compared.
        samples: per test world.
        successes: by seed, how many samples of each test world were won, in the order of the worlds' seeds.
        passes: Pass@k by k.
        differences: in Pass@k to other variants, by name and k, on shared seeds.
        by_seed: Pass@1 of each seed.
        actions_by_seed: actions per turn on the test worlds. Whether a policy acts step by step or writes whole plans can differ
            between seeds, and matters a lot.
        tokens_by_seed: tokens written per episode, including a planner's.
        cut_off_by_seed: share of the test turns that ended at the token limit; ``reward_by_seed``: mean of an episode.
        actions: executed in the world in each of the variant's stages before the evaluation; empty if unknown.
        seconds: wall time of each of the variant's stages, without validation; ``cpu_seconds``: processor time.
        curves: validation Pass@1 and world-model accuracy by PPO step, at steps that all seeds have.
        curves_by_seed: the same of each seed, in their order, where there are several.
        world_model: final world-model metrics.
        settings: what may change results and is not the schema's default, ``seeds.run`` aside; the same in all seeds. Of an
            absolute path only the last name; a secret as a reference to its variable. Empty where it is not known.
        failed: by seed, why it has no result: its run ended with an error. A variant that failed in all seeds has this alone.
    """

    __pydantic_config__: ClassVar[ConfigDict] = KNOWN_KEYS

    worlds: str = ""
    samples: int = 0
    successes: dict[int, Wins] = field(default_factory=dict)
    passes: dict[int, Interval] = field(default_factory=dict)
    differences: dict[str, dict[int, Interval]] = field(default_factory=dict)
    by_seed: dict[int, float] = field(default_factory=dict)
    actions_by_seed: dict[int, Number] = field(default_factory=dict)
    tokens_by_seed: dict[int, Number] = field(default_factory=dict)
    cut_off_by_seed: dict[int, Number] = field(default_factory=dict)
    reward_by_seed: dict[int, Number] = field(default_factory=dict)
    actions: dict[str, Number] = field(default_factory=dict)
    seconds: dict[str, Number] = field(default_factory=dict)
    cpu_seconds: dict[str, Number] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    curves_by_seed: dict[str, list[Curve]] = field(default_factory=dict)
    world_model: dict[str, Number] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """PPO steps, the last of which is validated; 0 without."""
        return int(max((step for step, _ in self.curves.get("val/pass@1", [])), default=0))

    @property
    def seeds(self) -> list[int]:
        return sorted(self.successes)

    def table(self, k: int) -> NDArray[np.float64]:
        """Pass@k of (seeds, worlds)."""
        won_SW = np.array([self.successes[seed] for seed in self.seeds])
        return pass_at_k(won_SW.ravel(), np.full(won_SW.size, self.samples), k).reshape(won_SW.shape)


ByVariant = dict[str, VariantNumbers]  # variant ->
Numbers = dict[str, ByVariant]  # world ->


def collect_cells(cells: Sequence[Cell], versus: Sequence[str] = (BASELINE,)) -> Numbers:
    """The numbers of all finished and failed variants; the worlds and variants in the order of the scale, the base first. A world
    in which none is finished is empty.

    Args:
        versus: names of the variants to compare with.

    Raises:
        ValueError: compared runs were not evaluated on the same worlds.
    """
    numbers: Numbers = {}
    for world in dict.fromkeys(cell.world for cell in cells):
        folders = {cell.seed: cell.folder for cell in cells if cell.world == world}
        variants = next(cell.variants for cell in cells if cell.world == world)
        numbers[world] = {}
        for variant in dict.fromkeys(["base", *variants]):
            numbers[world] |= _measured(folders, load_variant(variant))
        if not evaluated(numbers[world]):
            numbers[world] = {}
    compute(numbers, versus)
    return numbers


def is_its_run(cell: Cell) -> bool:
    """Whether a cell's folder holds no run of other settings, such as another scale's; it says so of one that does."""
    run = RunFolder(cell.folder)
    changed = changed_settings(run.config(), cell.load()) if run.holds_run else []
    if changed:
        note(
            f"{cell.folder} left out: it holds a run of other settings ({', '.join(changed[:3])}{', ...' * (len(changed) > 3)})"
        )
    return not changed


def evaluated(variants: ByVariant) -> ByVariant:
    """The variants with a result, in at least one seed."""
    return {name: entry for name, entry in variants.items() if entry.successes}


def compute(numbers: Numbers, versus: Sequence[str] = (BASELINE,)) -> None:
    """Computes from the successes: Pass@k, its differences to the variants ``versus`` and those that the verdict names, and each
    seed's Pass@1.

    Raises:
        ValueError: as ``collect_cells``.
    """
    for world, entries in numbers.items():
        variants = evaluated(entries)
        if (
            len({entry.worlds for entry in variants.values()}) > 1
            or len({entry.samples for entry in variants.values()} - {1}) > 1
        ):
            raise ValueError(f"{world}: the variants were not all evaluated on the same worlds with as many samples")
        tables: dict[str, dict[int, NDArray[np.float64]]] = {}
        for variant, entry in variants.items():
            ks = [k for k in (2**i for i in range(11)) if k <= entry.samples]
            tables[variant] = {k: entry.table(k) for k in ks}
            entry.passes = {k: two_way(values_SW, 0, 1) for k, values_SW in tables[variant].items()}
            entry.by_seed = dict(zip(entry.seeds, tables[variant][1].mean(axis=1).tolist(), strict=True))
        means = {name: entry.passes[1].mean for name, entry in variants.items()}
        judged, rivals = main_variant(means), counterparts(means)
        for variant, entry in variants.items():
            entry.differences = {}
            for name in dict.fromkeys([*versus, *([*rivals, *CONTROLS] if variant == judged else [])]):
                other = variants.get(name)
                both = [seed for seed in entry.seeds if other is not None and seed in other.successes]
                if other is not None and other is not entry and both:
                    mine, theirs = ([each.seeds.index(seed) for seed in both] for each in (entry, other))
                    common = [k for k in entry.passes if k <= other.samples]
                    apart = {k: tables[variant][k][mine] - tables[name][k][theirs] for k in common}
                    entry.differences[name] = {k: two_way(values_SW, -1, 1) for k, values_SW in apart.items()}


def _settings(folder: Path, variant: VariantConfig) -> dict[str, str]:
    """``VariantNumbers.settings`` of one run."""
    cfg = variant_config(RunFolder(folder).config(), variant)
    config, definition = shown(cfg), shown(variant)
    source = {f"source.{key}": value for key, value in definition["source"].items()}
    names = [name for name in changed_settings(Config(), cfg) if name != "seeds.run"]
    trained = {name: definition[name] for name in ("state_format", "sft", "practice", "rl", "continues")}
    values = {**{name: reduce(getitem, name.split("."), config) for name in names}, **source, **trained}
    texts = {name: str(value) for name, value in values.items()}
    return {name: Path(text).name if Path(text).is_absolute() else text for name, text in texts.items()}


def unequal(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """How two variants' settings differ, as ``name (value, value)``; empty if they do not or one is not known."""
    if not one or not other:
        return ""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return ", ".join(f"{name} ({one.get(name, 'default')}, {other.get(name, 'default')})" for name in names)


def _measured(folders: Mapping[int, Path], variant: VariantConfig) -> ByVariant:
    """The numbers of a variant and, under ``VARIANT+PLANNER``, of its planner; empty if no run is finished or failed. Says which
    seeds it leaves out because their results are damaged."""
    entries: ByVariant = {}
    failed: dict[int, str] = {}
    for file in ("result.json", "planner.json"):
        paths = {seed: variants_folder(folder) / variant.name / "eval" / file for seed, folder in folders.items()}
        results: dict[int, EvalResult] = {}
        for seed, path in paths.items():
            if not path.is_file():
                continue
            try:
                results[seed] = EvalResult.read(path)
            except ValueError as error:
                note(f"variant {variant.name}, seed {seed} left out: {error}; without --table it is made again")
        # A planner has nothing to play with where its variant failed: that is said once.
        lost = [seed for seed, path in paths.items() if not path.is_file() and seed not in failed]
        failed = {seed: why for seed in lost if (why := failure(folders[seed], variant.name))}
        if results:
            name = next(iter(results.values())).name
            entries[name] = replace(_of_results(results, paths, folders, variant), failed=failed)
        elif failed and file == "result.json":
            entries[variant.name] = VariantNumbers(failed=failed)
    return entries


def _of_results(
    results: Mapping[int, EvalResult], paths: Mapping[int, Path], folders: Mapping[int, Path], variant: VariantConfig
) -> VariantNumbers:
    out = VariantNumbers()
    for seed, result in results.items():
        worlds = sorted(result.worlds, key=lambda world: world.seed)
        digest = content_key(" ".join(f"{world.seed}:{world.content}" for world in worlds))
        samples = {world.samples for world in worlds}
        if len(samples) > 1 or (out.worlds and (digest, samples) != (out.worlds, {out.samples})):
            raise ValueError(f"{paths[seed]} is of other worlds or samples than the variant's other seeds")
        out.worlds, out.samples = digest, samples.pop()
        out.successes[seed] = [world.successes for world in worlds]
        if turns := result.metrics.get("num_turns"):
            out.actions_by_seed[seed] = result.metrics.get("num_actions", 0.0) / turns
            if tokens := result.tokens:
                out.tokens_by_seed[seed] = tokens
            for name, by_seed in (("cut_off", out.cut_off_by_seed), ("reward", out.reward_by_seed)):
                if name in result.metrics:
                    by_seed[seed] = result.metrics[name]
    done = [folders[seed] for seed in out.seeds]
    # As it was run: its file may have been edited since.
    variants = [RunFolder(folder).recorded(variant.name) or variant for folder in done]
    settings = [_settings(folder, each) for folder, each in zip(done, variants, strict=True)]
    for folder, others in zip(done, settings, strict=True):
        if text := unequal(settings[0], others):
            raise ValueError(f"{folder} was run with other settings than {done[0]} (there, here): {text}")
    out.settings = settings[0]
    recorded = [stage_records(folder, each) for folder, each in zip(done, variants, strict=True)]
    known = all("actions" in record for stages in recorded for name, record in stages.items() if name != "SFT")
    for stage in dict.fromkeys(name for stages in recorded for name in stages):
        if known and stage != "SFT":
            out.actions[stage] = sum(stages.get(stage, {}).get("actions", 0) for stages in recorded) / len(recorded)
        total = sum((Elapsed.from_record(stages[stage]) for stages in recorded if stage in stages), Elapsed())
        out.seconds[stage], out.cpu_seconds[stage] = total.wall / len(recorded), total.cpu / len(recorded)
    records = [read_metrics(variants_folder(folder) / variant.name / "ppo" / "metrics.jsonl") for folder in done]
    for name in ("val/pass@1", "world_model/prediction_em", "world_model/observation_em", "calibration/top1"):
        curves = [series(rows, name) for rows in records]
        if curve := mean(curves):
            out.curves[name] = curve
            if len(curves) > 1:
                out.curves_by_seed[name] = curves
    measured = [result.world_model for result in results.values()]
    shared = set.intersection(*map(set, measured))
    out.world_model = {name: float(np.mean([metrics[name] for metrics in measured])) for name in sorted(shared)}
    return out
