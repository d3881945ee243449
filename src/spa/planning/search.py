"""Planners choose an action by querying a world model. They never see the world, only textual states and the model's answers.

A search is a generator for one decision. It yields lists of questions and is sent the lists of answers, so that a caller can
batch the questions of many worlds; it returns a ``Plan`` for at most ``horizon`` actions. ``actions_left`` is the
number that the world's prompts state; the limit of turns may leave fewer to play.

* ``lookahead`` asks about every action in every imagined state, layer by layer to ``planner.depth`` or, without
  ``planner.whole``, to the first end with a gain, and backs up values by dynamic programming. With ``planner.width`` (``beam``)
  only that many states per layer are expanded.
* ``mcts`` is Monte Carlo tree search with the PUCT rule (Silver et al. 2017, AlphaGo Zero; values scaled as in MuZero), with the
  plain policy as prior.
* ``best_of_n`` imagines no states: it takes the plain policy's proposal that the model values most.

The value of a plan is its imagined discounted reward. A leaf state is worth ``planner.optimism``, so that the unexplored is
better than a loss at once (after enough costly steps a loss is better), and near better than far; with ``planner.values`` the
model estimates it. Without a gain or a leaf in reach all actions that have a believed answer are equal. A gain is weighted by
the model's probability of the answer that predicts it; answers below ``planner.min_probability`` are discarded. With several
sampled answers (``planner.samples``), their frequencies take the place of the probability.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from spa.config.schema import PlannerConfig

_TIE = 1e-9  # values closer than this are equal


@dataclass(frozen=True)
class Imagined:
    """What a model expects of a move.

    ``probability`` is that of its own answer (next state and outcome jointly); 0 if it wrote no state or no outcome.
    """

    state: str
    reward: float
    ended: bool
    probability: float


class Move(NamedTuple):
    """What follows ``action`` in ``state``? Answered by one or more equally likely ``Imagined``."""

    state: str
    action: str


class Choice(NamedTuple):
    """What would the plain policy do in ``state``? Answered by action frequencies."""

    state: str
    actions_left: int


@dataclass(frozen=True)  # not a tuple, which would equal the Move
class Worth:
    """The discounted return of ``action`` in ``state``. Answered by a number, or None if the model gives none."""

    state: str
    action: str


Question = Move | Choice | Worth
Answer = Any  # tuple[Imagined, ...] to a Move, dict[str, float] to a Choice, float | None to a Worth
Search = Generator[list[Question], list[Answer], "Plan"]


NOTHING = Imagined("", 0.0, False, 0.0)


@dataclass(frozen=True)
class Plan:
    """The planner's decision and its expectation.

    ``path`` is the likeliest planned path: actions and their imagined results. Its first action is present even if no answer
    about it is believed; it is empty if the world lists no actions and the policy proposes none. ``values`` are those of the
    actions in the current state. ``questions`` counts the moves and values asked about, including those answered from the cache.
    """

    path: list[tuple[str, Imagined]]
    values: dict[str, float] = field(default_factory=dict)
    questions: int = 0

    def record(self, state: str, known: Container[Move] = ()) -> dict[str, Any]:
        """The form stored in an episode: planned in ``state``, where what the moves in ``known`` do was remembered."""
        before = [state, *(seen.state for _, seen in self.path)]
        return {
            "path": [
                {"action": action, **vars(seen), "probability": round(seen.probability, 4)}
                | ({"remembered": True} if Move(origin, action) in known else {})
                for origin, (action, seen) in zip(before, self.path, strict=False)
            ],
            "values": {action: round(value, 4) for action, value in self.values.items()},
            "questions": self.questions,
        }


def believes(answer: Imagined, config: PlannerConfig) -> bool:
    """Whether a planner uses an answer. With several samples, it uses all complete ones."""
    least = config.min_probability if config.samples == 1 else 0.0
    return answer.probability > 0 and answer.probability >= least


class OutOfTokens(Exception):
    """Thrown into a search instead of the answers to its questions (``planner.max_tokens``): it decides by what it knows."""


class ImaginedGraph:
    """States imagined from one start, and the predicted results of the actions queried in them."""

    def __init__(self, root: str, config: PlannerConfig) -> None:
        self.config = config
        self.index = {root: 0}
        self.states = [root]
        self.depth = [0]  # at which each state was first reached
        self.worth = [config.optimism]  # of each state, if the search stops there
        self.edges: dict[int, dict[str, tuple[Imagined, ...]]] = {}

    def add(self, state: str, action: str, answers: Sequence[Imagined], worth: float | None = None) -> list[str]:
        """Adds the answers to a question and the action's predicted value; returns the new non-terminal states."""
        believed = tuple(answer for answer in answers if believes(answer, self.config))
        here = self.index[state]
        self.edges.setdefault(here, {})[action] = believed
        new = []
        for answer in believed:
            if not answer.ended and answer.state not in self.index:
                self.index[answer.state] = len(self.states)
                self.states.append(answer.state)
                self.depth.append(self.depth[here] + 1)
                is_valued = worth is not None and self.config.gamma > 0
                self.worth.append(-math.inf if is_valued else self.config.optimism)
                new.append(answer.state)
            if worth is not None and not answer.ended and self.config.gamma > 0:
                place = self.index[answer.state]
                self.worth[place] = max(self.worth[place], (worth - answer.reward) / self.config.gamma)
        return new

    def answers(self, state: str, action: str) -> tuple[Imagined, ...] | None:
        """The believed answers about an action; None if it was not queried."""
        return self.edges.get(self.index[state], {}).get(action)

    def weight(self, answer: Imagined) -> float:
        """The weight of a gain predicted by an answer."""
        return answer.probability if self.config.samples == 1 else 1.0

    def solve(self, horizon: int) -> tuple[np.ndarray[Any, Any], dict[int, dict[str, float]]]:
        """State values (states,) with ``horizon`` actions to go, and values of queried actions (-inf: no believed answer)."""
        config = self.config
        rows = [(here, action, answers) for here, edges in self.edges.items() for action, answers in edges.items()]
        width = max((len(answers) for *_, answers in rows), default=0)
        weight, reward, sure = (np.zeros((len(rows), width)) for _ in range(3))
        after = np.full((len(rows), width), len(self.states))  # the last index is the terminal state, whose value is 0
        for number, (_, _, answers) in enumerate(rows):
            for column, answer in enumerate(answers):
                weight[number, column] = 1 / len(answers)
                reward[number, column] = answer.reward
                sure[number, column] = self.weight(answer)
                if not answer.ended:
                    after[number, column] = self.index[answer.state]
        unknown = np.array([not answers for *_, answers in rows], dtype=bool)
        place = np.array([here for here, *_ in rows], dtype=np.int64)
        queried = np.zeros(len(self.states) + 1, dtype=bool)
        queried[place] = True
        nothing = min(0.0, config.optimism)  # where every step costs, knowing nothing of a state is no gain
        values = np.where(queried, nothing, [*self.worth, 0.0])
        gains = np.zeros(len(rows))
        for _ in range(max(1, horizon)):
            worth = reward + config.gamma * values[after]
            gains = (weight * np.where(worth > 0, sure * worth, worth)).sum(1)
            gains[unknown] = -np.inf
            best = np.full(len(values), -np.inf)
            np.maximum.at(best, place, gains)
            new = np.where(queried & np.isfinite(best), best, np.where(queried, nothing, values))
            if np.allclose(new, values, rtol=0, atol=1e-12):
                break
            values = new
        gains_by_state: dict[int, dict[str, float]] = {}
        for (here, action, _), gain in zip(rows, gains.tolist(), strict=True):
            gains_by_state.setdefault(here, {})[action] = gain
        return values[:-1], gains_by_state

    def path(
        self, gains: Mapping[int, Mapping[str, float]], first: str, length: int, start: int = 0
    ) -> list[tuple[str, Imagined]]:
        """The path from a state (default: the root) through ``first`` and then the best actions, as far as it was imagined."""
        way: list[tuple[str, Imagined]] = []
        here, action, seen = start, first, {start}
        for _ in range(length):
            answers = self.edges[here][action]
            if not answers:
                if not way:
                    way.append((action, NOTHING))
                break
            answer = likeliest(answers)
            way.append((action, answer))
            here = self.index.get(answer.state, -1)
            if answer.ended or here in seen or here not in gains:
                break
            seen.add(here)
            gains_here = {name: gain for name, gain in gains[here].items() if name in self.edges[here]}
            action = max(gains_here, key=lambda name: gains_here[name])
        return way


def lookahead(
    root: str,
    actions: Sequence[str],
    horizon: int,
    actions_left: int,
    config: PlannerConfig,
    rng: np.random.Generator,
) -> Search:
    """Layer-by-layer search from ``root``; see the module docstring."""
    graph = ImaginedGraph(root, config)
    depth = min(config.depth, horizon)
    yield from expand(graph, actions, depth, actions_left, stop_at_goal=not config.whole)
    _, gains = graph.solve(depth)
    if not gains:
        return Plan([("", NOTHING)])
    at_root = gains[0]
    return _decided(at_root, graph.path(gains, _best(at_root, rng), depth), graph)


def expand(
    graph: ImaginedGraph, actions: Sequence[str], depth: int, actions_left: int, *, stop_at_goal: bool
) -> Generator[list[Question], list[Answer], None]:
    """Queries the actions in all states of the graph up to ``depth``; with ``stop_at_goal``, stops after the layer in which an
    action is first imagined to end the episode with a gain, unless a path that goes on has already gained more. A layer that does
    not fit into the planner's budget is not begun; the first always is."""
    with suppress(OutOfTokens):
        yield from _layers(graph, actions, depth, actions_left, stop_at_goal)


def _layers(
    graph: ImaginedGraph, actions: Sequence[str], depth: int, actions_left: int, stop_at_goal: bool
) -> Generator[list[Question], list[Answer], None]:
    config = graph.config
    frontier = [graph.states[0]]
    returns = {graph.states[0]: 0.0}
    left = config.max_questions or math.inf
    for layer in range(depth):
        if not actions:
            shares: list[dict[str, float]] = yield [Choice(state, actions_left - layer) for state in frontier]
            moves = [Move(state, action) for state, share in zip(frontier, shares, strict=True) for action in share]
        else:
            moves = [Move(state, action) for state in frontier for action in actions]
        if layer and len(moves) * _each(config) > left:
            return
        left -= len(moves) * _each(config)
        answers = yield from _what_if(moves, config)
        best_return: dict[str, float] = {}
        won = 0.0
        for move, (imagined, worth) in zip(moves, answers, strict=True):
            new = graph.add(move.state, move.action, imagined, worth)
            for answer in graph.edges[graph.index[move.state]][move.action]:
                gained = returns[move.state] + config.gamma**layer * answer.reward
                if answer.ended and answer.reward > 0 and config.samples == 1:
                    won = max(won, gained)
                if answer.state in new or (answer.state in best_return and not answer.ended):
                    best_return[answer.state] = max(gained, best_return.get(answer.state, -math.inf))
        if not best_return or (stop_at_goal and won > max(0.0, *best_return.values())):
            return
        frontier = list(best_return)
        if config.width:
            ahead = {state: config.gamma ** (layer + 1) * graph.worth[graph.index[state]] for state in best_return}
            frontier = sorted(best_return, key=lambda state: -best_return[state] - ahead[state])[: config.width]
        returns |= best_return


def _each(config: PlannerConfig) -> int:
    """Questions per move."""
    return 2 if config.values else 1


def _what_if(
    moves: Sequence[Move], config: PlannerConfig
) -> Generator[list[Question], list[Answer], list[tuple[tuple[Imagined, ...], float | None]]]:
    """The results of moves and, with ``planner.values``, their values."""
    if not config.values:
        return [(imagined, None) for imagined in (yield list(moves))]
    answers = yield [*moves, *(Worth(*move) for move in moves)]
    return list(zip(answers[: len(moves)], answers[len(moves) :], strict=True))


def likeliest(answers: Sequence[Imagined]) -> Imagined:
    """The answer whose state was sampled most often; the first in a tie."""
    return max(answers, key=lambda one: sum(other.state == one.state for other in answers))


def best_actions(values: Mapping[str, float]) -> list[str]:
    """All actions with the highest value, in order."""
    highest = max(values.values())
    return [name for name, value in values.items() if value == highest or value >= highest - _TIE]


def _best(values: Mapping[str, float], rng: np.random.Generator) -> str:
    """A random one of the best actions."""
    names = best_actions(values)
    return names[int(rng.integers(len(names)))]


def _decided(values: Mapping[str, float], path: list[tuple[str, Imagined]], graph: ImaginedGraph) -> Plan:
    finite = {action: value for action, value in values.items() if math.isfinite(value)}
    return Plan(path, finite, sum(len(edges) for edges in graph.edges.values()) * _each(graph.config))


class _Node:
    """Statistics of the actions in a state over the simulations."""

    def __init__(self, shares: Mapping[str, float], actions: Sequence[str]) -> None:
        names = actions or list(shares)
        total = sum(shares.get(name, 0.0) for name in names)
        # An action missing from a few policy samples is not ruled out.
        self.prior = {
            name: 0.9 * shares.get(name, 0.0) / total + 0.1 / len(names) if total else 1 / len(names) for name in names
        }
        self.visits = dict.fromkeys(names, 0)
        self.total = dict.fromkeys(names, 0.0)

    def mean(self, action: str) -> float:
        return self.total[action] / self.visits[action]

    def select(self, exploration: float, low: float, high: float, rng: np.random.Generator) -> str:
        """The PUCT rule with values scaled to [0, 1]; untried actions count as the worst."""
        root = math.sqrt(1 + sum(self.visits.values()))
        spread = high - low

        def score(action: str) -> float:
            tried = self.visits[action]
            value = (self.mean(action) - low) / spread if tried and spread > 0 else 0.0
            return value + exploration * self.prior[action] * root / (1 + tried)

        return _best({action: score(action) for action in self.visits}, rng)


def mcts(
    root: str,
    actions: Sequence[str],
    horizon: int,
    actions_left: int,
    config: PlannerConfig,
    rng: np.random.Generator,
) -> Search:
    """Runs ``planner.simulations`` simulations from ``root`` and chooses the action with which most of them began.

    A state reached by several paths has one node. A simulation that comes back to the root repeats moves there, so that its visits
    are no choice. One for which the tokens run out does not count.
    """
    graph = ImaginedGraph(root, config)
    nodes: dict[str, _Node] = {}
    horizon = min(config.depth, horizon)
    low, high = math.inf, -math.inf
    begun: Counter[str] = Counter()
    question_count, limit = 0, config.max_questions or math.inf
    with suppress(OutOfTokens):
        for _ in range(config.simulations):
            state, value = root, None
            trail: list[tuple[_Node, str, float, float]] = []
            imagined_all = True
            while len(trail) < horizon:
                if state not in nodes:
                    shares: list[dict[str, float]] = yield [Choice(state, actions_left - len(trail))]
                    nodes[state] = _Node(shares[0], actions)
                    if state != root:
                        break
                if not nodes[state].visits:  # neither the world nor the policy offers an action
                    break
                action = nodes[state].select(config.exploration, low, high, rng)
                believed = graph.answers(state, action)
                if believed is None:
                    if question_count and question_count + _each(config) > limit:
                        break
                    question_count += _each(config)
                    ((imagined, worth),) = yield from _what_if([Move(state, action)], config)
                    graph.add(state, action, imagined, worth)
                    believed = graph.answers(state, action)
                if not believed:  # no better than the worst known value
                    trail.append((nodes[state], action, min(low, 0.0), 1.0))
                    value = 0.0
                    imagined_all = False
                    break
                seen = believed[int(rng.integers(len(believed)))]
                trail.append((nodes[state], action, seen.reward, graph.weight(seen)))
                if seen.ended:
                    value = 0.0
                    break
                state = seen.state
            if value is None:
                value = graph.worth[graph.index[state]]
            begun.update(action for _, action, *_ in trail[:1])
            for node, action, reward, sure in reversed(trail):
                value = reward + config.gamma * value
                value = sure * value if value > 0 else value
                node.visits[action] += 1
                node.total[action] += value
                if imagined_all:
                    low, high = min(low, value), max(high, value)
            if question_count + _each(config) > limit or not nodes[root].visits:
                break
    top = nodes[root]
    if not top.visits:
        return Plan([("", NOTHING)])
    tried = {action: top.mean(action) for action, visits in top.visits.items() if visits}
    most = max(begun.values())
    first = _best({action: mean for action, mean in tried.items() if begun[action] == most}, rng)
    visits = {graph.index[state]: node.visits for state, node in nodes.items() if graph.index[state] in graph.edges}
    return _decided(tried, graph.path(visits, first, horizon), graph)


def best_of_n(
    root: str,
    actions: Sequence[str],
    horizon: int,
    actions_left: int,
    config: PlannerConfig,
    rng: np.random.Generator,
) -> Search:
    """The action the model values most, of ``planner.proposals`` proposals of the plain policy (0: of all listed actions)."""
    shares: list[dict[str, float]] = yield [Choice(root, actions_left)]
    names = list(shares[0]) or list(actions)
    if not names:
        return Plan([("", NOTHING)])
    worths: list[float | None] = yield [Worth(root, name) for name in names]
    values = {name: -math.inf if worth is None else worth for name, worth in zip(names, worths, strict=True)}
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    return Plan([(_best(values, rng), NOTHING)], finite, len(names))


PLANNERS: dict[str, Callable[[str, Sequence[str], int, int, PlannerConfig, np.random.Generator], Search]] = {
    "lookahead": lookahead,
    "beam": lookahead,
    "mcts": mcts,
    "best_of_n": best_of_n,
}
