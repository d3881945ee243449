"""A variant that goes on where another stopped is the longer training, without doing its beginning again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spa import pipeline
from spa.cli import main
from spa.common.checkpoints import checkpoint_folder, list_checkpoints
from spa.common.manifest import write_manifest
from spa.config.load import load_config
from spa.config.schema import VariantConfig
from spa.report.collect import collect
from spa.rl.health import TrainingFailed
from spa.runs.record import DONE, write_record
from tests.test_pipeline import SMALL, snapshot


def spa(*argv: str) -> int:
    return main([*argv, "--quiet"])


def variant_file(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\nsft: false\nrl: true\n{text}\n")
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("variants")
    settings = "settings: {ppo.steps: 4, ppo.save_every: 1}"
    short = variant_file(folder, "short", "settings: {ppo.steps: 2, ppo.save_every: 1}")
    variant_file(folder, "whole", settings)
    return short, variant_file(folder, "longer", f"continues: short\n{settings}")


@pytest.mark.slow
def test_it_is_the_same_as_training_so_long_at_once(files: tuple[str, str], tmp_path: Path) -> None:
    short, longer = files
    out = tmp_path / "out"
    whole = str(Path(longer).with_name("whole.yaml"))
    assert spa("run", "frozen_lake", "--out", str(out), *SMALL, f"variants=[{short},{longer},{whole}]") == 0
    variants = out / "variants"
    models = [
        (variants / n / "ppo" / "checkpoints" / "global_step_4" / "model.safetensors").read_bytes()
        for n in ("longer", "whole")
    ]
    assert models[0] == models[1]
    assert snapshot(variants / "longer")["ppo/metrics.jsonl"] == snapshot(variants / "whole")["ppo/metrics.jsonl"]
    lines = {n: (variants / n / "ppo" / "metrics.jsonl").read_text().splitlines() for n in ("short", "longer")}
    assert lines["longer"][: len(lines["short"])] == lines["short"], "with their times: it was not done again"
    seconds = {n: json.loads((variants / n / "ppo" / "done.json").read_text())["seconds"] for n in ("short", "longer")}
    assert seconds["longer"] > seconds["short"], "its time is that of the whole training"
    shown = collect(out).timings
    assert shown["PPO, longer"] == pytest.approx(seconds["longer"] - seconds["short"]), "a report counts no time twice"
    assert shown["PPO, short"] == seconds["short"]
    assert not (variants / "short" / "ppo" / "checkpoints" / "global_step_4").exists()


def test_a_damaged_record_of_it_is_made_again(files: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert spa("run", "frozen_lake", "--out", str(out), *SMALL, f"variants=[{files[0]},{files[1]}]") == 0
    whole, record = snapshot(out), out / "variants" / "longer" / "ppo" / "done.json"
    record.write_text(record.read_text().replace("seconds", "secands"))
    assert spa("run", "--out", str(out), "--resume") == 0
    assert snapshot(out) == whole and "secands" not in record.read_text()


def test_mistakes_are_named(files: tuple[str, str], tmp_path: Path, capsys) -> None:
    short, longer = files

    def fails(*argv: str) -> str:
        assert main([*argv]) == 2
        return capsys.readouterr().err

    out = ["--out", str(tmp_path / "out")]
    other = variant_file(
        tmp_path, "other", "continues: short\nstate_format: coordinates\nsettings: {ppo.steps: 4, ppo.lam: 0.5}"
    )
    assert "state_format" in (printed := fails("run", "frozen_lake", f"variants=[{short},{other}]", *out))
    assert "ppo.lam" in printed
    same = variant_file(tmp_path, "same", "continues: short\nsettings: {ppo.steps: 2, ppo.save_every: 1}")
    assert "more than its 2 ppo.steps" in fails("run", "frozen_lake", f"variants=[{short},{same}]", *out)
    assert "variants=[...] names it before" in fails("run", "frozen_lake", f"variants=[{longer},{short}]", *out)
    assert f"spa ppo NAME --variant short --out {tmp_path / 'out'}" in fails(
        "ppo", "frozen_lake", "--variant", longer, *out
    )
    assert not (tmp_path / "out" / "variants").exists()


def test_a_continuation_that_was_interrupted_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    stages = {name: tmp_path / "variants" / name / "ppo" for name in ("short", "longer")}
    for stage, step in zip(stages.values(), (2, 3), strict=True):
        checkpoint_folder(stage, step).mkdir(parents=True)
        (checkpoint_folder(stage, step) / "config.json").write_text("{}")
        write_manifest(checkpoint_folder(stage, step))
    record = write_record(stages["short"], {"seconds": 1.0, "model": "checkpoints/global_step_2"})
    (stages["short"] / DONE).write_text(record)
    for resume, steps in ((True, [3]), (False, [2])):
        pipeline._take_over(VariantConfig(name="longer", continues="short"), tmp_path, resume=resume)
        assert [step for step, _ in list_checkpoints(stages["longer"])] == steps


def test_what_continues_a_variant_that_failed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []

    def ppo(cfg: object, variant: VariantConfig, *_: object, **how: object) -> None:
        trained.append(variant.name)
        if variant.name == "short":
            raise TrainingFailed("it diverged")

    monkeypatch.setattr(pipeline, "ppo", ppo)
    monkeypatch.setattr(pipeline, "evaluate", lambda *_, **how: None)
    monkeypatch.setattr(pipeline, "_conclude", lambda *_: None)
    short = variant_file(tmp_path, "short", "settings: {ppo.steps: 2}")
    longer = variant_file(tmp_path, "longer", "continues: short\nsettings: {ppo.steps: 4}")
    cfg = load_config("frozen_lake", [*SMALL, f"variants=[{short},{longer},vanilla]"])
    why = "variant short was not evaluated: it diverged; variant longer was not evaluated: it continues short$"
    with pytest.raises(ValueError, match=why):
        pipeline.run(cfg, tmp_path / "out", resume=False)
    assert trained == ["short", "vanilla"]
