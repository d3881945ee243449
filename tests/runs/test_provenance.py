"""What a run folder says of how it was made, and when it was made in two ways."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spa.common.files import atomic_write
from spa.config.load import load_config
from spa.runs import provenance
from spa.runs.folder import RunFolder
from spa.runs.provenance import changes, git_state, revisions


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    return subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "ignored").mkdir()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    git_state.cache_clear()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_recorded(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-secret")
    monkeypatch.setattr(sys, "argv", ["spa", "run", "engine.model=sk-secret-secret"])
    folder = RunFolder(repository / "ignored" / "run").open(load_config("sokoban"), "run", resume=False, device="cpu")
    entry = folder.info()["commands"][0]
    assert entry["argv"] == ["spa", "run", "engine.model=[redacted]"]
    assert entry["directory_git"] == {"commit": git(repository, "rev-parse", "HEAD").strip(), "dirty": False}
    assert entry["device"] == "cpu"
    assert entry["memory_gib"] > 0
    assert {"spa", "python", "torch", "transformers", "numpy", "cpu", "cpu_count"} <= set(entry)


def test_a_changed_file_makes_it_dirty(repository: Path) -> None:
    (repository / "file").write_text("2")
    assert git_state(str(repository))["dirty"]


def test_no_repository_no_program_no_answer(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_state(str(repository / "ignored")) is None
    assert git_state(str(tmp_path_factory.mktemp("elsewhere"))) is None
    monkeypatch.setattr(provenance.shutil, "which", lambda name: None)
    git_state.cache_clear()
    assert git_state(str(repository)) is None
    monkeypatch.setattr(provenance.shutil, "which", lambda name: "/no/such/git")
    git_state.cache_clear()
    assert git_state(str(repository)) is None


def test_a_repositorys_programs_are_not_run(repository: Path) -> None:
    program = repository / "program"
    program.write_text(f"#!/bin/sh\ntouch {repository}/ran\n")
    program.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(program))
    assert git_state(str(repository)) is not None
    assert not (repository / "ran").exists()


def test_a_resumed_run_says_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = load_config("sokoban")
    folder = RunFolder(tmp_path).open(cfg, "run", resume=False, device="cpu")
    folder.open(cfg, "run", resume=True, device="cpu")
    assert capsys.readouterr().err == ""
    versions = dict(provenance.environment(), torch="9.9", cpu="Z80")
    monkeypatch.setattr(provenance, "environment", lambda: versions)
    folder.open(cfg, "run", resume=True, device="cuda:0 (X)")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path} was run with other versions or on another machine: torch ")
    assert " -> 9.9; cpu " in line
    assert line.endswith("; device cpu -> cuda:0 (X)")


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"argv": [], "torch": "1"}, {"torch": "1", "peft": "2"}, ["peft none -> 2"]),
        (
            {"argv": [], "package_git": {"commit": "a" * 40, "dirty": False}},
            {"package_git": {"commit": "a" * 40, "dirty": True}},
            ["package_git aaaaaaaaaaaa -> aaaaaaaaaaaa with changes"],
        ),
        ({"argv": [], "revisions": {"o/n": "1"}}, {"revisions": {"o/n": "2"}}, ["revisions o/n@1 -> o/n@2"]),
    ],
)
def test_changes(before: dict[str, Any], now: dict[str, Any], said: list[str]) -> None:
    assert changes(before, now) == said


def test_hub_revisions_are_those_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = tmp_path / "models--org--name"
    for commit in ("1" * 40, "2" * 40):
        (hub / "snapshots" / commit).mkdir(parents=True)
        (hub / "snapshots" / commit / "config.json").write_text("{}")
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("2" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cfg = load_config("sokoban", ["model.path=org/name", "ppo.reference=org/unknown"])
    assert revisions(cfg) == {"org/name": "2" * 40}
    cfg.model.revision = "1" * 40
    assert revisions(cfg) == {"org/name": "1" * 40}
    assert revisions(load_config("sokoban")) == {}


def test_a_config_edited_by_hand_is_refused_until_it_is_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = load_config("sokoban")
    folder = RunFolder(tmp_path).open(cfg, "run", resume=False)
    text = folder.config_path.read_text()
    folder.config_path.write_text(text.replace("threads: 0", "threads: 1"))
    with pytest.raises(ValueError, match=r"config.yaml changed since the last command wrote it: undo that"):
        folder.open(folder.config(), "run", resume=True)
    folder.open(cfg, "run", resume=True)  # as with the NAME and the settings that it was run with
    assert f"{folder.config_path} changed since the last command wrote it" in capsys.readouterr().err
    assert folder.config_path.read_text() == text and not folder.edited()
    folder.open(load_config("sokoban", ["model.threads=1"]), "run", resume=True)


def test_a_flipped_bit_in_run_json_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path).open(load_config("sokoban"), "run", resume=False)
    data = json.loads(folder.info_path.read_text())
    data["commands"][0]["seed"] = 1
    folder.info_path.write_text(json.dumps(data))
    assert folder.info() == {}
    folder.open(load_config("sokoban"), "run", resume=True)
    assert f"{folder.info_path} is missing or damaged" in capsys.readouterr().err


@pytest.mark.parametrize("writes", range(3))
def test_a_command_that_is_killed_at_its_begin_leaves_no_edited_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Killed after so many of its writes; the settings of the next command may be the old ones or the new."""
    old, new = load_config("sokoban"), load_config("sokoban", ["model.threads=1"])
    folder = RunFolder(tmp_path).open(old, "run", resume=False)
    done = 0

    def write(path: Path, text: str) -> None:
        nonlocal done
        if done == writes:
            raise KeyboardInterrupt
        done += 1
        atomic_write(path, text)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr("spa.runs.folder.atomic_write", write)
        folder.open(new, "run", resume=True)
    assert not folder.edited()
    folder.open(folder.config(), "run", resume=True)
    folder.open(new, "run", resume=True)
    assert not folder.edited()
