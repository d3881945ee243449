"""Every packaged config of a world: it composes, and its prompts speak of the world that is played."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spa.agent.prompt import instruction
from spa.agent.task import Task
from spa.config.load import load_config, names_of
from spa.config.schema import AgentConfig, EnvConfig
from spa.envs import STATE_FORMATS, Sokoban, make_env

GOLDEN = Path(__file__).with_name("golden_instructions.json")
# The original's tags and what it says of them.
TAGS = {
    "sokoban": ("SimpleSokoban", {"dim_room": [6, 6], "num_boxes": 1}),
    "sokoban_2_boxes": ("Sokoban2Boxes", {"dim_room": [6, 6], "num_boxes": 2, "search_depth": 30}),
    "sokoban_hard": ("HarderSokoban", {"dim_room": [10, 10], "num_boxes": 2}),
    "sokoban_grid_vocab": ("SokobanDifferentGridVocab", {"grid_vocab": "W.GCBA@"}),
    "sokoban_action_vocab": ("SokobanDifferentActionVocab", {"action_names": ["North", "South", "West", "East"]}),
    "sokoban_visual": ("VisualSimpleSokoban", {"render_mode": "rgb_array"}),
    "frozen_lake": ("FrozenLake", {"size": 4, "is_slippery": False}),
    "frozen_lake_slippery": ("FrozenLake", {"size": 4, "is_slippery": True}),
    "frozen_lake_5x5": ("FrozenLake5x5", {"size": 5, "is_slippery": False}),
    "frozen_lake_6x6": ("FrozenLake6x6", {"size": 6, "is_slippery": True}),
    "frozen_lake_6x6_not_slippery": ("FrozenLake6x6", {"size": 6, "is_slippery": False}),
    "sudoku": ("Sudoku", {"board_size": 4, "difficulty": "easy"}),
    "sudoku_medium": ("SudokuMedium", {"board_size": 4, "difficulty": "medium"}),
    "sudoku_hard": ("SudokuHard", {"board_size": 4, "difficulty": "hard"}),
    "sudoku_9x9": ("Sudoku9x9", {"board_size": 9, "difficulty": "easy"}),
    "sudoku_9x9_medium": ("Sudoku9x9Medium", {"board_size": 9, "difficulty": "medium"}),
    "sudoku_9x9_hard": ("Sudoku9x9Hard", {"board_size": 9, "difficulty": "hard"}),
}


@cache  # composing is the slow part
def env_of(name: str) -> EnvConfig:
    return load_config(name).env


def task(name: str, style: str, prompt: str = "base", state_format: str = "grid") -> Task:
    return Task(replace(env_of(name), state_format=state_format), AgentConfig(style=style, prompt=prompt))


@pytest.mark.parametrize("name", TAGS)
def test_tags(name: str) -> None:
    env = env_of(name)
    tag, settings = TAGS[name]
    assert env.tag == tag and {key: env.settings[key] for key in settings} == settings


@pytest.mark.parametrize("state_format", ["grid", "coordinates"])
@pytest.mark.parametrize("style", ["paper", "terse"])
@pytest.mark.parametrize("name", names_of("env"))
def test_prompts_show_the_world_that_is_played(name: str, style: str, state_format: str) -> None:
    for prompt in ("base", "world_model"):
        played = task(name, style, prompt, state_format)
        env = played.make_env()
        state, _ = env.reset(seed=0)
        header, turn = played.header(env), played.turn_text(1, state, played.env.max_actions)
        assert state in turn and f"{played.env.max_actions} " in turn
        if style == "terse":
            assert header == ""
            continue
        if env.symbols:
            shown = ", ".join(f"{symbol}: {meaning}" for symbol, meaning in env.symbols.items())
            assert f"The meaning of each symbol in the state is:\n{shown}\n" in header
            assert state_format != "grid" or set(state) <= {*env.symbols, "\n"}
        if env.actions:
            assert f"Your available actions are:\n{', '.join(env.actions)}\n" in header
            # whatever answer the instruction shows is one of this world
            answers = re.findall(r"<answer>([^<\[]+)</answer>", header)
            assert {action for answer in answers for action in answer.split(" || ")} <= set(env.actions)
        assert f"You can make up to {played.env.max_actions} actions" in header or not env.actions


def test_the_instruction_speaks_the_worlds_own_names() -> None:
    played = task("sokoban_action_vocab", "paper")
    header = played.header(played.make_env())
    assert "<answer>East || North</answer>" in header and not re.search(r"\b(Up|Down|Left|Right)\b", header)
    lake = EnvConfig(id="frozen_lake", settings={"action_names": ["West", "South", "East", "North"]})
    header = Task(lake).header(Task(lake).make_env())
    assert "I should go west then go north.</think><answer>West || North</answer>" in header


def test_the_actions_of_the_other_vocabulary_move_as_they_say() -> None:
    settings = env_of("sokoban_action_vocab").settings
    env, plain = make_env("sokoban", **settings), Sokoban(search_depth=30)
    for theirs, ours in (("North", "Up"), ("south", "Down"), ("West", "Left"), ("EAST", "Right")):
        assert env.reset(seed=4)[0] == plain.reset(seed=4)[0]
        assert env.step(theirs)[0] == plain.step(ours)[0]
    assert env.step("Up")[4]["valid"] is False


def test_the_picture_is_not_what_the_model_reads() -> None:
    played = task("sokoban_visual", "paper", state_format="coordinates")
    env = played.make_env()
    state, _ = env.reset(seed=0)
    plain = Sokoban(state_format="coordinates")
    assert state == plain.reset(seed=0)[0]
    assert env.step("Up") == plain.step("Up")
    assert env.render().shape == (96, 96, 3)


def test_only_slippery_lakes_are_said_to_be_slippery() -> None:
    for name, slippery in (("frozen_lake", False), ("frozen_lake_slippery", True)):
        played = task(name, "paper")
        assert ("slippery ice" in played.header(played.make_env())) is slippery


def test_golden_instructions() -> None:
    """The instructions of every packaged config stay as they are, to the byte. ``python -m tests.envs.test_world_configs`` records
    those of new configs, and others where a change is meant."""
    assert digests_of_instructions() == json.loads(GOLDEN.read_text()), "record them anew: see this test's docstring"


def digests_of_instructions() -> dict[str, str]:
    """Config, state format and prompt -> the beginning of the instruction's SHA-256."""
    digests = {}
    for name in names_of("env"):
        for state_format in STATE_FORMATS:
            config = replace(env_of(name), state_format=state_format)
            env = Task(config).make_env()
            for prompt in ("base", "world_model"):
                text = instruction(config, prompt, env)
                digests[f"{name} {state_format} {prompt}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digests


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(digests_of_instructions(), indent=0) + "\n")
