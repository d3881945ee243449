"""Disk space for checkpoints is checked before anything is written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spa.cli import main
from spa.config.load import load_config, load_variant
from spa.models.requirements import check_disk
from spa.runs.record import DONE
from tests.test_checks import variant_file
from tests.test_pipeline import SMALL


@pytest.mark.parametrize(("command", "needed"), [("run", "trainings take up to"), ("ppo", "of 1 training take up to")])
def test_a_full_disk(capsys, tmp_path, monkeypatch, command: str, needed: str) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2**20))
    assert main([command, "frozen_lake", *SMALL, "--out", str(tmp_path / "r"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert needed in error and "and 1 MiB are free in" in error and error.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_finished_training_needs_no_disk(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2**20))
    cfg, variants = load_config("frozen_lake", SMALL), [load_variant("spa")]
    with pytest.raises(ValueError, match="the checkpoints of 2 trainings"):
        check_disk(cfg, tmp_path, "run", variants)
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / DONE).touch()
    with pytest.raises(ValueError, match="the checkpoints of 1 training take"):
        check_disk(cfg, tmp_path, "run", variants)
    (tmp_path / "variants" / "spa" / "ppo").mkdir(parents=True)
    (tmp_path / "variants" / "spa" / "ppo" / DONE).touch()
    check_disk(cfg, tmp_path, "run", variants)


def test_a_full_disk_counts_what_stage_3_keeps(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=0))

    def taken(*settings: str) -> int:
        command = ["ppo", "frozen_lake", *SMALL, "ppo.critic=model", *settings, "--out", str(tmp_path / "r"), "--quiet"]
        assert main(command) == 2
        number, unit, _ = capsys.readouterr().err.partition("take up to ")[2].split(maxsplit=2)
        assert unit == "MiB,"
        return int(number)

    assert taken("ppo.estimator=grpo") == taken("algorithm=grpo") < taken()
    assert taken("ppo.use=best") > taken("ppo.use=last")
    before = taken()
    (kept := tmp_path / "r/variants/vanilla/ppo/checkpoints/global_step_1/trainer_state").mkdir(parents=True)
    (kept / "model-00001.safetensors").write_bytes(b"0" * 2**20)
    assert taken() == before - 1


def test_a_full_disk_counts_what_stage_2_keeps(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2**20))
    sizes = []
    for block in ("settings", "source"):
        path = variant_file(tmp_path, f"sft: true\nrl: false\n{block}: {{sft.keep_checkpoints: 50}}")
        assert main(["run", "frozen_lake", *SMALL, f"variants=[{path}]", "--out", str(tmp_path / "r"), "--quiet"]) == 2
        sizes.append(capsys.readouterr().err.partition("take up to ")[2].partition(",")[0])
    assert sizes[0] == sizes[1] != ""
