"""Stage 3's variants, algorithms, curricula and starting points through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spa.cli import main
from spa.config.load import names_of
from tests.test_pipeline import SMALL

ONE = [*SMALL, "ppo.steps=1", "eval.world_model_worlds=2"]


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", names_of("algorithm"))
def test_every_algorithm_trains(tmp_path, name: str) -> None:
    out = tmp_path / "r"
    settings = [*ONE, f"algorithm={name}", "ppo.critic_warmup=0", "agent.format_penalty=-0.3"]
    assert main(["ppo", "frozen_lake", "--out", str(out), *settings, "--quiet"]) == 0
    last = metrics(out / "variants" / "vanilla" / "ppo")[-1]
    assert last["train/updates"] > 0 or last["charts/skipped_steps"] == 1
    assert ("losses/value_loss" in last) == (name in ("ppo", "turn_ppo", "bi_level_ppo"))


@pytest.mark.slow
def test_variants_with_a_world_model_in_rl_log_it_along_the_curve(tmp_path) -> None:
    out = tmp_path / "r"
    settings = [*ONE, "variants=[spa_aux,vagen]", "ppo.critic_warmup=0"]
    assert main(["run", "frozen_lake", "--out", str(out), *settings, "--quiet"]) == 0
    for variant in ("spa_aux", "vagen"):
        logged = metrics(out / "variants" / variant / "ppo")
        assert [row["step"] for row in logged] == [0, 1]
        assert all("world_model/observation_em" in row and "calibration/top1" in row for row in logged)
    assert "losses/world_model" in metrics(out / "variants" / "spa_aux" / "ppo")[-1]
    assert "losses/world_model" not in metrics(out / "variants" / "vagen" / "ppo")[-1]
    assert (out / "sft").is_dir()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "spa_aux" in page and "vagen" in page


@pytest.mark.slow
def test_rl_starts_where_it_is_told(tmp_path) -> None:
    first = tmp_path / "first"
    assert main(["ppo", "frozen_lake", "--out", str(first), *ONE, "ppo.critic_warmup=0", "--quiet"]) == 0
    stage = first / "variants" / "vanilla" / "ppo"
    scores = []
    for number, start in enumerate((stage, stage / "checkpoints" / "global_step_1")):
        out = tmp_path / str(number)
        # A variant with SFT needs no stage 1 and 2 then.
        settings = [*ONE, f"ppo.start={start}", "variants=[spa]"]
        assert main(["run", "frozen_lake_6x6", "--out", str(out), *settings, "--quiet"]) == 0
        assert not (out / "sft").exists() and not (out / "selfplay").exists()
        rows = metrics(out / "variants" / "spa" / "ppo")
        scores.append({k: v for k, v in rows[-1].items() if not k.startswith(("time", "charts"))})
    assert scores[0] == scores[1]


def test_a_start_that_holds_no_model_is_one_line_and_nothing_is_written(tmp_path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    for command in (["run"], ["ppo", "--variant", "spa"]):
        out = tmp_path / "r"
        assert (
            main([*command, "frozen_lake", "--out", str(out), *ONE, f"ppo.start={tmp_path / 'empty'}", "--quiet"]) == 2
        )
        error = capsys.readouterr().err.strip()
        assert "holds no model" in error and "\n" not in error
        assert not out.exists()


def test_a_variant_without_stage_3_is_not_trained(tmp_path, capsys) -> None:
    for variant in ("base", "sft"):
        out = tmp_path / variant
        assert main(["ppo", "frozen_lake", "--variant", variant, "--out", str(out), *ONE, "--quiet"]) == 2
        assert f"variant {variant} has no stage 3" in capsys.readouterr().err
        assert not out.exists()


def plan(capsys, *argv: str) -> str:
    assert main([*argv, "--dry-run"]) == 0
    return "\n".join(line for line in capsys.readouterr().out.splitlines() if line.startswith("#"))


def test_the_plan_says_how_stage_3_will_learn(capsys) -> None:
    assert "ppo vanilla: gae, rewards at the end of each turn, critic: head" in plan(capsys, "ppo", "frozen_lake")
    text = plan(capsys, "ppo", "frozen_lake", "algorithm=dapo", "ppo.kl_loss_coef=0.1", "ppo.lora_rank=8")
    assert "grpo, rewards at the end of each episode, no critic, until 32 groups are informative" in text
    assert "reference model: where it starts, LoRA of rank 8" in text
    text = plan(capsys, "ppo", "sokoban", "model=qwen2.5-1.5b", "algorithm=ppo")
    assert "gae, rewards at the end of each episode, critic: model, 25% of the groups kept (std)" in text
    assert "world-model loss x 0.1" in plan(capsys, "run", "frozen_lake", "variants=[spa_aux]")
    assert "rewards for states: 0.05 and 0.05 (exact)" in plan(capsys, "ppo", "frozen_lake", "--variant", "vagen")
    text = plan(capsys, "ppo", "frozen_lake", "curriculum.levels=[{size: 3}]")
    assert "trains on {'size': 3}, then the world itself; the next at 70% success over 3 steps" in text
    text = plan(capsys, "ppo", "sokoban", "curriculum.mixture={sokoban: 3, sudoku: 1}")
    assert "trains on 75% sokoban, 25% sudoku; the run's own world is sokoban" in text
    assert "own world is not among them" in plan(capsys, "ppo", "sokoban", "curriculum.mixture={sudoku: 1}")
    text = plan(capsys, "run", "frozen_lake", "ppo.start=org/model", "variants=[spa]")
    assert "from org/model" in text and "generate" not in text and "sft:" not in text


def test_a_curriculum_that_cannot_be_is_one_line(capsys, tmp_path) -> None:
    for setting, message in (
        ("curriculum.mixture={sokban: 1}", "Did you mean 'sokoban'?"),
        ("curriculum.levels=[{sise: 3}]", "size"),
        ("algorithm=grop", "Did you mean 'grpo'?"),
    ):
        assert main(["ppo", "frozen_lake", "--out", str(tmp_path / "r"), *ONE, setting]) == 2
        *_, error = capsys.readouterr().err.splitlines()
        assert message in error
        assert not (tmp_path / "r").exists()
