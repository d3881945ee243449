"""Episodes for the report: marked-up responses and states side by side. Plain strings; the template escapes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

from spa.agent.episode import Episode, Turn
from spa.agent.response import TAG
from spa.envs.states import bare, cell_accuracy, exact, grid_part

Segment = tuple[str, bool]
"""Text and whether it differs from the other side."""

_LONGEST = 2000  # maximum characters of a line to compare
_COMPARED = 10_000  # maximum characters of a text to compare
LONGEST = 6000  # characters of a text that are shown; more would make pages of megabytes


def cut(text: str) -> str:
    """``text``, or its beginning with a note on what is left out."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text) - LONGEST} characters more)"


def mark_response(text: str) -> list[tuple[str, str]]:
    """Splits a response into (text, kind): ``tag`` for the tags themselves, the innermost open tag's name for text inside it,
    ``""`` outside. The joined texts equal ``text``."""
    out: list[tuple[str, str]] = []
    open_tags: list[str] = []
    still_open: Counter[str] = Counter()
    position = 0
    for tag in TAG.finditer(text):
        if tag.start() > position:
            out.append((text[position : tag.start()], open_tags[-1] if open_tags else ""))
        position = tag.end()
        out.append((tag[0], "tag"))
        name = tag[0].strip("</>").lower()
        if not tag[0].startswith("</"):
            open_tags.append(name)
            still_open[name] += 1
        elif still_open[name]:  # also closes tags opened after it
            closed = ""
            while closed != name:
                closed = open_tags.pop()
                still_open[closed] -= 1
    if position < len(text):
        out.append((text[position:], open_tags[-1] if open_tags else ""))
    return out


def _segments(pieces: Sequence[str], differs: Sequence[bool]) -> list[Segment]:
    """Joins neighbours of the same kind."""
    segments = []
    position = 0
    for kind, group in groupby(differs):
        end = position + sum(1 for _ in group)
        if text := "".join(pieces[position:end]):
            segments.append((text, kind))
        position = end
    return segments


def _by_position(line: str, other: str) -> list[Segment]:
    differs = [a != b for a, b in zip(line, other, strict=False)]
    return _segments(line, differs + [True] * (len(line) - len(differs)))


def _by_word(line: str, other: str) -> list[Segment]:
    words, others = re.split(r"(\s+)", line), re.split(r"(\s+)", other)
    common = _common(words, others)
    return _segments(words, [index not in common for index in range(len(words))])


def _common(words: Sequence[str], others: Sequence[str]) -> set[int]:
    """Indices in ``words`` of a longest common subsequence, in one long-integer operation per word of ``others``.

    difflib can take cubic time: minutes for one line of a thousand equal words.
    """
    places: dict[str, int] = {}
    for position, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << position
    everything = row = (1 << len(words)) - 1
    # Bit i of rows[j] is 0 where words[: i + 1] has more in common with others[: j + 1] than words[:i] has.
    rows = []
    for word in others:
        hit = row & places.get(word, 0)
        row = ((row + hit) | (row - hit)) & everything
        rows.append(row)
    common = set()
    i, j = len(words) - 1, len(others) - 1
    while i >= 0 and j >= 0:
        if rows[j] >> i & 1:
            i -= 1
        elif j and not rows[j - 1] >> i & 1:
            j -= 1
        else:
            common.add(i)
            i, j = i - 1, j - 1
    return common


def mark_differences(text: str, other: str) -> list[list[Segment]]:
    """Lines of ``text`` as segments, marked where they differ from ``other``.

    Grid lines are compared by character (cell), later lines by word; a very long line, and the end of a very long text, as a
    whole. Lines beyond the end of ``other`` form one segment.
    """
    lines, others = text.strip("\n").splitlines(), other.strip("\n").splitlines()
    height = max(len(grid_part(text).splitlines()), len(grid_part(other).splitlines()))
    marked: list[list[Segment]] = []
    left = _COMPARED
    for i, (line, against) in enumerate(zip(lines, others, strict=False)):
        if not line or not against or line == against:
            marked.append([(line, line != against)] if line else [])
        elif (longest := max(len(line), len(against))) > min(_LONGEST, left):
            marked.append([(line, True)])
        else:
            marked.append(_by_position(line, against) if i < height else _by_word(line, against))
            left -= longest
    if beyond := lines[len(others) :]:
        marked.append([("\n".join(beyond), True)])
    return marked


@dataclass(frozen=True)
class Side:
    """What the model wrote next to the truth."""

    title: str
    truth_title: str
    written: list[list[Segment]] | None  # None: the model wrote nothing
    truth: list[list[Segment]]
    exact: bool
    cells: float | None  # share of grid cells right; None without a grid


def _side(title: str, truth_title: str, written: str | None, true_state: str, other: str) -> Side:
    """``other``: the state before or after the true one."""
    truth = cut(true_state)
    if written is None:
        plain: list[list[Segment]] = [[(line, False)] for line in truth.strip("\n").splitlines()]
        return Side(title, truth_title, None, plain, False, None)
    shown = cut(bare(written, true_state, other))
    return Side(
        title,
        truth_title,
        mark_differences(shown, truth),
        mark_differences(truth, shown),
        exact(written, true_state, other),
        cell_accuracy(written, true_state),
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
            sides.append(_side("observation", "true state", turn.observation, turn.state, turn.next_state))
            sides.append(_side("prediction", "true next state", turn.prediction, turn.next_state, turn.state))
        turns.append(TurnView(number, turn, mark_response(cut(turn.response)), sides))
    return EpisodeView(episode, turns, episode.total_reward, sum(len(turn.executed) for turn in episode.turns))


def choose_episodes(episodes: Sequence[Episode], limit: int) -> list[Episode]:
    """At most ``limit`` episodes, half of them with predictions (if available), which are shown next to the truth."""
    limit = max(limit, 0)
    predicted = [e for e in episodes if any(turn.prediction is not None for turn in e.turns)]
    plain = [e for e in episodes if all(turn.prediction is None for turn in e.turns)]
    half = min(len(predicted), max(limit // 2, limit - len(plain)))
    return _mixed(plain, limit - half) + _mixed(predicted, half)


def _mixed(episodes: Sequence[Episode], limit: int) -> list[Episode]:
    """At most ``limit`` episodes: alternating successes and failures, one per world first, errors last, otherwise in order."""
    worlds: set[tuple[int, int]] = set()
    ranked: dict[bool, list[tuple[bool, bool, int, Episode]]] = {True: [], False: []}
    for number, episode in enumerate(episodes):
        world = (episode.group, episode.seed)
        # False sorts first: an episode without an error, a world not shown yet.
        ranked[episode.success].append((episode.failed, world in worlds, number, episode))
        worlds.add(world)
    pairs = zip_longest(*(sorted(side, key=lambda entry: entry[:3]) for side in ranked.values()))
    return [entry[3] for pair in pairs for entry in pair if entry][: max(limit, 0)]
