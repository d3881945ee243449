"""Does a model find the true next state more likely than false ones? Sampling can hide it; likelihoods cannot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spa.agent.chat import Chat
from spa.agent.episode import Episode, Turn
from spa.agent.parse import match_action, parse_response, replace_spans
from spa.envs import TextEnv
from spa.evaluate.world_model import cells, exact, grid_part, is_board

PREFIX = "calibration/"
SWAPS = 3  # corruptions of a state by one change
_CLOSING = "</prediction>"


@dataclass(frozen=True)
class Case:
    """A turn whose prediction is to be judged: what stands before it, and what could stand in it.

    ``candidates`` maps a kind (``truth``, ``stay``, ``other_move``, ``swap``) to states; only ``truth`` and at
    least one other are always there.
    """

    context: list[int]
    prefix: str
    candidates: list[tuple[str, str]]


def calibration_metrics(
    model: Any, chat: Chat, make_env: Callable[[], TextEnv], episodes: Iterable[Episode], *, seed: int = 0
) -> dict[str, float]:
    """How the log-likelihood of the true next state compares with that of its corruptions.

    Judged are the turns that wrote a prediction in the world-model format and whose state changed. The model reads its own turn
    up to ``<prediction>``, with the true state in its observation, and the candidates are scored as if it had written them, up
    to and with ``</prediction>``.

    * ``top1``: share of the turns in which the truth is more likely than every other candidate; ``chance``: what guessing gets.
    * ``beats_stay``, ``beats_other_move``, ``beats_swap``: the same against the unchanged state; the state after other
      random actions; the truth with one object moved (all such: the truth must beat each).
    * ``margin``: mean of log p(truth) - max log p(other), in nats. ``rank``: mean rank of the truth, 1 is best.
    * ``nll_per_token``: of the truth, in nats. ``cases``: turns judged.

    All names start with ``calibration/``; without a turn to judge only ``cases`` is there.
    """
    from spa.models.scoring import score_rows

    found = cases(chat, make_env, episodes, seed)
    rows, owners = [], []
    for number, case in enumerate(found):
        for kind, state in case.candidates:
            rows.append(_tokens(chat, case, state))
            owners.append((number, kind))
    scores = score_rows(model, rows) if rows else []
    by_case: dict[int, list[tuple[str, float, int]]] = defaultdict(list)
    for (number, kind), score in zip(owners, scores, strict=True):
        by_case[number].append((kind, score.logprob, score.count))
    values: dict[str, list[float]] = defaultdict(list)
    for candidates in by_case.values():
        truth = next(score for kind, score, _ in candidates if kind == "truth")
        count = next(count for kind, _, count in candidates if kind == "truth")
        others = [score for kind, score, _ in candidates if kind != "truth"]
        values["top1"].append(truth > max(others))
        values["chance"].append(1 / len(candidates))
        values["margin"].append(truth - max(others))
        values["rank"].append(1 + sum(score >= truth for score in others))
        values["nll_per_token"].append(-truth / count)
        for kind in ("stay", "other_move", "swap"):
            rivals = [score for other, score, _ in candidates if other == kind]
            if rivals:
                values[f"beats_{kind}"].append(truth > max(rivals))
    means = {PREFIX + name: float(np.mean(entries)) for name, entries in sorted(values.items())}
    return {**means, f"{PREFIX}cases": len(found)}


def cases(chat: Chat, make_env: Callable[[], TextEnv], episodes: Iterable[Episode], seed: int) -> list[Case]:
    """The turns of ``calibration_metrics`` with their candidates; the same arguments give the same ones."""
    env = make_env()
    found = []
    for episode in episodes:
        if episode.status == "error":
            continue
        for turn in episode.turns:
            context = _context(episode, turn)
            if context is None or turn.prediction is None or exact(turn.next_state, turn.state):
                continue
            spans = parse_response(turn.response, "world_model").spans
            start = spans["prediction"][0]
            head = turn.response[:start]
            if "observation" in spans:
                head = replace_spans(head, [(spans["observation"], _laid_out(turn.observation or "", turn.state))])
            rng = np.random.default_rng(np.random.SeedSequence([seed, episode.group, episode.member, turn.index]))
            others = corruptions(env, turn, rng)
            if others:
                candidates = [("truth", turn.next_state), *others]
                shaped = [(kind, _laid_out(turn.prediction, state)) for kind, state in candidates]
                found.append(Case(context, head, shaped))
    return found


def _laid_out(written: str, state: str) -> str:
    """``state`` with the white space that the model put around its own."""
    body = written.strip()
    if not body:
        return state
    start = written.index(body)
    return written[:start] + state + written[start + len(body) :]


def _context(episode: Episode, turn: Turn) -> list[int] | None:
    """The token ids before a turn's response; None where no tokens were kept."""
    for sequence in reversed(episode.sequences):
        if turn.index in sequence.turns:
            return sequence.ids[: sequence.turns.index(turn.index)]
    return None


def _tokens(chat: Chat, case: Case, state: str) -> tuple[list[int], list[int]]:
    """Ids of the context and the response up to ``</prediction>``, and the positions that hold the candidate."""
    encoded = chat.encode_response(case.prefix + state + _CLOSING)
    start = len(case.prefix)
    offset = len(case.context)
    positions = [offset + i for i, (_, high) in enumerate(encoded.offsets) if high > start and i >= encoded.num_forced]
    return [*case.context, *encoded.ids], positions


def corruptions(env: TextEnv, turn: Turn, rng: np.random.Generator) -> list[tuple[str, str]]:
    """States that are not the turn's next state, with their kinds; all different."""
    out: list[tuple[str, str]] = []

    def add(kind: str, state: str | None) -> None:
        if state is not None and not any(exact(state, known) for known in [turn.next_state, *(s for _, s in out)]):
            out.append((kind, state))

    add("stay", turn.state)
    add("other_move", _other_move(env, turn, rng))
    for _ in range(SWAPS):
        add("swap", one_change(env, turn.next_state, turn.state, rng))
    return out


def _other_move(env: TextEnv, turn: Turn, rng: np.random.Generator) -> str | None:
    """The state after as many other random actions from the turn's state; None where the world cannot start from a state."""
    for _ in range(8):
        try:
            # The seed is that of a slippery world's luck.
            state, _ = env.reset(seed=int(rng.integers(2**31)), options={"state": turn.state})
            for _ in range(max(1, len(turn.executed))):
                action = match_action(env.sample_action(rng), env.actions)
                state, _, terminated, truncated, _ = env.step(str(action))
                if terminated or truncated:
                    break
        except Exception:  # any world may be played, and not all take a state
            return None
        if not exact(state, turn.next_state) and not exact(state, turn.state):
            return state
    return None


def one_change(env: TextEnv, state: str, before: str, rng: np.random.Generator) -> str | None:
    """``state`` with two unequal cells swapped (or one changed) in a way that the world finds legal, sentence and all.

    In a state that is no grid two words change places. None where no change was found.
    """
    board = is_board(grid_part(state))
    rows = cells(state, board)
    flat = [(r, c) for r, row in enumerate(rows) for c in range(len(row))]
    symbols = sorted({cell for row in rows for cell in row})
    if len(rows) < 2 or len({len(row) for row in rows}) > 1 or len(symbols) < 2:
        return _swapped_words(state, rng)
    for _ in range(200):
        changed = [list(row) for row in rows]
        (r, c), (r2, c2) = (flat[int(i)] for i in rng.integers(len(flat), size=2))
        if rng.random() < 0.5:
            changed[r][c], changed[r2][c2] = changed[r2][c2], changed[r][c]
        else:
            changed[r][c] = symbols[int(rng.integers(len(symbols)))]
        if changed == rows:
            continue
        text = "".join("| " + "".join(f"{cell} " for cell in row) for row in changed) if board else _grid(changed)
        if env.legal(text, before) is not False:
            return _rendered(env, text, state)
    return None


def _grid(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("".join(row) for row in rows)


def _rendered(env: TextEnv, grid: str, like: str) -> str:
    """The world's own text of a grid, with its coordinates if ``like`` has any; the bare grid where it cannot say."""
    if exact(grid_part(like), like):
        return grid
    try:
        return env.reset(seed=0, options={"state": grid})[0]
    except Exception:
        return grid


def _swapped_words(state: str, rng: np.random.Generator) -> str | None:
    words = state.split()
    if len(set(words)) < 2:
        return None
    for _ in range(50):
        i, j = (int(k) for k in rng.integers(len(words), size=2))
        if words[i] != words[j]:
            words[i], words[j] = words[j], words[i]
            return " ".join(words)
    return None
