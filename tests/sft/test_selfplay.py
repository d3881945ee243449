"""Stage 1 that is interrupted goes on where it was, and gives the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spa.agent.episode import Episode, read_episodes, write_episodes
from spa.agent.episode_store import EpisodeStore
from spa.agent.policy import Policy
from spa.agent.random_engine import PLAIN_THOUGHT
from spa.cli import main
from spa.evaluate import play as play_module
from spa.runs.record import PLAYED
from spa.runs.stage import Stage, reopen_episodes

ARGUMENTS = ["generate", "frozen_lake", "--quiet", "model.threads=1", "selfplay.groups=5", "selfplay.group_size=2"]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Chunks of two worlds; the seeds of those that were played."""
    monkeypatch.setattr(play_module, "CHUNK", 2)
    seeds: list[int] = []
    play = Policy.play

    def recorded(self: Policy, *args: Any, seed: int, **kwargs: Any) -> list[Episode]:
        seeds.append(seed)
        return play(self, *args, seed=seed, **kwargs)

    monkeypatch.setattr(Policy, "play", recorded)
    return seeds


def result(out: Path) -> tuple[Any, ...]:
    folder = out / "selfplay"
    tables = tuple(pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("train", "val"))
    return *tables, (folder / "episodes.jsonl").read_bytes(), (folder / "stats.json").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["model", "random"])
def test_an_interrupted_generation_goes_on_after_the_last_chunk(
    played: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str
) -> None:
    arguments = [*ARGUMENTS, f"selfplay.policy={policy}"]
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    seeds = list(played)
    assert len(set(seeds)) == 3
    play = Policy.play

    def stop_in_the_second(self: Policy, *args: Any, **kwargs: Any) -> list[Episode]:
        if len(played) == 4:
            raise KeyboardInterrupt
        return play(self, *args, **kwargs)

    out = tmp_path / "cut"
    monkeypatch.setattr(Policy, "play", stop_in_the_second)
    assert main([*arguments, "--out", str(out)]) == 130
    partial = out / "selfplay" / "episodes.partial.jsonl"
    assert len(list(read_episodes(partial))) == 4
    before = json.loads((partial.parent / "seconds.json").read_text())["seconds"]
    with open(partial, "a", encoding="utf-8") as file:
        file.write('{"task": "Fro')
    monkeypatch.setattr(Policy, "play", play)
    played.clear()
    assert main([*arguments, "--out", str(out), "--resume"]) == 0
    assert played == seeds[1:]
    assert result(out) == result(tmp_path / "whole")
    assert not partial.exists()
    assert 0 < before < json.loads((partial.parent / "done.json").read_text())["seconds"]


@pytest.mark.slow
def test_a_chunk_that_is_only_half_there_is_played_again(played: list[int], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main([*ARGUMENTS, "--out", str(out)]) == 0
    before = result(out)
    episodes = list(read_episodes(out / "selfplay" / "episodes.jsonl"))
    write_episodes(out / "selfplay" / "episodes.partial.jsonl", episodes[:7])
    (out / "selfplay" / "done.json").unlink()
    seeds = list(played)
    played.clear()
    assert main([*ARGUMENTS, "--out", str(out), "--resume"]) == 0
    assert played == seeds[1:]
    assert result(out) == before


def test_episodes_that_failed_are_not_played_again_for_another_selection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert main([*ARGUMENTS, "--out", str(out)]) == 0
    reopen_episodes(out / "selfplay")
    episodes = list(read_episodes(out / "selfplay" / PLAYED))
    episodes[3].status, episodes[3].error = "error", "broken world"
    write_episodes(out / "selfplay" / PLAYED, episodes)
    monkeypatch.setattr(Policy, "load", None)
    assert main([*ARGUMENTS, "selfplay.success_only=false", "--out", str(out), "--resume"]) == 0
    assert json.loads((out / "selfplay" / "stats.json").read_text())["dropped"]["failed episode"] == 1
    assert not (out / "selfplay" / PLAYED).exists()


@pytest.mark.parametrize("step", ["episodes", "time", "record"])
def test_a_selection_that_is_killed_loses_no_episode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    """Killed before each step of reopening stage 1, whose rows are damaged."""
    out = tmp_path / "run"
    assert main([*ARGUMENTS, "--out", str(out)]) == 0
    before = result(out)
    (out / "selfplay" / "train.parquet").write_bytes(b"damaged")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "episodes":
            patch.setattr(Path, "replace", killed)
        elif step == "time":
            patch.setattr("spa.runs.stage.atomic_write", killed)
        else:
            patch.setattr(Path, "unlink", lambda path, **more: killed() if path.name == "done.json" else None)
        with pytest.raises(KeyboardInterrupt):
            reopen_episodes(out / "selfplay")
    monkeypatch.setattr(Policy, "load", None)
    assert main([*ARGUMENTS, "--out", str(out), "--resume"]) == 0
    assert result(out) == before


@pytest.mark.parametrize("step", ["generate", "select", "eval"])
def test_a_stage_killed_before_its_record_loses_no_episode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    """Also one that selects the rows of its episodes again."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    arguments = [*ARGUMENTS, "eval.worlds=4", "eval.samples=2", "eval.ks=[1,2]", "eval.world_model_worlds=1"]
    if step == "eval":
        arguments = ["eval", "--variant", "base", *arguments[1:]]
    if step == "select":
        assert main([*arguments, "selfplay.success_only=true", "--out", str(out)]) == 0
    with monkeypatch.context() as patch:
        patch.setattr("spa.runs.stage.write_record", killed)
        assert main([*arguments, "--out", str(out), *(["--resume"] if step == "select" else [])]) == 130
    monkeypatch.setattr(Policy, "play", None)
    assert main([*arguments, "--out", str(out), "--resume"]) == 0
    (record,) = out.rglob("done.json")
    assert {path.name for path in record.parent.iterdir()} == {"done.json", *json.loads(record.read_text())["files"]}


def test_another_model_may_play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    arguments = ["selfplay.model=builtin:tiny", "model.path=builtin:tiny"]
    assert main([*ARGUMENTS, *arguments, "--out", str(out)]) == 0
    assert main([*ARGUMENTS, "selfplay.model=builtin:tinny", "--out", str(tmp_path / "no")]) == 2
    assert "Did you mean 'tiny'" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_no_row_is_an_error_that_keeps_the_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main([*ARGUMENTS, "sampling.max_tokens=1", "--out", str(out)]) == 2
    assert "self-play left no row to train on; dropped: {" in capsys.readouterr().err
    assert len(list(read_episodes(out / "selfplay" / "episodes.jsonl"))) == 10
    assert not (out / "selfplay" / "done.json").exists()


def episode(group: int, member: int = 0) -> Episode:
    return Episode("T", seed=group, group=group, member=member)


def test_kept_episodes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "e.jsonl"
    kept = EpisodeStore(path)
    kept.add([episode(2), episode(0, 1)])
    kept.add([episode(2), episode(0)])
    failed = episode(1)
    failed.status = "error"
    kept.add([failed])
    assert [(e.group, e.member) for e in kept.in_order()] == [(0, 0), (0, 1), (1, 0), (2, 0)]
    again = EpisodeStore(path)
    assert len(again) == 3
    assert (1, 0) not in again


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_line_is_cut_off_before_more_is_appended(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "e.jsonl"
    EpisodeStore(path).add([episode(0), replace_text(episode(1), "√")])
    path.write_bytes(path.read_bytes()[:-cut])
    kept = EpisodeStore(path)
    assert len(kept) == 1
    kept.add([episode(2)])
    assert [e.group for e in read_episodes(path)] == [0, 2]


def replace_text(one: Episode, text: str) -> Episode:
    one.error = text * 30
    return one


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(episode(0).to_json() + "\n{\n" + episode(1).to_json() + "\n")
    with pytest.raises(ValueError, match=r"e\.jsonl, line 2: not an episode .*; delete the file to start over"):
        EpisodeStore(path)


@pytest.mark.parametrize(("resume", "keep", "there"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_stage_keeps_an_unfinished_try_only_if_told_to(tmp_path: Path, resume: bool, keep: bool, there: bool) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "half").write_text(json.dumps(1))
    Stage(tmp_path / "s", "stage", resume, keep=keep)
    assert (tmp_path / "s" / "half").exists() == there


@pytest.mark.parametrize(("limit", "thought"), [(12, ""), (48, PLAIN_THOUGHT)])
def test_plain_answers_of_random_play_are_short_enough_for_stage_3(tmp_path: Path, limit: int, thought: str) -> None:
    plain = ["selfplay.rows=transitions", "selfplay.prompt=base", "selfplay.filter=false", "sft.loss=think_answer"]
    settings = [*plain, "selfplay.policy=random", "selfplay.groups=2"]
    one = ["env.max_actions_per_turn=1", "model.threads=1", f"sampling.max_tokens_base={limit}"]
    assert main(["generate", "frozen_lake", *settings, *one, "--out", str(tmp_path)]) == 0
    (episode, *_) = read_episodes(tmp_path / "selfplay" / "episodes.jsonl")
    assert {turn.response.partition("</think>")[0] for turn in episode.turns} == {f"<think>{thought}"}
