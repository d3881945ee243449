"""Gathers a run folder into the data of its report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spa.agent.episode import Episode, read_episodes
from spa.agent.worlds import overlaps
from spa.common.manifest import say
from spa.common.secrets import redact, shown
from spa.evaluate.summary import EvalResult
from spa.report.data import ReportData, VariantReport
from spa.runs.folder import RunFolder, variant_names, variants_folder
from spa.runs.metrics import read_metrics
from spa.runs.provenance import PACKAGES, described
from spa.runs.record import damaged_files, read_done
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


def collect(out: Path) -> ReportData:
    """Everything that the stages have written so far.

    Raises:
        ValueError: ``out`` contains no run.
    """
    folder = RunFolder(out)
    if not folder.holds_run:
        raise ValueError(f"{out} holds no run (no config.yaml)")
    folder.say_damage()
    cfg = folder.config()
    timings: dict[str, float] = {}
    contents: dict[str, set[str]] = {}
    symmetries: dict[str, set[str]] = {}

    def add_stage(stage: Path, title: str) -> None:
        done = read_done(stage)
        for line in damaged_files(stage, done):
            say(line)
        if done is not None:
            timings[title] = float(done["seconds"])
            for split, keys in done.get("worlds", {}).items():
                contents.setdefault(split, set()).update(keys)
                known = keys.values() if isinstance(keys, dict) else ()  # older runs recorded only contents
                symmetries.setdefault(split, set()).update(key for key in known if key)

    for prefix, title in _SHARED_STAGES.items():
        add_stage(out / prefix, title)
        for stage in sorted(out.glob(f"{prefix}-*")):
            add_stage(stage, f"{title}, {stage.name.removeprefix(f'{prefix}-')}")
    variants: dict[str, VariantReport] = {}
    for name in variant_names(out, cfg):
        ppo, evaluation = (variants_folder(out) / name / stage for stage in ("ppo", "eval"))
        add_stage(ppo, f"PPO, {name}")
        add_stage(evaluation, f"evaluation, {name}")
        result = read_result(evaluation / "result.json")
        variants[name] = VariantReport(
            read_metrics(ppo / "metrics.jsonl"), result, _episodes(evaluation / "episodes.jsonl")
        )
        if planned := read_result(evaluation / "planner.json"):
            episodes = _episodes(evaluation / "planner_episodes.jsonl")
            variants[planned.name] = VariantReport(result=planned, episodes=episodes)
    commands = [entry for entry in folder.info().get("commands", []) if isinstance(entry, dict)]
    last: dict[str, Any] = commands[-1] if commands else {}
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
        timings=timings,
        trained=trainings(out),
        created=str(last.get("started", "")),
        episodes_per_variant=cfg.report.episodes,
    )


def _machine(commands: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The machines that the commands ran on; several if stages or a resumed run used different ones."""
    facts = {title: dict.fromkeys(_text(c[key]) for c in commands if key in c) for title, key in _MACHINE.items()}
    return {title: "; ".join(values) for title, values in facts.items() if values}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return shlex.join(map(str, value))
    return described(value)


def read_result(path: Path) -> EvalResult | None:
    """A finished evaluation, or None."""
    return EvalResult.read(path) if path.is_file() else None


def _episodes(path: Path) -> list[Episode]:
    return list(read_episodes(path)) if path.is_file() else []
