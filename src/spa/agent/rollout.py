"""Rollouts: plays many episodes through an engine; each world steps as soon as its response is complete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from spa.agent.chat import Chat
from spa.agent.episode import Episode, TokenSequence
from spa.agent.play import Play
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import SamplingConfig
from spa.engines.base import Completion, Engine, SplittingEngine, serve
from spa.engines.cooling import Cooled
from spa.engines.processes import in_processes


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
) -> list[Episode]:
    """Plays every world ``group_size`` times; returns ``len(worlds) * group_size`` episodes, group by group.

    The members of a group share the world but not its noise. A world that raises ends only its own episode, with
    ``status="error"``. The same arguments and weights give the same episodes.

    On a CPU the groups may be divided among several processes (``sampling.processes``): see ``SplittingEngine``.

    Args:
        seed: sampling seed; each response is seeded with it and the episode and turn.
    """
    count = engine.split(sampling, len(worlds), group_size) if isinstance(engine, SplittingEngine) else 1

    def share(number: int) -> list[list[Episode]]:
        groups = range(number, len(worlds), count)
        chosen = [(group, worlds[group]) for group in groups]
        with engine.alone(count) if isinstance(engine, SplittingEngine) else nullcontext():
            return _play(engine, chat, task, chosen, sampling, seed, group_size)

    shares = in_processes(share, count)
    return [episode for group in range(len(worlds)) for episode in shares[group % count][group // count]]


def _play(
    engine: Engine,
    chat: Chat,
    task: Task,
    worlds: Sequence[tuple[int, World]],
    sampling: SamplingConfig,
    seed: int,
    group_size: int,
) -> list[list[Episode]]:
    """The episodes of some groups, given as (group number, world)."""
    plays = {
        group * group_size + member: _TokenPlay.start(task, world, group, member)
        for group, world in worlds
        for member in range(group_size)
    }

    def on_completion(session: int, completion: Completion) -> list[int] | None:
        play = plays[session]
        index, text = len(play.responses), chat.forced + chat.decode(completion.ids)
        if play.try_again(text):
            return Cooled(play.sequence.ids, play.cooling)
        _answer(play, chat, index, completion, text)
        return _ask(play, chat, index + 1) if play.live else None

    contexts = {session: _ask(play, chat, 0) for session, play in plays.items() if play.live}
    serve(engine, contexts, sampling, stop_ids=chat.stop_ids, seed=seed, on_completion=on_completion)
    episodes = []
    for play in plays.values():
        play.env.close()
        episodes.append(play.episode)
    return [episodes[start : start + group_size] for start in range(0, len(episodes), group_size)]


def _ask(play: _TokenPlay, chat: Chat, index: int) -> list[int]:
    """Appends the user message of turn ``index`` and the forced tag, in a new sequence if the history window requires
    one; returns the context."""
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
    return play.sequence.ids


def _append_user(play: _TokenPlay, chat: Chat, index: int, first: int) -> str:
    """Appends the user message of turn ``index`` in a context that begins at turn ``first``; returns its text."""
    text = play.user_text(index, first)
    play.sequence.append(
        chat.opening(play.episode.system, play.after_shots(text), play.episode.shots)
        if index == first
        else chat.following(text)
    )
    return text


def _answer(play: _TokenPlay, chat: Chat, index: int, completion: Completion, text: str) -> None:
    """Records a response and executes its actions."""
    play.sequence.append(completion.ids, mask=1, logprobs=completion.logprobs, turn=index)
    play.responses.append([*chat.forced_ids, *completion.ids])
    play.answer(text, completion.finish_reason)
