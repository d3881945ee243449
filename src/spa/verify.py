"""``spa verify``: whether a run folder holds what its stages wrote, and its tables are those of its episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ParamSpec

from spa import __version__
from spa.agent.episode import Episode, read_episodes
from spa.agent.policy import make_task
from spa.agent.task import Task
from spa.common.checkpoints import damage_of_checkpoint
from spa.common.secrets import redact
from spa.common.text import clean
from spa.config.fields import StateFormat
from spa.config.schema import Config
from spa.config.variants import selfplay_folder, source_config, variant_config
from spa.data.layouts import read_rows
from spa.evaluate.replay import replay
from spa.evaluate.samples import SAMPLES, read_samples
from spa.evaluate.summary import EvalResult
from spa.evaluate.world_model import world_model_metrics
from spa.report.collect import collect
from spa.report.html import is_sealed, render_report, sealed
from spa.rl.curriculum import is_real, training_tasks
from spa.runs.folder import RunFolder, variant_names, variants_folder
from spa.runs.metrics import read_metrics
from spa.runs.provenance import git_state
from spa.runs.record import DONE, SECONDS, damaged_files, read_done
from spa.runs.schedule import planned_stages
from spa.sft.selfplay import episode_statistics, rows_for_training, selfplay_task

P = ParamSpec("P")


@dataclass(frozen=True)
class Check:
    """One line of the result: what was looked at, and what was found or, if ``ok`` is False, what is wrong."""

    name: str
    text: str
    ok: bool = True

    def __str__(self) -> str:
        return clean(redact(f"{'ok  ' if self.ok else 'FAIL'}  {self.name}: {self.text}"))


def verify(out: Path) -> Iterator[Check]:
    """Checks a run folder; yields one line per check. Worlds are played, so that code of foreign worlds is run.

    Found are damage and edits of any file that a finished stage or a checkpoint recorded, and figures that do not follow from the
    stored episodes, also where their digests were made again. Not checked is what only a model could repeat: what it wrote,
    calibration and perplexity.

    Raises:
        ValueError: ``out`` is not a run folder.
    """
    folder = RunFolder(out)
    if not folder.holds_run:
        raise ValueError(f"{out} holds no run (no config.yaml)")
    yield _check("run.json", _commands, folder)
    config = _check("config.yaml", _config, folder)
    yield config
    ended: set[Path] = set()
    try:
        ended |= _ended(folder) if config.ok else set()
    except Exception as error:
        yield _failed("finished stages", error)
    for stage in sorted({*stages(out), *ended}):
        name = str(stage.relative_to(out))
        yield _check(f"{name}, files", _files, stage, stage in ended)
        for checkpoint in sorted({*(stage / "checkpoints").glob("global_step_*"), *_product(stage)}):
            yield _check(f"{name}, {checkpoint.name}", _checkpoint, checkpoint)
        if (stage / "metrics.jsonl").is_file():
            yield _check(f"{name}, metrics", _metrics, stage)
    if not config.ok:
        return
    yield from _guarded("stage 1", _stage_1(folder))
    for name in variant_names(out, folder.config()):
        yield from _guarded(name, _variant(folder, name))
    if (out / "report.html").is_file():
        yield _check("report.html", _report, folder)


def stages(out: Path) -> list[Path]:
    """The stage folders of a run, finished or not, and those inside others (rounds of practice)."""
    marks = (DONE, SECONDS, "checkpoints", "metrics.jsonl")
    folders = {path.parent for mark in marks for path in out.rglob(mark)}
    return sorted(folder for folder in folders if folder != out and "checkpoints" not in folder.relative_to(out).parts)


def _guarded(name: str, checks: Iterator[Check]) -> Iterator[Check]:
    """The checks, and a failed one if they cannot be made: a variant's file is gone, or its world."""
    try:
        yield from checks
    except Exception as error:
        yield _failed(name, error)


def _check(name: str, look: Callable[P, str], *args: P.args, **kwargs: P.kwargs) -> Check:
    try:
        return Check(name, look(*args, **kwargs))
    except Exception as error:  # whatever a damaged file or a foreign world leads to
        return _failed(name, error)


def _failed(name: str, error: Exception) -> Check:
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return Check(name, " ".join(text.split())[:400], ok=False)


def _commands(folder: RunFolder) -> str:
    if not (commands := folder.commands()):
        raise ValueError("missing or damaged: it names no command")
    return ", ".join(commands)


def _config(folder: RunFolder) -> str:
    folder.config()
    if folder.edited():
        raise ValueError("it changed since the last command wrote it")
    return "as the last command wrote it"


def _ended(folder: RunFolder) -> set[Path]:
    """The stages that must be finished: all, except other variants', of a ``spa run`` that ended without an error. Those of its
    config count also where their folders are gone."""
    last, variants = folder.last_command(), variants_folder(folder.path)
    if last.get("command") != "run" or "ended" not in last or "error" in last:
        return set()
    compared = folder.variants()
    variant_folders = {variants / variant.name for variant in compared}
    finished = {
        stage for stage in stages(folder.path) if variants not in stage.parents or variant_folders & {*stage.parents}
    }
    return finished | {stage.folder for stage in planned_stages(folder.config(), folder.path, compared)}


def _files(stage: Path, ended: bool) -> str:
    done = read_done(stage)
    if done is None and ended:
        raise ValueError(f"{stage / DONE} is missing, but the run ended without an error")
    if done is None:
        return "the stage is not finished"
    if lines := damaged_files(stage, done):
        raise ValueError("; ".join(lines))
    return f"{len(done['files'])} as recorded" if "files" in done else "not recorded (an earlier version)"


def _product(stage: Path) -> list[Path]:
    """The checkpoint that a finished stage gives, whether it is there or not."""
    with suppress(ValueError):  # its record is damaged, which is said elsewhere
        model = str((read_done(stage) or {}).get("model", ""))
        return [stage / model] if model.startswith("checkpoints/") and ".." not in model else []
    return []


def _checkpoint(folder: Path) -> str:
    if not folder.is_dir():
        raise ValueError("it is missing, and is what the stage gives")
    if lines := damage_of_checkpoint(folder):
        raise ValueError(lines[0])
    return "whole"


def _metrics(stage: Path) -> str:
    steps = [row.get("step") for row in read_metrics(stage / "metrics.jsonl")]
    if not all(isinstance(step, int) for step in steps) or steps != sorted(steps, key=lambda step: step or 0):
        raise ValueError("steps are missing or out of order")
    return f"{len(steps)} rows"


def _stage_1(run: RunFolder) -> Iterator[Check]:
    variants = [None, *run.variants()]
    folders = {selfplay_folder(run.path, variant): variant for variant in reversed(variants)}
    for folder, variant in sorted(folders.items()):
        path = folder / "episodes.jsonl"
        if not path.is_file():
            continue
        source, task = selfplay_task(source_config(run.config(), variant))
        yield _check(f"{folder.name}, replay", _replay, read_episodes(path), [task])
        if (folder / DONE).is_file():
            yield _check(f"{folder.name}, rows and counts", _rows, source, folder)


def _rows(source: Config, folder: Path) -> str:
    episodes = list(read_episodes(folder / "episodes.jsonl"))
    train, val, _ = rows_for_training(source, [episode for episode in episodes if not episode.failed])
    for name, rows in (("train", train), ("val", val)):
        stored = read_rows(folder / f"{name}.parquet")[0] if rows or name == "train" else []
        if [(row.prompt, row.response) for row in stored] != [(row.prompt, row.response) for row in rows]:
            raise ValueError(f"{folder / name}.parquet does not hold the rows that its episodes give")
    counts = {"rows_train": len(train), "rows_val": len(val), **episode_statistics(episodes)}
    _same(counts, json.loads((folder / "stats.json").read_bytes()), folder / "stats.json")
    return f"{len(train) + len(val)} rows follow from {len(episodes)} episodes"


def _replay_training(run: RunFolder, cfg: Config, state_format: StateFormat, files: Sequence[Path]) -> str:
    run.check_mixed(cfg)
    tasks = [task for task in training_tasks(cfg, state_format=state_format) if is_real(task)]
    return _replay(chain.from_iterable(map(read_episodes, files)), tasks, imagined=True)


def _variant(run: RunFolder, name: str) -> Iterator[Check]:
    variant = run.variant(name)
    variant_cfg, written = variant_config(run.config(), variant), variant.state_format
    folder = variants_folder(run.path) / name
    if stored := sorted((folder / "ppo" / "episodes").glob("*.jsonl")):
        yield _check(f"{name}, replay of training", _replay_training, run, variant_cfg, written, stored)
    evaluation = folder / "eval"
    probed = make_task(variant_cfg, state_format=written, prompt="world_model")
    played = [make_task(variant_cfg, state_format=written), probed]
    for file in ("episodes.jsonl", "planner_episodes.jsonl"):
        if (evaluation / file).is_file():
            yield _check(f"{name}, replay of {Path(file).stem}", _replay, read_episodes(evaluation / file), played)
    if (evaluation / SAMPLES).is_file():
        yield _check(f"{name}, replay of samples", _replay_samples, evaluation / SAMPLES, played)
    if (evaluation / "result.json").is_file() and (evaluation / SAMPLES).is_file():
        yield _check(f"{name}, result", _result, evaluation, probed)
    if (evaluation / "planner.json").is_file():
        yield _check(f"{name}, planner", _planner, evaluation)


def _replay_samples(path: Path, tasks: Sequence[Task]) -> str:
    return _replay(read_samples(path), tasks)


def _replay(episodes: Iterable[Episode], tasks: Sequence[Task], *, imagined: bool = False) -> str:
    """Each episode in the first of the tasks of its name and prompt in which it comes out as recorded; with ``imagined`` some may
    be of other worlds."""
    count = failed = foreign = 0
    for episode in episodes:
        if episode.failed:
            failed += 1
            continue
        fitting = [task for task in tasks if task.tag == episode.task and task.agent.prompt == episode.prompt]
        if not fitting:
            if not imagined:
                what = f"{episode.task}, {episode.prompt}"
                raise ValueError(f"seed {episode.seed}, member {episode.member}: of another task ({what})")
            foreign += 1
            continue
        differences = [replay(task, episode) for task in fitting]
        if all(differences):
            raise ValueError(f"seed {episode.seed}, member {episode.member}: {differences[0]}")
        count += 1
    left_out = ((failed, "failed"), (foreign, "of other worlds"))
    return f"{count} episodes as recorded" + "".join(f", {number} {why} left out" for number, why in left_out if number)


def _result(evaluation: Path, probed: Task) -> str:
    stored = EvalResult.read(evaluation / "result.json")
    episodes = read_samples(evaluation / SAMPLES)
    again = EvalResult.from_episodes(
        stored.name, episodes, [*stored.ks, *stored.skipped_ks], stored.bootstrap, stored.seed
    )
    if again.worlds != stored.worlds or (again.task, again.ks) != (stored.task, stored.ks):
        raise ValueError("the worlds of result.json are not those of the episodes")
    _same(again.metrics, stored.metrics, evaluation / "result.json")
    probe = [episode for episode in read_episodes(evaluation / "episodes.jsonl") if episode.probe]
    if probe and any(key.startswith("world_model/") for key in stored.world_model):
        _same(world_model_metrics(probe, probed.make_env().legal), stored.world_model, evaluation / "result.json")
    done = read_done(evaluation) or {}
    played = (done.get("worlds") or {}).get("test")
    if played is not None and set(played) != {world.content for world in stored.worlds}:
        raise ValueError(f"{evaluation / DONE} lists {len(played)} test worlds, result.json has {len(stored.worlds)}")
    _same({key: again.metrics[key] for key in done if key.startswith("pass@")}, done, evaluation / DONE)
    return f"Pass@1 {again.metrics['pass@1']:.3f}, as {len(episodes)} episodes give it"


def _planner(evaluation: Path) -> str:
    stored = EvalResult.read(evaluation / "planner.json")
    episodes = list(read_episodes(evaluation / "planner_episodes.jsonl"))
    again = EvalResult.from_episodes(stored.name, episodes, [1], stored.bootstrap, stored.seed)
    if again.worlds != stored.worlds:
        raise ValueError("the worlds of planner.json are not those of the episodes")
    _same(again.metrics, stored.metrics, evaluation / "planner.json")
    return f"Pass@1 {again.metrics['pass@1']:.3f}, as {len(episodes)} episodes give it"


def _same(again: Mapping[str, Any], stored: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError at the first figure that is not the stored one (to nine digits: processors round sums differently)."""
    for key, value in again.items():
        recorded = stored.get(key)
        if isinstance(value, Mapping) and isinstance(recorded, Mapping):
            _same(value, recorded, path)
        elif recorded != value and not (
            isinstance(recorded, (int, float)) and math.isclose(float(recorded), float(value), rel_tol=1e-9)
        ):
            raise ValueError(f"{path}: {key} is {recorded}, but its episodes give {value}")


def _report(folder: RunFolder) -> str:
    last = folder.last_command()
    if (last.get("spa"), last.get("package_git")) != (__version__, git_state(str(Path(__file__).parent))):
        return "not compared: another version of the package wrote it"
    written = (folder.path / "report.html").read_bytes().decode("utf-8", "replace")  # read_text changes "\r"
    if written == sealed(render_report(collect(folder.path))):
        return "what `spa report` writes now"
    if not is_sealed(written):
        raise ValueError(f"changed since it was written; `spa report {folder.path}` writes it again")
    return f"older than the last command, or written with other --episodes; `spa report {folder.path}` writes it again"
