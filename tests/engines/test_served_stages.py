"""Stage 1 and evaluation with a chat server, through the command line: killed, refused, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import spa
from spa.agent.conversation import _request_seed
from spa.agent.episode import Episode, read_episodes
from spa.cli import main
from spa.config.seeds import SELFPLAY, stream_seed
from tests.engines.conftest import Server

pytest.importorskip("openai")


def command(server: Server, name: str, out: Path, *settings: str) -> list[str]:
    fixed = ["engine=openai", f"engine.base_url={server.url}", "engine.model=m", "engine.concurrency=4"]
    sizes = ["selfplay.groups=10", "selfplay.group_size=2", "model.path=/nowhere/at/all"]
    return [name, "frozen_lake", "--out", str(out), "--quiet", *fixed, *sizes, *settings]


def start(argv: list[str]) -> subprocess.Popen[str]:
    """A ``spa`` of its own, which hears Ctrl-C even where the tests run in the background: that ignores it, for children too."""
    environment = {**os.environ, "PYTHONPATH": str(Path(spa.__file__).parents[1])}
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from spa.cli import main; sys.exit(main())"
    )
    return subprocess.Popen([sys.executable, "-c", code, *argv], env=environment, stderr=subprocess.PIPE, text=True)


def result(out: Path) -> tuple[Any, ...]:
    folder = out / "selfplay"
    tables = tuple(pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("train", "val"))
    return *tables, (folder / "episodes.jsonl").read_bytes(), (folder / "stats.json").read_bytes()


@pytest.fixture(scope="module")
def whole(process: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted generation."""
    process.control()
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(command(process, "generate", out)) == 0
    return out


def test_generate(server: Server, whole: Path) -> None:
    episodes = list(read_episodes(whole / "selfplay" / "episodes.jsonl"))
    assert [(e.group, e.member) for e in episodes] == [(g, m) for g in range(10) for m in range(2)]
    assert not any(e.sequences for e in episodes)
    assert not (whole / "selfplay" / "episodes.partial.jsonl").exists()
    stats = json.loads((whole / "selfplay" / "stats.json").read_text())
    assert stats["dropped"] == {}
    assert stats["rows_train"] + stats["rows_val"] == sum(len(e.turns) for e in episodes)
    row = result(whole)[0][0]
    state = row["response"].split("<observation>")[1].partition("</observation>")[0]
    assert state in row["prompt"][-1]["content"]


@pytest.mark.slow
def test_a_killed_generation_goes_on_where_it_was(server: Server, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    partial = out / "selfplay" / "episodes.partial.jsonl"
    server.control(delay=0.05)
    child = start(command(server, "generate", out))
    try:
        deadline = time.monotonic() + 60
        while not (partial.is_file() and partial.read_bytes().count(b"\n") >= 5):
            assert child.poll() is None, "the generation ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    with open(partial, "ab") as file:
        file.write(b'{"task":"FrozenLake","seed":2')  # as if the kill had come in the middle of a line
    kept = [Episode.from_json(line) for line in partial.read_text().splitlines()[:-1]]
    assert 5 <= len(kept) < 20
    server.control()
    assert main([*command(server, "generate", out), "--resume"]) == 0
    assert result(out) == result(whole)
    seed = stream_seed(0, SELFPLAY, 0)
    asked = [entry["body"]["seed"] for entry in server.log]
    had = {(e.group, e.member) for e in kept}
    rest = [e for e in read_episodes(out / "selfplay" / "episodes.jsonl") if (e.group, e.member) not in had]
    assert sorted(asked) == sorted(_request_seed(seed, e.group, e.member, t.index) for e in rest for t in e.turns)


@pytest.mark.slow
def test_ctrl_c_waits_for_no_answer(server: Server, tmp_path: Path) -> None:
    server.control(script=["answer"] * 12, then="hang:20")
    out = tmp_path / "run"
    child = start(command(server, "generate", out))
    deadline = time.monotonic() + 60
    while len(server.log) < 16:
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=15)
    assert time.monotonic() - began < 10
    assert child.returncode == 130
    assert told == f"Interrupted. Continue with: spa generate --out {out} --resume\n"
    assert len(list(read_episodes(out / "selfplay" / "episodes.partial.jsonl"))) >= 2


def test_a_dead_server_costs_no_finished_episode(
    server: Server, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    server.control(script=["answer"] * 30, then="500")
    argv = command(server, "generate", out, "engine.retries=0")
    assert main(argv) == 2
    kept = len((out / "selfplay" / "episodes.partial.jsonl").read_text().splitlines())
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"Error: the server at {server.url} gave no usable answer to ")
    assert line.endswith(
        f"requests in a row (last: HTTP 500: status 500). {kept} of 20 episodes are kept; continue with --resume"
    )
    assert 4 <= kept < 20
    server.control()
    assert main([*argv, "engine.retries=3", "--resume"]) == 0
    assert result(out) == result(whole)


def test_an_evaluation_says_what_it_keeps(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.control(script=["answer"] * 9, then="500")
    few = ["engine.retries=0", "engine.concurrency=1", "env.max_turns=1", "eval.samples=1", "eval.ks=[1]"]
    assert main(command(server, "eval", tmp_path / "run", *few, "eval.worlds=20")) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.endswith("status 500). 9 of 20 episodes are kept; continue with --resume")


def test_a_refused_generation_is_one_line(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.control(then="401")
    assert main(command(server, "generate", tmp_path / "run")) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"Error: the server at {server.url} refused model 'm': HTTP 401: status 401. 0 of 20 ")


def test_episodes_that_fail_for_good_are_counted(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "run"
    # Both tries of the first episode end at once; with one worker the second comes last.
    server.control(script=["500"])
    settings = [
        "engine.retries=0",
        "engine.concurrency=1",
        "selfplay.groups=3",
        "selfplay.group_size=1",
        "env.max_turns=1",
    ]
    argv = command(server, "generate", out, *settings)
    server.control(script=["500", "answer", "answer", "500"])
    assert main(argv) == 0
    assert json.loads((out / "selfplay" / "stats.json").read_text())["dropped"] == {"failed episode": 1}
    assert [e.status == "error" for e in read_episodes(out / "selfplay" / "episodes.jsonl")] == [True, False, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["engine.model=null"], "engine=openai needs engine.model"),
        (["selfplay.model=builtin:tiny"], "set engine.model instead"),
    ],
)
def test_mistakes_write_nothing(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], message: str
) -> None:
    assert main(command(server, "generate", tmp_path / "run", *settings)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_random_policy_asks_nobody(server: Server, tmp_path: Path) -> None:
    argv = command(server, "generate", tmp_path / "run", "selfplay.policy=random", "model.path=builtin:tiny")
    assert main(argv) == 0
    assert server.log == []


def test_eval_of_the_model_behind_the_server(server: Server, tmp_path: Path) -> None:
    sizes = ["eval.worlds=3", "eval.samples=2", "eval.ks=[1,2]", "eval.bootstrap=20", "eval.world_model_worlds=2"]
    assert main(command(server, "eval", tmp_path / "run", "variants=[vanilla]", *sizes)) == 0
    folder = tmp_path / "run" / "variants" / "base" / "eval"
    scores = json.loads((folder / "result.json").read_text())
    assert scores["metrics"]["samples"] == 6
    assert scores["world_model"]
    assert json.loads((folder / "done.json").read_text())["model"] == f"m at {server.url}"
    assert len(server.log) > 8
    assert main(["report", str(tmp_path / "run")]) == 0


def test_run_asks_the_server_for_stage_1_alone(server: Server, tmp_path: Path) -> None:
    sizes = ["selfplay.groups=4", "selfplay.group_size=1", "sft.epochs=1", "sft.eval_worlds=0"]
    sizes += ["eval.worlds=2", "eval.samples=1", "eval.ks=[1]", "eval.bootstrap=20", "eval.world_model_worlds=0"]
    out = tmp_path / "run"
    arguments = ["model.path=builtin:tiny", "model.threads=1", "variants=[sft]"]
    assert main(command(server, "run", out, *sizes, *arguments)) == 0
    turns = sum(len(e.turns) for e in read_episodes(out / "selfplay" / "episodes.jsonl"))
    assert len(server.log) == turns
    models = [
        json.loads((out / "variants" / variant / "eval" / "done.json").read_text())["model"]
        for variant in ("base", "sft")
    ]
    assert models[0] == "builtin:tiny"
    assert "checkpoints" in models[1]


@pytest.mark.slow
def test_eval_of_a_given_model_is_done_here(server: Server, tmp_path: Path) -> None:
    sizes = ["eval.worlds=2", "eval.samples=1", "eval.ks=[1]", "eval.bootstrap=20", "eval.world_model_worlds=0"]
    argv = command(server, "eval", tmp_path / "run", "variants=[vanilla]", *sizes)
    assert main([*argv, "--model", "builtin:tiny"]) == 0
    assert server.log == []
