"""Which model an evaluation is of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spa.config.load import load_config, load_variant
from spa.config.schema import VariantConfig
from spa.runs.folder import RunFolder
from spa.runs.products import check_evaluated, check_inputs, is_of_model, model_path, trained_model
from spa.runs.record import DONE, write_record

OWN = "variants/spa/ppo/checkpoints/global_step_2"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs with models of the same names, in the working directory."""
    for name in ("run", "other"):
        (tmp_path / name / OWN).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("evaluated", "asked", "same"),
    [
        (f"run/{OWN}", f"run/{OWN}", True),
        (f"run/{OWN}", f"{{runs}}/other/../run/{OWN}", True),
        (f"other/{OWN}", f"run/{OWN}", False),
        (f"other/{OWN}", f"{{runs}}/other/{OWN}", True),
        ("builtin:tiny", "builtin:tiny", True),
        ("org/name", "org/another", False),
        ("org/name", f"run/{OWN}", False),
        (None, None, True),  # a chat server's
        (None, "org/name", False),
        ("org/name", None, False),
    ],
)
def test_an_evaluation_knows_its_model(runs: Path, evaluated: str | None, asked: str | None, same: bool) -> None:
    done = {"model": evaluated or "m at http://server", "model_path": model_path(evaluated, Path("run"))}
    assert is_of_model(done, asked and asked.format(runs=runs), Path("run")) == same


def test_any_folder_of_a_run_is_named_by_its_path_in_it(runs: Path) -> None:
    Path("run/exported").mkdir()
    assert model_path("run/exported", Path("run")) == "exported"
    assert model_path("run/nothing", Path("run")) == "run/nothing"


def test_a_checkpoint_that_was_lost_is_still_the_runs_own(runs: Path) -> None:
    done = {"model": f"run/{OWN}", "model_path": model_path(f"run/{OWN}", Path("run"))}
    shutil.rmtree(f"run/{OWN}")
    assert is_of_model(done, str(runs / "run" / OWN), runs / "run")


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_a_run_that_was_moved_keeps_its_evaluations(runs: Path, monkeypatch: pytest.MonkeyPatch, move) -> None:
    done = {"model": f"run/{OWN}", "model_path": model_path(f"run/{OWN}", Path("run"))}
    move("run", "moved")
    assert is_of_model(done, f"moved/{OWN}", Path("moved"))
    monkeypatch.chdir("moved")
    assert is_of_model(done, OWN, Path())


def test_another_models_evaluation_is_refused(runs: Path) -> None:
    folder = Path("run/variants/base/eval")
    base = VariantConfig(name="base")
    check_evaluated(base, Path("run"), "org/b")
    folder.mkdir(parents=True)
    (folder / DONE).write_text(write_record(folder, {"seconds": 1.0, "model": "org/a", "model_path": "org/a"}))
    check_evaluated(base, Path("run"), "org/a")
    with pytest.raises(ValueError, match=f"{folder} holds the evaluation of org/a, not of org/b: give another --out"):
        check_evaluated(base, Path("run"), "org/b")
    (folder / DONE).write_text("{")  # made again, and said to be so, by the stage
    check_evaluated(base, Path("run"), "org/b")


def test_a_chat_server_is_evaluated_as_no_trained_variant(runs: Path) -> None:
    cfg = load_config("frozen_lake", ["engine=openai"])
    assert check_inputs(cfg, "eval", load_variant("base"), Path("run")) == (None, None)
    with pytest.raises(ValueError, match="variant spa was not trained to its end in run: "):
        check_inputs(cfg, "eval", load_variant("spa"), Path("run"))
    stage = Path("run/variants/spa/ppo")
    (stage / DONE).write_text(write_record(stage, {"seconds": 1.0, "model": "checkpoints/global_step_2"}))
    assert check_inputs(cfg, "eval", load_variant("spa"), Path("run")) == (f"run/{OWN}", None)


def test_a_variant_without_stage_2_starts_from_its_own_model() -> None:
    cfg = load_config("frozen_lake")
    own = VariantConfig(name="own", rl=False, settings={"model.path": "org/own"})
    assert trained_model(cfg, own, Path("run")) == check_inputs(cfg, "eval", own, Path("run"))[0] == "org/own"
    assert check_inputs(cfg, "ppo", VariantConfig(settings=own.settings), Path("run"))[0] == "org/own"
    assert trained_model(cfg, load_variant("base"), Path("run")) == cfg.model.path


def test_where_rl_starts_is_no_model_of_the_base() -> None:
    cfg = load_config("frozen_lake", ["ppo.start=org/other"])
    assert trained_model(cfg, load_variant("base"), Path("run")) == cfg.model.path


@pytest.mark.parametrize(
    ("command", "first"),
    [
        ("run", "spa run --out run --resume"),
        ("ppo vanilla", "spa ppo --variant vanilla --out run --resume"),
        ("sft", "spa ppo --variant vanilla --out run"),
    ],
)
def test_what_is_to_be_run_first_is_said_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, first: str
) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = load_config("frozen_lake")
    RunFolder(Path("run")).open(cfg, command, resume=False)
    with pytest.raises(ValueError, match=f"vanilla was not trained in run: run `{first}` first or give --model"):
        check_inputs(cfg, "eval", load_variant("vanilla"), Path("run"))
