"""Gathers a run folder into the data of its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spa.agent.episode import Episode, read_episodes
from spa.agent.worlds import overlaps
from spa.common.secrets import redact, shown
from spa.evaluate.summary import EvalResult
from spa.report.data import ReportData, VariantReport
from spa.run.folder import PACKAGES, RunFolder, variants_folder
from spa.run.metrics import read_metrics
from spa.run.stage import read_done

_MACHINE = {"processor": "cpu", "cores": "cpu_count", "system": "platform"}  # as shown -> as in run.json


def collect(out: Path) -> ReportData:
    """Everything that the stages have written so far.

    Raises:
        ValueError: ``out`` holds no run.
    """
    folder = RunFolder(out)
    if not folder.holds_run:
        raise ValueError(f"{out} holds no run (no config.yaml)")
    cfg = folder.config()
    variants: dict[str, VariantReport] = {}
    timings: dict[str, float] = {}
    contents: dict[str, set[str]] = {}
    symmetries: dict[str, set[str]] = {}

    def finished(stage: Path, title: str) -> None:
        done = read_done(stage)
        if done is not None:
            timings[title] = float(done["seconds"])
            for split, keys in done.get("worlds", {}).items():
                contents.setdefault(split, set()).update(keys)
                known = keys.values() if isinstance(keys, dict) else ()  # older runs recorded contents alone
                symmetries.setdefault(split, set()).update(key for key in known if key)

    finished(out / "selfplay", "self-play")
    for stage in sorted(out.glob("selfplay-*")):
        finished(stage, f"self-play, {stage.name.removeprefix('selfplay-')}")
    finished(out / "sft", "SFT")
    for stage in sorted(out.glob("practice-*")):
        finished(stage, f"practice, {stage.name.removeprefix('practice-')}")
    for stage in sorted(out.glob("imagined-*")):
        finished(stage, f"imagined worlds, {stage.name.removeprefix('imagined-')}")
    tuned = {stage.name.removeprefix("sft-"): stage for stage in sorted(out.glob("sft-*"))}
    for name, stage in tuned.items():
        finished(stage, f"SFT, {name}")
    names = [path.name for path in sorted(variants_folder(out).glob("*")) if path.is_dir()]
    for name in sorted(names, key=lambda n: (["base", *cfg.variants, n].index(n), n)):
        folder_of_variant = variants_folder(out) / name
        finished(folder_of_variant / "ppo", f"PPO, {name}")
        finished(folder_of_variant / "eval", f"evaluation, {name}")
        result = folder_of_variant / "eval" / "result.json"
        variants[name] = VariantReport(
            metrics=_metrics(folder_of_variant / "ppo"),
            result=EvalResult.read(result) if result.is_file() else None,
            episodes=_episodes(folder_of_variant / "eval" / "episodes.jsonl"),
        )
        planned = folder_of_variant / "eval" / "planner.json"
        if planned.is_file():
            found = EvalResult.read(planned)
            episodes = _episodes(folder_of_variant / "eval" / "planner_episodes.jsonl")
            variants[found.name] = VariantReport(result=found, episodes=episodes)
    commands = folder.info().get("commands", [])
    last: dict[str, Any] = commands[-1] if commands else {}
    return ReportData(
        name=redact(cfg.name),
        config=shown(cfg),
        versions={name: last[name] for name in ("spa", "python", *PACKAGES) if name in last},
        machine={title: last[key] for title, key in _MACHINE.items() if key in last},
        variants=variants,
        sft=_metrics(out / "sft"),
        sft_of_variants={name: _metrics(stage) for name, stage in tuned.items()},
        overlaps=overlaps(contents),
        symmetric_overlaps=overlaps(symmetries) if symmetries and all(symmetries.values()) else {},
        timings=timings,
        created=str(last.get("started", "")),
        episodes_per_variant=cfg.report.episodes,
    )


def _metrics(stage: Path) -> list[dict[str, Any]]:
    path = stage / "metrics.jsonl"
    return list(read_metrics(path)) if path.is_file() else []


def _episodes(path: Path) -> list[Episode]:
    return list(read_episodes(path)) if path.is_file() else []
