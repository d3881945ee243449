"""The whole way through the command line, small; mistakes write nothing."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spa.cli import main
from spa.config.load import load_config, load_variant
from spa.data.layouts import read_rows
from spa.pipeline import evaluate
from spa.pretrain.network import TinySize, build_model
from spa.runs.metrics import read_metrics

ROOT = Path(__file__).parents[1]

SMALL = [
    "model.threads=1",
    "env.max_turns=3",
    "selfplay.groups=4",
    "selfplay.group_size=2",
    "sft.epochs=1",
    "sft.batch_size=4",
    "sft.eval_worlds=2",
    "ppo.steps=2",
    "ppo.groups=2",
    "ppo.group_size=2",
    "ppo.val_every=1",
    "ppo.val_worlds=2",
    "ppo.warmup_steps=0",
    "eval.worlds=4",
    "eval.samples=2",
    "eval.ks=[1,2]",
    "eval.bootstrap=50",
    "eval.world_model_worlds=2",
]


def spa(*argv: str) -> int:
    return main([*argv, "--quiet"] if argv[0] != "report" else list(argv))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "lake"
    assert spa("run", "frozen_lake", "--out", str(out), *SMALL, "variants=[vanilla,se,spa]") == 0
    return out


def snapshot(folder: Path) -> dict[str, bytes]:
    names = ["metrics.jsonl", "result.json", "episodes.jsonl", "model.safetensors"]
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.name in names):
        content = path.read_bytes()
        if path.name == "metrics.jsonl":
            rows = [json.loads(line) for line in content.splitlines()]
            rows = [{k: v for k, v in row.items() if "time" not in k and "second" not in k} for row in rows]
            content = json.dumps(rows).encode()
        found[str(path.relative_to(folder))] = content
    return found


def documented(page: str, heading: str) -> set[str]:
    """The metrics that a section's tables name, with braces written out."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
        group = ""
        for name in re.findall(r"`([^`]+)`", row):
            group = name.rpartition("/")[0] or group
            parts = [
                part.split(",") for part in re.split(r"[{}]", name if "/" in name or not group else f"{group}/{name}")
            ]
            found |= {"".join(chosen) for chosen in itertools.product(*parts)}
    return found


def test_the_pages_name_every_metric(run_folder) -> None:
    training, evaluation = documented("algorithms.md", "Metrics"), documented("evaluation.md", "Metrics")
    for variant in ("vanilla", "spa"):
        logged = read_metrics(run_folder / "variants" / variant / "ppo" / "metrics.jsonl")
        names = {
            name for row in logged for name in row if not name.startswith(("val/", "world_model/", "calibration/"))
        }
        assert names - training == {"step", "time"}
        validated = {name.removeprefix("val/") for row in logged for name in row if name.startswith("val/")}
        played = json.loads((run_folder / "variants" / variant / "eval" / "result.json").read_text())["metrics"]
        for name in validated | set(played):
            assert re.sub(r"^status/.*", "status/STATUS", re.sub(r"@\d+", "@1", name)) in evaluation, name


def test_the_page_of_stage_2_names_its_metrics(run_folder) -> None:
    page = (ROOT / "docs" / "selfplay-and-sft.md").read_text(encoding="utf-8")
    logged = {name for row in read_metrics(run_folder / "sft" / "metrics.jsonl") for name in row}
    own = {name for name in logged if name.startswith(("train/", "val/"))}
    assert own and own <= set(re.findall(r"`(\w+/\w+)`", page))


def test_everything_is_there(run_folder, capsys) -> None:
    for variant in ("base", "vanilla", "se", "spa"):
        assert (run_folder / "variants" / variant / "eval" / "result.json").is_file()
    assert (run_folder / "variants" / "spa" / "ppo" / "checkpoints" / "global_step_2" / "model.safetensors").is_file()
    assert not (run_folder / "variants" / "base" / "ppo").exists()
    train, *_ = read_rows(run_folder / "selfplay" / "train.parquet")
    assert all("<observation>" in row.response for row in train)
    assert main(["report", str(run_folder)]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[1].startswith("validation Pass@1, at step")
    verdict = next(line for line in lines if line.endswith("; one seed, 2 PPO steps: no claim."))
    assert verdict.startswith("spa ")
    assert any(line.startswith("spa ") and " se " in line for line in lines), "the verdict names every counterpart"
    rule = max(i for i, line in enumerate(lines) if line.startswith("-----"))
    assert [line.split()[0] for line in lines[rule + 1 : rule + 5]] == ["base", "vanilla", "se", "spa"]
    assert "Worlds that two splits have in common: 0 by content, 0 up to rotation and mirror image (" in printed
    assert str(run_folder / "report.html") in printed
    page = (run_folder / "report.html").read_text(encoding="utf-8")
    assert "Pass@1" in page


def test_observations_of_the_data_are_the_states_shown(run_folder) -> None:
    for row in read_rows(run_folder / "selfplay" / "train.parquet")[0]:
        body = row.response.split("<observation>")[1].split("</observation>")[0]
        assert row.prompt[-1]["content"].startswith(body + "\n")


def test_resuming_a_finished_run_changes_nothing(run_folder) -> None:
    before = snapshot(run_folder)
    assert spa("run", "frozen_lake", "--out", str(run_folder), *SMALL, "variants=[vanilla,se,spa]", "--resume") == 0
    assert snapshot(run_folder) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "already holds a run of `spa run`; add --resume"),
        (["--model", "builtin:tiny"], "already holds a run of `spa run`; add --resume|holds the evaluation of"),
        (["--model", "builtin:tiny", "--resume"], "holds the evaluation of"),
    ],
)
def test_a_finished_evaluation_is_not_replaced(run_folder, capsys, options: list[str], message: str) -> None:
    before = snapshot(run_folder), (run_folder / "run.json").read_bytes()
    for more in (["--dry-run"], []):
        assert spa("eval", "--variant", "spa", "--out", str(run_folder), *options, *more) == 2
        assert re.search(message, capsys.readouterr().err)
    assert (snapshot(run_folder), (run_folder / "run.json").read_bytes()) == before


@pytest.fixture
def copied(run_folder, tmp_path, monkeypatch) -> Path:
    """A copy of the run, in which nothing may be evaluated."""
    monkeypatch.setattr("spa.evaluate.play.evaluate_model", lambda *args: pytest.fail("it was evaluated again"))
    shutil.copytree(run_folder, tmp_path / "copy")
    return tmp_path / "copy"


def recorded_model(run: Path, variant: str, **model: str) -> None:
    """Changes the model in the record of an evaluation."""
    path = run / "variants" / variant / "eval" / "done.json"
    record = {key: value for key, value in json.loads(path.read_text()).items() if "model" not in key}
    path.write_text(json.dumps({key: value for key, value in record.items() if key != "sha256"} | model))


def test_a_run_that_was_moved_is_not_evaluated_again(copied) -> None:
    assert spa("run", "--out", str(copied), "--resume") == 0
    assert spa("eval", "--variant", "spa", "--out", str(copied), "--resume") == 0


def test_a_run_does_not_take_another_models_evaluation_for_its_own(copied, capsys) -> None:
    recorded_model(copied, "spa", model="org/name", model_path="org/name")
    assert spa("run", "--out", str(copied), "--resume", "--dry-run") == 2
    message = "spa/eval holds the evaluation of org/name, not of"
    assert message in capsys.readouterr().err
    cfg = load_config(copied / "config.yaml")
    with pytest.raises(ValueError, match=message):  # where stage 3 has just finished
        evaluate(cfg, load_variant("spa"), copied, model=None, resume=True, begun=True)


def test_another_runs_checkpoint_is_another_model(run_folder, copied, capsys, monkeypatch) -> None:
    other = str(run_folder / "variants/spa/ppo/checkpoints/global_step_2")  # has the same path in its run
    shutil.rmtree(copied / "variants" / "spa" / "eval")
    monkeypatch.setattr("spa.evaluate.play.evaluate_model", lambda *args: {"model": other})
    assert spa("eval", "--variant", "spa", "--model", other, "--out", str(copied), "--resume") == 0
    assert spa("run", "--out", str(copied), "--resume") == 2
    assert f"holds the evaluation of {other}, not of {copied}" in capsys.readouterr().err


def test_a_checkpoint_evaluated_without_its_variant_is_said_to_be(run_folder, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("spa.evaluate.play.evaluate_model", lambda *args: {})
    for variant, said in (([], True), (["--variant", "spa"], False)):
        stage = str(run_folder / "variants/spa/ppo")
        assert main(["eval", "frozen_lake", "--model", stage, *variant, "--out", str(tmp_path / f"new-{said}")]) == 0
        assert (f"trained in the run {run_folder}" in capsys.readouterr().err) is said


@pytest.mark.slow
def test_a_lost_stage_is_made_again_bit_for_bit(run_folder, tmp_path) -> None:
    """The same seed gives the same run, also when only part of it is repeated."""
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy)
    for stage in ("variants/spa/ppo", "variants/spa/eval", "sft"):
        shutil.rmtree(copy / stage)
    assert spa("run", "frozen_lake", "--out", str(copy), *SMALL, "variants=[vanilla,se,spa]", "--resume") == 0
    assert snapshot(copy) == snapshot(run_folder)


@pytest.mark.slow
def test_the_same_stages_one_by_one_give_the_same_model(run_folder, tmp_path) -> None:
    out = str(tmp_path / "steps")
    common = ["--out", out, *SMALL, "variants=[vanilla,se,spa]"]
    assert spa("generate", "frozen_lake", *common) == 0
    assert spa("sft", "frozen_lake", *common) == 0
    assert spa("ppo", "frozen_lake", "--variant", "spa", *common) == 0
    assert spa("eval", "frozen_lake", "--variant", "spa", *common) == 0
    ours, theirs = snapshot(tmp_path / "steps"), snapshot(run_folder)
    assert ours == {name: theirs[name] for name in ours}
    assert "variants/spa/eval/result.json" in ours


@pytest.mark.slow
@pytest.mark.parametrize("world", ["_2_sokoban", "_10_sudoku"])
def test_the_other_worlds_run_under_their_original_names(tmp_path, world: str) -> None:
    assert spa("run", world, "--out", str(tmp_path / "r"), *SMALL, "variants=[spa]", "ppo.steps=1") == 0
    assert (tmp_path / "r" / "report.html").is_file()


def refused(capsys, out: Path, *argv: str) -> str:
    """Runs a command that must fail: one line, code 2, nothing written."""
    assert spa(*argv, "--out", str(out)) == 2
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0
    assert "Traceback" not in error
    assert not out.exists()
    return error


def test_unknown_names(capsys, tmp_path) -> None:
    out = tmp_path / "r"
    assert "Did you mean 'sokoban'" in refused(capsys, out, "run", "sokban")
    assert "ppo.steps" in refused(capsys, out, "run", "sokoban", "ppo.stpes=3")
    assert "Did you mean 'frozen_lake'" in refused(capsys, out, "generate", "sokoban", "env.id=frozen_lak")
    assert "no model folder" in refused(capsys, out, "eval", "sokoban", "--model", str(tmp_path / "global_step_9"))
    assert "no model folder" in refused(capsys, out, "ppo", "sokoban", f"model.path={tmp_path}/nothing")
    assert "sft.window=1" in refused(capsys, out, "generate", "sokoban", "agent.window=3")
    assert f"run `spa sft NAME --out {out}` first" in refused(capsys, out, "ppo", "sokoban", "--variant", "spa")


def test_a_model_without_tokenizer(capsys, tmp_path) -> None:
    size = TinySize(hidden_size=32, num_layers=1, num_heads=1, intermediate_size=32)
    build_model(64, size, 0, eos_id=2, pad_id=0).save_pretrained(tmp_path / "bare")
    error = refused(capsys, tmp_path / "r", "generate", "sokoban", f"model.path={tmp_path}/bare")
    assert "has no tokenizer" in error


def test_bad_training_data(capsys, tmp_path) -> None:
    pq.write_table(pa.table({"prompt": ["x"], "text": ["y"]}), tmp_path / "x.parquet")
    error = refused(capsys, tmp_path / "r", "sft", "sokoban", f"sft.data={tmp_path}/x.parquet")
    assert "has no column response" in error
    prompt = [[{"role": "user", "content": "hi"}]]
    pq.write_table(pa.table({"prompt": prompt, "response": ["no tags at all"]}), tmp_path / "y.parquet")
    error = refused(capsys, tmp_path / "r", "sft", "sokoban", f"sft.data={tmp_path}/y.parquet")
    assert "no token to train" in error
    assert "no training data" in refused(capsys, tmp_path / "r", "sft", "sokoban")


def test_a_run_that_was_interrupted_goes_on_where_it_was(tmp_path, monkeypatch, capsys) -> None:
    """Ctrl-C in the middle of PPO, then --resume: all files equal those of the uninterrupted run."""
    from spa.rl.trainer import PPOTrainer

    step = PPOTrainer._one_step
    common = ["frozen_lake", *SMALL, "ppo.save_every=1", "variants=[vanilla]"]
    assert spa("run", *common, "--out", str(tmp_path / "whole")) == 0

    def stop_in_the_second(self: PPOTrainer) -> dict[str, float]:
        if self.step == 1:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(PPOTrainer, "_one_step", stop_in_the_second)
    assert spa("run", *common, "--out", str(tmp_path / "cut")) == 130
    assert "--resume" in capsys.readouterr().err
    monkeypatch.setattr(PPOTrainer, "_one_step", step)
    assert spa("run", *common, "--out", str(tmp_path / "cut")) == 2  # not without being asked to
    assert spa("run", *common, "--out", str(tmp_path / "cut"), "--resume") == 0
    assert snapshot(tmp_path / "cut") == snapshot(tmp_path / "whole")


@pytest.mark.slow
def test_a_variant_that_collapses_does_not_keep_the_others_from_being_trained(tmp_path, monkeypatch, capsys) -> None:
    from spa.rl import trainer
    from spa.rl.health import TrainingCollapsed

    train = trainer.train_ppo

    def collapse(cfg, variant, *args, **kwargs):
        if variant.name in ("vanilla", "spa"):
            raise TrainingCollapsed("the policy has collapsed: it is silent")
        return train(cfg, variant, *args, **kwargs)

    longer = tmp_path / "longer.yaml"
    longer.write_text(
        "{name: longer, state_format: grid, sft: false, rl: true, continues: vanilla, settings: {ppo.steps: 3}}"
    )
    command = ["run", "frozen_lake", *SMALL, f"variants=[vanilla,{longer},se,spa]", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(trainer, "train_ppo", collapse)
    assert spa(*command) == 2
    printed = capsys.readouterr()
    last = printed.err.strip().splitlines()[-1]
    assert (
        last
        == "Error: variant vanilla was not evaluated: the policy has collapsed: it is silent; variant longer was not evaluated: "
        "it continues vanilla; variant spa was not evaluated: as vanilla"
    )
    table = printed.out.rpartition("-----\n")[2].splitlines()
    assert [line.split()[0] for line in table if line.startswith(("base ", "vanilla ", "se "))] == ["base", "se"]
    assert (tmp_path / "run" / "report.html").is_file()
    monkeypatch.setattr(trainer, "train_ppo", train)
    assert spa(*command, "--resume") == 0
    assert {"base", "vanilla", "longer", "se", "spa"} <= {
        line.split()[0] for line in capsys.readouterr().out.splitlines() if line
    }
