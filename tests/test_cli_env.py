"""``spa env``: what is listed, what checking prints and returns, playing by lines and by keys."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spa.cli import main
from spa.envs import env_names, make_env
from spa.envs.play import arrow_actions, keys, play_world


def test_list_tells_what_every_world_is_and_needs(capsys) -> None:
    assert main(["env", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    worlds = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert set(env_names()) <= set(worlds)
    assert all(len(line.split()) > 3 for line in worlds.values())  # a description, too
    assert "pip install 'spa-agent[textarena]'" in next(
        w for name, w in worlds.items() if name.startswith("textarena:")
    )
    assert "pip install" not in worlds["gym:Taxi-v4"]


def test_check_exits_0_with_warnings(capsys) -> None:
    assert main(["env", "check", "gym:CliffWalking", "is_slippery=true", "--episodes", "20", "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith("ok ")] == [
        "warning different seeds give different worlds",
        "warning the state says enough to predict the next one",
        f"{len(lines) - 1} questions",
    ]
    assert lines[-1].endswith("0 failed, 2 warnings.")
    assert "ok      another process gives the same states" in lines


@pytest.mark.parametrize(
    "body, found",
    [
        (
            "    reset = step = print\n    def __init__(self):\n        1 / 0\n",
            "FAILED  it can be made: ZeroDivisionError: division by zero",
        ),
        (
            "    def reset(self, **_):\n        raise KeyError('a\\nb')\n    def step(self, a): pass\n",
            "KeyError: 'a\\nb'",
        ),
    ],
)
def test_a_broken_world_is_a_finding_not_a_traceback(capsys, tmp_path: Path, monkeypatch, body, found) -> None:
    module = f"broken_{abs(len(body))}"
    (tmp_path / f"{module}.py").write_text(f"class World:\n{body}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["env", "check", f"{module}:World", "--episodes", "2"]) == 1
    printed = capsys.readouterr()
    assert found in printed.out and printed.err == ""
    assert all(line.startswith(("ok ", "FAILED ", "warning ")) for line in printed.out.splitlines()[:-1])


def test_a_hanging_constructor_is_a_finding(capsys, tmp_path: Path, monkeypatch) -> None:
    body = "import time\nclass World:\n    reset = step = print\n    def __init__(self):\n        time.sleep(60)\n"
    (tmp_path / "hanging_world.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["env", "check", "hanging_world:World", "--timeout", "0.2"]) == 1
    assert "FAILED  it can be made: the constructor did not return within 0.2 s" in capsys.readouterr().out


def play(world: str, *lines: str, **settings) -> tuple[bool, str]:
    out = io.StringIO()
    return play_world(make_env(world, **settings), 0, iter(lines), out), out.getvalue()


def test_a_number_of_no_action_is_asked_again() -> None:
    out = play("sokoban", "00010", "99999999999", "0", "q")[1]
    assert "Traceback" not in out


LAKE = {"is_slippery": False, "desc": ["SFG", "HFF"], "map_name": None}


def test_play_wins_by_names_and_numbers() -> None:
    won, text = play("gym:FrozenLake", "Right", "sideways", "3", **LAKE)
    assert won
    assert "Reward 0, total 0." in text and "Not a valid action. Reward 0, total 0." in text
    assert "Reward 1, total 1.\nSolved." in text
    assert text.endswith("Stopped.\n")


def test_play_resets_and_quits() -> None:
    won, text = play("gym:FrozenLake", "Down", "Right", "reset", "Right", "q", "Right", **LAKE)
    assert not won
    assert "Lost.\n" in text and "The episode is over: reset or quit." in text
    assert text.count("P_G\nO__") == 2  # the start, and again after the reset
    assert "_PG\nO__" in text and "_√" not in text  # what follows the q is not played


def test_actions_may_differ_in_case_as_in_an_answer() -> None:
    class Door:
        actions = ("Pull Up", "Q")

        def reset(self, *, seed=None, options=None):
            return "a door", {}

        def step(self, action):
            return f"done {action}", 0, False, False, {}

    from spa.envs import AdaptedEnv

    out = io.StringIO()
    play_world(AdaptedEnv(Door()), 0, iter(["pull up", "Q", "q", "never"]), out)
    text = out.getvalue()
    assert "done Pull Up" in text and "done Q" in text and "never" not in text and text.endswith("Stopped.\n")


def test_in_a_world_of_free_text_only_whole_words_are_commands(monkeypatch) -> None:
    class Echo:
        def reset(self, *, seed=None, options=None):
            return "say", {}

        def step(self, action):
            return f"said {action}", 0, False, False, {}

    from spa.envs import AdaptedEnv

    out = io.StringIO()
    play_world(AdaptedEnv(Echo()), 0, iter(["q", "1", "QUIT", "never"]), out)
    text = out.getvalue()
    assert "said q" in text and "said 1" in text and "never" not in text


@pytest.mark.parametrize(
    ("body", "said"), [("return {}['gone']", "KeyError: 'gone'"), ("raise SystemExit(0)", "SystemExit: 0")]
)
def test_a_world_that_raises_ends_play_with_one_line(capsys, tmp_path: Path, monkeypatch, body: str, said: str) -> None:
    module = f"raising_{len(body)}"
    (tmp_path / f"{module}.py").write_text(
        "class World:\n    actions = ('a',)\n    def reset(self, **_):\n        return 's', {}\n"
        f"    def step(self, action):\n        {body}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    assert main(["env", "play", f"{module}:World"]) == 2
    assert capsys.readouterr().err == (
        f"Error: the world failed: step: {said} ({module}.py, line 6); run spa env check for details\n"
    )


@pytest.mark.parametrize(
    "actions, arrows",
    [
        (("Up", "Down", "Left", "Right"), {"up": "Up", "down": "Down", "left": "Left", "right": "Right"}),
        (("Pick", "WEST", "East"), {"left": "WEST", "right": "East"}),
        (("w", "a", "s", "d"), {"up": "w", "left": "a", "down": "s", "right": "d"}),
        (("n", "e", "s", "w"), {"up": "n", "right": "e", "down": "s", "left": "w"}),
        (("Up", "Stay"), {}),
        (("Turn 1", "Turn 2"), {}),
        ((), {}),
    ],
)
def test_which_actions_get_arrow_keys(actions, arrows) -> None:
    assert arrow_actions(actions) == arrows


def typed(text: str) -> list[str]:
    """The names of keys that come all at once, a pause written as ``|``."""
    left = list(text)

    def read() -> str:
        while left and left[0] == "|":
            left.pop(0)
        return left.pop(0) if left else ""

    return list(keys(read, lambda: bool(left) and left[0] != "|"))


@pytest.mark.parametrize(
    "text, names",
    [
        ("\x1b[A\x1b[B\x1b[C\x1b[D", ["up", "down", "right", "left"]),
        ("\x1bOA1q", ["up", "1", "q"]),
        ("\x1b[1;5Cr", ["right", "r"]),  # with Ctrl
        ("\x1b[3~\x1b[Hx", ["x"]),  # Delete, Home
        ("\x1b|q", ["q"]),  # Escape alone
        ("\x1b[", []),
        ("\n \x01a", ["a"]),
        ("a\x04b", ["a"]),
    ],
)
def test_keys_of_a_terminal(text, names) -> None:
    assert typed(text) == names


@pytest.fixture
def terminal(monkeypatch) -> Iterator[tuple[int, object]]:
    """A pseudo terminal as stdin: the end where a person types, and its file."""
    pty = pytest.importorskip("pty")
    person, ours = pty.openpty()
    with os.fdopen(ours, "r") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        yield person, stream
    os.close(person)


def test_arrow_keys_play_and_the_terminal_is_restored(terminal, capsys) -> None:
    import termios

    person, stream = terminal
    before = termios.tcgetattr(stream)
    os.write(person, b"\x1b[C\x1b[Cq")
    assert main(["env", "play", "gym:FrozenLake", "is_slippery=false", "desc=[SFG,HFF]"]) == 0
    printed = capsys.readouterr().out
    assert "right arrow = Right" in printed and "> Right\n" in printed and "Solved." in printed
    assert termios.tcgetattr(stream) == before


def test_the_terminal_is_restored_when_the_world_raises(terminal, capsys, tmp_path: Path, monkeypatch) -> None:
    import termios

    (tmp_path / "raising_lake.py").write_text(
        "class World:\n    actions = ('Left', 'Right')\n    def reset(self, **_):\n        return 's', {}\n"
        "    def step(self, action):\n        raise KeyboardInterrupt if action == 'Left' else OverflowError\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    person, stream = terminal
    before = termios.tcgetattr(stream)
    for key, code in ((b"\x1b[C", 2), (b"\x1b[D", 130)):
        os.write(person, key)
        assert main(["env", "play", "raising_lake:World"]) == code
        assert termios.tcgetattr(stream) == before


def test_a_configs_name_is_its_world(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from spa.cli.env import named_world

    assert named_world("sokoban", {}) == ("sokoban", {})
    assert named_world("frozen_lake_6x6", {"p": 0.5})[1] == {"size": 6, "p": 0.5, "is_slippery": True}
    assert named_world("examples/vault.yaml", {"wheels": 3}) == ("vault:Vault", {"wheels": 3, "digits": 5, "moves": 4})
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["env", "play", "sokoban_easy"]) == 0
    assert "P" in capsys.readouterr().out


def test_a_worlds_id_is_a_config(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spa.agent.worlds._SECONDS", 60.0)
    command = ["run", "gym:Taxi", "--dry-run", "env.max_turns=50", "env.max_actions=50"]
    assert main(command) == 2  # Taxi has no more worlds
    few = r"only \d\d distinct worlds for split 'val' \(64 asked for by ppo.val_worlds\) and \d\d .* by eval.worlds\): ask"
    assert re.search(few, capsys.readouterr().err)
    assert main([*command, "ppo.val_worlds=32", "eval.worlds=32"]) == 0
    printed = capsys.readouterr().out
    assert "name: Taxi\n" in printed
    assert "# world: Taxi (gym:Taxi), 50 turns of 5 actions, 50 in all" in printed
    assert main(["run", "gym:Nowhere-v0", "--dry-run"]) == 2
    assert main(["run", "subprocess:getoutput", "--dry-run"]) == 2
    assert "is not a world: give a class with reset() and step()" in capsys.readouterr().err


PLAIN = """
class {name}:
    actions = {actions}
    def reset(self, *, seed=None{options}):
        self.first = getattr(self, "first", 0) + 1 if seed is None else seed
        self.at = self.first % 5
        return f"floor {{self.at}}", {{}}
    def step(self, action):
        self.at += 1 if action == "rise" else -1
        return f"floor {{self.at}}", float(self.at == 7), self.at in (-3, 7), False, {{}}
"""


def test_a_plain_class_says_what_it_lacks(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch) -> None:
    """Listed actions alone are valid; a ``reset`` without options, or an action_space of numbers, is one line."""
    monkeypatch.syspath_prepend(tmp_path)
    numbers = "()\n    import gymnasium\n    action_space = gymnasium.spaces.Discrete(2)"
    whole = ", options=None"
    classes = [("Lift", "('rise', 'sink')", whole), ("NoOptions", "('rise',)", ""), ("Numbers", numbers, whole)]
    texts = (PLAIN.format(name=name, actions=actions, options=options) for name, actions, options in classes)
    (tmp_path / "lifts.py").write_text("".join(texts))
    assert main(["env", "check", "lifts:Lift", "--episodes", "20"]) == 0
    assert "0 failed" in capsys.readouterr().out
    assert main(["env", "check", "lifts:NoOptions"]) == 1
    said = capsys.readouterr().out
    assert "1 question: 1 failed" in said and "unexpected keyword argument 'options'" in said
    assert main(["env", "check", "lifts:Numbers"]) == 2
    assert "its action_space is Discrete(2): list their names in `actions`" in capsys.readouterr().err
