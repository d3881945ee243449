"""A run says early what it gives; what was played is on disk; another selection of rows plays nothing again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spa.agent.episode import Episode, TokenSequence, Turn, read_episodes
from spa.agent.episode_store import EpisodeStore
from spa.agent.policy import Policy
from spa.agent.worlds import WorldSource
from spa.cli import main
from spa.common.progress import set_quiet
from spa.config.load import load_config
from spa.config.schema import Config, EnvConfig, SelfPlayConfig
from spa.envs.checked import CheckedEnv, WorldError
from spa.models.folders import identity, resolve_path
from spa.sft.early import EarlyReport, hopeless, remedies, visible
from tests.scripted import lake_task, tiny_policy

GOOD = "<think><observation>a</observation>b<prediction>c</prediction></think><answer>Up</answer>"
LAKE = ["frozen_lake", "model.threads=1", "selfplay.group_size=2"]


@pytest.fixture(autouse=True)
def _loud() -> Any:
    set_quiet(False)
    yield
    set_quiet(False)


def config(groups: int = 50, group_size: int = 2, **play: object) -> Config:
    return Config(env=EnvConfig(max_turns=3), selfplay=SelfPlayConfig(groups=groups, group_size=group_size, **play))


def answered(number: int, responses: list[str]) -> Episode:
    turns = [Turn(i, f"s{i}", "", text, executed=["Up"] if text == GOOD else []) for i, text in enumerate(responses)]
    sequence = TokenSequence()
    for turn in turns:
        sequence.append([1] * 10, mask=1, logprobs=[0.0] * 10, turn=turn.index)
    return Episode("T", 0, number // 2, number % 2, turns=turns, sequences=[sequence])


def test_the_bound_stops_hopeless_models_and_spares_fair_ones() -> None:
    assert not hopeless(0, 89, 0.05)
    assert hopeless(0, 90, 0.05)
    assert not hopeless(2, 130, 0.05)
    assert not hopeless(9, 180, 0.05)  # exactly the least
    assert hopeless(410, 2400, 0.2) and not hopeless(470, 2400, 0.2), "many turns at once"
    assert not any(hopeless(n // 10, n, 0.05) for n in range(1, 2000, 13))
    assert not hopeless(0, 10**4, 0.0)


def test_short_answers_that_come_first_are_not_judged_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The first to end are the broken ones; every second model answer is good."""
    watch = EarlyReport(config(), episodes=100, concurrent=96)
    for number in range(1, 96, 2):
        for end in range(3):
            watch(answered(number, ["broken"] * (end + 1)), end == 2)
    assert capsys.readouterr().err == ""
    for number in range(0, 10, 2):
        watch(answered(number, [GOOD]), False)
    assert capsys.readouterr().err == "", "the first dozen is not complete"
    for number in range(10, 96, 2):
        watch(answered(number, [GOOD]), False)
    said = capsys.readouterr().err
    assert said.startswith(
        "self-play after 12 turns: 50.0% kept, 0.0% in the format, 50.0% with a valid action, 0.0% cut"
    )
    assert watch.judged == 96, "whether to stop is judged by more"
    assert ", 10 tokens a turn, " in said
    assert " tokens/s; the stage takes up to " in said


def test_a_hopeless_model_is_stopped_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    watch = EarlyReport(config(), episodes=100, concurrent=16)

    def play() -> None:
        for first in range(0, 96, 16):
            for end in range(3):
                for number in range(first, first + 16):
                    watch(answered(number, ["<think>\x1b[31m\nI"] * (end + 1)), end == 2)

    with pytest.raises(
        ValueError, match=r"keeps too few turns \(selfplay.min_kept=0.05\) of 9\d turns.*helps: selfplay.constrained"
    ) as stop:
        play()
    assert "\n" not in str(stop.value)
    rejected = [line for line in capsys.readouterr().err.splitlines() if "rejected" in line]
    assert rejected == [r"  rejected (no think block): <think>\x1b[31m\nI"] * 3


def test_an_episode_that_is_not_heard_of_does_not_switch_it_off() -> None:
    """It failed before its first turn, and a server's failures are known only at the end."""
    watch = EarlyReport(config(), episodes=200, concurrent=16)

    def play() -> None:
        for number in range(1, 96):
            watch(answered(number, ["broken"] * 3), True)

    with pytest.raises(ValueError, match="keeps too few turns"):
        play()
    assert len(watch.seen) < 64


def test_an_episode_of_a_world_that_fails_at_once_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[int, int, bool]] = []
    policy, task = tiny_policy(), lake_task()
    worlds = WorldSource(task, "val", 0).take(3)
    reset = CheckedEnv.reset

    def broken(env: CheckedEnv, *, seed: int, **more: Any) -> Any:
        if seed == worlds[1].seed:
            raise WorldError("no world")
        return reset(env, seed=seed, **more)

    monkeypatch.setattr(CheckedEnv, "reset", broken)
    policy.play(task, worlds, samples=1, seed=0, on_turn=lambda e, over: ended.append((e.group, len(e.turns), over)))
    assert ended[0] == (1, 0, True) and {group for group, *_ in ended} == {0, 1, 2}


@pytest.mark.parametrize(("settings", "reports"), [({"min_kept": 0.0}, 1), ({"early_turns": 0}, 0)])
def test_it_can_be_turned_off(settings: dict[str, Any], reports: int, capsys: pytest.CaptureFixture[str]) -> None:
    watch = EarlyReport(config(**settings), episodes=100, concurrent=16)
    for number in range(96):
        watch(answered(number, ["broken"] * 3), True)
    assert capsys.readouterr().err.count("self-play after") == reports


def test_responses_are_shown_on_one_line() -> None:
    assert visible("a\tb\x00√\r\n") == r"a\tb\x00√\r\n"
    assert visible("x" * 1000) == "x" * 200 + " [... 720 characters ...] " + "x" * 80


def test_what_is_set_already_is_no_remedy() -> None:
    cfg = load_config("frozen_lake", ["selfplay.shots=2", "selfplay.tries=4", "selfplay.constrained=true"])
    assert (
        remedies(cfg, [])
        == "What helps: selfplay.shots=0, selfplay.warmup_rows, selfplay.policy=random, a larger model"
    )


def test_random_play_is_no_remedy_for_itself() -> None:
    told = remedies(load_config("frozen_lake", ["selfplay.policy=random"]), [])
    assert "(spa env check)" in told and "selfplay.policy" not in told


def test_what_an_engine_cannot_do_is_no_remedy() -> None:
    served = ["engine=openai", "engine.model=m", "engine.base_url=http://localhost:1/v1"]
    for settings, left_out in ((served, ("constrained", "warmup_rows")), (["engine=vllm"], ("constrained",))):
        told = remedies(load_config("frozen_lake", settings), [])
        assert "selfplay.shots" in told and not any(name in told for name in left_out)


def test_a_stage_that_keeps_nothing_stops_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["generate", *LAKE, "selfplay.groups=60", "sampling.max_tokens=1", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "self-play keeps too few turns" in error.splitlines()[-1]
    assert "What helps: more than sampling.max_tokens=1, selfplay.constrained, " in error
    assert error.count("rejected (no think block, cut off)") == 3
    assert not (out / "selfplay" / "episodes.jsonl").exists()


def test_the_end_of_stage_1_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["generate", *LAKE, "selfplay.groups=4", "--out", str(out)]) == 0
    stats = json.loads((out / "selfplay" / "stats.json").read_text())
    line = next(
        line for line in capsys.readouterr().err.splitlines() if line.startswith(f"self-play, {stats['turns']}")
    )
    assert f" rows, dropped: {'none' if not stats['dropped'] else ''}" in line
    assert line.endswith(f"{stats['distinct_states']} distinct states")
    assert 0 < stats["kept"] <= 1
    assert 0 < stats["valid_rate"] <= 1


def interrupt_after(patch: pytest.MonkeyPatch, episodes: int) -> None:
    add = EpisodeStore.add

    def stop(self: EpisodeStore, new: list[Episode]) -> None:
        add(self, new)
        if len(self) == episodes:
            raise KeyboardInterrupt

    patch.setattr(EpisodeStore, "add", stop)


def texts(path: Path) -> list[Any]:
    return [(e.group, e.member, [turn.response for turn in e.turns]) for e in read_episodes(path)]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["generate", "eval"])
def test_every_finished_episode_is_kept_and_not_played_again(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a larger model resumes: by episode."""
    monkeypatch.setattr(Policy, "skips", True)
    arguments = [command, *LAKE, "selfplay.groups=6", "eval.worlds=6", "eval.samples=2", "eval.ks=[1,2]", "--quiet"]
    arguments += ["eval.world_model_worlds=2"] + (["--variant", "base"] if command == "eval" else [])
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5)
        assert main([*arguments, "--out", str(tmp_path / "cut")]) == 130
    (partial,) = (tmp_path / "cut").rglob("episodes*.partial.jsonl")
    assert len(texts(partial)) == 5
    skipped: list[int] = []
    play = Policy.play

    def record(self: Policy, *args: Any, **kwargs: Any) -> list[Episode]:
        skipped.append(len(kwargs["skip"]))
        return play(self, *args, **kwargs)

    monkeypatch.setattr(Policy, "play", record)
    assert main([*arguments, "--out", str(tmp_path / "cut"), "--resume"]) == 0
    assert skipped[0] == 5
    files = [next((tmp_path / run).rglob("episodes.jsonl")) for run in ("whole", "cut")]
    assert texts(files[0]) == texts(files[1])
    assert not list((tmp_path / "cut").rglob("*.partial.jsonl"))


def test_a_model_is_known_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder's time stays when weights are copied over, and its path changes when a run is moved."""
    model = Path(shutil.copytree(resolve_path("builtin:tiny"), tmp_path / "mine"))
    monkeypatch.chdir(tmp_path)
    known = identity("mine")
    assert identity(str(model)) == known != identity(resolve_path("builtin:tiny"))
    monkeypatch.setattr(Policy, "skips", True)
    arguments = ["eval", *LAKE, "eval.worlds=6", "eval.samples=2", "eval.ks=[1,2]", "eval.world_model_worlds=2"]
    arguments += ["--variant", "base", "--model", str(model), "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5)
        assert main(arguments) == 130
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes())
    assert identity("mine") != known
    capsys.readouterr()
    assert main([*arguments, "--resume"]) == 0
    assert "partial.jsonl is of other weights: its episodes are deleted and played again" in capsys.readouterr().err


@pytest.mark.slow
def test_another_selection_plays_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    arguments = ["generate", *LAKE, "selfplay.groups=8", "--quiet"]
    other = ["selfplay.success_only=true", "selfplay.val_fraction=0.5"]
    assert main([*arguments, *other, "--out", str(tmp_path / "fresh")]) == 0
    out = tmp_path / "run"
    assert main([*arguments, "--out", str(out)]) == 0
    seconds = json.loads((out / "selfplay" / "done.json").read_text())["seconds"]
    monkeypatch.setattr(Policy, "load", None)  # no model is loaded
    assert main([*arguments, *other, "--out", str(out)]) == 2  # only with --resume
    assert main([*arguments, *other, "--out", str(out), "--resume"]) == 0
    for name in ("train", "val"):
        tables = [
            pq.read_table(tmp_path / run / "selfplay" / f"{name}.parquet").to_pylist() for run in ("fresh", "run")
        ]
        assert tables[0] == tables[1]
    assert json.loads((out / "selfplay" / "done.json").read_text())["seconds"] > seconds
    assert main([*arguments, *other, "--out", str(out), "--resume"]) == 0  # as it is
    (out / "sft" / "checkpoints").mkdir(parents=True)
    capsys.readouterr()
    assert main([*arguments, "--out", str(out), "--resume"]) == 2
    assert "select the rows of stage 1, on which sft in" in capsys.readouterr().err
    assert main(["sft", *arguments[1:], "--out", str(out)]) == 2
    assert "were selected with other settings: run `spa generate --resume` first" in capsys.readouterr().err
