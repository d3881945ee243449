"""Variants with self-play and SFT of their own, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spa.agent.episode import read_episodes
from spa.cli import main
from spa.config.schema import ModelConfig
from spa.data.layouts import read_rows
from spa.envs.states import grid_part
from spa.models.load import load_model
from spa.runs.record import read_done
from tests.test_pipeline import SMALL

pytestmark = pytest.mark.slow
ARMS = ["self_belief", "masked", "random_policy", "random_policy_1_epoch", "no_coordinates", "epochs_2"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ablations") / "lake"
    settings = [*SMALL, "ppo.steps=1", "ppo.val_every=0", "eval.world_model_worlds=0", "sft.eval_worlds=0"]
    assert main(["run", "frozen_lake", "--out", str(out), "--quiet", f"variants=[{','.join(ARMS)}]", *settings]) == 0
    return out


def responses(folder: Path) -> list[str]:
    return [row.response for row in read_rows(folder / "train.parquet")[0]]


def test_each_stage_is_done_once(run_folder: Path) -> None:
    assert {path.name for path in run_folder.glob("selfplay*")} == {
        *("selfplay", "selfplay-self_belief", "selfplay-random_policy", "selfplay-no_coordinates")
    }
    assert {path.name for path in run_folder.glob("sft*")} == {f"sft-{variant}" for variant in ARMS}
    for variant in ARMS:
        assert (run_folder / "variants" / variant / "eval" / "result.json").is_file()


def test_data_is_what_the_variant_says(run_folder: Path) -> None:
    truth = responses(run_folder / "selfplay")
    belief = read_rows(run_folder / "selfplay-self_belief" / "train.parquet")[0]
    assert all(row.response == row.extra["original_response"] for row in belief)
    assert [row.response for row in belief] != truth
    assert all("I will try these actions." in text for text in responses(run_folder / "selfplay-random_policy"))
    assert all("is at" in text for text in truth)
    assert not any("is at" in text for text in responses(run_folder / "selfplay-no_coordinates"))


def test_models_differ_and_epochs_are_counted(run_folder: Path) -> None:
    def steps(variant: str) -> int:
        done = read_done(run_folder / f"sft-{variant}")
        return int(str(done["model"]).rpartition("_")[2]) if done else 0

    assert steps("epochs_2") == 2 * steps("masked")
    weights = {}
    for variant in ARMS:
        folder = run_folder / f"sft-{variant}" / f"checkpoints/global_step_{steps(variant)}"
        model = load_model(ModelConfig(device="cpu"), str(folder))
        weights[variant] = float(model.get_input_embeddings().weight.detach().double().sum())
    # One epoch is what SMALL asks for, so these two are the same.
    assert weights.pop("random_policy_1_epoch") == weights["random_policy"]
    assert len(set(weights.values())) == len(weights)


def test_the_report_shows_them(run_folder: Path) -> None:
    assert main(["report", str(run_folder)]) == 0
    page = (run_folder / "report.html").read_text(encoding="utf-8")
    assert "SFT, masked" in page
    assert "self-play, random_policy" in page


def test_stages_of_an_variant_one_by_one(tmp_path, capsys) -> None:
    out = tmp_path / "mine"
    common = ["--out", str(out), "--quiet"]
    assert main(["generate", "frozen_lake", *SMALL, "--variant", "random_policy", *common]) == 0
    assert [path.name for path in out.glob("selfplay*")] == ["selfplay-random_policy"]
    assert main(["ppo", "--variant", "random_policy", *common]) == 2
    assert f"run `spa sft --variant random_policy --out {out}` first" in capsys.readouterr().err
    assert main(["sft", "--variant", "random_policy", *common]) == 0
    assert main(["eval", "--variant", "random_policy", *common]) == 2
    assert main(["sft", "--variant", "random_policy", *common]) == 2
    assert "add --resume" in capsys.readouterr().err


def test_lora_runs_through_all_stages(tmp_path) -> None:
    pytest.importorskip("peft")
    out = tmp_path / "lora"
    settings = [
        "sft.lora_rank=4",
        "sft.eval_every=1",
        "sft.use=best",
        "sft.patience=5",
        "ppo.steps=1",
        "variants=[spa]",
    ]
    assert main(["run", "frozen_lake", "--out", str(out), "--quiet", *SMALL, *settings]) == 0
    done = read_done(out / "sft")
    assert done is not None
    checkpoint = out / "sft" / str(done["model"])
    assert (checkpoint / "adapter" / "adapter_model.safetensors").is_file()
    rows = [json.loads(line) for line in (out / "sft" / "metrics.jsonl").read_text().splitlines()]
    assert {"world_model/observation_em", "calibration/cases", "perplexity/grid"} <= set(rows[-1])


def test_a_training_that_does_not_fit_is_refused_before_it_starts(tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "big"
    assert main(["generate", "frozen_lake", *SMALL, "--out", str(out), "--quiet"]) == 0
    monkeypatch.setattr("spa.models.memory.free_memory", lambda device: 10 * 2**20)
    assert main(["sft", "--out", str(out), "--quiet"]) == 2
    error = capsys.readouterr().err
    for part in ("needs about", "10 MiB are free on cpu", "sft.memory_check=false"):
        assert part in error
    assert not list(out.glob("sft/checkpoints/*"))
    assert main(["sft", "--out", str(out), "--quiet", "--resume", "sft.memory_check=false"]) == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["run", "sokoban", "variants=[easy_to_hard]"],
            "variant easy_to_hard: unknown setting 'size' of world 'sokoban'",
        ),
        (["run", "sokoban", "variants=[maskd]"], "unknown variant 'maskd'"),
        (["generate", "sokoban", "--variant", "maskd"], "Did you mean 'masked'"),
        (["sft", "sokoban", "--variant", "nowhere.yaml"], "no variant file nowhere.yaml"),
    ],
)
def test_mistakes_write_nothing(tmp_path, capsys, arguments, message) -> None:
    out = tmp_path / "none"
    assert main([*arguments, "--out", str(out), "--quiet"]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "name, variant, seen, trained_on",
    [
        ("frozen_lake_6x6", "easy_to_hard", 6, 4),
        ("frozen_lake", "cross_world", 4, 6),  # Sokoban's rooms have six rows
        ("sokoban_hard", "cross_complexity", 10, 6),
    ],
)
def test_transfer_learns_from_one_world_and_is_judged_in_another(tmp_path, name, variant, seen, trained_on) -> None:
    out = tmp_path / "run"
    settings = [*SMALL, "ppo.steps=1", "ppo.val_every=0", "eval.world_model_worlds=0", "sft.eval_worlds=0"]
    assert main(["run", name, "--out", str(out), "--quiet", f"variants=[{variant}]", *settings]) == 0

    def height(state: str) -> int:
        return len(grid_part(state).splitlines())

    (source,) = out.glob("selfplay*")
    assert source.name == f"selfplay-{variant}"
    assert {height(turn.state) for episode in read_episodes(source / "episodes.jsonl") for turn in episode.turns} == {
        trained_on
    }
    judged = read_episodes(out / "variants" / variant / "eval" / "episodes.jsonl")
    assert {height(turn.state) for episode in judged for turn in episode.turns} == {seen}
