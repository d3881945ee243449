"""Self-play without a model, towards moves not made before: a planner asks about moves that a policy hardly ever makes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from spa.agent.episode import Episode
from spa.agent.host import Hosts
from spa.agent.play import Play
from spa.agent.random_engine import blank_response, fixed_thought
from spa.agent.rollout import OnTurn
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.data.transitions import Transition, transitions_of
from spa.envs.checked import CheckedEnv, WorldError

DRAWS = 4  # random actions considered in a state of a world that lists none


Known = dict[str, dict[str, Transition]]
"""The actions made in each state of a world, and what they led to the last time."""


def play_exploring(
    task: Task, worlds: Sequence[World], *, seed: int, group_size: int = 1, on_turn: OnTurn | None = None
) -> list[Episode]:
    """Plays every world ``group_size`` times; returns ``len(worlds) * group_size`` episodes, group by group.

    A turn takes the shortest known way to an action that was not yet made in its state (frontier-based exploration, Yamauchi 1997;
    equally short ways by chance). Episodes in a world know what earlier ones have seen of it. Where no such way is short enough for
    the actions left, actions are random, as they are after the way's end, up to a random number of actions as in ``RandomEngine``.
    Answers to the plain prompt have no thought, so that plain rows are as short as those of practice.

    Args:
        seed: for all random choices.
        on_turn: as of ``rollout``.

    Raises:
        ValueError: the world has free-text actions and no ``sample_action``.
    """
    episodes = []
    thought = fixed_thought(task.started_env()) if task.agent.prompt == "world_model" else ""
    with Hosts(task, 1) as hosts:
        host = hosts.processes[0] if hosts.processes else None
        for group, world in enumerate(worlds):
            known: Known = {}
            draw = _Draws(task, world)
            for member in range(group_size):
                play = Play.start(task, world, group, member, host)
                rng = np.random.default_rng(np.random.SeedSequence([seed, group, member]))
                episodes.append(_play(play, thought, known, draw, rng, on_turn))
            draw.close()
    return episodes


class _Draws:
    """Random actions of a world: of those that it lists, else those that a copy of it in this process draws."""

    def __init__(self, task: Task, world: World) -> None:
        self.task, self.world = task, world
        self.env: CheckedEnv | None = None

    def __call__(self, names: Sequence[str], rng: np.random.Generator) -> str:
        if names:
            return names[int(rng.integers(len(names)))]
        if self.env is None:
            self.env = self.task.make_env()
            self.env.reset(seed=self.world.seed, options={"noise_seed": self.world.noise_seed(0)})
        return self.env.sample_action(rng)

    def close(self) -> None:
        if self.env is not None:
            with suppress(WorldError):
                self.env.close()


def _play(
    play: Play, thought: str, known: Known, draw: _Draws, rng: np.random.Generator, on_turn: OnTurn | None
) -> Episode:
    task = play.task
    if on_turn and not play.live:
        on_turn(play.episode, True)
    for index in range(task.env.max_turns):
        if not play.live:
            break
        play.open_turn(index, play.user_text(index, play.first_shown(index)))
        try:
            actions = _choose(play, known, draw, rng)
            play.answer(blank_response(task, thought, actions), "stop")
        except WorldError as error:
            play.host.close()
            play.fail(str(error))
        _remember(known, play.episode)
        if on_turn:
            on_turn(play.episode, not play.live)
    return play.episode


def _choose(play: Play, known: Known, draw: _Draws, rng: np.random.Generator) -> list[str]:
    """The actions of a turn."""
    most = play.task.env.max_actions_per_turn
    turns = play.task.env.max_turns - len(play.episode.turns) + 1
    names = play.names or [draw((), rng) for _ in range(DRAWS)]
    actions = way_to_untried(known, play.state, names, min(play.actions_left, turns * most), rng)[:most]
    count = int(rng.integers(1, most + 1))
    return actions + [draw(play.names, rng) for _ in range(count - len(actions))]


def way_to_untried(known: Known, state: str, names: Sequence[str], limit: int, rng: np.random.Generator) -> list[str]:
    """At most ``limit`` actions, of which the last is one of ``names`` that was not made in the state where it will be made and the
    others lead there as far as is known; [] if there are none."""
    waiting: deque[tuple[str, list[str]]] = deque([(state, [])])
    reached = {state}
    while waiting:
        here, way = waiting.popleft()
        if len(way) == limit:
            break
        made = known.get(here, {})
        untried = [name for name in names if name not in made]
        if untried:
            return [*way, untried[int(rng.integers(len(untried)))]]
        moves = list(made.values())
        for number in rng.permutation(len(moves)):
            move = moves[number]
            if not move.ended and move.next_state not in reached:
                reached.add(move.next_state)
                waiting.append((move.next_state, [*way, move.action]))
    return []


def _remember(known: Known, episode: Episode) -> None:
    """Adds what the last turn showed. An action that made the world fail was tried, and nothing can be tried after it."""
    turn = episode.turns[-1]
    moves = transitions_of(turn)
    if episode.failed and len(moves) < len(turn.actions):
        moves.append(Transition(turn.next_state, turn.actions[len(moves)], turn.next_state, 0.0, ended=True))
    for move in moves:
        known.setdefault(move.state, {})[move.action] = move
