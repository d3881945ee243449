"""Plays recorded episodes again in their worlds and names the first difference."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from spa.agent.episode import Episode
from spa.agent.play import Play
from spa.agent.task import Task
from spa.agent.worlds import World, content_of

# Of a turn: what was asked of the model is the prompt's business, and what a planner imagined the model's.
_NOT_REPLAYED = ("user", "imagined", "tries")


def replay(task: Task, episode: Episode) -> str:
    """The first difference between an episode and the same responses played in its world again; empty if there is none.

    Compared are the world's content, states, parsed and executed actions, rewards, penalties, ends, success and status.
    """
    play = Play.start(task, World(episode.seed, episode.content), episode.group, episode.member)
    try:
        return _difference(play, episode)
    finally:
        play.host.close()


def _difference(play: Play, episode: Episode) -> str:
    if play.episode.failed:
        return play.episode.error
    with play.task.make_env() as env:
        state, info = env.reset(seed=episode.seed)
    facts: dict[str, tuple[Any, Any]] = {
        "task": (play.task.tag, episode.task),
        "world": (content_of(state, info), episode.content),
        "noise_seed": (play.episode.noise_seed, episode.noise_seed),
    }
    for name, (replayed, recorded) in facts.items():
        if replayed != recorded:
            return _line(name, replayed, recorded)
    for turn in episode.turns:
        if not play.live:
            return f"turn {turn.index} was recorded, but the episode had ended"
        play.open_turn(len(play.episode.turns), turn.user)
        play.answer(turn.response, turn.finish_reason)
        recorded, replayed = asdict(turn), asdict(play.episode.turns[-1])
        for name in replayed:
            if name not in _NOT_REPLAYED and replayed[name] != recorded[name]:
                return f"turn {turn.index}, {_line(name, replayed[name], recorded[name])}"
    if play.live:
        return f"it ends after {len(episode.turns)} turns, but goes on in the world"
    for name in ("status", "success"):
        if getattr(play.episode, name) != getattr(episode, name):
            return _line(name, getattr(play.episode, name), getattr(episode, name))
    return ""


def _line(name: str, replayed: Any, recorded: Any) -> str:
    return f"{name}: {repr(replayed)[:60]} in the world, {repr(recorded)[:60]} recorded"
