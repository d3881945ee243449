"""Single transitions as training rows: a state, an action and its outcome. An extension of the paper.

The paper's rows are model output with true states. A model trained on them can answer "what if?" only if it names its actions
before the prediction, and it predicts neither reward nor termination. A transition row always has the same form::

    <think><observation>STATE</observation>ACTION<prediction>NEXT STATE</prediction><outcome>REWARD</outcome></think>
    <answer>ACTION</answer>

(style ``paper``: with that style's spaces and line breaks). Up to and including ``<prediction>`` it is a query that any engine can
complete: see ``spa.planning.world_model``. The outcome is the move's reward, followed by `` end`` if the move won or lost.
It extends the format; the prompt is that of the world-model mode, unchanged.

Practice adds rows with ``<value>0.77</value>``, the action's value, instead of prediction and outcome.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice

import numpy as np

from spa.agent.episode import Episode, Turn
from spa.agent.failures import Failures
from spa.agent.response import tagged
from spa.agent.task import Task
from spa.data.ground_truth import Row, facts, is_move
from spa.engines.base import Message
from spa.envs.states import bare

END = "end"
_FIRST_TURN = "\nTurn 1:\nState:\n"  # begins ``Task.turn_text`` in style ``paper``
_MOST_OUTCOMES = 8  # that are told apart when rare ones are repeated
STARTS_OF_OUTCOMES = tuple(sign + digit for sign in ("", "-") for digit in string.digits)
_OUTCOME = re.compile(rf"\s*(-?[0-9]{{1,12}}(?:\.[0-9]{{1,12}})?)( {END})?\s*")


@dataclass(frozen=True)
class Transition:
    """One executed action: the true states before and after it, its reward and whether it won or lost."""

    state: str
    action: str
    next_state: str
    reward: float
    ended: bool


@dataclass(frozen=True)
class ResponseFormat:
    """The text around state, action, next state and outcome in a prompt style. An action may be several, with separators."""

    think: str
    observation: str  # around the state
    prediction: str  # around the next state
    gap: str  # between the parts
    outcome: str = tagged("outcome", "{}")
    value: str = tagged("value", "{}")  # an action's value, in a row without a prediction
    answer: str = tagged("answer", "{}")

    def question(self, state: str, action: str) -> str:
        """The prefix of a response, up to the next state."""
        return f"{self._of(state, action)}{self.prediction.partition('{}')[0]}"

    def _of(self, state: str, action: str) -> str:
        return f"{self.think.partition('{}')[0]}{self.observation.format(state)}{self.gap}{action}{self.gap}"

    def worth(self, state: str, action: str) -> str:
        """The prefix of a response, up to the action's value."""
        return f"{self._of(state, action)}{self.value.partition('{}')[0]}"

    def valued(self, state: str, action: str, value: float) -> str:
        """The whole response of a row with an action's value, to two decimals."""
        written = outcome_text(round(value, 2), False) + self.value.partition("{}")[2]
        return f"{self.worth(state, action)}{written}{self._decision(action)}"

    def predicted(self, state: str, action: str, next_state: str) -> str:
        """The prefix of a response, up to the outcome."""
        return f"{self._guess(state, action, next_state)}{self.gap}{self.outcome.partition('{}')[0]}"

    def _guess(self, state: str, action: str, next_state: str) -> str:
        return f"{self.question(state, action)}{next_state}{self.after_state}"

    @property
    def after_state(self) -> str:
        return self.prediction.partition("{}")[2]

    def response(self, move: Transition) -> str:
        """The whole response of a row."""
        prefix = self.predicted(move.state, move.action, move.next_state)
        outcome = outcome_text(move.reward, move.ended) + self.outcome.partition("{}")[2]
        return f"{prefix}{outcome}{self._decision(move.action)}"

    def guess(self, state: str, action: str, next_state: str) -> str:
        """A response in the world-model mode, without an outcome."""
        return f"{self._guess(state, action, next_state)}{self._decision(action)}"

    def choice(self, action: str) -> str:
        """A response to the plain prompt."""
        return f"{self.think.partition('{}')[0].rstrip()}{self._decision(action)}"

    def _decision(self, action: str) -> str:
        return f"{self.think.partition('{}')[2]}{self.gap}{self.answer.format(action)}"


RESPONSE_FORMATS = {
    "terse": ResponseFormat(
        think=tagged("think", "{}"),
        observation=tagged("observation", "{}"),
        prediction=tagged("prediction", "{}"),
        gap="",
    ),
    "paper": ResponseFormat(
        think=tagged("think", "{}", " "),
        observation=tagged("observation", "{}", "\n"),
        prediction=tagged("prediction", "{}", "\n"),
        gap=" ",
    ),
}


def outcome_text(reward: float, ended: bool) -> str:
    """An outcome as text: ``-0.1``, ``10.9 end``."""
    return f"{_number(reward)} {END}" if ended else _number(reward)


def _number(reward: float) -> str:
    rounded = round(float(reward), 6)
    if not math.isfinite(rounded) or abs(rounded) >= 1e12:  # more digits than `read_outcome` accepts
        raise ValueError(f"a reward must be a finite number of at most 12 digits before the point, not {reward}")
    return np.format_float_positional(rounded, trim="-") if rounded else "0"


def starts_of_states(state: str) -> set[str]:
    """How the state after ``state`` may begin: with a letter, a digit or one of its characters, or like one of its first lines."""
    lines = state.splitlines(keepends=True)[:16]
    return {*string.ascii_letters, *string.digits, *"".join(state.split()), *(line[:8] for line in lines)}


def read_outcome(text: str) -> tuple[float, bool] | None:
    """(reward, ended) parsed from a model's outcome; None if it is not one."""
    match = _OUTCOME.fullmatch(text)
    return (float(match[1]), match[2] is not None) if match else None


def transitions_of(turn: Turn) -> list[Transition]:
    """The moves of a turn, in order.

    Raises:
        ValueError: the turn was recorded without the rewards of its moves (by an older version).
    """
    if len(turn.rewards) != len(turn.executed):
        raise ValueError("these episodes hold no rewards of single moves: make them again with `spa generate`")
    states = [turn.state, *turn.between, turn.next_state]
    last = len(turn.executed) - 1
    return [
        Transition(states[i], action, states[i + 1], turn.rewards[i], turn.ended and i == last)
        for i, action in enumerate(turn.executed)
    ]


def state_prompt(task: Task, header: str, state: str, actions_left: int) -> list[Message]:
    """The prompt for a single state as the only turn, under the world's ``header``."""
    prompt: list[Message] = [] if task.system is None else [{"role": "system", "content": task.system}]
    return [*prompt, {"role": "user", "content": header + task.turn_text(1, state, actions_left)}]


def transition_rows(episodes: Iterable[Episode], task: Task, states: str = "truth") -> list[Row]:
    """A row for each move, whose prompt has the state before it as the only turn.

    ``states="belief"``: turns with a single move and both states written keep the states as written (the outcome is the true one);
    all other moves are omitted. So are those of a world that fails when its prompt is written.

    Args:
        task: the world, in the world-model mode, that defines the prompts.

    Returns:
        rows whose ``extra["move"]`` is what their response tells; it is not written to files.

    Raises:
        ValueError: as ``transitions_of``, or too many worlds fail (``env.max_failed``).
    """
    form = RESPONSE_FORMATS[task.agent.style]
    played = [
        (episode, turn, number, move)
        for episode in episodes
        for turn in episode.turns
        for number, move in enumerate(transitions_of(turn))
    ]
    headers = _headers((episode for episode, *_ in played), task)
    rows = []
    for episode, turn, number, move in played:
        shown = move
        if states == "belief":
            if len(turn.executed) > 1 or turn.observation is None or turn.prediction is None:
                continue
            now, then = move.state, move.next_state
            written, guessed = bare(turn.observation, now, then), bare(turn.prediction, then, now)
            shown = replace(move, state=written, next_state=guessed)
        left = turn.actions_left - number
        if episode.seed not in headers:
            continue
        prompt = state_prompt(task, headers[episode.seed], move.state, left)
        extra = {**facts(episode, turn), "executed": [move.action]}
        rows.append(_with_move(Row(episode.task, prompt, "", extra), shown, form))
    return rows


def _with_move(row: Row, move: Transition, form: ResponseFormat) -> Row:
    """``row`` with ``move``, also in its response."""
    outcome = outcome_text(move.reward, move.ended)
    return replace(row, response=form.response(move), extra={**row.extra, "outcome": outcome, "move": move})


def shuffle_moves(rows: Sequence[Row], style: str, seed: int) -> list[Row]:
    """Rows of ``transition_rows`` with the states and outcomes of randomly drawn ones; prompts and actions stay (control).

    The next state and the outcome are those of one row, the state is that of another.
    """
    moves: list[Transition] = [row.extra["move"] for row in rows]
    rng = np.random.default_rng(seed)
    before, after = rng.permutation(len(moves)), rng.permutation(len(moves))
    return [
        _with_move(row, replace(moves[a], state=moves[b].state, action=move.action), RESPONSE_FORMATS[style])
        for row, move, b, a in zip(rows, moves, before, after, strict=True)
    ]


def _headers(episodes: Iterable[Episode], task: Task) -> dict[int, str]:
    """The header of each world by its seed; without those of worlds that fail."""
    env, failures = task.make_env(), Failures("transitions", task.env.max_failed, unit="worlds")
    headers: dict[int, str] = {}
    for seed, noise_seed in {episode.seed: episode.noise_seed for episode in reversed(list(episodes))}.items():
        with failures.alone(seed):
            env.reset(seed=seed, options={"noise_seed": noise_seed})
            headers[seed] = task.header(env)
    failures.say()
    return headers


def each_move_once(rows: Sequence[Row]) -> list[Row]:
    """Transition rows without repetitions, in the order of each move's last, then the other rows. Prompts of a move may differ in
    the number of actions left, which does not affect it; under another header, such as the rules of another world, a move is
    another one."""
    moves = {(_header(row), row.response): row for row in reversed(rows) if is_move(row)}
    return [*list(moves.values())[::-1], *(row for row in rows if not is_move(row))]


def _header(row: Row) -> str:
    """The header in a prompt of ``state_prompt``; empty in style ``terse``."""
    return row.prompt[-1]["content"].rpartition(_FIRST_TURN)[0]


def repeat_rare(rows: Sequence[Row], share: float) -> list[Row]:
    """``rows``, followed by repeated rows of each rare outcome until they are this share of ``rows``.

    A world model that sees a win once in three hundred moves never predicts one, so search in it has no goal. Of more than eight
    different outcomes those count as one that have rewards of the same sign and agree in whether the world ended.
    """
    moves = [row for row in rows if is_move(row)]
    many = len({row.extra["outcome"] for row in moves}) > _MOST_OUTCOMES
    by_outcome: dict[str, list[Row]] = {}
    for row in moves:
        outcome = row.extra["outcome"]
        by_outcome.setdefault(_kind(outcome) if many else outcome, []).append(row)
    wanted = math.ceil(share * len(rows))
    more = (islice(cycle(few), max(0, wanted - len(few))) for few in by_outcome.values())
    return [*rows, *chain.from_iterable(more)]


def _kind(outcome: str) -> str:
    """The sign of an outcome's reward, then `` end`` if the world ended."""
    reward, _, end = outcome.partition(" ")
    return f"{np.sign(float(reward)):g} {end}"
