"""Rollouts: plays many episodes through an engine; each world steps as soon as its response is complete."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from spa.agent.chat import Chat
from spa.agent.episode import Episode, TokenSequence
from spa.agent.host import Hosts
from spa.agent.play import Play
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import SamplingConfig
from spa.engines.base import Completion, Engine, Later
from spa.engines.cooling import Cooled
from spa.engines.processes import in_processes
from spa.envs.checked import Step


@dataclass
class _TokenPlay(Play):
    """An episode whose context is a sequence of tokens."""

    sequence: TokenSequence = field(default_factory=TokenSequence)
    responses: list[list[int]] = field(default_factory=list)  # per turn: forced tag, sampled ids


OnTurn = Callable[[Episode, bool], None]
"""Called after a turn with its episode and whether that has ended; what it raises ends the rollout."""


def rollout(
    engine: Engine,
    chat: Chat,
    task: Task,
    worlds: Sequence[World],
    sampling: SamplingConfig,
    *,
    seed: int,
    group_size: int = 1,
    on_turn: OnTurn | None = None,
    skip: Container[tuple[int, int]] = (),
) -> list[Episode]:
    """Plays every world ``group_size`` times; returns ``len(worlds) * group_size`` episodes, group by group.

    The members of a group share the world but not its noise. A world that fails ends only its own episode, with
    ``status="error"``. The same arguments and weights give the same episodes.

    On a CPU the groups may be divided among several processes (``sampling.processes``): see ``Engine.split``. With
    ``env.processes`` they are not; so many episodes are played at once instead, each with its world in another process.

    Args:
        seed: sampling seed; each response is seeded with it and the episode and turn.
        on_turn: called for the episodes that this process plays, not for those of its forks.
        skip: (group, member) of episodes that are left out, for engines whose samples depend on seed, episode and turn alone.
    """
    count = 1 if task.env.processes else engine.split(sampling, len(worlds), group_size)

    def share(number: int) -> dict[int, Episode]:
        groups = range(number, len(worlds), count)
        keys = [(group, member) for group in groups for member in range(group_size) if (group, member) not in skip]
        played: dict[int, Episode] = {}
        with engine.alone(count), Hosts(task, len(keys)) as hosts:
            for wave in hosts.waves(keys):
                begun = hosts.start(lambda key, host: _TokenPlay.start(task, worlds[key[0]], *key, host), wave)
                plays = {play.episode.group * group_size + play.episode.member: play for play in begun}
                played |= _play(engine, chat, plays, sampling, seed, None if number else on_turn, hosts.threads)
        return played

    played = {session: episode for part in in_processes(share, count) for session, episode in part.items()}
    return [played[session] for session in sorted(played)]


def _play(
    engine: Engine,
    chat: Chat,
    plays: dict[int, _TokenPlay],
    sampling: SamplingConfig,
    seed: int,
    on_turn: OnTurn | None,
    threads: Executor | None,
) -> dict[int, Episode]:
    """Plays to the end; returns the episodes by session number. ``threads`` wait for worlds in other processes."""

    def ask(play: _TokenPlay, index: int) -> list[int] | None:
        """The context of turn ``index``; None if the episode has ended, also since the model cannot read as much: unless that is
        the first turn, it is the policy's doing."""
        context = _ask(play, chat, index) if play.live else None
        if context is None or engine.has_room(context, sampling):
            return context
        play.episode.turns.pop()
        play.host.close()
        advice = "set agent.window=1, or fewer env.max_turns"
        if index == 0 or play.task.agent.window == 1:  # no earlier turn is shown
            advice = "use a model with a longer context, shorter states or prompts, or less sampling.max_tokens"
        play.fail(
            f"the context of turn {index + 1} has {len(context)} tokens, which leaves no room for a response, as the model reads "
            f"{engine.context_length}: {advice}"
        )
        if index:
            play.episode.status = "truncated"
        if on_turn:
            on_turn(play.episode, True)
        return None

    def on_completion(session: int, completion: Completion) -> list[int] | Later | None:
        play = plays[session]
        index, text = len(play.responses), chat.forced + chat.decode(completion.ids)
        if play.try_again(text):
            return Cooled(play.sequence.ids, play.cooling)
        _record(play, chat, index, completion)
        actions, last = play.choose(text, completion.finish_reason)

        def following(outcome: tuple[list[Step], str]) -> list[int] | None:
            play.learn(*outcome)
            if on_turn:
                on_turn(play.episode, not play.live)
            return ask(play, index + 1)

        if threads and actions:
            return Later(threads.submit(play.host.run, actions, last), following)
        return following(play.host.run(actions, last))

    for play in plays.values():
        play.episode.system = chat.default_system if play.task.system is None else play.task.system
        if on_turn and not play.live:
            on_turn(play.episode, True)
    first = ((session, ask(play, 0)) for session, play in plays.items())
    contexts = {session: context for session, context in first if context is not None}
    engine.serve(contexts, sampling, stop_ids=chat.stop_ids, seed=seed, on_completion=on_completion)
    return {session: play.episode for session, play in plays.items()}


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


def _record(play: _TokenPlay, chat: Chat, index: int, completion: Completion) -> None:
    """Appends a response to the sequence."""
    play.sequence.append(completion.ids, mask=1, logprobs=completion.logprobs, turn=index)
    play.responses.append([*chat.forced_ids, *completion.ids])
