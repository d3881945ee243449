"""A finished tiny run, damaged in every kind of file: what is damaged is named in one line, and what can be made again is.

And tampered with: ``spa verify`` finds it, also where the digests were made to fit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import spa
from spa.agent.episode import read_episodes, write_episodes
from spa.cli import main
from spa.common.checkpoints import check_best, checkpoint_folder, latest_checkpoint, list_checkpoints, prune_checkpoints
from spa.common.manifest import MANIFEST, digests, own_digest, write_manifest
from spa.config.schema import ModelConfig
from spa.evaluate.samples import SAMPLES, read_samples, write_samples
from spa.evaluate.summary import EvalResult
from spa.models.load import load_model, load_state, load_tokenizer
from spa.pipeline import sft
from spa.rl.trainer import PPOTrainer
from spa.runs.folder import RunFolder
from spa.runs.record import DONE, read_done, write_record
from spa.runs.stage import Stage, model_of
from spa.verify import stages
from tests.test_pipeline import SMALL, snapshot

SETTINGS = [
    *SMALL,
    "variants=[spa]",
    "sft.eval_worlds=0",
    "sft.save_every=1",
    "sft.batch_size=6",
    "ppo.val_worlds=1",
    "ppo.save_every=1",
    "eval.worlds=2",
    "eval.world_model_worlds=1",
]
PPO = "variants/spa/ppo"
EVAL = "variants/spa/eval"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(["run", "frozen_lake", "--out", str(out), *SETTINGS, "--quiet"]) == 0
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def missing(path: Path) -> None:
    path.unlink()


DAMAGE = [flip, cut, empty, missing]
CHECKPOINT_FILES = ["model.safetensors", "trainer_state.pt", "tokenizer.json", "config.json", MANIFEST]


@pytest.fixture(scope="module")
def stage_folder(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two whole checkpoints, small enough to be copied often."""
    folder = tmp_path_factory.mktemp("stage") / "ppo"
    for step in (1, 2):
        target = checkpoint_folder(folder, step)
        shutil.copytree(checkpoint_folder(whole / PPO, step), target)
    return folder


def test_a_model_is_loaded_without_the_trainers_state_of_several_ranks(stage_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ppo"
    shutil.copytree(stage_folder, folder)
    newest, older = checkpoint_folder(folder, 2), checkpoint_folder(folder, 1)
    (state := newest / "trainer_state").mkdir()
    shutil.copy(newest / "model.safetensors", state / "model-00001.safetensors")
    write_manifest(newest)
    shutil.rmtree(state)
    load_model(ModelConfig(path=str(newest), device="cpu"))
    assert latest_checkpoint(folder) == (1, older)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_the_newest_whole_checkpoint_is_used(
    stage_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "ppo"
    shutil.copytree(stage_folder, folder)
    newest, older = checkpoint_folder(folder, 2), checkpoint_folder(folder, 1)
    damage(newest / name)
    assert latest_checkpoint(folder) == (1, older)
    (line,) = capsys.readouterr().err.splitlines()
    assert str(newest) in line
    assert name in line
    assert line.endswith(f"going back to {older}")
    assert model_of(str(folder)) == str(older)
    assert capsys.readouterr().err == "", "it is said once"
    assert Stage(folder, "PPO", resume=True).resume
    # Whoever names the damaged one is told so; what was not damaged can be loaded.
    if name not in (MANIFEST,):
        loads = {
            "model.safetensors": lambda: load_model(ModelConfig(device="cpu"), str(newest)),
            "trainer_state.pt": lambda: load_state(newest),
            "tokenizer.json": lambda: load_tokenizer(str(newest)),
            "config.json": lambda: load_model(ModelConfig(device="cpu"), str(newest)),
        }
        with pytest.raises(
            ValueError, match=r"is damaged|is missing|no model|no weights|no trainer_state|no config"
        ) as caught:
            loads[name]()
        assert "\n" not in str(caught.value)
        assert str(newest) in str(caught.value)


def test_an_empty_checkpoint_is_none(stage_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ppo"
    shutil.copytree(stage_folder, folder)
    checkpoint_folder(folder, 3).mkdir()
    assert latest_checkpoint(folder) == (2, checkpoint_folder(folder, 2))
    assert "global_step_3 has no manifest.json" in capsys.readouterr().err


def test_where_none_is_whole_nothing_is_trained_over_it(stage_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ppo"
    shutil.copytree(stage_folder, folder)
    for step in (1, 2):
        flip(checkpoint_folder(folder, step) / "trainer_state.pt")
    before = digests(folder)
    with pytest.raises(
        ValueError, match=r"global_step_2/trainer_state.pt is damaged.*; no other checkpoint is there: delete"
    ):
        Stage(folder, "PPO", resume=True)
    assert digests(folder) == before


def test_pruning_counts_whole_checkpoints_only(stage_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ppo"
    shutil.copytree(stage_folder, folder)
    cut(checkpoint_folder(folder, 2) / "model.safetensors")
    prune_checkpoints(folder, 1)
    assert [step for step, _ in list_checkpoints(folder)] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["train.parquet", "val.parquet", "stats.json"])
def test_rows_are_made_again_from_the_episodes(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], None]
) -> None:
    damage(run / "selfplay" / name)
    if name != "stats.json":  # stage 2 alone does not train on them
        (run / "sft" / DONE).unlink()
        with pytest.raises(ValueError, match=name):
            sft(RunFolder(run).config(), run, resume=True, begun=True)
    assert main(["generate", "--out", str(run), "--resume"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if str(run / "selfplay" / name) in line]
    assert len(said) == 1
    for file in ("train.parquet", "val.parquet", "stats.json", "episodes.jsonl"):
        assert (run / "selfplay" / file).read_bytes() == (whole / "selfplay" / file).read_bytes()


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["result.json", "episodes.jsonl", SAMPLES])
def test_an_evaluation_is_made_again(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], None]
) -> None:
    damage(run / EVAL / name)
    played = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spa.evaluate.play.evaluate_model", lambda *args: played.append(args) or {"model": "m"})
        assert main(["eval", "--variant", "spa", "--out", str(run), "--resume"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if str(run / EVAL / name) in line]
    assert len(said) == 1
    assert len(played) == 1
    assert not (run / EVAL / "result.json").exists()


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name",
    [
        "run.json",
        "config.yaml",
        f"{PPO}/metrics.jsonl",
        "sft/metrics.jsonl",
        f"{EVAL}/done.json",
        f"{EVAL}/result.json",
    ],
)
def test_the_report_names_what_is_damaged(
    run: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], None]
) -> None:
    if name.endswith(DONE) and damage is missing:
        pytest.skip("a stage without it is an unfinished one")
    damage(run / name)
    code = main(["report", str(run)])
    error = capsys.readouterr().err
    assert name in error
    assert code == 0 or error.startswith("Error: ") or error.splitlines()[-1].startswith("Error: ")
    assert all(error.splitlines().count(line) == 1 for line in error.splitlines())


@pytest.mark.parametrize("damage", [flip, cut, empty])
def test_a_damaged_record_is_made_again(
    run: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    damage(run / "sft" / DONE)
    with pytest.raises(ValueError, match=f"{DONE} is damaged"):
        read_done(run / "sft")
    stage = Stage(run / "sft", "SFT", resume=True)
    assert (stage.finished, stage.resume) == (False, True)
    assert str(run / "sft" / DONE) in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", PPO])
def test_a_run_with_a_damaged_model_comes_out_the_same(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    model = Path(model_of(str(run / stage)))
    flip(model / "model.safetensors")
    for later in (f"{PPO}", f"{EVAL}") if stage == "sft" else (EVAL,):
        shutil.rmtree(run / later)
    assert main(["run", "--out", str(run), "--resume"]) == 0
    error = capsys.readouterr().err
    assert f"{model}/model.safetensors is damaged" in error
    assert "going back to" in error
    assert snapshot(run) == snapshot(whole)


@pytest.mark.parametrize("damage", [flip, pytest.param(missing, marks=pytest.mark.slow)])
def test_a_damaged_best_checkpoint_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(PPOTrainer, "validate", lambda self: {"val/pass@1": 0.5 if self.step == 2 else 0.1})
    out, settings = (
        tmp_path / "run",
        [*SETTINGS, "variants=[vanilla]", "ppo.steps=3", "ppo.use=best", "ppo.keep_checkpoints=0"],
    )
    assert main(["run", "frozen_lake", "--out", str(out), *settings, "--quiet"]) == 0
    before, ppo = snapshot(out), out / "variants" / "vanilla" / "ppo"
    best = checkpoint_folder(ppo, 2)
    assert model_of(str(ppo)) == str(best)
    damage(best / "model.safetensors")
    assert main(["run", "--out", str(out), "--resume", "--quiet"]) == 0
    assert snapshot(out) == before
    assert f"{best}/model.safetensors is" in capsys.readouterr().err


def test_a_best_checkpoint_that_is_gone_is_not_replaced_by_another(stage_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ppo"
    shutil.copytree(stage_folder, folder)
    assert check_best(folder, 1) == checkpoint_folder(folder, 1)
    shutil.rmtree(checkpoint_folder(folder, 1))
    with pytest.raises(
        ValueError, match="global_step_1 is missing, and it was the best: delete the checkpoints after step 1"
    ):
        check_best(folder, 1)
    (folder / DONE).write_text(write_record(folder, {"seconds": 1.0, "model": "checkpoints/global_step_1"}))
    stage = Stage(folder, "PPO", resume=True)
    assert (stage.finished, stage.resume) == (False, False), "no earlier one is there: it starts again"


# spa verify


def record_again(stage: Path) -> None:
    """What a forger would do: the digests are those of the changed files."""
    done = json.loads((stage / DONE).read_text())
    done["files"] = digests(stage, leave_out=("checkpoints", DONE))
    done["sha256"] = own_digest(done)
    (stage / DONE).write_text(json.dumps(done))


def failures(run: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    code = main(["verify", str(run)])
    lines = capsys.readouterr().out.splitlines()
    assert all(line[:6] in ("ok    ", "FAIL  ") for line in lines if not line.endswith("failed"))
    wrong = [line for line in lines if line.startswith("FAIL")]
    assert code == bool(wrong)
    return wrong


def test_a_whole_run_is_right(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert failures(whole, capsys) == []


def test_a_variant_is_that_which_was_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    few = [*SMALL, "eval.worlds=2", "env.state_format=coordinates"]
    assert main(["eval", "frozen_lake", *few, "--out", out, "--quiet"]) == 0
    capsys.readouterr()
    assert failures(tmp_path / "run", capsys) == [], "the packaged base has the format grid"


def test_a_variants_file_may_be_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("{state_format: coordinates, sft: false, rl: false}")
    few = [*SMALL, "eval.worlds=2", "variants=[mine.yaml]", "--quiet"]
    assert main(["run", "frozen_lake", *few, "--out", "run"]) == 0
    Path("mine.yaml").unlink()
    capsys.readouterr()
    assert main(["export", "run", "--to", "m"]) == 2
    assert "has none (--sft takes stage 2's)" in capsys.readouterr().err
    assert failures(Path("run"), capsys) == []
    assert main(["play", "run", "--variant", "mine"]) == 0
    assert "Player (P) is at" in capsys.readouterr().out
    assert spa.Run("run").model("mine") == "builtin:tiny"
    monkeypatch.setattr(RunFolder, "definitions", lambda folder: {})  # as of an earlier version
    wrong = failures(Path("run"), capsys)
    assert [line.removeprefix("FAIL  ") for line in wrong] == [
        f"{check}: no variant file mine.yaml" for check in ("finished stages", "stage 1", "mine")
    ]


def test_an_older_report_is_no_failure(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(run)
    folder.open(folder.config(), "eval spa", resume=True)
    assert failures(run, capsys) == []
    main(["verify", str(run)])
    assert (
        "report.html: older than the last command, or written with other --episodes; `spa report"
        in capsys.readouterr().out
    )


def test_a_carriage_return_in_the_report_is_no_change(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(run)
    folder.open(replace(folder.config(), name="one\rtwo"), "eval spa", resume=True)
    folder.close(None)
    assert main(["report", str(run)]) == 0
    assert b"\r" in (run / "report.html").read_bytes()
    capsys.readouterr()
    assert main(["verify", str(run)]) == 0
    assert "report.html: what `spa report` writes now" in capsys.readouterr().out


def change_turn(path: Path, **changes: object) -> None:
    read, write = (
        (read_samples, write_samples) if path.name == SAMPLES else (lambda p: list(read_episodes(p)), write_episodes)
    )
    episodes = read(path)
    for name, value in changes.items():
        setattr(episodes[0].turns[0], name, value)
    write(path, episodes)


def change_json(path: Path, **changes: object) -> None:
    data = json.loads(path.read_text())
    for name, value in changes.items():
        block, _, key = name.partition("__")
        (data[block] if key else data)[key or block] = value
    path.write_text(json.dumps(data))


def another_task(path: Path) -> None:
    write_episodes(path, [replace(episode, task="elsewhere", success=True) for episode in read_episodes(path)])


def drop_a_world(evaluation: Path) -> None:
    """The samples and the result of one test world less."""
    kept = [episode for episode in read_samples(evaluation / SAMPLES) if episode.group == 0]
    write_samples(evaluation / SAMPLES, kept)
    old = EvalResult.read(evaluation / "result.json")
    new = EvalResult.from_episodes(old.name, kept, old.ks, old.bootstrap, old.seed)
    new.write(evaluation / "result.json")


TAMPERING: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of the weights": (
        lambda r: flip(next(r.glob(f"{PPO}/checkpoints/*/model.safetensors"))),
        "model.safetensors is damaged",
    ),
    "a model": (lambda r: shutil.rmtree(r / PPO / "checkpoints"), "it is missing, and is what the stage gives"),
    "a reward of training": (
        lambda r: change_turn(next(r.glob(f"{PPO}/episodes/*.jsonl")), reward=9, rewards=[9.0]),
        "replay of training",
    ),
    "a state of self-play": (lambda r: change_turn(r / "selfplay/episodes.jsonl", next_state="X"), "selfplay, replay"),
    "a response of self-play": (
        lambda r: change_turn(r / "selfplay/episodes.jsonl", response="<think>a</think><answer>Up</answer>"),
        "selfplay, replay",
    ),
    "a sample's success": (lambda r: change_turn(r / EVAL / SAMPLES, executed=["Up", "Up"]), "replay of samples"),
    "a result": (lambda r: change_json(r / EVAL / "result.json", **{"metrics__pass@1": 0.99}), "pass@1 is 0.99"),
    "a stage's score": (lambda r: change_json(r / EVAL / DONE, **{"pass@1": 0.99}), "done.json is damaged"),
    "episodes of another task": (lambda r: another_task(r / EVAL / "episodes.jsonl"), "of another task (elsewhere"),
    "a world": (lambda r: drop_a_world(r / EVAL), "lists 2 test worlds, result.json has 1"),
    "a count of stage 1": (lambda r: change_json(r / "selfplay/stats.json", success=0.99), "success is 0.99"),
    "a row": (lambda r: shutil.copy(r / "selfplay/train.parquet", r / "selfplay/val.parquet"), "val.parquet does not hold"),
    "a setting": (
        lambda r: (r / "config.yaml").write_text((r / "config.yaml").read_text().replace("gamma: 1.0", "gamma: 0.9")),
        "config.yaml: it changed since",
    ),
    "a step": (lambda r: (r / PPO / "metrics.jsonl").write_text('{"step": 2}\n{"step": 1}\n'), "steps are missing or out of order"),
    "a stage's end": (lambda r: (r / PPO / DONE).unlink(), "done.json is missing, but the run ended"),
    "a variant": (lambda r: shutil.rmtree(r / "variants/spa"), "eval/done.json is missing, but the run ended"),
    "stage 2": (lambda r: shutil.rmtree(r / "sft"), "sft/done.json is missing, but the run ended"),
    "the report": (lambda r: (r / "report.html").write_text("better"), "report.html: changed since it was written"),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERING)
def test_tampering_is_found(run: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    change, said = TAMPERING[what]
    change(run)
    assert any(said in line for line in failures(run, capsys))


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        "a reward of training",
        "a state of self-play",
        "a sample's success",
        "a result",
        "a count of stage 1",
        "a row",
        "episodes of another task",
        "a world",
    ],
)
def test_tampering_is_found_without_digests(run: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    change, said = TAMPERING[what]
    change(run)
    for stage in (run / "selfplay", run / PPO, run / EVAL):
        record_again(stage)
    wrong = failures(run, capsys)
    assert any(said in line for line in wrong)
    assert not any(", files:" in line for line in wrong)


def test_whoever_writes_a_manifest_again_is_believed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digests show damage and edits; they are no signature."""
    checkpoint = next((run / "sft" / "checkpoints").iterdir())
    flip(checkpoint / "model.safetensors")
    write_manifest(checkpoint)
    assert failures(run, capsys) == []


def test_a_run_may_be_in_a_folder_called_checkpoints(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "checkpoints" / "run"
    shutil.copytree(run, moved)
    assert [path.relative_to(moved) for path in stages(moved)] == [path.relative_to(run) for path in stages(run)] != []


def test_what_is_no_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_folder_of_runs_is_checked_run_by_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, run.parent / "seed-2")
    change_json(run.parent / "seed-2" / EVAL / "result.json", **{"metrics__pass@1": 0.99})
    assert main(["verify", str(run.parent)]) == 1
    lines = capsys.readouterr().out.splitlines()
    second = lines.index("seed-2:")
    assert lines[0] == "run:"
    assert not any(line.startswith("FAIL") for line in lines[:second])
    assert any("pass@1 is 0.99" in line for line in lines[second:])
