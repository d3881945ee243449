"""The synthetic corpus of the built-in model: format, copying, coordinate reading and random valid actions.

It holds **no dynamics and no solutions**. Boards are random placements (no generator of a world, no step of one is ever
called), actions are drawn uniformly and independently of the board (in Sudoku: for a random empty cell, with a
random digit), and the "prediction" of a document is another random board that has nothing to do with the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spa.agent.response import tagged
from spa.agent.task import Task
from spa.config.fields import Prompt
from spa.config.schema import AgentConfig, EnvConfig
from spa.envs import TextEnv
from spa.envs.sudoku.world import Sudoku

WORLDS: dict[str, EnvConfig] = {
    "sokoban": EnvConfig(id="sokoban", tag="SimpleSokoban", settings={"dim_room": [6, 6]}),
    "frozen_lake": EnvConfig(id="frozen_lake", tag="FrozenLake", settings={"size": 4}),
    "sudoku": EnvConfig(id="sudoku", tag="Sudoku", settings={"board_size": 4}, max_actions=50),
}


@dataclass(frozen=True)
class Document:
    """One exchange. ``unrelated`` is the body of the prediction, which deserves little loss: it cannot be known."""

    user: str
    response: str
    unrelated: str = ""


class Corpus:
    """An endless, seeded stream of documents.

    Args:
        worlds: names out of ``WORLDS`` with their weights.
    """

    def __init__(self, rng: np.random.Generator, worlds: Sequence[tuple[str, float]]) -> None:
        self.rng = rng
        self.names = [name for name, _ in worlds]
        weights = np.array([weight for _, weight in worlds], dtype=float)
        self.weights = weights / weights.sum()
        self._tasks: dict[tuple[str, str, str], tuple[Task, TextEnv]] = {}

    def _task(self, name: str, mode: Prompt, state_format: str) -> tuple[Task, TextEnv]:
        key = (name, mode, state_format)
        if key not in self._tasks:
            base = WORLDS[name]
            env = EnvConfig(**{**vars(base), "state_format": state_format})
            task = Task(env, AgentConfig(style="terse", prompt=mode, window=1))
            self._tasks[key] = task, task.make_env()
        return self._tasks[key]

    def document(self) -> Document:
        """The next document."""
        rng = self.rng
        name = str(rng.choice(self.names, p=self.weights))
        mode: Prompt = "base" if rng.choice(["base", "world_model"]) == "base" else "world_model"
        state_format = str(rng.choice(["grid", "coordinates"]))
        task, env = self._task(name, mode, state_format)
        board = random_board(name, rng)
        state = render(env, board)
        left = int(rng.integers(1, task.env.max_actions + 1))
        actions = " || ".join(random_actions(name, board, env, rng))
        user = task.turn_text(1, state, left)
        if mode == "base":
            return Document(user, tagged("think", "") + tagged("answer", actions))
        other = render(env, random_board(name, rng))
        thoughts = tagged("observation", state) + actions + tagged("prediction", other)
        return Document(user, tagged("think", thoughts) + tagged("answer", actions), other)


def render(env: TextEnv, board: str) -> str:
    """The board in the world's own state format."""
    if isinstance(world := env.unwrapped, Sudoku):  # its reset refuses boards that break the rules, as these may
        world.board = [0 if cell == "." else int(cell) for cell in board if cell not in "| "]
        return world.render()
    state, _ = env.reset(seed=0, options={"state": board})
    return state


def random_board(name: str, rng: np.random.Generator) -> str:
    """A random placement of a world's symbols; neither solvable nor reachable in general."""
    if name == "sokoban":
        return _sokoban_board(rng)
    if name == "frozen_lake":
        return _lake_board(rng)
    digits = rng.integers(1, 5, size=16)
    blank = rng.permutation(16) < rng.integers(1, 12)
    cells = ["." if b else str(d) for b, d in zip(blank, digits, strict=True)]
    return "".join(f"| {' '.join(cells[i : i + 4])} " for i in range(0, 16, 4))


def _sokoban_board(rng: np.random.Generator, height: int = 6, width: int = 6) -> str:
    inner = (height - 2) * (width - 2)
    cells = np.where(rng.random(inner) < rng.uniform(0.0, 0.7), "#", "_")
    player, box, target = rng.choice(inner, size=3, replace=False)
    chance = rng.random()
    if chance < 0.1:  # box on target
        target = box
    elif chance < 0.2:  # player on target
        target = player
    cells[target], cells[box], cells[player] = "O", "X", "P"
    if target == box:
        cells[box] = "√"
    elif target == player:
        cells[player] = "S"
    rows = ["".join(cells[i : i + width - 2]) for i in range(0, inner, width - 2)]
    wall = "#" * width
    return "\n".join([wall, *(f"#{row}#" for row in rows), wall])


def _lake_board(rng: np.random.Generator, size: int = 4) -> str:
    cells = np.where(rng.random(size * size) < rng.uniform(0.0, 0.6), "O", "_")
    player, goal = rng.choice(size * size, size=2, replace=False)
    cells[goal] = "G"
    chance = rng.random()
    if chance < 0.05:
        cells[goal] = "√"
    elif chance < 0.1:
        cells[player] = "X"
    else:
        cells[player] = "P"
    return "\n".join("".join(cells[i : i + size]) for i in range(0, size * size, size))


def random_actions(name: str, board: str, env: TextEnv, rng: np.random.Generator, most: int = 5) -> list[str]:
    """One to ``most`` valid actions, uniform and blind to what they would do."""
    count = int(rng.integers(1, most + 1))
    if name != "sudoku":
        return [str(action) for action in rng.choice(list(env.actions), size=count)]
    rows = [row.split() for row in board.split("|")[1:]]
    empty = [(r + 1, c + 1) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell == "."]
    chosen = [empty[i] for i in rng.integers(0, len(empty), size=count)]
    return [f"{r},{c},{rng.integers(1, 5)}" for r, c in chosen]


def tokenizer_texts(corpus: Corpus, documents: int) -> list[str]:
    """What the tokenizer learns its pieces from: documents, all coordinate pairs, roles and numbers."""
    texts: list[Any] = []
    for _ in range(documents):
        document = corpus.document()
        texts.append(f"<|im_start|>user\n{document.user}<|im_end|>\n<|im_start|>assistant\n{document.response}")
    pairs = [f"({r},{c})" for r in range(10) for c in range(10)]
    return [*texts, *(pairs * 20), *(["system\nuser\nassistant\n"] * 20), *(["Reward:\nTurn State"] * 20)]
