"""``spa data`` through the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import spa
from spa.cli import main
from spa.cli.data import _split
from spa.data.layouts import read_rows, write_rows
from tests.data.test_data import GOOD, row


@pytest.fixture
def data(tmp_path):
    """A folder of stage 1 with six rows, one of them without the format."""
    rows = [row(seed=i, turn=i % 2, executed=["Right"] * (1 + i % 2), success=i < 3) for i in range(5)]
    write_rows(tmp_path / "selfplay" / "train.parquet", [*rows, row("nothing", seed=9)])
    return tmp_path / "selfplay"


def test_stats(data, capsys) -> None:
    assert main(["data", "stats", str(data)]) == 0
    assert "rows                6" in capsys.readouterr().out
    assert main(["data", "stats", str(data.parent), "--json", "--max-length", "10"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert stats["over_max_length"] == 6
    assert stats["rejections"] == {"no think block": 1}


def test_answers_to_the_plain_prompt_among_transitions_need_no_states(tmp_path, capsys) -> None:
    plain = row("<think></think><answer>Up</answer>", seed=9)
    plain.extra["outcome"] = None
    write_rows(tmp_path / "train.parquet", [*(row(seed=i) for i in range(3)), plain])
    assert main(["data", "stats", str(tmp_path), "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert (stats["format_rate"], stats["rejections"], stats["plain_rows"]) == (1.0, {}, 1)
    assert main(["data", "filter", str(tmp_path), "--out", str(tmp_path / "kept.parquet")]) == 0
    assert len(read_rows(tmp_path / "kept.parquet")[0]) == 4
    short = str(tmp_path / "short.parquet")
    assert main(["data", "filter", str(tmp_path), "--out", short, "--max-tokens", "20"]) == 0
    assert [one.extra["seed"] for one in read_rows(short)[0]] == [9], "also where length drops every transition"


def test_the_only_stage_1_of_a_run_is_meant(data, capsys) -> None:
    run = data.parent
    data.rename(run / "selfplay-plan")
    assert main(["data", "stats", str(run)]) == 0
    shutil.copytree(run / "selfplay-plan", run / "selfplay-raw")
    assert main(["data", "stats", str(run)]) == 2
    assert f"give one: {run / 'selfplay-plan'}, {run / 'selfplay-raw'}" in capsys.readouterr().err
    shutil.copytree(run / "selfplay-plan", run / "selfplay")
    assert main(["data", "stats", str(run)]) == 0, "that of the run itself"


def test_inspect(data, capsys) -> None:
    assert main(["data", "inspect", str(data / "train.parquet"), "--row", "1", "--rows", "2"]) == 0
    out = capsys.readouterr().out
    assert "row 1, Lake, seed 1, member 0, turn 1" in out
    assert "row 2" in out
    assert "{<think>}[<observation>P_</observation>" in out


def test_rows_without_a_think_block_begin_with_the_forced_answer(data, capsys) -> None:
    write_rows(data / "train.parquet", [row("<answer>Up</answer>")])
    assert main(["data", "inspect", str(data)]) == 0
    assert "{<answer>}[Up</answer>" in capsys.readouterr().out


def test_inspect_in_a_terminal(data, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["data", "inspect", str(data)]) == 0
    assert "<think><observation>P_</observation>" in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


@pytest.mark.parametrize("name", ["val.parquet", "held-out.parquet"])
def test_filter_keeps_the_split_of_a_verl_file(data, name: str) -> None:
    write_rows(data / name, [row()], "verl", split="val")
    assert main(["data", "filter", str(data / name), "--out", str(data / "out.parquet")]) == 0
    assert pq.read_table(data / "out.parquet").to_pylist()[0]["extra_info"]["split"] == "val"


@pytest.mark.parametrize(
    ("name", "split"), [("val", "val"), ("wm_val", "val"), ("train", "train"), ("wm_train", "train")]
)
def test_validation_rows_stay_so_in_verls_layout(name: str, split: str) -> None:
    assert _split(Path(f"{name}.parquet")) == split


@pytest.mark.parametrize(
    "command", ["convert FILE --to verl --out x.jsonl", "filter FILE --out x.jsonl --balance turn"]
)
def test_no_torch_without_lengths(data, command: str) -> None:
    argv = ["data", *command.replace("FILE", "train.parquet").split()]
    code = f"import sys\nfrom spa.cli import main\nassert main({argv!r}) == 0\nassert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": str(Path(spa.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=data, env=environment)
    assert result.returncode == 0, result.stderr


def test_filter_counts_reasons(data, capsys) -> None:
    out = data / "kept.parquet"
    assert main(["data", "filter", str(data), "--out", str(out), "--success-only", "--balance", "actions"]) == 0
    printed = capsys.readouterr().out
    assert "1  dropped: no think block" in printed
    assert "2  dropped: not won" in printed
    assert f"3  of 6 rows written to {out}" in printed
    assert {one.extra["seed"] for one in read_rows(out)[0]} == {0, 1, 2}
    assert main(["data", "filter", str(data), "--out", str(data / "x.jsonl"), "--no-tags", "--max-tokens", "20"]) == 0
    assert "dropped: longer than 20 tokens" in capsys.readouterr().out
    assert [one.response for one in read_rows(data / "x.jsonl")[0]] == ["nothing"]


def test_convert_there_and_back(data, capsys) -> None:
    source = read_rows(data / "train.parquet")[0]
    previous = data / "train.parquet"
    for layout in ("spa-json", "verl", "spa"):
        target = data / f"{layout}.jsonl"
        assert main(["data", "convert", str(previous), "--to", layout, "--out", str(target)]) == 0
        previous = target
    assert read_rows(previous)[0] == source
    assert "6 rows from" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["convert", "DATA", "--to", "verll", "--out", "x.parquet"], "Did you mean 'verl'?"),
        (["convert", "DATA", "--to", "verl", "--out", "x.csv"], "must end in .parquet or .jsonl"),
        (["convert", "DATA", "--to", "verl", "--out", "DATA/train.parquet"], "exists; add --force"),
        (["convert", "nowhere.parquet", "--to", "verl", "--out", "x.parquet"], "no data file nowhere.parquet"),
        (["convert", "DATA", "--to", "verl", "--out", "folder.parquet", "--force"], "folder.parquet is a folder"),
        (["inspect", "DATA", "--row", "6"], "has 6 rows; there is no row 6"),
        (["inspect", "DATA", "--loss", "all"], "sft.loss must be one of think_answer, state, masked"),
        (["filter", "DATA", "--out", "x.parquet", "--balance", "world"], "selfplay.balance must be one of"),
        (["filter", "DATA", "--out", "x.parquet", "--min-tokens", "1000"], "nothing was written"),
        (["stats", "DATA", "--model", "builtin:tinny"], "Did you mean 'tiny'?"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(data, monkeypatch, capsys, arguments, message) -> None:
    monkeypatch.chdir(data)
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    (data / "folder.parquet").mkdir()
    assert main(["data", *(word.replace("DATA", str(data)) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    (data / "folder.parquet").rmdir()
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before


def test_force_overwrites(data) -> None:
    out = data / "train.parquet"
    assert main(["data", "convert", str(out), "--to", "messages", "--out", str(out), "--force"]) == 0
    assert read_rows(out)[0][0].response == GOOD
