"""``check_world``: does a world keep the contract that training relies on?"""

from __future__ import annotations

import json
import math
import numbers
import os
import pickle  # a world that was just made # nosec B403
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium import Env

from spa.config.schema import AgentConfig
from spa.envs.actions import check_names
from spa.envs.adapters.guard import RandomGuard
from spa.envs.check_clock import SECONDS, Clock, Problem, check_type, fail_if, short
from spa.envs.check_markov import ignores_noise_seed, outcomes
from spa.envs.check_texts import CLOSE, NONSENSE, TAG, names_problem
from spa.envs.seeded import one_line

if TYPE_CHECKING:
    from spa.envs import TextEnv

MakeEnv = Callable[[], "TextEnv"]

_INFO: dict[str, type] = {"success": bool, "valid": bool, "effective": bool, "content": str}
_MOVES, _WAIT = 1_000, 10.0  # random moves, and their seconds, after which a world counts as one that never ends
TIMEOUT = 30.0


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


def check_world(make: MakeEnv, **kwargs: Any) -> list[Finding]:
    """The findings of ``each_finding``, which takes the same arguments; ValueError if ``make`` cannot be called."""
    if not callable(make):
        raise ValueError(f"make: a class, or a function such as lambda: make_env('sokoban'), not {make!r}")
    return list(each_finding(make, **kwargs))


def each_finding(
    make_unlimited: MakeEnv,
    *,
    seeds: int = 5,
    episodes: int = 200,
    name: str = "",
    settings: dict[str, Any] | None = None,
    timeout: float = TIMEOUT,
) -> Iterator[Finding]:
    """Checks everything that training relies on; yields an answer as soon as it is found.

    An exception that the world raises becomes a finding, in one line, and so does a call that does not return.

    Args:
        make_unlimited: makes a new instance.
        seeds: how many seeds to play in the questions about equality.
        episodes: how many random episodes to play in the question whether the state says enough.
        name, settings: what ``make_env`` takes to make it; without a name no other process is asked.
        timeout: seconds for a call of the world.
    """
    clock = Clock(timeout)

    def make() -> TextEnv:
        return clock.limit(clock.call("the constructor", make_unlimited))

    # A check raises Problem, or returns a note.
    checks: list[tuple[str, Callable[[], str | None]]] = [
        ("Gymnasium's check_env", lambda: _gymnasium(make)),
        ("info holds success, valid, effective and content", lambda: _info(make)),
        ("the world says which episodes are won", lambda: _success(make, seeds)),
        ("seeds and noise seeds up to 32 bits are taken", lambda: _seeds(make)),
        ("states, rewards and flags have their types", lambda: _types(make, seeds)),
        ("actions and symbols can be named in a prompt", lambda: _names(make)),
        ("two instances with the same seed are equal", lambda: _determinism(make, seeds)),
        ("another process gives the same states", lambda: _processes(make, seeds, name, settings or {}, clock.hung)),
        ("different seeds give different worlds", lambda: _variety(make)),
        ("reset() without a seed goes on", lambda: _continues(make)),
        ("reset() takes the option noise_seed", lambda: _noise_option(make)),
        ("content stays the same for an episode", lambda: _content(make, seeds)),
        ("content is the same in every state format", lambda: _formats(clock, seeds, name, settings or {})),
        ("nonsense is data: valid False, nothing changed", lambda: _nonsense(make)),
        ("the global random state is left alone", lambda: _global_state(make)),
        ("a finished or never reset episode refuses steps", lambda: _step_after_end(make)),
        ("it can be pickled", lambda: _pickle(make_unlimited, clock)),
        ("the state says enough to predict the next one", lambda: _predictable(make, episodes)),
        ("its states contain no tags of the responses", lambda: _without_tags(make, seeds)),
        ("planners can read its states", lambda: _readable(make, seeds)),
        ("random actions do not depend on the world", lambda: _blind(make, seeds)),
    ]
    begun = _finding("it can be made and reset(seed=..., options=...)", lambda: _starts(make))
    if begun.failed:  # so would every other question
        yield begun
        return
    for question, check in checks:
        clock.begin()
        yield _finding(question, check)


def _finding(question: str, check: Callable[[], str | None]) -> Finding:
    try:
        return Finding(question, note=check() or "")
    except Problem as problem:
        return Finding(question, str(problem), problem.warning)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # third-party code may raise anything, SystemExit included
        return Finding(question, one_line(error))


def _starts(make: MakeEnv) -> None:
    env = make()
    if type(env).step is Env.step:
        raise Problem("it has no step(action)")
    env.reset(seed=0, options={})


def _names(make: MakeEnv) -> None:
    env = make()
    env.reset(seed=0)
    problem = names_problem(env)
    fail_if(problem, problem)
    try:
        check_names(env.actions, AgentConfig().action_sep)
    except ValueError as error:
        raise Problem(str(error)) from error


def _gymnasium(make: MakeEnv) -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(make(), skip_render_check=True)


def _info(make: MakeEnv) -> None:
    env = make()
    _, info = env.reset(seed=0)
    _check_info("reset", info)
    fail_if(not info["valid"], "reset: info['valid'] must be True")
    for _, step in _steps(env, 0, 20):
        _check_info("step", step[4])


def _check_info(method: str, info: Any) -> None:
    check_type(info, dict, f"{method}: info")
    for key, kind in _INFO.items():
        fail_if(key not in info, f"{method}: info has no {key!r}")
        check_type(info[key], kind, f"{method}: info[{key!r}]")


def _success(make: MakeEnv, seeds: int) -> None:
    env = make()
    for seed in range(seeds):
        _, info = env.reset(seed=seed)
        fail_if(info.get("success"), f"seed {seed} begins won: there is nothing to play")
        list(_steps(env, seed, 100))
    problem = "no info['success']: an episode counts as won if it terminates with a positive reward; say it where that is wrong"
    fail_if(not getattr(env.unwrapped, "says_success", True), problem, warning=True)


def _seeds(make: MakeEnv) -> None:
    seed = 2**32 - 1
    try:
        make().reset(seed=seed, options={"noise_seed": seed})
    except Problem:
        raise
    except Exception as error:
        raise Problem(f"reset(seed={seed}, options={{'noise_seed': {seed}}}): {one_line(error)}") from error


def _types(make: MakeEnv, seeds: int) -> None:
    env = make()
    for seed in range(seeds):
        state, _ = env.reset(seed=seed)
        is_text = isinstance(state, str) and state.strip()
        fail_if(not is_text, f"reset gave the state {state!r}, which is empty or not text")
        for action, (state, reward, terminated, truncated, _) in _steps(env, seed, 30):
            after = f"after {short(action)}"
            check_type(state, str, f"{after}: state")
            fail_if(not state.strip(), f"{after}: the state is empty")
            check_type(terminated, bool, f"{after}: terminated")
            check_type(truncated, bool, f"{after}: truncated")
            is_number = not isinstance(reward, bool) and isinstance(reward, numbers.Real) and math.isfinite(reward)
            fail_if(not is_number, f"{after}: the reward must be a finite number, not {reward!r}")
            draws = getattr(env, "render_mode", None) == "rgb_array"
            fail_if(not draws and env.render() != state, f"{after}: render() and step() return different texts")


def _determinism(make: MakeEnv, seeds: int) -> None:
    one, two = make(), make()
    for seed in range(seeds):
        fail_if(one.reset(seed=seed) != two.reset(seed=seed), f"seed {seed}: the first states or infos differ")
        for number, (action, step) in enumerate(_steps(one, seed, 30), 1):
            fail_if(step != two.step(action), f"seed {seed}: they differ after move {number} ({short(action)})")
        again = one.reset(seed=seed)
        changed = again != two.reset(seed=seed) or again != make().reset(seed=seed)
        fail_if(changed, f"seed {seed}: an earlier episode changes the world")


def transcript(env: TextEnv, seeds: int) -> list[list[Any]]:
    """What happens in random episodes, as plain data."""
    lines: list[list[Any]] = []
    for seed in range(seeds):
        state, info = env.reset(seed=seed)
        lines.append([seed, "reset", state, str(info.get("content"))])
        for action, (state, reward, terminated, truncated, info) in _steps(env, seed, 20):
            lines.append([seed, action, state, float(reward), bool(terminated), bool(truncated), info.get("valid")])
    return lines


def _processes(make: MakeEnv, seeds: int, name: str, settings: dict[str, Any], hung: bool) -> str | None:
    if not name:
        return "skipped: the world has no name"
    if hung:
        return "skipped: a call did not return"
    ours = json.loads(json.dumps(transcript(make(), seeds)))
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
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise Problem(f"another process did not finish within {SECONDS} seconds") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise Problem(f"another process failed: {last[:300]}")
        theirs = json.loads(job.read_text(encoding="utf-8"))
    for one, two in zip(ours, theirs, strict=False):
        fail_if(one != two, f"seed {one[0]}: another process gives a different result after {short(one[1])}")
    fail_if(len(ours) != len(theirs), "another process plays episodes of different lengths")
    return None


def answer(path: str) -> None:
    """Plays what ``_processes`` asks for and leaves the transcript in the file of the question."""
    from spa.envs import make_env

    job = json.loads(Path(path).read_text(encoding="utf-8"))
    lines = transcript(make_env(job["name"], **job["settings"]), job["seeds"])
    Path(path).write_text(json.dumps(lines), encoding="utf-8")


def _variety(make: MakeEnv) -> str:
    env = make()
    contents = {str(env.reset(seed=seed)[1].get("content")) for seed in range(20)}
    fail_if(len(contents) == 1, "20 seeds gave the same world; to train on it, set env.disjoint=seed", warning=True)
    return f"{len(contents)} worlds of 20 seeds"


def _continues(make: MakeEnv) -> None:
    one, two = make(), make()
    worlds = []
    for env in (one, two):
        env.reset(seed=3)
        worlds.append([env.reset() for _ in range(10)])
    fail_if(worlds[0] != worlds[1], "after the same seed, reset() without one gives different worlds")
    by_seed = {str(one.reset(seed=seed)[1].get("content")) for seed in range(10)}
    without = {str(info.get("content")) for _, info in worlds[0]}
    fail_if(len(by_seed) > 1 and len(without) == 1, "reset() without a seed always gives the same world")


def _noise_option(make: MakeEnv) -> None:
    env = make()
    first = env.reset(seed=0)
    changed = any(env.reset(seed=0, options={"noise_seed": number}) != first for number in (1, 2, 1))
    fail_if(changed, "the option noise_seed changes the first state; it must change only later randomness")
    luck = "its noise ignores noise_seed: reseed it in reset(), or all episodes in a world share their luck"
    fail_if(can_sample(env) and ignores_noise_seed(make), luck, warning=True)


def _content(make: MakeEnv, seeds: int) -> None:
    env = make()
    for seed in range(seeds):
        _, info = env.reset(seed=seed)
        for action, step in _steps(env, seed, 30, first=NONSENSE[0]):
            changed = step[4].get("content") != info.get("content")
            fail_if(changed, f"seed {seed}: info['content'] changed after {short(action)}")


def _formats(clock: Clock, seeds: int, name: str, settings: dict[str, Any]) -> str:
    from spa.envs import make_env
    from spa.envs.base import STATE_FORMATS

    def contents(state_format: str) -> list[str] | None:
        """None: it does not have this format."""
        chosen = {**settings, "state_format": state_format}
        try:
            env = clock.limit(clock.call("the constructor", lambda: make_env(name, **chosen)))
            return [str(env.reset(seed=seed)[1].get("content")) for seed in range(seeds)]
        except Problem:
            raise
        except Exception:
            return None

    if not name:
        return "skipped: the world has no name"
    every = {state_format: contents(state_format) for state_format in STATE_FORMATS}
    found = {state_format: texts for state_format, texts in every.items() if texts is not None}
    first, *others = found or [""]
    for other in others:
        differs = f"info['content'] differs between {first!r} and {other!r}, so a world is in two splits"
        for seed, (one, two) in enumerate(zip(found[first], found[other], strict=True)):
            fail_if(one != two, f"seed {seed}: {differs}; leave out of it what the format adds")
    return f"{len(found) or 1} format{'' if len(found) < 2 else 's'}"


def _nonsense(make: MakeEnv) -> None:
    env, twin = make(), make()
    for text in NONSENSE:
        if text in env.actions:
            continue
        before, _ = env.reset(seed=0)
        twin.reset(seed=0)
        try:
            after, reward, terminated, truncated, info = env.step(text)
        except Problem:
            raise
        except Exception as error:
            raise Problem(f"the action {short(text)} raised {one_line(error)}") from error
        if info.get("valid") is not False and not env.actions:  # any text may be an answer
            continue
        fail_if(
            info.get("valid") is not False, f"info['valid'] is {info.get('valid')!r} after the action {short(text)}"
        )
        changed = after != before or reward or terminated or truncated or info.get("effective")
        fail_if(changed, f"the action {short(text)} changed the state, gave a reward or ended the episode")
        for action, step in _steps(env, 0, 20):  # nor may it change what comes later
            fail_if(step[:4] != twin.step(action)[:4], f"after the action {short(text)} later moves differ")


def _global_state(make: MakeEnv) -> None:
    import numpy as np

    def state() -> tuple[Any, Any]:
        return random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]

    played = []
    with RandomGuard():
        for number in range(4):
            random.seed(number)
            np.random.seed(number)
            before = state()
            played.append(transcript(make(), 2))
            fail_if(state() != before, "reset or step changed the global state of random or numpy.random")
    fail_if(played.count(played[0]) < len(played), "it depends on the global state of random or numpy.random")


def _step_after_end(make: MakeEnv) -> str | None:
    from gymnasium.error import ResetNeeded

    def refuses(action: str) -> bool:
        try:
            env.step(action)
        except ResetNeeded:
            return True
        return False

    env = make()
    refused = refuses(next(iter(env.actions), NONSENSE[0]))
    fail_if(not refused, "step() before the first reset() did not raise gymnasium.error.ResetNeeded")
    end, moves = time.monotonic() + _WAIT, 0
    for seed in range(3):
        env.reset(seed=seed)
        for action, step in _steps(env, seed, _MOVES - moves if can_sample(env) else 20):
            moves += 1
            if time.monotonic() > end:
                break
            if step[2] or step[3]:
                fail_if(not refuses(action), "step() after the end did not raise gymnasium.error.ResetNeeded")
                return None
    return "no random episode ended"


def _pickle(make: MakeEnv, clock: Clock) -> None:
    env = clock.call("the constructor", make)
    clock.call("reset", lambda: env.reset(seed=1))
    try:
        copy = clock.call("pickling", lambda: pickle.loads(pickle.dumps(env)))  # this process pickled it # nosec B301
    except Problem:
        raise
    except Exception as error:
        raise Problem(f"it cannot be sent to another process ({one_line(error)})", warning=True) from error
    copy = clock.limit(copy)
    for action, step in _steps(clock.limit(env), 1, 20):
        fail_if(step != copy.step(action), f"its copy behaves differently after {short(action)}")


def _predictable(make: MakeEnv, episodes: int) -> str:
    env = make()
    env.reset(seed=0)
    if not can_sample(env):
        raise Problem("skipped: it lists no actions and has no sample_action(rng) for random play", warning=True)
    answer = outcomes(make, episodes)
    fail_if(answer.kind not in ("certain", "unknown"), answer.text, warning=True)
    return answer.text


def _without_tags(make: MakeEnv, seeds: int) -> None:
    for seed, state in _states(make, seeds):
        tag = TAG.search(state)
        problem = f"seed {seed}: a state contains {tag and tag[0]!r}: stage 1 would drop its rows, write it otherwise"
        fail_if(tag, problem)


def _blind(make: MakeEnv, seeds: int) -> None:
    import numpy as np

    env, drawn = make(), set()
    for seed in range(seeds):
        env.reset(seed=seed)
        if can_sample(env):
            drawn.add(tuple(env.sample_action(np.random.default_rng(number)) for number in range(10)))
    problem = "sample_action(rng) draws others in other worlds: random play (selfplay.policy=random) asks a single world for all"
    fail_if(len(drawn) > 1, problem, warning=True)


def _readable(make: MakeEnv, seeds: int) -> None:
    for seed, state in _states(make, seeds):
        problem = f"seed {seed}: a state contains {CLOSE!r}, at which a planner stops reading an answer"
        fail_if(CLOSE in state, problem, warning=True)


def _states(make: MakeEnv, seeds: int) -> Iterator[tuple[int, str]]:
    """The states of an episode of each seed, random play, and the seed."""
    env = make()
    for seed in range(seeds):
        yield seed, env.reset(seed=seed)[0]
        yield from ((seed, step[0]) for _, step in _steps(env, seed, 30))


def can_sample(env: TextEnv) -> bool:
    """Whether the world has random actions."""
    import numpy as np

    try:
        env.sample_action(np.random.default_rng(0))
    except ValueError:
        return False
    return True


def _steps(env: TextEnv, seed: int, count: int, first: str | None = None) -> Iterator[tuple[str, Any]]:
    """Random actions and the results of ``step``, until the episode ends; nonsense actions where none can be sampled."""
    import numpy as np

    rng = np.random.default_rng(seed)
    sample = can_sample(env)
    for number in range(count):
        known = first if number == 0 and first is not None else None if sample else NONSENSE[0]
        action = env.sample_action(rng) if known is None else known
        step = env.step(action)
        yield action, step
        if step[2] or step[3]:
            return
