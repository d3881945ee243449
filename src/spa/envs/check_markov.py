"""Detects hidden information: equal state and equal action must give an equal next state."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from spa.envs import TextEnv

_MOVES = 40  # of an episode
_WORLDS = 8  # seeds; their episodes meet in the same states again and again
_SECONDS = 20.0

Key = tuple[str | int, ...]


@dataclass
class _Seen:
    """What followed a state and an action."""

    ways: set[tuple[str, ...]] = field(default_factory=set)  # the histories that led there
    after: list[str] = field(default_factory=list)  # different next states, in order of appearance


@dataclass(frozen=True)
class Outcomes:
    """Whether a state and an action have one outcome.

    ``kind`` is ``certain`` (they do), ``chance`` (they do for the same noise) or ``hidden`` (they do not: something that counts is
    not shown). ``text`` says how often they did not, with an example, or what was compared.
    """

    kind: str
    text: str


def outcomes(make: Callable[[], TextEnv], episodes: int) -> Outcomes:
    """Plays random episodes and counts the pairs of state and action that were followed by different states.

    In a world without noise every pair is compared, whatever seed and whatever history led to it. In a world with noise
    (``noise_seed`` changes what happens) only moves with the same noise are: those with the same number in episodes with the
    same ``noise_seed``, and of the same seed where the noise comes from ``np_random``.

    Raises:
        ValueError: the world's actions are free text and it has no ``sample_action``.
    """
    noisy, own_noise = _noise(make, by_option=True), False
    if not noisy:
        noisy = own_noise = _noise(make, by_option=False)
    every: dict[Key, _Seen] = {}
    same_noise: dict[Key, _Seen] = {}
    end = time.monotonic() + _SECONDS
    env = make()
    played = 0
    while played < episodes and time.monotonic() < end:
        rng, seed = np.random.default_rng(played), played % _WORLDS
        state, _ = env.reset(seed=seed, options={"noise_seed": 0})
        history: tuple[str, ...] = (str(seed),)
        for number in range(_MOVES):
            action = env.sample_action(rng)
            after, _, terminated, truncated, _ = env.step(action)
            for table, key in ((every, ()), (same_noise, (number, seed if own_noise else 0))):
                seen = table.setdefault((state, action, *key), _Seen())
                seen.ways.add(history)
                if after not in seen.after:
                    seen.after.append(after)
            history = (*history, action)
            state = after
            if terminated or truncated:
                break
        played += 1
    compared = same_noise if noisy else every
    if split := _split(compared):
        how = "with the same noise " if noisy else ""
        return Outcomes(
            "hidden", f"hides information: {how}{_share(split, compared)} have more than one outcome; {_example(split)}"
        )
    if noise := _split(every):
        share = _share(noise, every)
        text = f"noise: {share} have more than one outcome, with the same noise none; {_example(noise)}"
        return Outcomes("chance", text)
    met = _compared(every) or "no"
    return Outcomes("certain", f"{played} episodes, {met} pairs of state and action met in more than one way")


def _noise(make: Callable[[], TextEnv], *, by_option: bool) -> bool:
    """Whether the same actions may do something else: for another ``noise_seed``, or with another ``np_random``."""
    env = make()
    for seed in range(_WORLDS):
        played = []
        for luck in range(3):
            rng = np.random.default_rng(seed)
            env.reset(seed=seed, options={"noise_seed": luck if by_option else 0})
            if not by_option:
                world: object = env
                while isinstance(world, gym.Env):  # and what it wraps
                    world.np_random = np.random.default_rng(luck)
                    world = getattr(world, "env", None)
            states = []
            for _ in range(_MOVES):
                state, _, terminated, truncated, _ = env.step(env.sample_action(rng))
                states.append(state)
                if terminated or truncated:
                    break
            played.append(states)
        if played.count(played[0]) < len(played):
            return True
    return False


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
    one, two = (ascii(text) for text in seen.after[:2])
    return f"for example {_cut(action)} in {_cut(state)} gave {_cut(one)} and {_cut(two)}"


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:80]}...{text[-37:]}"
