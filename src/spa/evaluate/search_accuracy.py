"""How often a search was told what the world does: some of its questions, played in a world that is set to their states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spa.agent.episode import Episode
from spa.agent.policy import Policy
from spa.agent.task import Task
from spa.config.schema import PlannerConfig
from spa.data.transitions import transitions_of
from spa.planning.search import Imagined, Move, believes
from spa.planning.simulator import Simulator
from spa.planning.world_model import WorldModel

_EACH = 256  # questions per chunk of worlds
_PLAYED = 64  # moves by which the world set to a state is compared with the one that was played


class Searched:
    """A sample of the moves that a search asked about, with the answers.

    Only of worlds with the header of the world of seed 0: in a world with other rules the same state may lead elsewhere.

    Args:
        seed: for the sample.
    """

    def __init__(self, world_model: WorldModel, seed: int) -> None:
        self._world_model = world_model
        self._rng = np.random.default_rng(seed)
        self._sample: list[tuple[Move, Imagined]] = []

    def add(self) -> None:
        """Draws from what the model has been asked since it last forgot."""
        known = [(move, answers[0]) for move, answers in self._world_model.answered().items()]
        chosen = self._rng.permutation(len(known))[:_EACH]
        self._sample += [known[number] for number in sorted(chosen)]

    def metrics(
        self, policy: Policy, task: Task, episodes: Sequence[Episode], config: PlannerConfig
    ) -> dict[str, float]:
        """Shares of the answers in the sample that the planner believed, named as in ``planner.json``. Empty if the world cannot
        be set to a state, or if a world so set does not repeat the moves of ``episodes``.

        * ``planner/questions_possible``: about a state in which the world can be and has not ended.
        * ``planner/questions_exact``: of these, answered with the world's next state, reward (to six decimals) and end.
        """
        sample = [(move, seen) for move, seen in self._sample if believes(seen, config)]
        played = [move for episode in episodes for turn in episode.turns for move in transitions_of(turn)][:_PLAYED]
        try:
            world = Simulator(policy, task)
            again = world.predict([Move(move.state, move.action) for move in played])
            truths = world.predict([move for move, _ in sample])
        except ValueError:  # it cannot be set to a state, or fails too often
            return {}
        known = [Imagined(move.next_state, move.reward, move.ended, 1.0) for move in played]
        if not sample or not all(_same(one, true) for one, (true,) in zip(known, again, strict=True)):
            return {}
        exact = [_same(seen, true) for (_, seen), (true,) in zip(sample, truths, strict=True) if true.probability]
        shares = {"planner/questions_possible": len(exact) / len(sample)}
        return shares | ({"planner/questions_exact": float(np.mean(exact))} if exact else {})


def _same(one: Imagined, other: Imagined) -> bool:
    return (one.state, one.ended) == (other.state, other.ended) and abs(one.reward - other.reward) < 1e-6
