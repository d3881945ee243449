"""Which model each network of practice is trained from, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spa.config.schema import Config
from spa.sft import practice as module
from tests.planning.test_practice import small


def test_policies_are_trained_from_the_newest_world_model_for_the_epochs_of_practice(
    tmp_path: Path, monkeypatch: Any
) -> None:
    trained: list[tuple[str, str, int]] = []

    def train(cfg: Config, data: Path, folder: Path, title: str) -> str:
        trained.append((title, cfg.model.path, cfg.sft.epochs))
        return title

    counts = {"lessons": 1, "actions": 0, "worlds_planned": 1, "solved": 1, "questions": 0, "tokens": 0}
    monkeypatch.setattr(module, "_train", train)
    monkeypatch.setattr(module, "_step", lambda folder, title, work: dict(counts))
    cfg = small()
    cfg.practice.epochs = 3
    (tmp_path / "train.parquet").touch()
    module.practice(cfg, tmp_path, model="stage 2", data=tmp_path)
    assert trained == [
        ("practice 1, policy", "stage 2", 3),
        ("practice 2, world model", cfg.model.path, 1),
        ("practice 2, policy", "practice 2, world model", 3),
    ]
