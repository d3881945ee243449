"""Playing: batches of episodes through an engine, all live episodes one turn at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spa.agent.chat import Chat
from spa.agent.episode import Episode, TokenSequence, Turn
from spa.agent.parse import Parsed, match_action, parse_response
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.engines.base import Completion, Engine
from spa.envs import TextEnv
from spa.runs.schema import SamplingConfig


@dataclass
class _Play:
    """An episode under way: its world, its current state and what its context is made of."""

    episode: Episode
    env: TextEnv
    header: str = ""
    state: str = ""
    actions_left: int = 0
    live: bool = True
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
    plays = [_start(task, world, group, member) for group, world in enumerate(worlds) for member in range(group_size)]
    for index in range(task.env.max_turns):
        live = [play for play in plays if play.live]
        if not live:
            break
        if on_turn:
            on_turn(len(live), index)
        for play in live:
            _ask(play, chat, task, index)
        contexts = [play.sequence.ids for play in live]
        completions = engine.generate(contexts, sampling, stop_ids=chat.stop_ids, seed=_turn_seed(seed, index))
        for play, completion in zip(live, completions, strict=True):
            _answer(play, chat, task, index, completion)
    for play in plays:
        play.env.close()
    return [play.episode for play in plays]


def _turn_seed(seed: int, turn: int) -> int:
    import numpy as np

    return int(np.random.SeedSequence([seed, turn]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _start(task: Task, world: World, group: int, member: int) -> _Play:
    noise = world.noise_seed(member)
    episode = Episode(
        task=task.tag,
        seed=world.seed,
        group=group,
        member=member,
        noise_seed=noise,
        content=world.content,
        prompt=task.agent.prompt,
        system=task.system,
    )
    play = _Play(episode, task.make_env(), actions_left=task.env.max_actions)
    try:
        play.state, _ = play.env.reset(seed=world.seed, options={"noise_seed": noise})
        play.header = task.header(play.env)
    except Exception as error:
        _fail(play, error)
    return play


def _fail(play: _Play, error: Exception) -> None:
    play.live = False
    play.episode.success = False
    play.episode.status = "error"
    play.episode.error = f"{type(error).__name__}: {error}"


def _ask(play: _Play, chat: Chat, task: Task, index: int) -> None:
    """Appends the user message of turn ``index`` and the forced tag; opens a new sequence where the window needs one."""
    turns = play.episode.turns
    window = task.agent.window
    first = 0 if window == 0 else max(0, index - window + 1)
    if index == 0 or window:
        play.sequence = TokenSequence()
        play.episode.sequences.append(play.sequence)
        for position in range(first, index):
            _append_user(play, chat, task, position, first)
            response = play.responses[position]
            play.sequence.append(response)
            play.sequence.append(chat.closing(response))
    else:
        play.sequence.append(chat.closing(play.responses[-1]))
    user = _append_user(play, chat, task, index, first)
    play.sequence.append(chat.forced_ids, turn=index)
    turns.append(Turn(index, play.state, user, "", play.state, actions_left=play.actions_left))


def _append_user(play: _Play, chat: Chat, task: Task, index: int, first: int) -> str:
    """Appends the user message of turn ``index`` in a context that begins at turn ``first``; returns its text."""
    turns = play.episode.turns
    past = turns[index] if index < len(turns) else None
    state, left = (past.state, past.actions_left) if past else (play.state, play.actions_left)
    text = task.turn_text(index - first + 1, state, left)
    if index == first:
        text = play.header + text
        play.sequence.append(chat.opening(play.episode.system, text))
    else:
        text = task.reward_text(turns[index - 1].reward) + text
        play.sequence.append(chat.following(text))
    return text


def _answer(play: _Play, chat: Chat, task: Task, index: int, completion: Completion) -> None:
    """Records a response and plays its actions."""
    turn = play.episode.turns[index]
    play.sequence.append(completion.ids, mask=1, logprobs=completion.logprobs, turn=index)
    play.responses.append([*chat.forced_ids, *completion.ids])
    turn.response = chat.forced + chat.decode(completion.ids)
    turn.finish_reason = completion.finish_reason
    parsed = parse_response(
        turn.response,
        task.agent.prompt,
        think=task.agent.think,
        action_sep=task.agent.action_sep,
        max_actions=task.env.max_actions_per_turn,
    )
    turn.format_ok, turn.actions = parsed.format_ok, list(parsed.actions)
    turn.observation, turn.prediction = parsed.observation, parsed.prediction
    try:
        ended = _execute(play, task, turn, parsed)
    except Exception as error:
        _fail(play, error)
        return
    play.episode.success = bool(turn.info.get("success", play.episode.success))
    out_of_limits = play.actions_left <= 0 or index + 1 >= task.env.max_turns
    if ended or out_of_limits:
        play.live = False
        play.episode.status = "completed" if ended else "truncated"


def _execute(play: _Play, task: Task, turn: Turn, parsed: Parsed) -> bool:
    """Runs the actions that the world knows, up to its limits; True if the world ended the episode."""
    known = [match_action(action, play.env.actions) for action in parsed.actions]
    valid = [action for action in known if action is not None]
    if not valid or len(valid) < len(known):
        turn.penalty = task.agent.format_penalty
    rewards: list[Any] = []
    ended = False
    for action in valid[: play.actions_left]:
        play.state, reward, terminated, truncated, info = play.env.step(action)
        rewards.append(reward)
        turn.executed.append(action)
        turn.info = {key: value for key, value in info.items() if isinstance(value, (bool, int, float, str))}
        if terminated or truncated:
            ended = True
            break
    turn.reward = sum(rewards)
    turn.next_state = play.state
    play.actions_left -= len(turn.executed)
    return ended
