"""The true world in place of a world model: an upper bound for planners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from spa.agent.failures import Failures
from spa.agent.policy import Policy
from spa.agent.task import Task
from spa.envs import TextEnv
from spa.envs.checked import WorldError
from spa.envs.states import same
from spa.planning.search import Imagined, Move
from spa.planning.world_model import Headers, WorldModel

_MOVES = 30  # random ones, to leave the start


def check_settable(env: TextEnv) -> None:
    """Raises ValueError if a world cannot be set to a state: one in which it does not start, where a move leads to one."""
    start, _ = env.reset(seed=0)
    state = _moved(env, start) or start
    try:
        again, _ = env.reset(seed=1, options={"state": state})
    except Exception as error:  # arbitrary world code, which may not accept a state
        raise ValueError(f"planner.model=simulator: this world cannot be set to a state: {error}") from error
    if not same(again, state):
        raise ValueError("planner.model=simulator: this world cannot be set to a state (options={'state': text})")


def _moved(env: TextEnv, start: str) -> str | None:
    """Another state than the start, after a few random moves."""
    rng = np.random.default_rng(0)
    try:
        for _ in range(_MOVES):
            state, _, ended, cut, _ = env.step(env.sample_action(rng))
            if ended or cut:
                env.reset(seed=0)
            elif not same(state, start):
                return state
    except Exception:  # a world of free text, or a defect that is told where it is played
        return None
    return None


class Simulator(WorldModel):
    """Answers moves by playing them in a world set to the state. Policy and value questions go to the model, as in
    ``WorldModel``.

    An upper bound for planners, not an agent: ``planner.model=simulator``. Where the text does not show the full state (such as
    the given cells of a Sudoku), the move is played in the part it shows.

    Args:
        policy, task, given: as for ``WorldModel``.

    Raises:
        ValueError: the world cannot be set to a state.
    """

    def __init__(self, policy: Policy, task: Task, **given: Any) -> None:
        super().__init__(policy, task, **given)
        self._env = task.make_env()
        self._failures = Failures("simulator", task.env.max_failed, unit="moves")
        check_settable(self._env)

    @property
    def has_weights(self) -> bool:
        """Always False: the model's likelihoods are not the simulator's."""
        return False

    def predict(self, moves: Sequence[Move], headers: Sequence[Headers] = ()) -> list[tuple[Imagined, ...]]:
        """The results of moves, ``samples`` draws in stochastic worlds. A state that no world can be in, or in which it
        has ended, has probability 0, and so has one whose world fails."""
        answers = [tuple(self._look(move, sample) for sample in range(self.samples)) for move in moves]
        self._failures.say()
        return answers

    def _look(self, move: Move, sample: int) -> Imagined:
        with self._failures.alone(0):
            try:
                noise_seed = self._session((*move, self.seed), sample)
                self._env.reset(seed=0, options={"state": move.state, "noise_seed": noise_seed})
                state, reward, ended, _, _ = self._env.step(move.action)
                return Imagined(state, float(reward), ended, 1.0)
            except WorldError as error:
                if not (error.refused or isinstance(error.__cause__, ResetNeeded)):
                    raise
        return Imagined(move.state, 0.0, False, 0.0)
