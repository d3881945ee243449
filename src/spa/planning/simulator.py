"""The true world in the place of a world model: how well a planner plays whose imagination never errs."""

from __future__ import annotations

from collections.abc import Sequence

from spa.agent.policy import Policy
from spa.agent.task import Task
from spa.data.states import exact
from spa.envs import TextEnv
from spa.planning.search import Imagined, Move
from spa.planning.world_model import WorldModel


def check_settable(env: TextEnv) -> None:
    """Raises ValueError where a world cannot be set to a state."""
    state, _ = env.reset(seed=0)
    try:
        again, _ = env.reset(seed=1, options={"state": state})
    except Exception as error:  # any world may be played, and not all take a state
        raise ValueError(f"planner.model=simulator: this world cannot be set to a state: {error}") from error
    if not exact(again, state):
        raise ValueError("planner.model=simulator: this world cannot be set to a state (options={'state': text})")


class Simulator(WorldModel):
    """Answers moves by making them in a world that is set to the state. The plain policy and what moves are worth it asks of
    the model, as ``WorldModel`` does.

    An upper bound for planners, and no agent: ``planner.model=simulator``. Where a state tells less than the world holds (what has
    been given in a Sudoku, for instance), the move is made in what the state tells.

    Args:
        policy, task, samples, proposals, seed: as for ``WorldModel``.

    Raises:
        ValueError: a world that cannot be set to a state.
    """

    def __init__(self, policy: Policy, task: Task, *, samples: int = 1, proposals: int = 0, seed: int = 0) -> None:
        super().__init__(policy, task, samples=samples, proposals=proposals, seed=seed)
        self._env = task.make_env()
        check_settable(self._env)

    @property
    def has_weights(self) -> bool:
        """No: the model's likelihoods are not the simulator's."""
        return False

    def predict(self, moves: Sequence[Move]) -> list[tuple[Imagined, ...]]:
        """What comes of moves; where chance decides, ``samples`` draws. A state that no world is in has probability 0."""
        return [tuple(self._look(move, sample) for sample in range(self.samples)) for move in moves]

    def _look(self, move: Move, sample: int) -> Imagined:
        try:
            self._env.reset(seed=0, options={"state": move.state, "noise_seed": self._session(move, sample)})
            state, reward, ended, _, _ = self._env.step(move.action)
        except ValueError:
            return Imagined(move.state, 0.0, False, 0.0)
        return Imagined(state, float(reward), bool(ended), 1.0)
