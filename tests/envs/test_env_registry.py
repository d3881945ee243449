"""Finding worlds by name, and what is said when there is none."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from spa.envs import AdaptedEnv, Sokoban, Sudoku, TextEnv, env_names, make_env, register_worlds, registry
from spa.envs.base import Example
from spa.envs.checked import WorldError


class Corridor:
    """The least a world can be: no base class, no info."""

    actions = ("Left", "Right")

    def __init__(self, length: int = 3) -> None:
        self.length, self.at = length, 0

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self._text(), {}

    def step(self, action):
        self.at += (action == "Right") - (action == "Left" and self.at > 0)
        done = self.at == self.length - 1
        return self._text(), int(done), done, False, {}

    def _text(self):
        return "".join("P" if i == self.at else "_" for i in range(self.length))


class Quiz:
    """Free text, with an instruction instead of rules."""

    rules = None
    instruction = "Name a colour."
    example = ("a wall", "It may be red.", "right", "red")

    def reset(self, *, seed=None, options=None):
        return "a wall", {}

    def step(self, action):
        return "right", 1.0, True, False, {}

    def sample_action(self, rng):
        return ("red", "blue")[int(rng.integers(2))]


class Questions(Quiz, gymnasium.Env):
    """The same for Gymnasium's wrappers."""


class Wordless(Corridor):
    def _text(self):
        return self.at


not_a_world = 3


def here(name: str) -> str:
    return f"{__name__}:{name}"


@pytest.mark.parametrize("name", ["sokoban", "spa/Sokoban-v0", "spa.envs:spa/Sokoban-v0", "spa.envs:Sokoban"])
def test_ways_to_name_a_world(name):
    env = make_env(name, num_boxes=2)
    assert type(env) is Sokoban and env.reset(seed=0)[0].count("X") == 2


def test_registering_twice_is_harmless():
    register_worlds()
    assert isinstance(gymnasium.make("spa/Sudoku-v0", difficulty="hard").unwrapped, Sudoku)


@pytest.mark.parametrize(
    "name, message",
    [
        ("sokban", "unknown world 'sokban'. Did you mean 'sokoban'\\?"),
        ("FrozenLake", "Did you mean 'frozen_lake'\\?"),
        ("qqq", "unknown world 'qqq'. Known: sokoban, frozen_lake, sudoku"),
        ("spa/Sokban-v0", "Did you mean 'spa/Sokoban-v0'\\?"),
        ("spa.envs:Sokobn", "spa.envs has no 'Sokobn'. Did you mean 'Sokoban'\\?"),
        ("no_such_module:World", "there is no module 'no_such_module'"),
        ("lights.py:Lights", "there is no module 'lights.*' to import, .*; write lights:CLASS"),
        ("spa.envs:", "spa.envs has no ''"),
        ("code:KeyDoor", "code has no 'KeyDoor'. It was imported from .*code.py"),
        ("vault.Vault", "unknown world 'vault.Vault'.* A class of your own is written module:Class"),
        (":World", "is not a module name"),
        ("a b:World", "'a b' is not a module name"),
        (
            "broken_worlds.value:World",
            "cannot be imported: ValueError: invalid literal for int.* \\(value.py, line 2\\)",
        ),
        ("broken_worlds.package:World", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("", "unknown world ''"),
        (here("not_a_world"), "not an object of type int"),
        ("collections:Counter", "not a class without them"),
        (7, "must be text"),
    ],
)
def test_unknown_worlds(name, message, tmp_path, monkeypatch):
    (tmp_path / "broken_worlds").mkdir()
    (tmp_path / "broken_worlds" / "value.py").write_text("\nint('x')\n")
    (tmp_path / "broken_worlds" / "package.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=message):
        make_env(name)


@pytest.mark.parametrize(
    "name, setting, message",
    [
        ("sokoban", "num_box", "unknown setting 'num_box' of world 'sokoban'. Did you mean 'num_boxes'\\?"),
        ("spa/FrozenLake-v0", "slippery", "Did you mean 'is_slippery'\\?"),
        ("sudoku", "zzz", "Known: board_size, difficulty, num_clues, max_steps, levels, state_format, render_mode"),
        (here("Corridor"), "lenght", "Did you mean 'length'\\?"),
    ],
)
def test_unknown_settings(name, setting, message):
    with pytest.raises(ValueError, match=message):
        make_env(name, **{setting: 1})


def test_a_bare_world_plays_as_a_text_env():
    env = make_env(here("Corridor"), length=4)
    assert isinstance(env, AdaptedEnv) and isinstance(env, TextEnv) and env.actions == ("Left", "Right")
    with pytest.raises(ResetNeeded):
        env.step("Left")
    state, info = env.reset(seed=1)
    assert info == {"success": False, "valid": True, "effective": False, "content": "P___"}
    assert env.legal(state) is None
    state, reward, terminated, truncated, info = env.step("Left")
    assert (state, reward, info["effective"]) == ("P___", 0.0, False)
    for _ in range(3):
        state, reward, terminated, truncated, info = env.step("Right")
    assert (state, env.render(), reward, terminated, truncated) == ("___P", "___P", 1.0, True, False)
    assert info["success"] and info["effective"] and info["content"] == "P___"
    with pytest.raises(ResetNeeded):
        env.step("Left")
    check_env(make_env(here("Corridor")), skip_render_check=True)
    env.close()


@pytest.mark.parametrize("env", [AdaptedEnv(Quiz()), AdaptedEnv(gymnasium.Wrapper(Questions()))])
def test_an_adapted_world_keeps_what_it_says_of_itself(env):
    rng = np.random.default_rng(0)
    assert (env.rules, env.instruction) == ("", "Name a colour.")
    assert env.example == Example("a wall", "It may be red.", "right", "red")
    assert {env.sample_action(rng) for _ in range(20)} == {"red", "blue"}


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("actions", "Left", "Corridor.actions must be a list or tuple of texts, as in ['Open'], not 'Left'"),
        ("actions", (0, 1), "Corridor.actions must be a list or tuple of texts, as in ['Open'], not (0, 1)"),
        ("symbols", ["P", "O"], "Corridor.symbols must map texts to texts, as in {'P': 'player'}, not ['P', 'O']"),
    ],
)
def test_names_that_are_no_texts_are_refused(attribute, value, message):
    env = Corridor()
    setattr(env, attribute, value)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        AdaptedEnv(env)


def test_a_world_must_speak():
    with pytest.raises(WorldError, match="a state must be text, not 0"):
        make_env(here("Wordless")).reset()


def test_gymnasium_wrappers_of_a_registration_are_kept():
    if "SpaTestCorridor-v0" not in gymnasium.registry:
        gymnasium.register(id="SpaTestCorridor-v0", entry_point=Sokoban, max_episode_steps=2)
    env = make_env("SpaTestCorridor-v0", num_boxes=2)
    assert isinstance(env, AdaptedEnv) and env.symbols == Sokoban().symbols and env.rules
    state, info = env.reset(seed=1)
    assert state.count("X") == 2 and info["content"].startswith("Sokoban 6x6")
    assert env.legal(state) is True and env.legal(state.replace("P", "_")) is False and env.num_cell_values == 7
    env.step("Up")
    assert env.step("Up")[3] is True


@pytest.fixture
def no_known_plugins():
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()


def test_entry_points(monkeypatch, no_known_plugins):
    points = [EntryPoint("corridor", here("Corridor"), registry.ENTRY_POINT_GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "spa.envs" else [])
    assert env_names() == [*registry.BUILT_IN, "corridor"]
    assert make_env("corridor", length=5).reset(seed=0)[0] == "P____"
    with pytest.raises(ValueError, match="Did you mean 'corridor'"):
        make_env("coridor")


class Doors:
    actions = ("left", "right")

    def __init__(self) -> None:
        self.opened: list[str] = []

    def reset(self, *, seed=None, options=None):
        return "doors", {}

    def step(self, action):
        self.opened.append(action)
        return f"{len(self.opened)} opened", 1.0, False, False, {}


def test_actions_that_a_world_does_not_list_are_not_passed_on() -> None:
    doors = Doors()
    env = AdaptedEnv(doors)
    env.reset(seed=0)
    state, reward, _, _, info = env.step("window")
    assert (state, reward, info["valid"], info["effective"], doors.opened) == ("doors", 0.0, False, False, [])
    assert env.step("left")[4]["valid"] and doors.opened == ["left"]
