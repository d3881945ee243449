"""``import spa``: a run, its table, metrics and episodes from Python."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import spa
from spa.agent.episode import Episode, Turn
from spa.agent.policy import Policy
from spa.rl.batch import train_sequences
from tests.test_examples import SMALL

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> spa.Run:
    return spa.run("frozen_lake", *SMALL, out=tmp_path_factory.mktemp("api") / "run", quiet=True)


def test_importing_imports_no_torch_and_offers_the_names() -> None:
    code = "import sys, spa; print('torch' in sys.modules, 'hydra' in sys.modules, set(spa.__all__) <= set(dir(spa)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False", "True"]
    assert all(getattr(spa, name) is not None for name in spa.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tabel'"):
        spa.tabel  # noqa: B018


def test_a_run_knows_its_results(run: spa.Run) -> None:
    assert run.variants == ["base", "vanilla", "spa"]
    assert list(run.results()) == run.variants
    assert run.config == spa.Run(run.folder).config
    assert "evaluated: base, vanilla, spa" in repr(run)
    assert [row.variant for row in run.table().rows] == run.variants
    assert "Pass@1" in str(run.table())
    assert run.table()._repr_html_().startswith("<pre>")
    assert run.metrics("vanilla")[-1]["step"] == 1
    assert run.metrics(stage="sft") and run.metrics("spa", "sft") == run.metrics(stage="sft")
    assert len(run.episodes(stage="selfplay")) == 8
    result, played = run.results()["spa"], run.episodes("spa")
    assert len(played) == sum(world.samples for world in result.worlds), "all that the table counts"
    assert sum(episode.success for episode in played) == sum(world.successes for world in result.worlds)
    asked = run.episodes("spa", "world_model")
    assert {episode.prompt for episode in asked} == {"world_model"} and {e.prompt for e in played} == {"base"}
    assert Path(run.model("spa"), "config.json").is_file()
    assert run.model("spa") == run.model("spa", "ppo") != run.model(stage="sft") == run.model("spa", "sft")
    assert run.model("base") == "builtin:tiny"
    assert run.report() == run.folder / "report.html"


def test_what_a_run_lacks_is_one_line(run: spa.Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give one of base, vanilla, spa"):
        run.episodes()
    with pytest.raises(ValueError, match="unknown stage with metrics 'eval'"):
        run.metrics("spa", "eval")
    with pytest.raises(ValueError, match="unknown stage with episodes 'evaluation'"):
        run.episodes("spa", "evaluation")
    with pytest.raises(ValueError, match=r"stage with episodes 'sft'.* eval, world_model, planner, selfplay"):
        run.episodes("spa", "sft")
    with pytest.raises(ValueError, match="variant of this run 'vagen'"):
        run.metrics("vagen")
    with pytest.raises(ValueError, match="no episode file"):
        run.episodes("spa", "planner")
    for variant, stage in (("spa", "practice"), ("vanilla", "sft"), ("base", "selfplay")):
        with pytest.raises(ValueError, match=f"variant {variant} has no stage {stage}"):
            run.episodes(variant, stage) if stage == "selfplay" else run.model(variant, stage)
    with pytest.raises(ValueError, match="unknown stage 'eval'"):
        run.model("spa", "eval")
    with pytest.raises(ValueError, match="unknown evaluated variant 'nope'"):
        run.table("nope")
    for counts in ({"worlds": 0}, {"samples": -1}, {"skip": -1}):
        with pytest.raises(ValueError, match="must be whole numbers from 1"):
            spa.play("frozen_lake", **counts)
    with pytest.raises(ValueError, match="settings are texts"):
        spa.load_config("frozen_lake", ["ppo.steps=20"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="holds no run"):
        spa.Run(tmp_path)
    with pytest.raises(ValueError, match="already holds"):
        spa.run(run.config, out=run.folder)
    with pytest.raises(ValueError, match=r"ppo\.steps"):
        spa.load_config("frozen_lake", "ppo.stepz=3")
    with pytest.raises(ValueError, match="fields instead"):
        spa.load_config(run.config, "ppo.steps=3")


def test_play_returns_the_episodes_world_by_world(run: spa.Run) -> None:
    settings = ("agent.prompt=world_model", "model.threads=1")
    episodes = spa.play("frozen_lake", *settings, model=run.model(stage="sft"), worlds=2, samples=2, skip=1)
    assert [(episode.group, episode.member) for episode in episodes] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    again = spa.play("frozen_lake", *settings, model=run.model(stage="sft"), worlds=1, samples=2, skip=2)
    assert {episode.seed for episode in again} == {episodes[2].seed}
    with pytest.raises(ValueError, match="unknown split"):
        spa.play("frozen_lake", split="tests")


def test_a_planner_plays_each_world_as_often_as_it_is_told() -> None:
    planned = ["agent.planner=lookahead", "planner.model=simulator", "planner.depth=2", "env.max_turns=2"]
    episodes = spa.play("frozen_lake", *planned, worlds=2, samples=2, quiet=True)
    assert [(episode.group, episode.member) for episode in episodes] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_run_plays_a_variant_as_it_was_evaluated(run: spa.Run) -> None:
    (evaluated, *_) = run.episodes("spa")
    told: list[tuple[int, bool]] = []
    played = run.play(
        worlds=2, samples=2, on_turn=lambda episode, ended: told.append((episode.group, ended)), quiet=True
    )
    assert run.recipe == "spa" and played[0].turns[0].state == evaluated.turns[0].state
    assert played[0].prompt == evaluated.prompt == "base"
    assert "Player (P) is at" in played[0].turns[0].state, "with the coordinates that the variant was trained with"
    assert sorted(group for group, ended in told if ended) == [0, 0, 1, 1], "of every episode, whoever played it"
    config, model = run.player("vanilla", "sampling.temperature=0.5")
    assert (config.sampling.temperature, model) == (0.5, run.model("vanilla"))
    assert run.play("spa", model="builtin:tiny", quiet=True, worlds=np.int64(1))
    with pytest.raises(ValueError, match=r"run\.play\('spa'\)"):
        spa.play("frozen_lake", model=run)  # type: ignore[arg-type]


def test_an_exported_model_plays_its_own_task(run: spa.Run, tmp_path: Path) -> None:
    folder = run.export("spa", tmp_path / "mine")
    (episode,) = spa.play(folder, quiet=True)
    assert episode.turns[0].state == run.play("spa", quiet=True)[0].turns[0].state
    assert spa.play(str(folder), "env.max_turns=1", quiet=True)[0].turns[0].state == episode.turns[0].state
    with pytest.raises(ValueError, match="mine exists; add --force"):
        run.export("spa", folder)
    assert run.export("spa", folder, force=True) == folder


def test_evaluated_episodes_are_no_training_data(run: spa.Run) -> None:
    chat = Policy.load(run.config).chat
    assert train_sequences(run.episodes(stage="selfplay"), chat)
    with pytest.raises(ValueError, match="stored without token ids"):
        train_sequences(run.episodes("spa"), chat)


def test_a_call_leaves_the_process_as_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers.utils import logging

    monkeypatch.setattr(logging, "_tqdm_active", True)
    before = torch.get_num_threads()
    signal.setitimer(signal.ITIMER_REAL, 300)
    try:
        spa.play("frozen_lake", "model.threads=3", quiet=True)
        left = signal.setitimer(signal.ITIMER_REAL, 0)[0]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert 0 < left < 300 and logging.is_progress_bar_enabled()
    assert capsys.readouterr() == ("", "")
    assert torch.get_num_threads() == before
    spa.play("frozen_lake")
    assert capsys.readouterr().err, "quiet is of its call alone"


def test_threads_may_play_at_once() -> None:
    def play(worlds: int) -> list[Episode]:
        return spa.play("frozen_lake", "sampling.processes=1", "model.threads=1", worlds=worlds, quiet=True)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(play, [1, 3, 2, 4]))
    alone = [play(worlds) for worlds in (1, 3, 2, 4)]
    assert [[one.turns for one in episodes] for episodes in together] == [[one.turns for one in each] for each in alone]


def test_threads_may_run_at_once(run: spa.Run, capsys: pytest.CaptureFixture[str]) -> None:
    here, both = sys.stdout, threading.Barrier(2)

    def again(quiet: bool) -> None:
        both.wait()
        spa.run(run.config, out=run.folder if quiet else other, resume=True, quiet=quiet)
        assert sys.stdout is here

    other = run.folder.with_name("other")
    shutil.copytree(run.folder, other)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(again, [True, False]))
    assert capsys.readouterr().out.count("Report:") == 1
    spa.play("frozen_lake")
    assert capsys.readouterr().err, "nobody is quiet any more"


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda: spa.run(None), "config is None: give a config's name"),
        (lambda: spa.play(None), "config is None"),
        (
            lambda: spa.load_config({"ppo": {"steps": 3}}),
            "not {'ppo': {'steps': 3}}: settings follow as 'ppo.steps=20'",
        ),
        (lambda: spa.load_config(Turn), "a world of your own is 'module:Class'"),
        (lambda: spa.load_config("frozen_lake", f"ppo.start={None}"), "ppo.start: write null for no value"),
        (lambda: spa.play("frozen_lake", worlds="2"), "worlds='2' and samples=1 must be whole numbers"),
        (lambda: spa.play("frozen_lake", worlds=True), "worlds=True and samples=1 must be whole numbers"),
        (lambda: spa.play("frozen_lake", model=3), "model is a path or a hub name, not 3"),
        (lambda: spa.play("frozen_lake", take_over=lambda state: ["Up"], quiet=True), "take_over returns text"),
        (lambda: spa.run("frozen_lake", resume=True), "resume=True continues the run in out=: name its folder"),
        (
            lambda: spa.play("frozen_lake", samples=2, take_over=str),
            "take_over plays each world once: leave out samples",
        ),
        (lambda: spa.run("frozen_lake", out=""), "the folder of a run is empty"),
        (lambda: spa.Run(None), "the folder of a run is a path, not None"),
        (lambda: spa.play("frozen_lake", split=3), "unknown split 3; choose one of test"),
        (lambda: spa.compare(["runs/a", "runs/b"]), r"spa\.compare\('runs/first', 'runs/second'\)"),
    ],
)
def test_a_wrong_argument_is_named(do: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("{", r"\{")) as error:
        do()
    assert "\n" not in str(error.value)


def test_a_home_directory_is_one(run: spa.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(run.folder.parent))
    assert spa.Run("~/run").folder == run.folder
    with pytest.raises(ValueError, match="two different run folders"):
        spa.compare("~/run", run)


def test_play_asks_a_chat_server_only_without_a_model() -> None:
    served = ("engine=openai", "engine.base_url=http://localhost:1/v1", "engine.model=m", "engine.retries=0")
    (episode,) = spa.play("frozen_lake", *served, model="builtin:tiny")
    assert episode.sequences, "a local model played"
    assert not episode.error


def test_frame_has_a_row_per_turn(run: spa.Run, monkeypatch) -> None:
    episodes = run.episodes("spa")
    frame = spa.episodes_frame(episodes)
    assert len(frame) == sum(len(episode.turns) for episode in episodes)
    assert frame["turn"].min() == 1
    assert len(spa.episodes_frame(episodes[0])) == len(episodes[0].turns)
    assert list(spa.episodes_frame([]).columns) == list(frame.columns)
    assert frame["reward"].sum() == pytest.approx(sum(episode.total_reward for episode in episodes))
    monkeypatch.setattr("spa.api.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install pandas"):
        spa.episodes_frame(episodes)


def test_polars_infers_types_from_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first hundred it would take a prediction for none, and a reward of 0.5 for 0."""
    made: dict[str, Any] = {}
    polars = SimpleNamespace(DataFrame=lambda rows, **how: made.update(rows=rows, how=how))
    monkeypatch.setattr("spa.api.find_spec", lambda name: name == "polars" or None)
    monkeypatch.setattr("spa.api.import_module", lambda name: polars)
    spa.episodes_frame([Episode("Lake", 0, 0, turns=[Turn(0, "_P", "", "", "P_", reward=0)])])
    assert made["how"] == {"infer_schema_length": None}
    assert type(made["rows"][0]["reward"]) is float


def test_an_episode_is_short_in_a_console_and_escaped_in_a_notebook() -> None:
    turn = Turn(0, "_P", "user", "<script>alert(1)</script>", "P_", reward=1.0, executed=["Left"])
    episode = Episode("FrozenLake", 7, 0, turns=[turn], success=True)
    assert repr(episode) == "Episode(FrozenLake, seed 7: 1 turns, success, score 1)"
    html = episode._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html and "Left" in html


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_examples(run: spa.Run, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    load("first_run").main(*SMALL)
    assert "Pass@1" in capsys.readouterr().out
    load("wrong_predictions").main(run.model(stage="sft"), 2)
    assert "predictions are wrong" in capsys.readouterr().out


@pytest.mark.slow
def test_notebook(tmp_path: Path, monkeypatch) -> None:
    """Its cells run in order; the training is made short."""
    monkeypatch.chdir(tmp_path)
    trained = spa.api.run  # type: ignore[attr-defined]
    monkeypatch.setattr(spa, "run", lambda name, *settings, **options: trained(name, *settings, *SMALL, **options))
    cells = json.loads((EXAMPLES / "first_run.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["episodes"] and len(names["turns"])
