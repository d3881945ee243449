"""Whether a world keeps the contract: ``check_world`` asks everything that training relies on."""

from __future__ import annotations

import json
import math
import numbers
import os
import pickle
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spa.envs.adapters.guard import RandomGuard
from spa.envs.seeded import one_line

if TYPE_CHECKING:
    from spa.envs import TextEnv

MakeEnv = Callable[[], "TextEnv"]

_INFO: dict[str, type] = {"success": bool, "valid": bool, "effective": bool, "content": str}
# What a model may write instead of an action.
_NONSENSE = (
    "no such action \\1 || ?",
    "",
    " \n\t ",
    "%s {0} {x!r} $(x) `x`",
    "<answer>]]}}</answer>",
    "\x00\x1b[31m\ud800\u202e",
    "\u0663 \u2167 \U0001d7dc \u2705 e\u0301" * 3,
    "-1",
    "9" * 5000,
    "([{" * 7000,
    "None",
)
_MOVES = 1_000  # random moves after which a world that has not ended is let be
_SECONDS = 120  # until another process counts as hanging


@dataclass(frozen=True)
class Finding:
    """One question about a world and its answer.

    Attributes:
        problem: what is wrong; empty where all is well.
        warning: the problem breaks nothing, but is worth knowing.
        note: what was seen, where all is well.
    """

    question: str
    problem: str = ""
    warning: bool = False
    note: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem

    @property
    def failed(self) -> bool:
        return bool(self.problem) and not self.warning

    def line(self) -> str:
        """The finding in one line of text."""
        if self.ok:
            return f"ok      {self.question}" + (f" ({self.note})" if self.note else "")
        return f"{'warning' if self.warning else 'FAILED '} {self.question}: {self.problem}"


class _Said(NamedTuple):
    problem: str = ""
    warning: bool = False
    note: str = ""


def check_world(
    make: MakeEnv, *, seeds: int = 5, episodes: int = 200, name: str = "", settings: dict[str, Any] | None = None
) -> list[Finding]:
    """Asks a world everything that training relies on.

    Whatever the world raises is a finding, in one line.

    Args:
        make: makes a new instance.
        seeds: how many seeds to play in the questions about equality.
        episodes: how many random episodes to play in the question whether the state says enough.
        name, settings: what ``make_env`` takes to make it; without a name no other process is asked.
    """
    checks: list[tuple[str, Callable[[], str | _Said]]] = [
        ("Gymnasium's check_env", lambda: _gymnasium(make)),
        ("info holds success, valid, effective and content", lambda: _info(make)),
        ("states, rewards and flags have their types", lambda: _types(make, seeds)),
        ("two instances with the same seed are equal", lambda: _determinism(make, seeds)),
        ("another process gives the same states", lambda: _processes(make, seeds, name, settings or {})),
        ("different seeds give different worlds", lambda: _variety(make)),
        ("reset() without a seed goes on", lambda: _continues(make)),
        ("reset() takes the option noise_seed", lambda: _noise_option(make)),
        ("content stays the same for an episode", lambda: _content(make, seeds)),
        ("nonsense is data: valid False, nothing changed", lambda: _nonsense(make)),
        ("the global random state is left alone", lambda: _global_state(make)),
        ("a finished or never reset episode refuses steps", lambda: _step_after_end(make)),
        ("it can be pickled", lambda: _pickle(make)),
        ("the state says enough to predict the next one", lambda: _predictable(make, episodes)),
    ]
    findings = []
    for question, check in checks:
        try:
            said = check()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a stranger's world raises (SystemExit, too) is a finding
            said = one_line(error)
        findings.append(Finding(question, *((said,) if isinstance(said, str) else said)))
    return findings


def _gymnasium(make: MakeEnv) -> str:
    from gymnasium.spaces import Text
    from gymnasium.utils.env_checker import check_env

    from spa.envs import AdaptedEnv

    env = make()
    if isinstance(env, AdaptedEnv):  # its spaces are guesses: let them hold what it says
        state, _ = env.reset(seed=0)
        letters = frozenset(state) | frozenset(map(chr, range(32, 127))) | frozenset("\n\t")
        for action in _actions(env, 0, 50):
            state, _, terminated, truncated, _ = env.step(action)
            letters |= frozenset(state)
            if terminated or truncated:
                break
        env.observation_space = Text(100_000, min_length=0, charset=letters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(env, skip_render_check=True)
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


def _info_problem(where: str, info: Any) -> str:
    if not isinstance(info, dict):
        return f"{where}: info must be a dict, not {type(info).__name__}"
    for key, kind in _INFO.items():
        if key not in info:
            return f"{where}: info has no {key!r}"
        if not isinstance(info[key], kind):
            return f"{where}: info[{key!r}] must be {kind.__name__}, not {type(info[key]).__name__}"
    return ""


def _types(make: MakeEnv, seeds: int) -> str:
    env = make()
    for seed in range(seeds):
        state, _ = env.reset(seed=seed)
        if not isinstance(state, str) or not state.strip():
            return f"reset gave the state {state!r}, which is no text"
        for action in _actions(env, seed, 30):
            state, reward, terminated, truncated, _ = env.step(action)
            for what, value, kind in (
                ("state", state, str),
                ("terminated", terminated, bool),
                ("truncated", truncated, bool),
            ):
                if not isinstance(value, kind):
                    return f"{what} must be {kind.__name__}, not {type(value).__name__}, after {_short(action)}"
            if isinstance(reward, bool) or not isinstance(reward, numbers.Real) or not math.isfinite(reward):
                return f"the reward after {_short(action)} is {reward!r}; it must be a finite number"
            if getattr(env, "render_mode", None) != "rgb_array" and env.render() != state:
                return f"render() gives another text than step() after {_short(action)}"
            if terminated or truncated:
                break
    return ""


def _determinism(make: MakeEnv, seeds: int) -> str:
    one, two = make(), make()
    for seed in range(seeds):
        if one.reset(seed=seed) != two.reset(seed=seed):
            return f"seed {seed}: the first states or infos differ"
        for number, action in enumerate(_actions(one, seed, 30), 1):
            first, second = one.step(action), two.step(action)
            if first != second:
                return f"seed {seed}: they differ after move {number} ({_short(action)})"
            if first[2] or first[3]:
                break
        if one.reset(seed=seed) != two.reset(seed=seed) or one.reset(seed=seed) != make().reset(seed=seed):
            return f"seed {seed}: what was played before changes the world"
    return ""


def transcript(env: TextEnv, seeds: int) -> list[list[Any]]:
    """What happens in random episodes, as plain data."""
    lines: list[list[Any]] = []
    for seed in range(seeds):
        state, info = env.reset(seed=seed)
        lines.append([seed, "reset", state, str(info.get("content"))])
        for action in _actions(env, seed, 20):
            state, reward, terminated, truncated, info = env.step(action)
            lines.append([seed, action, state, float(reward), bool(terminated), bool(truncated), info.get("valid")])
            if terminated or truncated:
                break
    return lines


def _processes(make: MakeEnv, seeds: int, name: str, settings: dict[str, Any]) -> _Said:
    if not name:
        return _Said(note="not asked: it has no name")
    ours = transcript(make(), seeds)
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({"name": name, "settings": settings, "seeds": seeds}), encoding="utf-8")
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            done = subprocess.run(
                [sys.executable, "-c", f"from {__name__} import answer; answer({str(job)!r})"],
                env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return _Said(f"another process gave no answer within {_SECONDS} seconds")
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            return _Said(f"another process failed: {last[:300]}")
        theirs = json.loads(job.read_text(encoding="utf-8"))
    for one, two in zip(json.loads(json.dumps(ours)), theirs, strict=False):
        if one != two:
            return _Said(f"seed {one[0]}: another process sees something else after {_short(one[1])}")
    return _Said("" if len(ours) == len(theirs) else "another process plays episodes of another length")


def answer(path: str) -> None:
    """Plays what ``_processes`` asks for and leaves the transcript in the file of the question."""
    from spa.envs import make_env

    job = json.loads(Path(path).read_text(encoding="utf-8"))
    lines = transcript(make_env(job["name"], **job["settings"]), job["seeds"])
    Path(path).write_text(json.dumps(lines), encoding="utf-8")


def _variety(make: MakeEnv) -> _Said:
    env = make()
    contents = {str(env.reset(seed=seed)[1].get("content")) for seed in range(20)}
    if len(contents) == 1:
        return _Said("20 seeds gave one and the same world; training on it needs env.disjoint=seed", warning=True)
    return _Said(note=f"{len(contents)} worlds of 20 seeds")


def _continues(make: MakeEnv) -> str:
    one, two = make(), make()
    worlds = []
    for env in (one, two):
        env.reset(seed=3)
        worlds.append([env.reset() for _ in range(10)])
    if worlds[0] != worlds[1]:
        return "after the same seed, reset() without one gives different worlds"
    several = {str(one.reset(seed=seed)[1].get("content")) for seed in range(10)}
    if len(several) > 1 and len({str(info.get("content")) for _, info in worlds[0]}) == 1:
        return "reset() without a seed gives the same world over and over"
    return ""


def _noise_option(make: MakeEnv) -> str:
    env = make()
    plain = env.reset(seed=0)
    given = [env.reset(seed=0, options={"noise_seed": number}) for number in (1, 2, 1)]
    if any(one != plain for one in given):
        return "the option noise_seed changes the first state; it is for what is random after it"
    return ""


def _content(make: MakeEnv, seeds: int) -> str:
    env = make()
    for seed in range(seeds):
        _, info = env.reset(seed=seed)
        for action in (_NONSENSE[0], *_actions(env, seed, 30)):
            _, _, terminated, truncated, later = env.step(action)
            if later.get("content") != info.get("content"):
                return f"seed {seed}: info['content'] changed after {_short(action)}"
            if terminated or truncated:
                break
    return ""


def _nonsense(make: MakeEnv) -> str:
    env, twin = make(), make()
    free = not env.actions
    for text in _NONSENSE:
        if text in env.actions:
            continue
        before, _ = env.reset(seed=0)
        twin.reset(seed=0)
        try:
            after, reward, terminated, truncated, info = env.step(text)
        except Exception as error:
            return f"the action {_short(text)} raised {one_line(error)}"
        if info.get("valid") is not False:
            if free:  # any text may be an answer
                continue
            return f"info['valid'] is {info.get('valid')!r} after the action {_short(text)}"
        if after != before or reward or terminated or truncated or info.get("effective"):
            return f"the action {_short(text)} changed the state, gave a reward or ended the episode"
        for action in _actions(env, 0, 20):  # nor may it change what comes later
            one, two = env.step(action), twin.step(action)
            if one[:4] != two[:4]:
                return f"after the action {_short(text)} the world goes on differently"
            if one[2] or one[3]:
                break
    return ""


def _global_state(make: MakeEnv) -> str:
    import numpy as np

    def play() -> list[list[Any]]:
        return transcript(make(), 2)

    with RandomGuard():
        played = []
        for number in range(4):
            random.seed(number)
            np.random.seed(number)
            before = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
            played.append(play())
            after = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
            if before != after:
                return "reset or step changed the global state of random or numpy.random"
        return (
            "" if played.count(played[0]) == len(played) else "it depends on the global state of random or numpy.random"
        )


def _step_after_end(make: MakeEnv) -> _Said:
    from gymnasium.error import ResetNeeded

    env = make()
    try:
        env.step(next(iter(env.actions), _NONSENSE[0]))
        return _Said("step() before the first reset() raised no gymnasium.error.ResetNeeded")
    except ResetNeeded:
        pass
    for seed in range(3):
        env.reset(seed=seed)
        for action in _actions(env, seed, _MOVES if _can_sample(env) else 20):
            if any(env.step(action)[2:4]):
                try:
                    env.step(action)
                except ResetNeeded:
                    return _Said()
                return _Said("step() after the end raised no gymnasium.error.ResetNeeded")
    return _Said(note="no random episode ended")


def _pickle(make: MakeEnv) -> _Said:
    env = make()
    env.reset(seed=1)
    try:
        copy = pickle.loads(pickle.dumps(env))
    except Exception as error:
        return _Said(f"it cannot be sent to another process ({one_line(error)})", warning=True)
    for action in _actions(env, 1, 20):
        one, two = env.step(action), copy.step(action)
        if one != two:
            return _Said(f"its copy goes on differently after {_short(action)}")
        if one[2] or one[3]:
            break
    return _Said()


def _predictable(make: MakeEnv, episodes: int) -> _Said:
    from spa.envs.check_markov import explore

    env = make()
    if not _can_sample(env):
        return _Said(
            "not asked: it lists no actions and has no sample_action(rng), so nothing plays it at random", warning=True
        )
    return _Said(*explore(make, episodes))


def _can_sample(env: TextEnv) -> bool:
    import numpy as np

    try:
        env.sample_action(np.random.default_rng(0))
    except ValueError:
        return False
    return True


def _actions(env: TextEnv, seed: int, count: int) -> Iterator[str]:
    """Random actions; nonsense where the world cannot say what there is to do."""
    import numpy as np

    rng = np.random.default_rng(seed)
    sample = _can_sample(env)
    for _ in range(count):
        yield env.sample_action(rng) if sample else _NONSENSE[0]


def _short(text: Any) -> str:
    """A text as it may be printed."""
    shown = ascii(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
