"""Playing: batches of episodes through an engine, all live episodes one turn at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spa.agent.chat import Chat
from spa.agent.episode import Episode, TokenSequence
from spa.agent.play import Play
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.engines.base import Completion, Engine
from spa.runs.schema import SamplingConfig


@dataclass
class _TokenPlay(Play):
    """An episode whose context is a sequence of tokens."""

    sequence: TokenSequence = field(default_factory=TokenSequence)
    responses: list[list[int]] = field(default_factory=list)  # per turn: forced tag, sampled ids


def rollout(
    engine: Engine,
    chat: Chat,
    task: Task,
    worlds: Sequence[World],
    sampling: SamplingConfig,
    *,
    seed: int,
    group_size: int = 1,
    on_turn: Callable[[int, int], None] | None = None,
) -> list[Episode]:
    """Plays every world ``group_size`` times; returns ``len(worlds) * group_size`` episodes, group by group.

    The members of a group share the world but not its noise. A world that raises ends its own episode with
    ``status="error"``; the others go on. The same arguments and weights give the same episodes.

    Args:
        seed: of the sampling; together with the turn it seeds the engine.
        on_turn: called with (live episodes, turn index) before each turn.
    """
    plays = [
        _TokenPlay.start(task, world, group, member)
        for group, world in enumerate(worlds)
        for member in range(group_size)
    ]
    for index in range(task.env.max_turns):
        live = [play for play in plays if play.live]
        if not live:
            break
        if on_turn:
            on_turn(len(live), index)
        for play in live:
            _ask(play, chat, index)
        contexts = [play.sequence.ids for play in live]
        completions = engine.generate(contexts, sampling, stop_ids=chat.stop_ids, seed=_turn_seed(seed, index))
        for play, completion in zip(live, completions, strict=True):
            _answer(play, chat, index, completion)
    for play in plays:
        play.env.close()
    return [play.episode for play in plays]


def _turn_seed(seed: int, turn: int) -> int:
    import numpy as np

    return int(np.random.SeedSequence([seed, turn]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _ask(play: _TokenPlay, chat: Chat, index: int) -> None:
    """Appends the user message of turn ``index`` and the forced tag; opens a new sequence where the window needs one."""
    first = play.first_shown(index)
    if index == 0 or play.task.agent.window:
        play.sequence = TokenSequence()
        play.episode.sequences.append(play.sequence)
        for position in range(first, index):
            _append_user(play, chat, position, first)
            response = play.responses[position]
            play.sequence.append(response)
            play.sequence.append(chat.closing(response))
    else:
        play.sequence.append(chat.closing(play.responses[-1]))
    user = _append_user(play, chat, index, first)
    play.sequence.append(chat.forced_ids, turn=index)
    play.open_turn(index, user)


def _append_user(play: _TokenPlay, chat: Chat, index: int, first: int) -> str:
    """Appends the user message of turn ``index`` in a context that begins at turn ``first``; returns its text."""
    text = play.user_text(index, first)
    play.sequence.append(chat.opening(play.episode.system, text) if index == first else chat.following(text))
    return text


def _answer(play: _TokenPlay, chat: Chat, index: int, completion: Completion) -> None:
    """Records a response and plays its actions."""
    play.sequence.append(completion.ids, mask=1, logprobs=completion.logprobs, turn=index)
    play.responses.append([*chat.forced_ids, *completion.ids])
    play.answer(chat.forced + chat.decode(completion.ids), completion.finish_reason)
