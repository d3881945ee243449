"""Detects hidden information: equal state and equal action must give an equal next state, reward and end."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np

from spa.envs.adapters.guard import RandomGuard
from spa.envs.seeded import SeededEnv

if TYPE_CHECKING:
    from spa.envs import TextEnv

_MOVES = 40  # of an episode
_WORLDS = 8  # seeds of every second episode, which meet in the same states again and again
_LUCKS = 3  # of each state and action
_SECONDS = 20.0

Key = tuple[str | int, ...]
_After = tuple[str, float, bool]  # state, reward and whether the world ended (limits of actions are never shown)


@dataclass
class _Seen:
    """What followed a state and an action."""

    ways: set[tuple[str, ...]] = field(default_factory=set)  # the histories that led there
    after: list[_After] = field(default_factory=list)  # different outcomes, in order of appearance


@dataclass(frozen=True)
class Outcomes:
    """Whether a state and an action have one outcome.

    ``kind`` is ``certain`` (they do), ``chance`` (they do for the same noise), ``hidden`` (they do not: something that counts is
    not shown), ``unclear`` (chance or hidden) or ``unknown`` (no pair was met again). ``text`` says how often they did not, with
    an example, or what was compared.
    """

    kind: str
    text: str


def outcomes(make: Callable[[], TextEnv], episodes: int) -> Outcomes:
    """Plays random episodes and counts the pairs of state and action that had different outcomes.

    Every pair is compared, whatever seed and whatever history led to it. In a world with noise (``noise_seed`` or another
    ``np_random`` changes what happens) pairs are compared once more with the same noise: before each move all generators of the
    world are seeded by its state and action. Where that does not fix the noise, it cannot be told from hidden information.

    Raises:
        ValueError: the world's actions are free text and it has no ``sample_action``.
    """
    noisy = _noise(make)
    played, every = _meet(make, episodes)
    if not (split := _split(every)):
        met = _compared(every)
        text = f"{played} episodes, {met or 'no'} pairs of state and action met in more than one way"
        if noisy and not met:
            return Outcomes("chance", f"noise: the same actions end differently with other noise; {text}")
        return Outcomes("certain", text) if met else Outcomes("unknown", f"nothing could be compared: {text}")
    several = f"{_share(split, every)} have more than one outcome"
    if not noisy:
        return Outcomes("hidden", f"hides information: {several}; {_example(split)}")
    if _noise(make, fixed=True):
        return Outcomes("unclear", f"noise or hidden information: {several}; {_example(split)}")
    _, same_noise = _meet(make, episodes, fixed=True)
    if hidden := _split(same_noise):
        share = _share(hidden, same_noise)
        text = f"hides information: with the same noise {share} have more than one outcome; {_example(hidden)}"
        return Outcomes("hidden", text)
    return Outcomes("chance", f"noise: {several}, with the same noise none; {_example(split)}")


def _meet(make: Callable[[], TextEnv], episodes: int, *, fixed: bool = False) -> tuple[int, dict[Key, _Seen]]:
    """How many episodes were played, and what followed each state and action; ``fixed``: with the noise of ``_fix_noise``."""
    table: dict[Key, _Seen] = {}
    end = time.monotonic() + _SECONDS
    env = make()
    played = 0
    while played < episodes and time.monotonic() < end:
        # The other seeds are played once, for what a world draws at its start and does not show.
        rng, seed = np.random.default_rng(played), played if played % 2 else played // 2 % _WORLDS
        luck = played // (2 * _WORLDS) % _LUCKS if fixed else 0
        state, _ = env.reset(seed=seed, options={"noise_seed": 0})
        history: tuple[str, ...] = (str(seed),)
        for _ in range(_MOVES):
            action = env.sample_action(rng)
            if fixed:
                _fix_noise(env, (state, action, luck))
            after, reward, terminated, truncated, _ = env.step(action)
            outcome = after, float(reward), bool(terminated)
            seen = table.setdefault((state, action, luck), _Seen())
            seen.ways.add(history)
            if outcome not in seen.after:
                seen.after.append(outcome)
            history = (*history, action)
            state = after
            if terminated or truncated:
                break
        played += 1
    return played, table


def ignores_noise_seed(make: Callable[[], TextEnv]) -> bool:
    """Whether what happens after ``reset`` depends on generators of the world (``np_random``), but never on ``noise_seed``."""
    return _any_differ(make, by_option=False) and not _any_differ(make, by_option=True)


def _noise(make: Callable[[], TextEnv], *, fixed: bool = False) -> bool:
    """Whether the same actions may do something else for another ``noise_seed`` or with other generators (``np_random``).

    ``fixed``: although ``_fix_noise`` is called before each move.
    """
    return any(_any_differ(make, by_option=by_option, fixed=fixed) for by_option in (True, False))


def _any_differ(make: Callable[[], TextEnv], *, by_option: bool, fixed: bool = False) -> bool:
    """``_differ`` for some seed, as far as time allows."""
    end = time.monotonic() + _SECONDS / 4
    seeds = (seed for seed in range(_WORLDS) if time.monotonic() < end)
    return any(_differ(make, seed, by_option=by_option, fixed=fixed) for seed in seeds)


def _differ(make: Callable[[], TextEnv], seed: int, *, by_option: bool, fixed: bool) -> bool:
    env = make()
    played = []
    for luck in range(3):
        rng = np.random.default_rng(seed)
        state, _ = env.reset(seed=seed, options={"noise_seed": 3 * seed + luck if by_option else 0})
        if not by_option:
            _fix_noise(env, (seed, luck))
        happened = []
        for _ in range(_MOVES):
            action = env.sample_action(rng)
            if fixed:
                _fix_noise(env, (state, action, 0))
            state, reward, terminated, truncated, _ = env.step(action)
            happened.append((state, float(reward), bool(terminated)))
            if terminated or truncated:
                break
        played.append(happened)
    return played.count(played[0]) < len(played)


def _fix_noise(env: TextEnv, key: Key) -> None:
    """Seeds all generators that are attributes of the world, or of one that it wraps, by ``key``."""
    seed = zlib.crc32(repr(key).encode())
    worlds: list[object] = [env]
    seen: set[int] = set()
    while worlds:
        world = worlds.pop()
        seen.add(id(world))
        if isinstance(world, SeededEnv):
            _ = world.noise  # which is made when it is first used
        for name, value in vars(world).items() if hasattr(world, "__dict__") else ():
            if isinstance(value, np.random.Generator):
                value.bit_generator.state = type(value.bit_generator)(seed).state
            elif isinstance(value, (random.Random, np.random.RandomState, RandomGuard)):
                value.seed(seed)
            elif (isinstance(value, gym.Env) or name == "env") and id(value) not in seen:
                worlds.append(value)


def _compared(table: dict[Key, _Seen]) -> int:
    return sum(len(seen.ways) > 1 for seen in table.values())


def _split(table: dict[Key, _Seen]) -> dict[Key, _Seen]:
    return {key: seen for key, seen in table.items() if len(seen.after) > 1}


def _share(split: dict[Key, _Seen], table: dict[Key, _Seen]) -> str:
    compared = _compared(table) or 1
    return f"{100 * len(split) / compared:.1f}% of {compared} pairs of state and action"


def _example(split: dict[Key, _Seen]) -> str:
    key, seen = min(split.items(), key=lambda item: len(str(item[0][0])))
    state, action = ascii(key[0]), ascii(key[1])
    pair = seen.after[:2]
    one, two = (_cut(ascii(text)) for text, *_ in pair)
    if one == two:
        one, two = (f"{one} (reward {reward:g}{', the end' * ended})" for (_, reward, ended) in pair)
    return f"for example {_cut(action)} in {_cut(state)} gave {one} and {two}"


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:80]}...{text[-37:]}"
