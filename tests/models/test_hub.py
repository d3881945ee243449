"""``spa export --push``: refused before anything is written, and what the hub is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spa.cli import main
from spa.models.hub import upload


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = []

    class Api:
        def create_repo(self, repo: str, **given: Any) -> None:
            calls.append((repo, given))
            if repo == "org/closed":
                raise ConnectionError("no route\nto host http://user:password@host/")

        def upload_folder(self, **given: Any) -> str:
            calls.append(("upload", given))
            return "https://hub/org/name/commit/1"

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_token")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return calls


def test_an_upload_is_private_unless_said(hub: list[Any], tmp_path: Path) -> None:
    assert upload(tmp_path, "org/name") == "https://hub/org/name/commit/1"
    assert hub[0] == ("org/name", {"private": True, "exist_ok": True})
    assert hub[1][1]["folder_path"] == str(tmp_path)
    upload(tmp_path, "org/name", public=True)
    assert hub[2][1]["private"] is False


def test_a_refusal_is_one_line(hub: list[Any], tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^--push org/closed failed: no route to host http://\[redacted\]@host/; .* is written$"
    ):
        upload(tmp_path, "org/closed")


@pytest.mark.parametrize(
    ("repo", "patch", "message"),
    [
        ("org/a/b", None, "--push org/a/b: "),
        ("org/name", ("huggingface_hub.get_token", lambda: None), "no token for the hub"),
        ("org/name", ("huggingface_hub.constants.HF_HUB_OFFLINE", True), "HF_HUB_OFFLINE is set"),
    ],
)
def test_what_cannot_be_pushed_is_not_written(
    hub: list[Any], tmp_path: Path, monkeypatch: Any, capsys: Any, repo: str, patch: Any, message: str
) -> None:
    if patch:
        monkeypatch.setattr(*patch)
    assert main(["export", str(tmp_path), "--to", str(tmp_path / "out"), "--push", repo]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()
    assert hub == []
