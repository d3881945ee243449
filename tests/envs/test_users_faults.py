"""What is said of a world of one's own that is not finished or raises: what is missing, or where."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spa.cli import main

HEAD = """
from spa.envs.frozen_lake.world import FrozenLake
from spa.envs import TextEnv

"""
NO_STEP = """
class World(TextEnv):
    rules, actions = "Go.", ("A", "B")
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "state", {}
"""
RAISES = """
class World(FrozenLake):
    def step(self, action):
        if action == "Left":
            raise KeyError("boom")
        return super().step(action)
"""
ALIKE = """
class World(FrozenLake):
    def __init__(self):
        super().__init__()
        self.actions = ("Left", "left ", "Right", "Up", "Down")
"""
JOINED = """
class World(FrozenLake):
    def __init__(self):
        super().__init__()
        self.actions = ("Left || Right", "Up", "Down")
"""
BEGINS_WON = """
class World(FrozenLake):
    def reset(self, **kwargs):
        state, info = super().reset(**kwargs)
        return state, {**info, "success": True}
"""
RAISES_IN_SPA = """
class World(FrozenLake):
    def step(self, action):
        return super().step(action, 3, 4)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            NO_STEP,
            "FAILED  it can be made and reset(seed=..., options=...): it has no step(action)\n1 question: 1 failed",
        ),
        (
            JOINED,
            "FAILED  actions and symbols can be named in a prompt: no answer can name the action 'Left || Right': an action needs "
            "a name of its own, with neither tags nor the separator '||' in it: rename it, or set agent.action_sep\n",
        ),
        (ALIKE, "no answer can name the action 'left ': an action needs a name of its own"),
        (BEGINS_WON, "FAILED  the world says which episodes are won: seed 0 begins won: there is nothing to play\n"),
        (RAISES, "KeyError: 'boom' (mine.py, line 9)\n"),
        (RAISES_IN_SPA, "positional arguments but 4 were given (mine.py, line 8)\n"),
    ],
)
def test_a_fault_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(HEAD + text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert main(["env", "check", "mine:World", "--episodes", "5"]) == 1
    assert said in capsys.readouterr().out
