"""A chat server as a process of its own, for the tests that need one."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Server:
    """The server process as a test sees it."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/v1"

    def control(self, **control: Any) -> None:
        request = urllib.request.Request(f"{self.root}/control", json.dumps(control).encode(), method="POST")
        urllib.request.urlopen(request).read()

    def _get(self, path: str) -> Any:
        return json.loads(urllib.request.urlopen(self.root + path).read())

    @property
    def log(self) -> list[dict[str, Any]]:
        return list(self._get("/log"))

    @property
    def peak(self) -> int:
        return int(self._get("/peak"))


@pytest.fixture(scope="module")
def process() -> Iterator[Server]:
    command = [sys.executable, str(Path(__file__).with_name("server.py"))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield Server(int(child.stdout.readline()))
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.fixture
def server(process: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    process.control()
    monkeypatch.setattr("spa.engines.openai.BACKOFF", 0.005)
    for name in ("OPENAI_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return process
