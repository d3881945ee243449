"""What a model could not write is said before anything is played."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import normalizers

from spa.agent.chat import Chat
from spa.agent.policy import make_task
from spa.agent.text_checks import check_tokenizer
from spa.cli import main
from spa.config.load import load_config
from spa.config.schema import ModelConfig
from spa.envs import TextEnv
from spa.models.load import load_model, load_tokenizer, save_model


class Ohm(TextEnv):
    """States with the sign of ohms, which NFC turns into a Greek letter."""

    rules, actions, sign = "Find the right one.", ("More", "Less"), "\u2126"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.value = int(self.np_random.integers(10**6))
        return self.render(), self.info(False)

    def step(self, action):
        return self.render(), 0.0, False, False, self.info(action in self.actions)

    def render(self):
        return f"{self.value} {self.sign}"

    def info(self, valid):
        return {"success": False, "valid": valid, "effective": False, "content": self.render()}


class Marked(Ohm):
    sign = "<answer>"


def task(world: str = "Ohm", *settings: str):
    return make_task(load_config("frozen_lake", [f"env.id={__name__}:{world}", "env.settings={}", *settings]))


def chat(normalizer=None) -> Chat:
    tokenizer = load_tokenizer("builtin:tiny")
    if normalizer is not None:
        tokenizer.backend_tokenizer.normalizer = normalizer
    return Chat(tokenizer)


def test_a_tokenizer_that_keeps_everything_is_not_talked_of() -> None:
    assert check_tokenizer(chat(), task()) == ""


def test_changed_states_are_noted() -> None:
    told = check_tokenizer(chat(normalizers.NFC()), task())
    assert "turns '\u2126' in a state of" in told and "into '\u03a9': no prediction of it can be exact" in told


def test_what_no_response_could_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="turns the action 'Less' into 'More': rename it"):
        check_tokenizer(chat(normalizers.Replace("Less", "More")), task())
    written, decode = chat(), Chat.decode
    monkeypatch.setattr(Chat, "decode", lambda self, ids: decode(self, ids).replace("<think>", "think"))
    with pytest.raises(ValueError, match="turns '<think></think>' into 'think</think>': it cannot write responses"):
        check_tokenizer(written, task())
    assert check_tokenizer(written, task("Ohm", "agent.think=false")) == ""


def test_upper_case_matters_in_states_alone() -> None:
    assert "a state of" in check_tokenizer(chat(normalizers.Lowercase()), task())


def test_commands_say_so_before_they_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ModelConfig(device="cpu")
    save_model(load_model(model), chat(normalizers.NFC()).tokenizer, tmp_path / "model")
    words = ["frozen_lake", f"env.id={__name__}:Ohm", "env.settings={}", "variants=[spa]", "--dry-run"]
    assert main(["run", *words, f"model={tmp_path / 'model'}"]) == 0
    assert "in a state of" in capsys.readouterr().err
    words[1] = f"env.id={__name__}:Marked"
    assert main(["run", *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "this world's states contain '<answer>', a tag of the responses" in error
