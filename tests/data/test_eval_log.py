"""Episodes in the formats of Inspect and verifiers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spa.agent.episode import Episode, TokenSequence, Turn, write_episodes
from spa.cli import main
from spa.data.eval_log import inspect_log, split_messages, verifiers_rows, write_episode_log
from spa.evaluate.samples import SAMPLES, read_samples, write_samples

HOSTILE = "<script>alert(1)</script>\ud800\x00 ‮"


def episodes() -> list[Episode]:
    turns = [
        Turn(0, "P_", "first", "<answer>Up</answer>", executed=["Up"], reward=0.0),
        Turn(1, "_P", "second", HOSTILE, reward=1.0, finish_reason="length"),
    ]
    won = Episode("FrozenLake", 5, 0, member=1, system="be brief", turns=turns, success=True)
    failed = Episode("FrozenLake", 6, 1, status="error", error="OSError: gone")
    return [won, failed]


def test_messages_alternate() -> None:
    first, *later = split_messages(episodes()[0])
    assert first == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "first"}]
    assert [[message["role"] for message in part] for part in later] == [["assistant", "user"], ["assistant"]]


def test_an_inspect_log() -> None:
    log = inspect_log(episodes(), model="spa/m", created="2026-01-01T00:00:00+00:00")
    assert (log["version"], log["status"]) == (2, "success")
    assert log["eval"]["dataset"]["sample_ids"] == ["5-base", "6-base"]
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == 1.0
    won, failed = log["samples"]
    assert (won["id"], won["epoch"], won["scores"]["success"]["value"]) == ("5-base", 2, 1)
    assert [message["role"] for message in won["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert won["output"]["choices"][0]["stop_reason"] == "max_tokens"
    assert failed["error"]["message"] == "OSError: gone"
    assert log == inspect_log(episodes(), model="spa/m", created="2026-01-01T00:00:00+00:00"), "no clock, no chance"


def test_verifiers_rows() -> None:
    won, failed = verifiers_rows(episodes())
    assert [message["role"] for message in won["prompt"]] == ["system", "user"]
    assert [message["role"] for message in won["completion"]] == ["assistant", "user", "assistant"]
    assert (won["reward"], won["success"], won["info"]["seed"]) == (1.0, 1.0, 5)
    assert (failed["error"]["error"], failed["error"]["message"]) == ("OSError", "OSError: gone")


@pytest.mark.integration
def test_verifiers_reads_its_rows(tmp_path: Path) -> None:
    reader = pytest.importorskip("verifiers.legacy.utils.save_utils", reason="needs verifiers")
    errors = pytest.importorskip("verifiers.legacy.utils.error_utils", reason="needs verifiers")
    write_episode_log(tmp_path / "results.jsonl", episodes(), "verifiers", model="spa/m")
    won, failed = reader.load_outputs(tmp_path)
    assert {"timing", "is_completed", "is_truncated", "metrics"} <= {*won}
    assert (won["reward"], won["metrics"]["success"], won["is_completed"], failed["is_completed"]) == (
        1,
        1,
        True,
        False,
    )
    assert errors.validate_error_data(failed["error"]) and "gone" in str(errors.error_from_data(failed["error"]))
    table = reader.make_dataset({"outputs": [won, failed], "metadata": {}})
    assert table.num_rows == 2 and table[0]["completion"][0]["role"] == "assistant"


@pytest.mark.parametrize("form", ["inspect", "verifiers"])
def test_hostile_text_survives(tmp_path: Path, form: str) -> None:
    write_episode_log(tmp_path / "log", episodes(), form, model="m")
    text = (tmp_path / "log").read_text(encoding="utf-8")
    assert json.dumps(HOSTILE.replace("\ud800", "?"), ensure_ascii=False)[1:-1] in text


@pytest.mark.integration
def test_inspect_reads_its_log(tmp_path: Path) -> None:
    inspect_ai = pytest.importorskip("inspect_ai.log", reason="needs inspect-ai")
    write_episode_log(tmp_path / "log.json", episodes(), "inspect", model="spa/m")
    won, failed = inspect_ai.read_eval_log(str(tmp_path / "log.json")).samples
    assert (won.id, won.epoch, won.scores["success"].value, len(won.messages)) == ("5-base", 2, 1, 5)
    assert failed.error.message == "OSError: gone"


def test_samples_keep_everything_but_tokens(tmp_path: Path) -> None:
    given = episodes()
    given[0].sequences = [TokenSequence([1, 2], [0, 1], [0.0, -1.5], [-1, 0])]
    for name in ("a", "b"):
        write_samples(tmp_path / name / SAMPLES, given)
    assert (tmp_path / "a" / SAMPLES).read_bytes() == (tmp_path / "b" / SAMPLES).read_bytes()
    back = read_samples(tmp_path / "a" / SAMPLES)
    assert back[0].sequences == [TokenSequence(mask=[0, 1])]
    given[0].sequences = back[0].sequences
    question = [replace(turn, response=turn.response.replace("\ud800", "?")) for turn in given[0].turns]
    assert back == [replace(given[0], turns=question), *given[1:]]


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"{}", b"\x1f\x8b\x08\x00" + b"\x00" * 20])
def test_damaged_samples(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SAMPLES).write_bytes(content)
    if not content:
        assert read_samples(tmp_path / SAMPLES) == []
        return
    with pytest.raises(ValueError, match=SAMPLES):
        read_samples(tmp_path / SAMPLES)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = tmp_path / "eval"
    write_episodes(stage / "episodes.jsonl", episodes()[1:])
    write_samples(stage / SAMPLES, [*episodes()[:0], episodes()[1]])
    out = tmp_path / "log.json"
    command = ["data", "export", str(stage), "--format", "inspect", "--out", str(out)]
    assert main(command) == 0
    assert json.loads(out.read_text())["eval"]["model"] == "spa/model"
    assert main(command) == 2
    assert "add --force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    for more, message in (
        (["--format", "tables", "--out", "x.json"], "format"),
        (["--format", "verifiers", "--out", "x.json"], "must end in .jsonl"),
    ):
        assert main(["data", "export", str(stage), *more]) == 2
        assert message in capsys.readouterr().err
    assert main(["data", "export", str(tmp_path), "--format", "inspect", "--out", str(tmp_path / "y.json")]) == 2
    assert "holds no episodes" in capsys.readouterr().err
