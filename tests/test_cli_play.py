"""``spa play``: a model at play, with what it imagined."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spa.agent.episode import Episode, Turn
from spa.agent.show import show_sample
from spa.cli import main
from spa.cli.play import Screen, _of_run
from spa.config.load import load_config
from spa.config.schema import VariantConfig
from spa.models.folders import resolve_path
from spa.runs.folder import RunFolder

TRANSITIONS = {
    "selfplay.rows": "transitions",
    "selfplay.prompt": "base",
    "selfplay.filter": False,
    "selfplay.state_format": "grid",
}
LAKE = ["frozen_lake", "env.max_actions_per_turn=1", "env.max_turns=2"]


def turn(**fields: object) -> Turn:
    values = {"executed": ["Right"], "reward": 1.0, "rewards": [1.0], "ended": True} | fields
    return Turn(0, "P_\n_G", "", "", "_P\n_G", **values)  # type: ignore[arg-type]


def shown(episode: Episode, capsys: pytest.CaptureFixture[str]) -> str:
    Screen().on_turn(episode, True)
    return capsys.readouterr().out


def test_what_was_imagined_stands_beside_the_actual_state(capsys: pytest.CaptureFixture[str]) -> None:
    path = [{"action": "Right", "state": "_P\n_O", "reward": 0.5, "ended": False, "probability": 0.25}]
    text = shown(Episode("Lake", 7, 0, turns=[turn(imagined={"path": path, "questions": 4})], success=True), capsys)
    assert "Turn 1: Right; reward 1. Planned: Right; expected now: reward 0.5, probability 0.25; 4 questions" in text
    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if "before" in line)
    assert [line.split() for line in lines[header : header + 3]] == [
        ["before", "imagined", "actual"],
        ["P_", "_P", "_P"],
        ["_G", "_O", "_G"],
    ]
    assert "won after 1 actions, reward 1" in text


def test_without_a_planner_a_written_prediction_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(Episode("Lake", 7, 0, turns=[turn(prediction=" _P\n_G ")], success=False), capsys)
    assert "predicted" in text and "imagined" not in text and "not won" in text


def test_a_failed_episode_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Episode("Lake", 7, 0, status="error", error="ValueError: gone")
    assert "failed: ValueError: gone" in shown(failed, capsys)


@pytest.mark.parametrize(("seeds", "code"), [((), 0), ((0,), 0), ((0, 1), 2)])
def test_where_nothing_could_be_played_it_fails(
    seeds: tuple[int, ...], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(*args: object, on_turn: Any, **kwargs: object) -> list[Episode]:
        lost = {"status": "error", "error": "RequestFailed: Connection error"}
        episodes = [Episode("Lake", seed, seed, **(lost if seed in seeds else {})) for seed in range(2)]
        for episode in episodes:
            on_turn(episode, True)
        return episodes

    monkeypatch.setattr("spa.api.play", played)
    assert main(["play", *LAKE, "--worlds", "2"]) == code
    printed = capsys.readouterr()
    assert ("Error: nothing could be played: RequestFailed: Connection error" in printed.err) == (code == 2)
    assert printed.out.count("failed: RequestFailed") == len(seeds)


@pytest.mark.parametrize("planner", ["none", "lookahead"])
def test_the_command_plays_test_worlds(planner: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", *LAKE, f"agent.planner={planner}", "planner.depth=1", "--worlds", "2"]) == 0
    text = capsys.readouterr().out
    assert text.count("World ") == 2
    assert ("Planned:" in text) == (planner == "lookahead")


def test_without_a_config_it_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "agent.planner=lookahead"]) == 2
    assert "spa play frozen_lake" in capsys.readouterr().err


def test_a_sample_is_the_last_turn_and_the_outcome() -> None:
    text = show_sample(Episode("Lake", 7, 0, turns=[turn(), turn(reward=0.5)], success=True))
    assert text.splitlines()[:2] == [
        "World 7, won after 2 actions, reward 1.5; the last turn:",
        "Turn 1: Right; reward 0.5",
    ]


def test_turns_of_several_worlds_are_printed_world_by_world(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (Episode("Lake", seed, seed, turns=[turn()], success=True) for seed in (0, 1))
    screen = Screen()
    screen.on_turn(second, False)
    assert capsys.readouterr().out == ""
    screen.on_turn(first, True)
    before, after = capsys.readouterr().out.split("World 1\n\n")
    assert before == shown(first, capsys)
    assert after.startswith("Turn 1: ") and "won" not in after
    screen.on_turn(first, True)
    screen.on_turn(second, True)
    assert capsys.readouterr().out == "\nwon after 1 actions, reward 1\n\n"


@pytest.mark.parametrize(("reference", "name"), [("spa", "spa"), ("{}/file.yaml", "own")])
def test_a_run_plays_its_own_model_and_a_person_may_take_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reference: str, name: str
) -> None:
    (tmp_path / "file.yaml").write_text("name: own\nsft: true\nrl: true\n")
    variants = f"variants=[{reference.format(tmp_path)}]"
    cfg = load_config("frozen_lake", ["env.max_actions_per_turn=1", "env.max_turns=2", variants, "eval.worlds=1"])
    RunFolder(tmp_path).open(cfg, "run", resume=False)
    ppo = tmp_path / "variants" / name / "ppo"
    shutil.copytree(resolve_path("builtin:tiny"), ppo / "model")
    typed = iter(["Left", "nonsense", "down"])
    monkeypatch.setattr("builtins.input", lambda text: next(typed))
    assert main(["play", str(tmp_path), "--take-over"]) == 2
    assert f"variant {name} was not trained" in capsys.readouterr().err
    (ppo / "done.json").write_text(json.dumps({"seconds": 1.0, "model": "model"}))
    assert main(["play", str(tmp_path), "--take-over"]) == 0
    shown = capsys.readouterr()
    assert f"variant {name}: " in shown.err
    assert "Turn 1: Left; reward 0" in shown.out and "Turn 2: Down" in shown.out
    assert "Actions: Left, Down, Right, Up\n" in shown.out and "No such action: nonsense" in shown.out
    assert main(["play", str(tmp_path), "agent.prompt=world_model"]) == 0  # the model alone
    capsys.readouterr()
    assert main(["play", str(tmp_path), "model=builtin:tiny"]) == 2
    assert "plays its own model: give another one as --model builtin:tiny" in capsys.readouterr().err


@pytest.mark.parametrize(("practice", "prompt"), [(True, "base"), (False, "world_model")])
def test_a_practised_policy_is_played_with_the_prompt_that_practice_trained(
    tmp_path: Path, practice: bool, prompt: str
) -> None:
    variant = VariantConfig("own", sft=True, practice=practice, rl=False, state_format="grid", settings=TRANSITIONS)
    cfg = load_config("frozen_lake", ["variants=[vanilla]"])
    RunFolder(tmp_path).open(cfg, "run", resume=False, variants=[variant])
    stage = tmp_path / ("practice-own" if practice else "sft-own")
    shutil.copytree(resolve_path("builtin:tiny"), stage / "model")
    (stage / "done.json").write_text(json.dumps({"seconds": 1.0, "model": "model"}))
    (tmp_path / "variants" / "own").mkdir(parents=True)
    played, model = _of_run(tmp_path, [], "own", None)
    assert (played.agent.prompt, model) == (prompt, str(stage / "model"))


def test_a_planner_that_could_not_play_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "countdown", "agent.planner=lookahead"]) == 2
    assert "set planner.proposals=8" in capsys.readouterr().err


def test_a_planner_is_not_taken_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", *LAKE, "agent.planner=lookahead", "--take-over"]) == 2
    assert "add agent.planner=none" in capsys.readouterr().err
    assert main(["play", *LAKE, "--variant", "spa"]) == 2


def test_a_folder_that_is_called_like_a_world_hides_it_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frozen_lake").mkdir()
    assert main(["eval", "frozen_lake", "--dry-run"]) == 0
    (tmp_path / "mine").mkdir()
    assert main(["eval", "mine", "--dry-run"]) == 2
    assert "mine is no exported model" in capsys.readouterr().err
