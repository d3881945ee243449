"""Trying a world: ``check_world`` says whether it keeps the contract, ``play_world`` lets a person play it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from spa.envs import TextEnv

MakeEnv = Callable[[], "TextEnv"]

_INFO: dict[str, type] = {"success": bool, "valid": bool, "effective": bool, "content": str}
_NONSENSE = "no such action \\1 || ?"
_MOVES = 2_000  # random moves after which a world that has not ended is let be


@dataclass(frozen=True)
class Finding:
    """One question about a world and its answer; ``problem`` is empty where all is well."""

    question: str
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


def check_world(make: MakeEnv, seeds: int = 5) -> list[Finding]:
    """Asks a world everything that training relies on.

    Args:
        make: makes a new instance.
        seeds: how many seeds to play.
    """
    checks: list[tuple[str, Callable[[], str]]] = [
        ("Gymnasium's check_env", lambda: _gymnasium(make)),
        ("info holds success, valid, effective and content", lambda: _info(make)),
        ("two instances with the same seed are equal", lambda: _determinism(make, seeds)),
        ("different seeds give different worlds", lambda: _variety(make)),
        ("nonsense is data: valid False, nothing changed", lambda: _nonsense(make)),
        ("the global random state is left alone", lambda: _global_state(make)),
        ("a finished episode refuses further steps", lambda: _step_after_end(make)),
    ]
    findings = []
    for question, check in checks:
        try:
            problem = check()
        except Exception as error:  # whatever a stranger's world raises is a finding
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        findings.append(Finding(question, problem))
    return findings


def play_world(env: TextEnv, seed: int, lines: Iterator[str], out: TextIO) -> bool:
    """Plays one episode with moves from ``lines``; returns whether it was won.

    A line is an action, the number of an action, or ``q`` to stop.
    """
    state, info = env.reset(seed=seed)
    actions = list(env.actions)
    print(f"{env.rules}\n" if env.rules else "", file=out, end="")
    for symbol, meaning in env.symbols.items():
        print(f"  {symbol}  {meaning}", file=out)
    if actions:
        print("Actions: " + ", ".join(f"{i} {name}" for i, name in enumerate(actions, 1)) + ", q quit", file=out)
    total = 0.0
    while True:
        print(f"\n{state}\n> ", file=out, end="", flush=True)
        line = next(lines, "q").strip()
        if line in ("q", "quit"):
            print("\nStopped.", file=out)
            return False
        if actions and line.isdecimal() and 1 <= int(line) <= len(actions):
            line = actions[int(line) - 1]
        state, reward, terminated, truncated, info = env.step(line)
        total += float(reward)
        print("" if info["valid"] else "That is no action here. ", file=out, end="")
        print(f"Reward {float(reward):g}, {total:g} in all.", file=out)
        if terminated or truncated:
            won = bool(info["success"])
            print(f"\n{state}\n{'Solved.' if won else 'Out of steps.' if truncated else 'Lost.'}", file=out)
            return won


def _gymnasium(make: MakeEnv) -> str:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(make(), skip_render_check=True)
    return ""


def _info(make: MakeEnv) -> str:
    env = make()
    _, info = env.reset(seed=0)
    problem = _info_problem("reset", info)
    if not problem and not info["valid"]:
        problem = "reset: info['valid'] must be True"
    for action in _actions(env, 0, 20):
        if problem:
            break
        _, _, terminated, truncated, info = env.step(action)
        problem = _info_problem("step", info)
        if terminated or truncated:
            break
    return problem


def _info_problem(where: str, info: dict[str, Any]) -> str:
    for key, kind in _INFO.items():
        if key not in info:
            return f"{where}: info has no {key!r}"
        if not isinstance(info[key], kind):
            return f"{where}: info[{key!r}] must be {kind.__name__}, not {type(info[key]).__name__}"
    return ""


def _determinism(make: MakeEnv, seeds: int) -> str:
    one, two = make(), make()
    for seed in range(seeds):
        if one.reset(seed=seed) != two.reset(seed=seed):
            return f"seed {seed}: the first states or infos differ"
        for number, action in enumerate(_actions(one, seed, 30), 1):
            first, second = one.step(action), two.step(action)
            if first != second:
                return f"seed {seed}: they differ after move {number} ({action!r})"
            if first[2] or first[3]:
                break
    return ""


def _variety(make: MakeEnv) -> str:
    env = make()
    contents = {str(env.reset(seed=seed)[1].get("content")) for seed in range(20)}
    return "" if len(contents) > 1 else "20 seeds gave one and the same world"


def _nonsense(make: MakeEnv) -> str:
    env = make()
    before, _ = env.reset(seed=0)
    after, reward, terminated, _, info = env.step(_NONSENSE)
    if info.get("valid") is not False:
        return f"info['valid'] is {info.get('valid')!r} after the action {_NONSENSE!r}"
    if after != before or reward or terminated:
        return f"the action {_NONSENSE!r} changed the state, gave a reward or ended the episode"
    return ""


def _global_state(make: MakeEnv) -> str:
    import numpy as np

    before = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    env = make()
    env.reset(seed=0)
    for action in _actions(env, 0, 5):
        if any(env.step(action)[2:4]):
            break
    after = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    return "" if before == after else "reset or step changed the global state of random or numpy.random"


def _step_after_end(make: MakeEnv) -> str:
    from gymnasium.error import ResetNeeded

    env = make()
    for seed in range(10):
        env.reset(seed=seed)
        for action in _actions(env, seed, _MOVES):
            if any(env.step(action)[2:4]):
                try:
                    env.step(action)
                except ResetNeeded:
                    return ""
                return "step() after the end raised no gymnasium.error.ResetNeeded"
    return ""  # no random play ended: nothing to be seen


def _actions(env: TextEnv, seed: int, count: int) -> list[str]:
    """Random actions: of the listed ones, else of the action space, else nonsense."""
    draw = random.Random(seed)
    if env.actions:
        return [draw.choice(list(env.actions)) for _ in range(count)]
    space = getattr(env, "action_space", None)
    if space is None:
        return [_NONSENSE] * count
    space.seed(seed)
    return [str(space.sample()) for _ in range(count)]
