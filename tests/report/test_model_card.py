"""The card of an exported model, of made-up runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from spa.cli import main
from spa.config.load import load_config, to_yaml
from spa.config.schema import VariantConfig
from spa.evaluate.summary import EvalResult, WorldResult
from spa.models.load import load_tokenizer
from spa.report.model_card import export_files
from spa.runs.folder import RunFolder
from spa.runs.products import model_path

MODEL = "variants/vanilla/ppo/checkpoints/global_step_50"


def make_checkpoint(folder: Path) -> None:
    load_tokenizer("builtin:tiny").save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose base model is the folder ``base``."""
    base, run = tmp_path / "base", tmp_path / "run"
    base.mkdir()
    (base / "config.json").write_text("{}")
    for folder in (run, tmp_path / "elsewhere"):
        make_checkpoint(folder / MODEL)
    (run / "config.yaml").write_text(to_yaml(load_config("frozen_lake", [f"model.path={base}", "variants=[vanilla]"])))
    (run / "run.json").write_text("{}")
    return run


def test_a_config_of_another_project_above_the_model_is_not_its_run(run: Path) -> None:
    (run / "run.json").unlink()
    (run / "config.yaml").write_text("lr: 3\n")
    assert "README.md" in export_files(run / MODEL)


@pytest.mark.parametrize(
    ("card", "licensed"),
    [
        (b"---\nlicense: mit\n---\n# A model\n", True),
        (b"---\nlicense: mit\n---\n\xff\n", True),
        (b"---\n\n---\n# A model\n", False),
        (b"---\nlicense: a: b\n---\n", False),
        (b"---\nlicense\n---\n", False),
        (b"# A model\n", False),
    ],
)
def test_the_base_models_card_may_be_anything(run: Path, card: bytes, licensed: bool) -> None:
    (run.parent / "base" / "README.md").write_bytes(card)
    assert ("\nlicense: mit\n" in export_files(run / MODEL)["README.md"]) == licensed


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("base_model: a/b", "base, whose own base is a/b"),
        ("base_model:\n- a/b\n- c/d", "base, whose own base is a/b, c/d"),
    ],
)
def test_the_trained_model_and_what_its_own_card_names(run: Path, named: str, shown: str) -> None:
    base = run.parent / "base"
    (base / "README.md").write_text(f"---\n{named}\n---\n# A model\n")
    (base / "LICENSE").write_bytes(b"Copyright \xa9 them")
    (base / "LICENSES").mkdir()
    files = export_files(run / MODEL)
    assert f"- base model: {shown}\n" in files["README.md"]
    assert files["LICENSE"] == "Copyright \ufffd them"


@pytest.mark.parametrize(("evaluated", "shown"), [("run", True), ("elsewhere", False)])
def test_the_result_is_that_of_the_model(run: Path, evaluated: str, shown: bool) -> None:
    model = str(run.parent / evaluated / MODEL)
    folder = run / "variants" / "vanilla" / "eval"
    folder.mkdir()
    EvalResult("vanilla", "Lake", [WorldResult(0, 0, "w", 1, 4)], {"pass@1": 0.25}, ks=[1]).write(
        folder / "result.json"
    )
    done = {"seconds": 1.0, "model": model, "model_path": model_path(model, run)}
    (folder / "done.json").write_text(json.dumps(done))
    assert ("## Result" in export_files(run / MODEL)["README.md"]) == shown


def test_the_verdict_of_another_variant_is_not_the_models(run: Path) -> None:
    for name in ("base", "vanilla", "spa"):
        folder = run / "variants" / name / "eval"
        folder.mkdir(parents=True)
        wins = [WorldResult(i, i, f"w{i}", 2, 4) for i in range(3)]
        EvalResult(name, "Lake", wins, {"pass@1": 0.5}, ks=[1]).write(folder / "result.json")
    model = str(run / MODEL)
    done = {"seconds": 1.0, "model": model, "model_path": model_path(model, run)}
    (run / "variants" / "vanilla" / "eval" / "done.json").write_text(json.dumps(done))
    card = export_files(run / MODEL)["README.md"]
    assert "only about this model" in card and "is not clearly above" not in card


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (["sampling.temperature=0"], "    do_sample=False,\n    eos"),
        (["sampling.top_p=0.9"], "    do_sample=True,\n    temperature=1.0,\n    top_p=0.9,\n    top_k=0,\n    eos"),
    ],
)
def test_the_snippet_samples_as_it_was_measured(run: Path, settings: list[str], lines: str) -> None:
    (run / "config.yaml").write_text(to_yaml(load_config(run / "config.yaml", [*settings, "sampling.stop=[]"])))
    assert lines in export_files(run / MODEL)["README.md"]


def test_the_task_of_a_stage_2_is_that_of_a_variant_that_shares_it(run: Path) -> None:
    mine = VariantConfig("mine", sft=True, rl=False, shares="ours", settings={"selfplay.state_format": "grid"})
    cfg = load_config(run / "config.yaml")
    RunFolder(run).open(cfg, "sft ours", resume=True, variants=[mine])
    make_checkpoint(run / "sft-ours/checkpoints/global_step_1")
    task = run.parent / "spa.yaml"
    task.write_text(export_files(run / "sft-ours/checkpoints/global_step_1")["spa.yaml"])
    assert cfg.selfplay.state_format == "coordinates" and load_config(task).env.state_format == "grid"


def test_the_task_beside_a_model_is_that_of_its_plain_policy(run: Path) -> None:
    cfg = load_config(run / "config.yaml", ["agent.planner=beam", "planner.width=4", "sampling.stop=['</answer>']"])
    (run / "config.yaml").write_text(to_yaml(cfg))
    task = run.parent / "spa.yaml"
    task.write_text(export_files(run / MODEL)["spa.yaml"])
    assert load_config(task).agent == replace(cfg.agent, planner="none")
    served = ["engine=openai", "engine.base_url=http://localhost:8000/v1", "engine.model=m", "engine.prefill=true"]
    pytest.importorskip("openai")
    assert main(["eval", str(task), *served, "sampling.stop=[]", "--dry-run"]) == 0


def test_a_secret_of_the_world_stays_in_the_environment(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_MAP", "supersecrettoken123")
    cfg = load_config("frozen_lake", ["variants=[vanilla]", "env.settings.desc=${oc.env:LAKE_MAP}"])
    (run / "config.yaml").write_text(to_yaml(cfg))
    monkeypatch.setattr("spa.report.model_card._usage", lambda *_: [])
    monkeypatch.setattr("spa.report.model_card.make_task", lambda *_, **__: SimpleNamespace(forced="<think>"))
    files = export_files(run / MODEL)
    assert "supersecrettoken123" not in "".join(files.values())
    assert "${oc.env:LAKE_MAP}" in files["README.md"] and "${oc.env:LAKE_MAP}" in files["spa.yaml"]
