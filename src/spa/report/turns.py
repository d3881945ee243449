"""An episode as the report shows it: marked-up responses and states side by side. Plain strings; the template escapes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from spa.agent.episode import Episode, Turn
from spa.evaluate.world_model import cell_accuracy, exact, grid_part

Segment = tuple[str, bool]
"""Text and whether it differs from the other side."""

_TAG = re.compile(r"(</?(?:think|answer|observation|prediction)>)", re.IGNORECASE)
_LONGEST = 2000  # characters of a line that are compared word by word


def mark_response(text: str) -> list[tuple[str, str]]:
    """Splits a response into (text, kind): ``tag`` for the tags themselves, the innermost open tag's name for what stands
    inside, ``""`` outside. The texts joined give ``text``."""
    out: list[tuple[str, str]] = []
    open_tags: list[str] = []
    for part in _TAG.split(text):
        name = part.strip("</>").lower()
        if not part:
            continue
        if _TAG.fullmatch(part):
            out.append((part, "tag"))
            if not part.startswith("</"):
                open_tags.append(name)
            elif name in open_tags:
                del open_tags[len(open_tags) - 1 - open_tags[::-1].index(name) :]
        else:
            out.append((part, open_tags[-1] if open_tags else ""))
    return out


def _by_position(line: str, other: str) -> list[Segment]:
    segments: list[Segment] = []
    for i, character in enumerate(line):
        differs = other[i : i + 1] != character
        if segments and segments[-1][1] == differs:
            segments[-1] = (segments[-1][0] + character, differs)
        else:
            segments.append((character, differs))
    return segments


def _by_word(line: str, other: str) -> list[Segment]:
    if line == other or max(len(line), len(other)) > _LONGEST:
        return [(line, line != other)] if line else []
    words, others = re.split(r"(\s+)", line), re.split(r"(\s+)", other)
    segments: list[Segment] = []
    for operation, start, end, _, _ in difflib.SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        if text := "".join(words[start:end]):
            segments.append((text, operation != "equal"))
    return segments


def mark_differences(text: str, other: str) -> list[list[Segment]]:
    """Lines of ``text`` as segments, marked where they differ from ``other``.

    Lines of the grid are compared character by character (cells), all later lines word by word.
    """
    lines, others = text.strip().splitlines(), other.strip().splitlines()
    height = max(len(grid_part(text).splitlines()), len(grid_part(other).splitlines()))
    marked = []
    for i, line in enumerate(lines):
        against = others[i] if i < len(others) else ""
        marked.append(_by_position(line, against) if i < height else _by_word(line, against))
    return marked


@dataclass(frozen=True)
class Side:
    """What the model wrote beside what was true."""

    title: str
    truth_title: str
    written: list[list[Segment]] | None  # None: the model wrote nothing
    truth: list[list[Segment]]
    exact: bool
    cells: float | None  # share of grid cells right; None without a grid


def _side(title: str, truth_title: str, written: str | None, truth: str) -> Side:
    if written is None:
        plain: list[list[Segment]] = [[(line, False)] for line in truth.strip().splitlines()]
        return Side(title, truth_title, None, plain, False, None)
    return Side(
        title,
        truth_title,
        mark_differences(written, truth),
        mark_differences(truth, written),
        exact(written, truth),
        cell_accuracy(written, truth),
    )


@dataclass(frozen=True)
class TurnView:
    """One turn, ready for the template. Without observation and prediction, ``sides`` is empty and the next state plain."""

    number: int
    turn: Turn
    response: list[tuple[str, str]]
    sides: list[Side]


@dataclass(frozen=True)
class EpisodeView:
    episode: Episode
    turns: list[TurnView]
    reward: float
    actions: int


def view(episode: Episode) -> EpisodeView:
    """Prepares an episode for the template."""
    turns = []
    for number, turn in enumerate(episode.turns, 1):
        sides = []
        if turn.observation is not None or turn.prediction is not None:
            sides.append(_side("observation", "true state", turn.observation, turn.state))
            sides.append(_side("prediction", "true next state", turn.prediction, turn.next_state))
        turns.append(TurnView(number, turn, mark_response(turn.response), sides))
    return EpisodeView(episode, turns, episode.total_reward, sum(len(turn.executed) for turn in episode.turns))


def choose_episodes(episodes: Sequence[Episode], limit: int) -> list[Episode]:
    """At most ``limit`` episodes, half of them (as far as there are any) with predictions, which show beside the truth."""
    limit = max(limit, 0)
    told = [e for e in episodes if any(turn.prediction is not None for turn in e.turns)]
    plain = [e for e in episodes if all(turn.prediction is None for turn in e.turns)]
    half = min(len(told), max(limit // 2, limit - len(plain)))
    return _mixed(plain, limit - half) + _mixed(told, half)


def _mixed(episodes: Sequence[Episode], limit: int) -> list[Episode]:
    """At most ``limit`` episodes: successes and failures in turn, first one of every world, errors last, otherwise in order."""
    seen: set[tuple[int, int]] = set()
    wins: list[tuple[bool, Episode]] = []
    losses: list[tuple[bool, Episode]] = []
    for episode in episodes:
        key = (episode.group, episode.seed)
        # False sorts first: a world not shown yet, an episode without an error.
        (wins if episode.success else losses).append((key in seen, episode))
        seen.add(key)
    ranked = [[e for _, e in sorted(side, key=lambda x: (x[1].status == "error", x[0]))] for side in (wins, losses)]
    out: list[Episode] = []
    for i in range(max(map(len, ranked), default=0)):
        out += [side[i] for side in ranked if i < len(side)]
    return out[: max(limit, 0)]
