"""Checkpoints are whole or gone, whenever the process is killed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spa.common.checkpoints import checkpoint_folder, latest_checkpoint, list_checkpoints, prune_checkpoints
from spa.common.files import atomic_file, atomic_folder, sweep
from spa.common.manifest import write_manifest
from spa.runs.stage import Stage


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs."""


def checkpoints(root: Path, *steps: int) -> None:
    for step in steps:
        with atomic_folder(checkpoint_folder(root, step)) as folder:
            for name in ("config.json", "model.safetensors", "trainer_state.pt"):
                (folder / name).write_text(name)
            write_manifest(folder)


def half_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the removal of a folder is killed after its first file."""

    def kill(folder: Path, ignore_errors: bool = False) -> None:
        os.unlink(next(path for path in sorted(Path(folder).rglob("*")) if path.is_file()))
        raise Killed

    monkeypatch.setattr(shutil, "rmtree", kill)


def is_whole(folder: Path) -> bool:
    return len(list(folder.iterdir())) == 4


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    checkpoints(tmp_path, 1, 2, 3, 4)
    prune_checkpoints(tmp_path, 2, always=(1,))
    assert [step for step, _ in list_checkpoints(tmp_path)] == [1, 3, 4]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3, "nothing else is left"


def test_pruning_on_resume_keeps_what_was_resumed_from(tmp_path: Path) -> None:
    """A later checkpoint that the run went back from is damaged."""
    checkpoints(tmp_path, 1, 2, 3)
    prune_checkpoints(tmp_path, 1, newest=2)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [2, 3]


def test_a_killed_pruning_leaves_no_half_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = tmp_path / "ppo"
    checkpoints(stage, 1, 2, 3)
    with monkeypatch.context() as patch:
        half_removed(patch)
        with pytest.raises(Killed):
            prune_checkpoints(stage, 1)
    assert all(is_whole(folder) for _, folder in list_checkpoints(stage))
    assert [step for step, _ in list_checkpoints(stage)] == [2, 3]
    latest = latest_checkpoint(stage)
    assert latest is not None
    assert latest[0] == 3


def test_a_killed_replacement_leaves_no_half_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints(tmp_path, 1)
    half_removed(monkeypatch)
    with pytest.raises(Killed):
        checkpoints(tmp_path, 1)
    assert all(is_whole(folder) for _, folder in list_checkpoints(tmp_path))


def test_what_killed_writes_left_is_swept_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = tmp_path / "ppo"
    checkpoints(stage, 1, 2)
    (stage / ".hidden").write_text("somebody's")
    with monkeypatch.context() as patch:
        half_removed(patch)
        with pytest.raises(Killed):
            prune_checkpoints(stage, 1)
    # What a killed write leaves: the block never ends.
    unended = [atomic_file(stage / "done.json"), atomic_folder(checkpoint_folder(stage, 3))]
    for write in unended:
        write.__enter__()
    assert len(list(stage.rglob(".*.tmp"))) == 3
    sweep(tmp_path)
    assert Stage(stage, "PPO", True).resume
    assert list(stage.rglob(".*.tmp")) == []
    assert sorted(path.name for path in stage.iterdir()) == [".hidden", "checkpoints"]
    assert [step for step, _ in list_checkpoints(stage)] == [2]


def old_model(folder: Path) -> Path:
    with atomic_folder(folder / "model") as inside:
        (inside / "weights").write_text("old")
    return folder / "model"


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, rename = old_model(tmp_path), Path.rename

    def fail(self: Path, to: Path) -> Path:
        if to == target and self.name != target.name:
            raise OSError(errno.ENOSPC, "full")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="No space left"), atomic_folder(target) as folder:
        (folder / "weights").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (target / "weights").read_text() == "old"


def test_a_folder_that_was_about_to_be_replaced_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between two renames, a model was in neither place, and the next command swept both away."""
    target, rename = old_model(tmp_path), Path.rename

    def killed(self: Path, to: Path) -> Path:
        if to == target:
            raise Killed
        return rename(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        patch.setattr("spa.common.files.shutil.rmtree", lambda *_, **__: None)  # the process is gone
        with pytest.raises(Killed), atomic_folder(target) as folder:
            (folder / "weights").write_text("new")
    assert not target.exists()
    sweep(tmp_path)
    assert (target / "weights").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(("umask", "mode"), [("077", "600 700"), ("022", "644 755"), ("002", "664 775")])
def test_what_is_written_has_the_rights_that_the_user_gives_files(tmp_path: Path, umask: str, mode: str) -> None:
    code = (
        "from spa.common.files import atomic_folder, atomic_write\n"
        "atomic_write('file', 'x')\nwith atomic_folder('folder'): pass\nimport os\n"
        "print(*(oct(os.stat(name).st_mode)[-3:] for name in ('file', 'folder')))"
    )
    command = f'umask {umask}; exec "{sys.executable}" -c "{code}"'
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == mode


def test_what_another_run_is_writing_is_left_alone(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "lake.5") as folder:
        sweep(tmp_path / "lake")
        (folder / "file").touch()
    assert (tmp_path / "lake.5" / "file").is_file()


def test_a_killed_fresh_start_is_not_resumed_from_what_it_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = tmp_path / "ppo"
    checkpoints(stage, 1)
    with monkeypatch.context() as patch:
        half_removed(patch)
        with pytest.raises(Killed):
            Stage(stage, "PPO", False)
    sweep(tmp_path)
    assert not Stage(stage, "PPO", True).resume
    assert [path.name for path in tmp_path.iterdir()] == ["ppo"]
