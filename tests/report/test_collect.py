"""What the report takes from a run folder."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spa.agent.episode import Episode, Turn, write_episodes
from spa.config.load import load_config
from spa.config.schema import VariantConfig
from spa.evaluate.summary import EvalResult
from spa.report.collect import collect
from spa.report.html import render_report
from spa.runs.folder import RunFolder
from spa.runs.provenance import environment
from spa.runs.record import DONE, write_record


def test_versions_and_machine_are_those_of_the_last_command(tmp_path: Path) -> None:
    RunFolder(tmp_path).open(load_config("sokoban"), "run", resume=False)
    data, here = collect(tmp_path), environment()
    assert data.versions["python"] == here["python"]
    assert data.versions["torch"] == metadata.version("torch")
    assert data.versions["transformers"] == metadata.version("transformers")
    machine = {"processor": here["cpu"], "cores": str(here["cpu_count"]), "system": here["platform"]}
    assert machine.items() <= data.machine.items()
    assert data.machine["command"]
    page = render_report(data)
    for shown in ("Versions", metadata.version("transformers"), "Machine", here["cpu"]):
        assert shown in page


def test_a_damaged_run_json_leaves_them_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path).open(load_config("sokoban"), "run", resume=False)
    folder.info_path.write_text("{torn")
    assert (collect(tmp_path).versions, collect(tmp_path).machine) == ({}, {})


def test_the_machine_is_the_one_that_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    for command, cores in (("generate", 64), ("sft", 64), ("eval spa", 96)):
        monkeypatch.setattr("spa.runs.provenance.usable_cores", lambda cores=cores: cores)
        folder.open(load_config("sokoban"), command, resume=False)
    monkeypatch.setattr("spa.runs.provenance.usable_cores", lambda: 2)
    assert collect(tmp_path).machine["cores"] == "64; 96"


@pytest.mark.parametrize(("lessons", "untaught"), [([0, 0], ["spa_plan"]), ([0, 3], [])])
def test_practice_that_taught_nothing_is_told(tmp_path: Path, lessons: list[int], untaught: list[str]) -> None:
    RunFolder(tmp_path).open(load_config("frozen_lake"), "run", resume=False)
    (folder := tmp_path / "practice-plan").mkdir()
    (folder / DONE).write_text(
        write_record(folder, {"seconds": 1.0, "rounds": [{"lessons": each} for each in lessons]})
    )
    evaluation = tmp_path / "variants" / "base" / "eval"
    evaluation.mkdir(parents=True)
    EvalResult.from_episodes("base", [Episode("T", 1, 0)], [1], 50, 0, {}).write(evaluation / "result.json")
    (tmp_path / "variants" / "spa_plan").mkdir()
    data = collect(tmp_path)
    assert data.untaught == untaught
    assert ("Practice of spa_plan found nothing to teach" in render_report(data)) == bool(untaught)


@pytest.mark.parametrize("error", [None, ValueError("no <room>")])
def test_an_unfinished_run_says_what_is_missing(tmp_path: Path, error: Exception | None) -> None:
    variants = [VariantConfig(name="search", rl=False), VariantConfig(name="plan", rl=False)]
    folder = RunFolder(tmp_path).open(load_config("frozen_lake"), "run", resume=False, variants=variants)
    folder.close(error)
    evaluation = tmp_path / "variants" / "search" / "eval"
    evaluation.mkdir(parents=True)
    EvalResult.from_episodes("search", [Episode("T", 1, 0)], [1], 50, 0, {}).write(evaluation / "result.json")
    page = render_report(collect(tmp_path))
    assert "Not evaluated: plan." in page
    assert ("The last command ended with ValueError: no &lt;room&gt;" in page) == bool(error)
    assert "PPO steps" not in page, "none trains by RL"


def test_training_episodes_are_those_of_steps_from_first_to_last(tmp_path: Path) -> None:
    RunFolder(tmp_path).open(load_config("frozen_lake"), "run", resume=False)
    folder = tmp_path / "variants" / "vanilla" / "ppo" / "episodes"
    folder.mkdir(parents=True)
    for step in range(1, 12):
        write_episodes(folder / f"step_{step:06d}.jsonl", [Episode("T", seed, seed) for seed in (7, 7, 8, 9)])
    shown = collect(tmp_path, 6).variants["vanilla"]
    assert [(step, episode.seed) for step, episode in shown.training] == [(step, 7) for step in (1, 3, 5, 7, 9, 11)]
    assert collect(tmp_path, 0).variants["vanilla"].training == []


def test_stage_1_is_shown_with_rows_that_the_correction_changed_first(tmp_path: Path) -> None:
    RunFolder(tmp_path).open(load_config("frozen_lake"), "run", resume=False)
    stage = tmp_path / "selfplay-plan"
    stage.mkdir()
    (stage / "stats.json").write_text(json.dumps({"episodes": 4, "rows_train": 1200}))
    rows = [
        {"response": "right", "extra_info": {"seed": seed, "original_response": text, "executed": ["Up"]}}
        for seed, text in ((1, "right"), (2, None), (3, "wrong"), (3, "wrong, too"))
    ]
    pq.write_table(pa.Table.from_pylist(rows), stage / "train.parquet")
    (shown,) = collect(tmp_path).selfplay
    assert shown.title == "plan" and [sample.written for sample in shown.samples] == ["wrong", "right", None]
    assert "1,200" in render_report(collect(tmp_path))


def test_how_a_run_was_made_is_shown_as_it_is_in_run_json(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path).open(load_config("frozen_lake", ["ppo.steps=7"]), "run", resume=False)
    info = folder.info()
    del info["sha256"]  # as earlier versions, which had none
    info["commands"][-1] |= {"argv": ["spa", "run", "a b"], "git": {"commit": "0123abc"}, "anything": 5}
    folder.info_path.write_text(json.dumps(info))
    data = collect(tmp_path)
    assert data.changed == {"ppo.steps": ("50", "7")}
    page = render_report(data)
    for shown in ("0123abc", "git.commit", "anything", "spa run &#39;a b&#39;"):
        assert shown in page


def test_tokens_are_decoded_by_the_runs_own_tokenizer(tmp_path: Path) -> None:
    RunFolder(tmp_path).open(load_config("frozen_lake"), "run", resume=False)
    decode = collect(tmp_path).decode
    assert decode is not None and "<think>" in [decode(token) for token in range(512)]
    RunFolder(tmp_path / "other").open(load_config("frozen_lake", ["model.path=nobody/nothing"]), "run", resume=False)
    assert collect(tmp_path / "other").decode is None


def test_a_turn_may_have_no_next_state(tmp_path: Path) -> None:
    RunFolder(tmp_path).open(load_config("frozen_lake"), "run", resume=False)
    folder = tmp_path / "variants" / "vanilla" / "eval"
    folder.mkdir(parents=True)
    write_episodes(folder / "episodes.jsonl", [Episode("T", 1, 1, turns=[Turn(0, "P_", "u", "r")], status="error")])
    assert "episode-vanilla-test-1-0" in render_report(collect(tmp_path))


def test_of_images_nothing_is_claimed_where_a_split_does_not_know_them(tmp_path: Path) -> None:
    RunFolder(tmp_path).open(load_config("frozen_lake"), "run", resume=False)
    for stage, split, image in (("selfplay", "selfplay", None), ("imagined-spa_dream", "train", "i")):
        (folder := tmp_path / stage).mkdir()
        (folder / DONE).write_text(write_record(folder, {"seconds": 1.0, "worlds": {split: {split: image}}}))
    data = collect(tmp_path)
    assert (data.overlaps, data.symmetric_overlaps) == ({"selfplay&train": 0}, {})
