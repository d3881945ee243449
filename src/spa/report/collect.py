"""Gathers a run folder into the data of its report."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from spa.agent.episode import Episode, read_episodes
from spa.agent.worlds import overlaps
from spa.common.manifest import say
from spa.common.secrets import map_texts, redact, shown
from spa.common.typed import Object, parse
from spa.config.load import differences, load_config, names_of
from spa.config.schema import Config
from spa.config.variants import practice_folder
from spa.envs.tables import read_rows
from spa.evaluate.summary import EvalResult
from spa.models.folders import resolve_path
from spa.report.data import Correction, ReportData, SelfPlay, VariantReport
from spa.rl.episode_files import step_files
from spa.runs.folder import RunFolder, variant_names, variants_folder
from spa.runs.metrics import read_metrics
from spa.runs.provenance import PACKAGES, described
from spa.runs.record import damaged_files, read_done, taught_nothing
from spa.runs.trainings import trainings

_MACHINE = {  # as shown -> as in run.json
    "processor": "cpu",
    "cores": "cpu_count",
    "memory, GiB": "memory_gib",
    "device": "device",
    "system": "platform",
    "command": "argv",
    "commit of the package": "package_git",
    "commit of the working directory": "directory_git",
    "hub revisions": "revisions",
}
# Stages that variants share, by folder; FOLDER-VARIANT is a variant's own.
_SHARED_STAGES = {"selfplay": "self-play", "imagined": "imagined worlds", "sft": "SFT", "practice": "practice"}


def collect(out: Path, most_episodes: int | None = None) -> ReportData:
    """Everything that the stages have written so far, with ``most_episodes`` per variant (None: ``report.episodes``).

    Raises:
        ValueError: ``out`` contains no run.
    """
    folder = RunFolder(out)
    folder.say_damage()
    cfg = folder.config()
    limit = cfg.report.episodes if most_episodes is None else most_episodes
    timings: dict[str, float] = {}
    contents: dict[str, set[str]] = {}
    symmetries: dict[str, set[str]] = {}
    untaught: list[str] = []

    def add_stage(stage: Path, title: str) -> None:
        done = read_aloud(stage)
        if done is not None:
            timings[title] = float(done["seconds"])
            if taught_nothing(done):
                untaught.extend(_practised(folder, stage))
            for split, keys in done.get("worlds", {}).items():
                contents.setdefault(split, set()).update(keys)
                known = keys.values() if isinstance(keys, dict) else ()  # older runs recorded only contents
                symmetries.setdefault(split, set()).update(key for key in known if key)

    for prefix, title in _SHARED_STAGES.items():
        add_stage(out / prefix, title)
        for stage in sorted(out.glob(f"{prefix}-*")):
            add_stage(stage, f"{title}, {stage.name.removeprefix(f'{prefix}-')}")
    variants: dict[str, VariantReport] = {}
    definitions = folder.definitions()
    for name in variant_names(out, cfg):
        ppo, evaluation = (variants_folder(out) / name / stage for stage in ("ppo", "eval"))
        add_stage(ppo, f"PPO, {name}")
        continued = definitions.get(name, {}).get("continues")
        if f"PPO, {name}" in timings and continued in [*definitions]:  # it has taken over the other's time
            timings[f"PPO, {name}"] -= (read_done(variants_folder(out) / continued / "ppo") or {}).get("seconds", 0.0)
        add_stage(evaluation, f"evaluation, {name}")
        result = read_result(evaluation / "result.json")
        variants[name] = VariantReport(
            read_metrics(ppo / "metrics.jsonl"),
            result,
            _episodes(evaluation / "episodes.jsonl"),
            _training(ppo / "episodes", limit),
        )
        if planned := read_result(evaluation / "planner.json"):
            episodes = _episodes(evaluation / "planner_episodes.jsonl")
            variants[planned.name] = VariantReport(result=planned, episodes=episodes)
    info = folder.info()
    commands, last = info.get("commands", []), folder.last_command()
    tuned = {stage.name.removeprefix("sft-"): stage for stage in sorted(out.glob("sft-*"))}
    return ReportData(
        name=redact(cfg.name),
        config=shown(cfg),
        versions={name: last[name] for name in ("spa", "python", *PACKAGES) if name in last},
        machine=_machine(commands),
        variants=variants,
        sft=read_metrics(out / "sft" / "metrics.jsonl"),
        sft_of_variants={name: read_metrics(stage / "metrics.jsonl") for name, stage in tuned.items()},
        overlaps=overlaps(contents),
        symmetric_overlaps=overlaps(symmetries) if symmetries and all(symmetries.values()) else {},
        untaught=untaught,
        timings=timings,
        trained=trainings(out),
        planned=list(definitions),
        rl=not definitions or any(known.get("rl") for known in definitions.values()),
        error=redact(str(last.get("error", ""))).rstrip(": "),
        created=str(last.get("started", "")),
        episodes_per_variant=limit,
        all_episodes=most_episodes is not None,
        selfplay=[_selfplay(stage) for stage in sorted(out.glob("selfplay*")) if (stage / "stats.json").is_file()],
        info=map_texts(_without_end(info), lambda text, _: redact(text)),
        changed=_changed(cfg),
        decode=_decoder(out, cfg),
    )


def _practised(run: RunFolder, stage: Path) -> list[str]:
    """The variants of a run that a practice stage trains."""
    names = []
    for name in variant_names(run.path, run.config()):
        with suppress(ValueError):  # its file is gone
            if (variant := run.variant(name)).practice and practice_folder(run.path, variant) == stage:
                names.append(name)
    return names or [stage.name.removeprefix("practice-")]


def _machine(commands: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The machines that the commands ran on; several if stages or a resumed run used different ones."""
    facts = {title: dict.fromkeys(_text(c[key]) for c in commands if key in c) for title, key in _MACHINE.items()}
    return {title: "; ".join(values) for title, values in facts.items() if values}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return shlex.join(map(str, value))
    return described(value)


def read_aloud(stage: Path) -> dict[str, Any] | None:
    """``read_done``; says which of the stage's files are damaged."""
    done = read_done(stage)
    for line in damaged_files(stage, done):
        say(line)
    return done


def read_results(*evaluations: Path) -> dict[str, EvalResult]:
    """The results in folders of evaluations by name, planners included, as far as they are finished."""
    files = [folder / file for folder in evaluations for file in ("result.json", "planner.json")]
    return {result.name: result for file in files if (result := read_result(file)) is not None}


def read_result(path: Path) -> EvalResult | None:
    """A finished evaluation, or None."""
    return EvalResult.read(path) if path.is_file() else None


def _episodes(path: Path) -> list[Episode]:
    return list(read_episodes(path)) if path.is_file() else []


def _training(folder: Path, limit: int) -> list[tuple[int, Episode]]:
    """The first episode of each of some steps, evenly spread from the first to the last."""
    files = list(step_files(folder).items())
    wanted = min(len(files), limit)
    chosen = [files[round(i * (len(files) - 1) / max(1, wanted - 1))] for i in range(wanted)]
    return [(step, each) for step, file in chosen for each in islice(read_episodes(file), 1)]


def _selfplay(stage: Path) -> SelfPlay:
    variant = stage.name.removeprefix("selfplay").removeprefix("-")
    stats = _stats(stage / "stats.json")
    table = stage / "train.parquet"
    return SelfPlay(variant, stats, list(_corrections(table)) if table.is_file() else [])


def _stats(path: Path) -> dict[str, Any]:
    try:
        return parse(Object, path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _corrections(table: Path, most: int = 3) -> Iterator[Correction]:
    """Rows of different worlds, those first that the correction changed, from the first thousand."""
    from spa.data.layouts import known_extra  # imports pyarrow

    records = [record for _, record in islice(read_rows(table, ("response", "extra_info"), ()), 1000)]
    rows = [(known_extra(record["extra_info"]), str(record["response"])) for record in records]
    rows.sort(key=lambda row: row[0].get("original_response") in (None, row[1]))
    worlds: dict[Any, Any] = {}
    for extra, response in rows:
        worlds.setdefault(extra.get("seed"), (extra, response))
    for extra, response in islice(worlds.values(), most):
        yield Correction(extra.get("original_response"), response, extra.get("executed") or [])


def _without_end(info: dict[str, Any]) -> dict[str, Any]:
    """Without how the last command ended, which is recorded after it has written its report."""
    if not (commands := info.get("commands")):
        return info
    last = {name: value for name, value in commands[-1].items() if name not in ("ended", "error")}
    return {**{name: value for name, value in info.items() if name != "sha256"}, "commands": [*commands[:-1], last]}


def _changed(cfg: Config) -> dict[str, tuple[str, str]]:
    """The settings that differ from the packaged config of the same name, or from the default one: (there, here)."""
    try:
        packaged = load_config(cfg.name if cfg.name in names_of("env") else None)
    except ValueError:
        return {}
    old, new = shown(packaged), shown(cfg)
    return {name: (_value(old, name), _value(new, name)) for name in differences(packaged, cfg)}


def _value(config: Mapping[str, Any], name: str) -> str:
    value: Any = config
    for key in name.split("."):
        value = value[key]
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _decoder(out: Path, cfg: Config) -> Callable[[int], str] | None:
    """The text of a token, from a tokenizer of the run or of its model; None without one."""
    from tokenizers import Tokenizer

    files = sorted(out.glob("**/checkpoints/*/tokenizer.json"))
    try:
        file = files[0] if files else Path(resolve_path(cfg.model.path)) / "tokenizer.json"
        if not _loads(file.resolve(), file.stat().st_mtime_ns):
            return None
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the library raises plain exceptions; a report does without
        return None

    @lru_cache(None)
    def decode(token: int) -> str:
        try:
            return str(tokenizer.decode([token], skip_special_tokens=False))
        except (OverflowError, TypeError):  # no token's number
            return ""

    return decode


@lru_cache(64)
def _loads(file: Path, changed: int) -> bool:
    """Whether a tokenizer's file can be loaded, tried in another process: the library ends a process at some damaged files."""
    code = "import sys, tokenizers; tokenizers.Tokenizer.from_file(sys.argv[1])"
    return subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, timeout=60).returncode == 0
