"""A world whose code was changed after stage 1 is noticed by every later command on the run's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from spa.cli import main
from spa.envs import TextEnv


class Door(TextEnv):
    rules, actions = "Open the door.", ("Push", "Pull")
    shown, opens = "door", "Pull"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.open = int(self.np_random.integers(10**9)), False
        return self.render(), self.info()

    def step(self, action):
        self.open = action == self.opens
        return self.render(), float(self.open), self.open, False, self.info()

    def render(self):
        return f"{self.shown} {self.number} {'open' if self.open else 'shut'}"

    def info(self):
        return {"success": self.open, "valid": True, "effective": self.open, "content": f"door {self.number}"}


SETTINGS = [
    *("frozen_lake", f"env.id={__name__}:Door", "env.settings={}", "model.threads=1", "selfplay.policy=random"),
    *("selfplay.groups=4", "selfplay.group_size=2", "eval.worlds=2", "eval.ks=[1]", "eval.samples=1"),
]


def test_a_world_that_was_changed_after_stage_1_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path)]
    assert main(["generate", *SETTINGS, *out]) == 0
    commands = (["sft"], ["run"], ["ppo", "--variant", "vanilla"], ["eval", "--variant", "base"])
    for command in commands:
        assert main([*command, *out, "--resume", "--dry-run"]) == 0, capsys.readouterr().err
    assert "has changed" not in capsys.readouterr().err
    with monkeypatch.context() as other:
        other.setattr(Door, "opens", "Push")
        assert main(["eval", "--variant", "base", *out, "--resume", "--dry-run"]) == 0
        err = capsys.readouterr().err
        assert "Door' has changed since" in err and "goes on otherwise" in err
    monkeypatch.setattr(Door, "shown", "gate")
    for command in commands:
        assert main([*command, *out, "--resume", "--dry-run"]) == 0
        err = capsys.readouterr().err
        assert "Door' has changed since" in err and "begins otherwise" in err
    monkeypatch.setattr(Door, "reset", None)  # it cannot even begin: that is reported where it is played
    assert main(["eval", *out, "--variant", "base", "--resume", "--dry-run"]) in (0, 2)
