"""Notes on planners that are asked in vain, and refusals of what stage 1 could not keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from spa.cautions import cautions
from spa.cli import main
from spa.config.load import load_config, load_variant

PLANNED = "agent.planner=lookahead"


def said(stage: str, variant: str, *settings: str) -> str:
    return "\n".join(cautions(load_config("frozen_lake", settings), stage, [load_variant(variant)]))


@pytest.mark.parametrize(
    ("stage", "variant", "settings", "expected"),
    [
        ("eval", "base", [PLANNED], "builtin:tiny is not trained to predict single moves"),
        ("eval", "base", [PLANNED, "planner.model=simulator"], ""),
        ("eval", "base", [], ""),
        ("eval", "plan", [], ""),
        ("eval", "base", ["planner.model=simulator"], "planner.model=simulator without effect: set agent.planner"),
        ("run", "vanilla", ["planner.model=simulator"], "planner.model=simulator without effect: set agent.planner"),
        ("run", "plan", ["planner.model=simulator"], ""),
    ],
)
def test_what_a_planner_asks_in_vain(stage: str, variant: str, settings: list[str], expected: str) -> None:
    text = said(stage, variant, *settings)
    assert expected in text and bool(expected) == bool(text)


def test_a_trained_model_is_planned_with_without_its_variant(tmp_path: Path) -> None:
    """As docs/planning.md says: a variant would bring its own planner back."""
    model = tmp_path / "run" / "sft-plan" / "checkpoints" / "global_step_1"
    model.mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}", encoding="utf-8")
    given = f"model.path={model}"
    assert "is asked as an untrained model" in said("eval", "base", given)
    assert said("eval", "base", given, PLANNED) == ""


def test_states_that_were_not_asked_for_cannot_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "frozen_lake", "--out", str(tmp_path / "run"), "variants=[plan]", "selfplay.states=belief"]
    assert main(argv) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("Error: ") and "selfplay.prompt=base asks for none: set selfplay.prompt=world_model" in line
    assert not (tmp_path / "run").exists()


def test_a_dry_run_names_the_worlds_that_are_imagined(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "frozen_lake", "variants=[spa_dream]", "curriculum.imagined_worlds=77", "--dry-run"]) == 0
    assert "before, stage 2's model imagines 77 worlds, 10 actions deep" in capsys.readouterr().out


def test_a_warm_up_that_does_not_fit_is_refused_like_stage_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["generate", "frozen_lake", "--out", str(tmp_path / "run"), "selfplay.policy=model"]
    assert main([*argv, "selfplay.warmup_rows=8", "--dry-run"]) == 0
    assert "# warm-up memory: at most about" in capsys.readouterr().out
    assert main([*argv, "--dry-run"]) == 0
    assert "warm-up" not in capsys.readouterr().out
    monkeypatch.setattr("spa.models.fit.available", lambda cfg: 10**6)
    assert main([*argv, "selfplay.warmup_rows=8"]) == 2
    assert "Error: SFT" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_evaluation_says_what_memory_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "frozen_lake", "--dry-run"]) == 0
    assert "# eval memory: at most about" in capsys.readouterr().out
