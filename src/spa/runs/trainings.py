"""What the finished stages of a run recorded, by variant: times and steps. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spa.common.clock import Elapsed
from spa.config.load import load_config
from spa.config.schema import VariantConfig
from spa.config.variants import (
    dream_folder,
    needs_sft,
    practice_folder,
    selfplay_folder,
    sft_folder,
    variant_config,
    variants_of,
)
from spa.runs.folder import variants_folder
from spa.runs.record import read_done


@dataclass(frozen=True)
class Training:
    """What a variant's training took: steps of PPO (0 without), processor seconds of its own stages (0 if unknown)."""

    steps: int = 0
    seconds: float = 0.0


NO_TRAINING = Training()


def stage_records(folder: Path, variant: VariantConfig) -> dict[str, dict[str, Any]]:
    """The records of a variant's finished stages, by title; stages shared with other variants count in full."""
    cfg = load_config(folder / "config.yaml", missing_ok=True)
    stages = {}
    if needs_sft(cfg, variant):
        stages = {"self-play": selfplay_folder(folder, variant), "SFT": sft_folder(folder, variant)}
    if variant.practice:
        stages["practice"] = practice_folder(folder, variant)
    if variant_config(cfg, variant).curriculum.imagined:
        stages["imagining"] = dream_folder(folder, variant)
    if variant.rl:
        stages["PPO"] = variants_folder(folder) / variant.name / "ppo"
    return {name: done for name, stage in stages.items() if (done := read_done(stage))}


def trainings(folder: Path) -> dict[str, Training]:
    """Each variant's training, as far as the run has finished it; empty if a variant of the config is no longer there."""
    try:
        variants = variants_of(load_config(folder / "config.yaml", missing_ok=True))
    except ValueError:  # a variant's file, or a package with its world, is not on this machine
        return {}
    return {variant.name: _training(stage_records(folder, variant)) for variant in variants}


def _training(records: dict[str, dict[str, Any]]) -> Training:
    last = str(records.get("PPO", {}).get("last", "")).rpartition("_")[2]
    seconds = sum(Elapsed.from_record(record).cpu for record in records.values())
    return Training(int(last) if last.isdigit() else 0, seconds)
