"""Imagined training worlds: stage 2's predictions for every action reachable from a start state, replayable at will.

Stage 3 can mix them with real worlds (``curriculum.imagined``): Dyna (Sutton 1990) with a language model as the model. Playing
them costs no actions in the real world.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from gymnasium.error import ResetNeeded

from spa.agent.failures import Failures
from spa.agent.policy import Policy, local_engine, make_task
from spa.agent.worlds import WorldSource, world_keys
from spa.common.files import atomic_write
from spa.common.progress import progress
from spa.common.typed import parse
from spa.config.schema import Config, PlannerConfig
from spa.config.seeds import first_seed
from spa.envs import TextEnv, make_env
from spa.envs.spaces import AnyText
from spa.envs.tables import version
from spa.models.folders import identity
from spa.planning.journal import journaled
from spa.planning.play import search_all
from spa.planning.search import Answer, ImaginedGraph, Question, expand, likeliest
from spa.planning.world_model import WorldModel

CHUNK = 256  # worlds imagined at once
FILE = "worlds.json"

Moves = dict[str, dict[str, tuple[str, float, bool]]]  # state -> action -> next state, reward, end


def dream(
    root: str, actions: Sequence[str], config: PlannerConfig, depth: int, actions_left: int
) -> Generator[list[Question], list[Answer], Moves]:
    """All transitions within ``depth`` actions of a start, using the likeliest answer; disbelieved answers are left out."""
    graph = ImaginedGraph(root, config)
    yield from expand(graph, actions, depth, actions_left, stop_at_goal=False)
    moves: Moves = {}
    for here, edges in graph.edges.items():
        likely = {action: likeliest(answers) for action, answers in edges.items() if answers}
        moves[graph.states[here]] = {action: (one.state, one.reward, one.ended) for action, one in likely.items()}
    return moves


def imagine_worlds(cfg: Config, out: Path, *, model: str) -> dict[str, Any]:
    """Imagines ``curriculum.imagined_worlds`` training worlds from their start states; writes ``worlds.json`` to ``out``.

    Returns:
        the stage's record: counts and the keys of the worlds.

    Raises:
        ValueError: a model that cannot be loaded or queried, too few worlds, or too many that fail (``env.max_failed``).
    """
    planner, seeds = cfg.planner, cfg.seeds
    policy = Policy.load(cfg, model, engine=local_engine(cfg))
    task = make_task(cfg, state_format=cfg.selfplay.state_format, prompt="base")
    worlds = WorldSource(task, "train", first_seed(seeds, "train"), unique=True).take(
        cfg.curriculum.imagined_worlds, setting="curriculum.imagined_worlds"
    )
    world_model = WorldModel(policy, task, samples=planner.samples, proposals=planner.proposals, seed=seeds.run)
    left = task.env.max_actions
    depth = min(planner.depth, left)
    imagined: list[dict[str, Any]] = []
    env, failures = task.make_env(), Failures("imagining worlds", task.env.max_failed, len(worlds), unit="worlds")
    answers = journaled(world_model, out / "answers.jsonl", identity(model))
    with closing(policy), answers, progress(len(worlds), "imagining worlds") as bar:
        for first in range(0, len(worlds), CHUNK):
            chunk = worlds[first : first + CHUNK]
            starts, headers = [], []
            for world in chunk:
                with failures.alone(world.seed):
                    state, _ = env.reset(seed=world.seed, options={"noise_seed": world.noise_seed(0)})
                    headers.append(world_model.headers(env))
                    starts.append(state)
            searches = [
                dream(start, shown.actions, planner, depth, left) for start, shown in zip(starts, headers, strict=True)
            ]
            dreamt = search_all(world_model, searches, headers, max_tokens=planner.max_tokens)
            imagined += [
                {"start": start, "moves": moves, "actions": shown.actions}
                for start, moves, shown in zip(starts, dreamt, headers, strict=True)
            ]
            world_model.forget()
            bar.advance(len(chunk))
    failures.say()
    atomic_write(out / FILE, json.dumps(imagined, ensure_ascii=False) + "\n")
    usage = world_model.usage
    states = sum(len(one["moves"]) for one in imagined)
    record = {"imagined": len(imagined), "states": states, "questions": usage.questions, "tokens": usage.tokens}
    return {**record, "actions": 0, "worlds": {"train": world_keys(worlds)}}


def _read(path: str) -> list[dict[str, Any]]:
    try:
        return _parsed(*version(Path(path)))
    except OSError as error:
        raise ValueError(f"cannot read imagined worlds from {path}: {error}") from error


@lru_cache(maxsize=4)
def _parsed(path: str, changed: int, size: int) -> list[dict[str, Any]]:
    try:
        loaded = parse(list[dict[str, Any]], Path(path).read_bytes())
        if not loaded or not all(isinstance(one["start"], str) and isinstance(one["moves"], dict) for one in loaded):
            raise ValueError("it contains no worlds")
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"cannot read imagined worlds from {path}: {error}") from error
    return loaded


class ImaginedWorld(TextEnv):
    """Replays what a model imagined. A move that was not imagined keeps the state and truncates the episode.

    Args:
        path: the file written by ``imagine_worlds``.
        world, settings: the real world, which provides action names, symbols and rules.
        state_format: the format in which it was imagined.

    Raises:
        ValueError: no such file or world.
    """

    def __init__(
        self, path: str, world: str, settings: dict[str, Any] | None = None, state_format: str = "grid"
    ) -> None:
        self._worlds = _read(path)
        real = make_env(world, **(settings or {}))
        with suppress(Exception):  # some worlds name their actions at reset; what fails is told of where it is played
            real.reset(seed=0)
        self.rules, self.actions, self.symbols = real.rules, tuple(real.actions), dict(real.symbols)
        self._real = real
        self.state_format = state_format
        self.observation_space, self.action_space = AnyText(100_000), real.action_space
        self._moves: Moves = {}
        self._state: str | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        chosen = self._worlds[(seed or 0) % len(self._worlds)]
        self._moves, self._state = chosen["moves"], str(chosen["start"])
        self.actions = tuple(chosen.get("actions", self.actions))  # they may be this world's own
        info = {"success": False, "valid": True, "effective": False, "content": self._state, "split": "train"}
        return self._state, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._state is None:
            raise ResetNeeded("reset this world before step")
        before = self._state
        outcomes = self._moves.get(before, {})
        if action not in outcomes:
            if not self.actions or action in self.actions:
                self._state = None
                return before, 0.0, False, True, {"success": False, "valid": True, "effective": False}
            return before, 0.0, False, False, {"success": False, "valid": False, "effective": False}
        after, reward, ended = outcomes[action]
        self._state = None if ended else after
        info = {"success": bool(ended and reward > 0), "valid": True, "effective": after != before}
        return after, float(reward), bool(ended), False, info

    def render(self) -> str:
        return self._state or ""

    def sample_action(self, rng: Any) -> str:
        return self._real.sample_action(rng)
