"""``spa view`` through its HTTP interface, on made-up run folders."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("starlette")
import uvicorn
from starlette.testclient import TestClient

from spa.agent.episode import Episode, Turn, write_episodes
from spa.cli import main
from spa.common.lock import NAME, is_locked, locked
from spa.config.load import load_config
from spa.evaluate.summary import EvalResult, WorldResult
from spa.preflight import begin
from spa.runs.folder import RunFolder
from spa.view import pages
from spa.view.index import Index
from spa.view.server import is_address, make_app


def make_run(
    folder: Path, wins: int = 3, steps: int = 4, name: str = "spa", error: BaseException | None = None
) -> Path:
    cfg = load_config("frozen_lake", ["variants=[spa]"])
    run = RunFolder(folder).open(cfg, "run", resume=False)
    ppo, evaluation = (folder / "variants" / name / stage for stage in ("ppo", "eval"))
    ppo.mkdir(parents=True)
    rows = [{"step": s, "time": 0.0, "val/pass@1": 0.1 * s, "train/success": 0.0} for s in range(steps)]
    (ppo / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation.mkdir()
    EvalResult(name, "Lake", [WorldResult(0, 0, "w", wins, 4)], {"pass@1": wins / 4}).write(evaluation / "result.json")
    run.close(error)
    return folder


def client(*folders: Path, host: str = "127.0.0.1") -> TestClient:
    return TestClient(make_app(folders), base_url=f"http://{host}", raise_server_exceptions=False)


def key(folder: Path) -> str:
    (entry,) = Index([folder]).entries()
    return entry.key


def test_the_list_shows_state_score_curve_and_size(tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    make_run(tmp_path / "deep" / "er" / "bad", wins=0, error=ValueError("no usable <b>episode</b>"))
    make_run(tmp_path / "ended", wins=1, error=KeyboardInterrupt())
    entries = {entry.title: entry for entry in Index([tmp_path]).entries()}
    states = {title: entry.state for title, entry in entries.items()}
    assert states == {"good": "finished", "deep/er/bad": "failed", "ended": "stopped"}
    good = entries["good"]
    assert (good.score, good.latest, good.curve[-1]) == ((0.75, "spa"), "spa ppo, step 3", (3, pytest.approx(0.3)))
    assert good.size == sum(path.stat().st_size for path in (tmp_path / "good").rglob("*") if path.is_file())
    page = client(tmp_path).get("/").text
    assert page.count("<polyline") == 3 and "75.0" in page
    assert "no usable &lt;b&gt;episode" in page and "<b>episode" not in page


def test_a_run_is_running_while_its_lock_is_held(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert not is_locked(run)
    with locked(run):
        assert is_locked(run)
        assert Index([tmp_path]).entries()[0].state == "running"
    (run / NAME).write_text(json.dumps({"pid": 2**22 + 1, "host": os.uname().nodename, "since": ""}))
    assert not is_locked(run)  # killed


def test_a_command_that_was_killed_has_not_finished(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "report.html").write_text("an earlier command's")
    RunFolder(run).open(RunFolder(run).config(), "run", resume=True)
    assert Index([tmp_path]).entries()[0].state == "stopped"


def test_begin_records_how_a_command_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spa.preflight.check_command", lambda *args, **kwargs: None)  # loads torch
    cfg = load_config("bandit", ["variants=[vanilla]"])
    with pytest.raises(RuntimeError), begin(cfg, tmp_path / "run", "run", False):
        raise RuntimeError("out of\nmemory")
    last = RunFolder(tmp_path / "run").info()["commands"][-1]
    assert last["error"] == "RuntimeError: out of" and last["ended"] >= last["started"]


def test_a_runs_page_is_the_report_of_its_folder_as_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    pages = client(tmp_path)
    report = pages.get(f"/run/{key(run)}/report")
    assert report.status_code == 200 and "SPA report" in report.text
    assert "frame-ancestors 'self'" in report.headers["content-security-policy"]
    assert f'<iframe src="/run/{key(run)}/report"' in pages.get(f"/run/{key(run)}").text
    tag = {"If-None-Match": report.headers["etag"]}
    assert pages.get(f"/run/{key(run)}/report", headers=tag).status_code == 304
    with open(run / "variants" / "spa" / "ppo" / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 9, "time": 0.0, "val/pass@1": 0.9}) + "\n")
    later = client(tmp_path)
    assert later.get(f"/run/{key(run)}/report", headers=tag).status_code == 200
    assert "step 9" in later.get(f"/run/{key(run)}/status").text


def test_only_reading_from_this_machine_and_only_runs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "run")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "runs" / "link").symlink_to(make_run(tmp_path / "elsewhere"))
    pages = client(tmp_path / "runs")
    assert [entry.title for entry in Index([tmp_path / "runs"]).entries()] == ["run"]
    assert pages.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert pages.get("/", headers={"Host": "localhost:8765"}).status_code == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert pages.request(method, f"/run/{key(run)}").status_code == 405
    for path in ("/run/..%2f..%2fsecret.txt", "/run/../secret.txt", "/secret.txt", "/run/x/report"):
        answer = pages.get(path)
        assert answer.status_code == 404 and answer.text.count("secret") == 0


@pytest.mark.parametrize(
    ("listens_on", "asked_as", "code"),
    [
        ("127.0.0.1", "10.1.2.3:8765", 400),
        ("127.0.0.1", "[::1]:8765", 400),
        ("0.0.0.0", "10.1.2.3:8765", 200),
        ("0.0.0.0", "127.0.0.1", 200),
        ("0.0.0.0", "[fe80::1]:8765", 200),
        ("0.0.0.0", "evil.example", 400),
        ("0.0.0.0", "10.1.2.3.evil.example:8765", 400),
        ("0.0.0.0", "evil.example@10.1.2.3:x", 400),
        ("10.1.2.3", "10.1.2.3", 200),
    ],
)
def test_a_public_server_is_asked_by_address_but_by_no_other_name(
    tmp_path: Path, listens_on: str, asked_as: str, code: int
) -> None:
    pages = TestClient(make_app([tmp_path], listens_on), base_url="http://localhost")
    assert pages.get("/", headers={"Host": asked_as}).status_code == code


def test_a_number_that_is_no_address() -> None:
    assert is_address("192.168.0.2:8765") and not is_address("999.1.1.1")


def test_a_projects_own_config_hides_no_runs(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: mine\n")
    make_run(tmp_path / "runs" / "run")
    assert [entry.title for entry in Index([tmp_path]).entries()] == ["runs/run"]


def test_scripts_and_frames_are_limited_by_policy(tmp_path: Path) -> None:
    make_run(tmp_path / "<script>alert(1)</script>")
    answer = client(tmp_path).get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.text.count("<script>") == 1 and "&lt;script&gt;alert" in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_message_is_text() -> None:
    assert "&lt;b&gt;" in pages.message("runs/<b> cannot be shown") and "<b>" not in pages.message("runs/<b>")


def test_runs_are_compared_from_the_list(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", wins=1)]
    pages = client(tmp_path)
    answer = pages.get("/compare", params=[("run", key(run)) for run in runs])
    assert answer.status_code == 200 and "Compared on 1 test worlds" in answer.text
    refused = pages.get("/compare", params={"run": key(runs[0])})
    assert refused.status_code == 400 and "at least two different run folders" in refused.text


def test_damaged_runs_do_not_hide_the_others(tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    bad = make_run(tmp_path / "bad")
    (bad / "run.json").write_text("[")
    (bad / "config.yaml").write_text("env: {")
    (bad / "variants" / "spa" / "ppo" / "metrics.jsonl").write_bytes(b'\xff\n{"val/pass@1": 3}\n' + b"[" * 100_000)
    (bad / "variants" / "spa" / "eval" / "result.json").write_text('{"metrics": 3}')
    pages = client(tmp_path)
    assert pages.get("/").text.count('name="run"') == 2
    assert pages.get(f"/run/{key(bad)}/report").status_code == 500


def test_a_log_that_vanishes_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_run(tmp_path / "bad") / "variants" / "spa" / "ppo" / "metrics.jsonl"
    make_run(tmp_path / "good")
    # It is there when the files are listed.
    monkeypatch.setattr("spa.view.index.is_locked", lambda folder: log.unlink(missing_ok=True))
    latest = {entry.title: entry.latest for entry in Index([tmp_path]).entries()}
    assert latest == {"good": "spa ppo, step 3", "bad": ""}


def test_a_log_that_cannot_be_read_has_no_curve(tmp_path: Path) -> None:
    log = make_run(tmp_path / "bad") / "variants" / "spa" / "ppo" / "metrics.jsonl"
    log.unlink()
    log.mkdir()  # as root may read any file
    (entry,) = Index([tmp_path]).entries()
    assert (entry.curve, entry.score) == ([], (0.75, "spa"))


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "good")
    make_run(tmp_path / "secret")
    real = Path.is_file

    def is_file(path: Path) -> bool:
        if path.parent.name == "secret":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert [entry.title for entry in Index([tmp_path]).entries()] == ["good"]


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_command_listens_at_an_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: str, shown: str
) -> None:
    reached = []

    def run(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        with socket.create_connection(sockets[0].getsockname()[:2]) as connection:
            reached.append(connection.getpeername()[0])

    monkeypatch.setattr(uvicorn.Server, "run", run)
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if host == "::1" else socket.AF_INET).close()
    except OSError:
        pytest.skip(f"this machine has no {host}")
    assert main(["view", str(tmp_path), "--host", host, "--port", "0"]) == 0
    assert reached == [host]
    assert f"http://{shown}:" in capsys.readouterr().out


def test_episodes_are_not_read_for_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    write_episodes(
        run / "variants" / "spa" / "eval" / "episodes.jsonl", [Episode("Lake", 0, 0, turns=[Turn(0, "", "", "", "")])]
    )
    opened = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path.name) or real(path))
    assert client(tmp_path).get("/").status_code == 200
    assert set(opened) == {"run.lock", "run.json", "metrics.jsonl", "result.json"}
    index = Index([tmp_path])
    index.entries()
    opened.clear()
    index._looked = -100.0
    index.entries()
    assert set(opened) == {"run.lock"}  # nothing changed


def test_the_command_names_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "none")]) == 2
    assert "give the folder that holds your runs" in capsys.readouterr().err
