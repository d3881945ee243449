"""Likelihood of the true next state against corrupted ones; reveals knowledge that sampling can hide."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spa.agent.chat import Chat
from spa.agent.episode import Episode, Turn
from spa.agent.failures import Failures
from spa.agent.response import closing, parse_response, replace_spans
from spa.data.ground_truth import body_spans
from spa.envs import TextEnv
from spa.envs.actions import match_action
from spa.envs.checked import WorldError
from spa.envs.states import cells, exact, grid_part, is_board, same, within
from spa.scale import ranks

PREFIX = "calibration/"
SWAPS = 3  # corruptions of a state by one change
_TRIES = 32  # random action sequences from one state
_LOOKS = 500  # edited states checked for legality
_CELLS = 1000  # most cells or words of a state that are considered for a change
_CLOSING = closing("prediction")


@dataclass(frozen=True)
class Case:
    """A turn whose prediction is judged: the tokens before it, and the candidates for its text.

    ``candidates`` maps a kind (``truth``, ``stay``, ``other_move``, ``swap``) to states; ``truth`` and at least one other kind
    are always present.
    """

    context: list[int]
    prefix: str
    candidates: list[tuple[str, str]]
    turn: int  # counted from 1
    actions: int  # executed in it


def calibration_metrics(
    model: Any, chat: Chat, make_env: Callable[[], TextEnv], episodes: Iterable[Episode], *, seed: int = 0
) -> dict[str, float]:
    """How the log-likelihood of the true next state compares with that of its corruptions.

    Only turns that wrote a prediction in the world-model format and whose state changed are judged. The model reads its own turn
    up to ``<prediction>``, with the true state as observation, and each candidate is scored as its continuation up to and
    including ``</prediction>``.

    * ``top1``: share of turns in which the truth is likelier than every other candidate; ``chance``: the score of guessing.
    * ``top1_per_token``: the same by mean log-prob per token, for candidates that differ in length.
    * ``beats_stay``, ``beats_other_move``, ``beats_swap``: as ``top1`` against the unchanged state; the state after other
      random actions; the truth with one object moved (the truth must beat all such states).
    * ``margin``: mean of log p(truth) - max log p(other), in nats. ``rank``: mean rank of the truth, 1 is best.
    * ``nll_per_token``: of the truth, in nats. ``cases``: turns judged.
    * ``turn_{i}/...`` and ``actions_{m}/...``: ``top1``, ``chance``, ``margin`` and ``nll_per_token`` by turn (from 1) and by
      the number of executed actions.

    All names start with ``calibration/``; if there is no turn to judge, only ``cases`` is present.
    """
    from spa.models.score import Chosen, sum_logprobs

    judged = ranks.on_main(lambda: cases(make_env, episodes, seed))
    rows, owners = [], []
    for number, case in enumerate(judged):
        endings = [state + _CLOSING for _, state in case.candidates]
        rows += [Chosen(*row) for row in chat.continuations(case.context, case.prefix, endings)]
        owners += [(number, kind) for kind, _ in case.candidates]
    scores = sum_logprobs(model, rows)
    by_case: dict[int, list[tuple[str, float, int]]] = defaultdict(list)
    for (number, kind), row, logprob in zip(owners, rows, scores, strict=True):
        by_case[number].append((kind, logprob, len(row.positions)))
    values: dict[str, list[float]] = defaultdict(list)
    for number, candidates in by_case.items():
        groups = ("", f"turn_{judged[number].turn}/", f"actions_{judged[number].actions}/")
        _, truth, count = candidates[0]
        others = [score for _, score, _ in candidates[1:]]
        for group in groups:
            values[f"{group}top1"].append(truth > max(others))
            values[f"{group}chance"].append(1 / len(candidates))
            values[f"{group}margin"].append(truth - max(others))
            values[f"{group}nll_per_token"].append(-truth / count)
        values["top1_per_token"].append(truth / count > max(score / tokens for _, score, tokens in candidates[1:]))
        values["rank"].append(1 + sum(score >= truth for score in others))
        for kind in ("stay", "other_move", "swap"):
            rivals = [score for other, score, _ in candidates if other == kind]
            if rivals:
                values[f"beats_{kind}"].append(truth > max(rivals))
    means = {PREFIX + name: float(np.mean(entries)) for name, entries in sorted(values.items())}
    return {**means, f"{PREFIX}cases": len(judged)}


def cases(make_env: Callable[[], TextEnv], episodes: Iterable[Episode], seed: int) -> list[Case]:
    """The turns of ``calibration_metrics`` with their candidates; deterministic for given arguments.

    A turn whose world fails is left out: ``make_env`` makes worlds whose failures are ``WorldError``s.
    """
    env, failures = make_env(), Failures("corrupted states", 1.0, unit="turns")
    out = []
    for episode in episodes:
        if episode.failed:
            continue
        for turn in episode.turns:
            context = _context(episode, turn)
            if context is None or turn.prediction is None or same(turn.next_state, turn.state):
                continue
            head = turn.response[: parse_response(turn.response, "world_model").spans["prediction"][0]]
            head = replace_spans(
                head, [(span, turn.state) for span in body_spans(head, "observation", turn.state, turn.next_state)]
            )
            rng = np.random.default_rng(np.random.SeedSequence([seed, episode.group, episode.member, turn.index]))
            others: list[tuple[str, str]] = []
            with failures.alone(episode.seed):
                others = corruptions(env, turn.state, turn.executed, turn.next_state, rng, episode.noise_seed)
            if others:
                candidates = [("truth", turn.next_state), *others]
                shaped = [(kind, _laid_out(turn.prediction, state)) for kind, state in candidates]
                out.append(Case(context, head, shaped, turn.index + 1, len(turn.executed)))
    failures.say()
    return out


def _laid_out(written: str, state: str) -> str:
    """``state`` with the layout's white space around the model's own."""
    if not written.strip():
        return state
    start, end = within(written, state)
    return written[:start] + state + written[end:]


def _context(episode: Episode, turn: Turn) -> list[int] | None:
    """The token ids before a turn's response; None if no tokens were stored."""
    for sequence in reversed(episode.sequences):
        if turn.index in sequence.turns:
            return sequence.ids[: sequence.turns.index(turn.index)]
    return None


def corruptions(
    env: TextEnv, state: str, executed: Sequence[str], next_state: str, rng: np.random.Generator, noise_seed: int = 0
) -> list[tuple[str, str]]:
    """Distinct states that do not result from the ``executed`` actions in ``state``, with their kinds.

    Args:
        noise_seed: the episode's, so that a world generates the same noise (wrong coordinates).
    """
    out: list[tuple[str, str]] = []

    def add(kind: str, other: str | None) -> None:
        if other is not None and not any(same(other, known) for known in [next_state, *(s for _, s in out)]):
            out.append((kind, other))

    add("stay", state)
    add("other_move", _other_move(env, state, executed, next_state, rng, noise_seed))
    wanted = len(out) + SWAPS
    for changed in changes(env, next_state, state, rng, noise_seed):
        add("swap", changed)
        if len(out) == wanted:
            break
    return out


def _start(env: TextEnv, state: str, noise_seed: int) -> str | None:
    """Resets the world to ``state`` and returns the world's text of it; None if it cannot start there."""
    try:
        shown, _ = env.reset(seed=0, options={"state": state, "noise_seed": noise_seed})
    except WorldError as error:
        if error.raised:
            return None
        raise
    return shown if same(grid_part(shown), grid_part(state)) else None  # some ignore the option


def _other_move(
    env: TextEnv, before: str, executed: Sequence[str], next_state: str, rng: np.random.Generator, noise_seed: int
) -> str | None:
    """The state after an equal number of other random actions from ``before``; None if none was found."""
    for _ in range(_TRIES):
        state = _start(env, before, noise_seed)
        if state is None:
            return None
        try:
            actions = [match_action(env.sample_action(rng), env.actions) or "" for _ in executed]
            if actions == list(executed):
                continue
            for action in actions:
                state, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    break
        except WorldError as error:
            if error.raised:  # there may be no random actions, and a finished world cannot be stepped
                return None
            raise
        if not same(state, next_state) and not same(state, before):
            return state
    return None


def changes(env: TextEnv, state: str, before: str, rng: np.random.Generator, noise_seed: int = 0) -> Iterator[str]:
    """``state`` with two unequal cells swapped or one replaced, as the world itself would write it.

    States that are legal after ``before`` come first, then those that are legal in isolation (if a player has fallen into a
    hole, no other position leaves the lake unchanged); any state if the world cannot tell. In a state without a grid, two words
    are swapped.
    """
    board = is_board(grid_part(state))
    rows = cells(state, board)
    symbols = sorted({cell for row in rows for cell in row})
    if len(rows) < 2 or len({len(row) for row in rows}) > 1 or len(symbols) < 2:
        yield from _swapped_words(state, rng)
        return
    flat = [cell for row in rows for cell in row]
    spots = _some(len(flat), rng)
    edits = [{i: flat[j], j: flat[i]} for n, i in enumerate(spots) for j in spots[:n] if flat[i] != flat[j]]
    edits += [{i: symbol} for i in spots for symbol in symbols if symbol != flat[i]]
    spare = []
    for number in rng.permutation(len(edits))[:_LOOKS]:
        edited = [edits[number].get(i, cell) for i, cell in enumerate(flat)]
        grid = _written([edited[i : i + len(rows[0])] for i in range(0, len(flat), len(rows[0]))], board)
        if env.legal(grid, before) is False:
            spare.append(grid)
        elif shown := _rendered(env, grid, state, noise_seed):
            yield shown
    for grid in spare:
        if env.legal(grid) is not False and (shown := _rendered(env, grid, state, noise_seed)):
            yield shown


def _some(count: int, rng: np.random.Generator) -> list[int]:
    """``range(count)``; of a large state some of it, since pairs of all cells would fill the memory."""
    return list(range(count)) if count <= _CELLS else sorted(rng.choice(count, _CELLS, replace=False).tolist())


def _written(rows: Sequence[Sequence[str]], board: bool) -> str:
    if board:
        return "".join("| " + "".join(f"{cell} " for cell in row) for row in rows)
    return "\n".join("".join(row) for row in rows)


def _rendered(env: TextEnv, grid: str, like: str, noise_seed: int) -> str | None:
    """The world's own text of a grid; the bare grid if ``like`` is one, None if the coordinates are unavailable."""
    return grid if exact(grid_part(like), like) else _start(env, grid, noise_seed)


def _swapped_words(state: str, rng: np.random.Generator) -> Iterator[str]:
    pieces = re.split(r"(\s+)", state)  # words at even indices, the white space between them at odd ones
    places = [place for place in range(0, len(pieces), 2) if pieces[place]]
    words = [places[number] for number in _some(len(places), rng)]
    pairs = [(i, j) for n, i in enumerate(words) for j in words[:n] if pieces[i] != pieces[j]]
    for number in rng.permutation(len(pairs))[:_LOOKS]:
        i, j = pairs[number]
        changed = list(pieces)
        changed[i], changed[j] = changed[j], changed[i]
        yield "".join(changed)
