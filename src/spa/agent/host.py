"""Where the worlds of episodes live: in this process, or each in one of its own. Imports no torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from spa.agent.task import Task
from spa.agent.worlds import content_of
from spa.common.progress import leave_to_parent
from spa.common.signals import die_with_parent
from spa.engines.processes import can_fork, start_fork
from spa.envs.checked import Step, WorldError, guarded

T = TypeVar("T")
Key = TypeVar("Key")

_GRACE = 2.0  # seconds that a process gets beyond its world's limit


class Started(NamedTuple):
    """A world after ``reset``: its state, the digest of its content, the task's header for it and its actions."""

    state: str
    content: str
    header: str
    actions: tuple[str, ...]


class Host(Protocol):
    """Holds one world at a time; whatever goes wrong with the world is data or a ``WorldError``."""

    def start(self, seed: int, noise_seed: int) -> Started:
        """Makes and resets a world. Raises ``WorldError``."""
        ...

    def run(self, actions: Sequence[str], last: bool) -> tuple[list[Step], str]:
        """Executes actions up to the world's end. Closes the world then, after a failure, and if ``last``.

        Returns:
            the steps, with plain values in ``info``, and what went wrong ("" if nothing).
        """
        ...

    def close(self) -> None:
        """Gives up the world of an unfinished episode; the host can start another. Raises nothing."""
        ...


class LocalHost:
    """A world in this process: ``env``."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.env = task.make_env()

    def start(self, seed: int, noise_seed: int) -> Started:
        self.env = env = self.task.make_env()
        try:
            state, info = env.reset(seed=seed, options={"noise_seed": noise_seed})
            content = content_of(state, info)
            return Started(state, content, *guarded(lambda: (self.task.header(env), tuple(env.actions)), "prompt"))
        except WorldError:
            self.close()
            raise

    def run(self, actions: Sequence[str], last: bool) -> tuple[list[Step], str]:
        steps: list[Step] = []
        try:
            for action in actions:
                step = self.env.step(action)
                plain = {key: value for key, value in step.info.items() if isinstance(value, (bool, int, float, str))}
                steps.append(step._replace(info=plain))
                if step.terminated or step.truncated:
                    last = True
                    break
        except WorldError as error:
            self.close()
            return steps, str(error)
        return steps, self._closed() if last else ""

    def close(self) -> None:
        self._closed()

    def _closed(self) -> str:
        """Closes the world; returns what went wrong."""
        try:
            self.env.close()
        except WorldError as error:
            return str(error)
        return ""


class ProcessHost:
    """A world in a process of its own, forked from this one and killed if it does not answer in time."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._process: Any = None
        self._pipe: Connection | None = None

    def ready(self) -> None:
        """Forks the process if there is none: best done where no other thread runs."""
        if self._process is not None and self._process.is_alive():
            return
        self.kill()
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_host, args=(self.task, theirs), daemon=True)
        start_fork(self._process)
        theirs.close()

    def start(self, seed: int, noise_seed: int) -> Started:
        self.ready()
        started, failure = self._ask(3, "start", seed, noise_seed)
        if failure:
            raise WorldError(failure)
        return Started(*started)

    def run(self, actions: Sequence[str], last: bool) -> tuple[list[Step], str]:
        result, failure = self._ask(len(actions) + 1, "run", list(actions), last)
        return ([], failure) if failure else result

    def close(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._ask(1, "close")

    def kill(self) -> None:
        """Ends the process and those that its world has started. After Ctrl-C two threads may do it at once."""
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if process is not None:
            with suppress(ProcessLookupError):  # it has ended, or not yet begun
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
        if pipe is not None:
            pipe.close()

    def _ask(self, calls: int, *message: Any) -> Any:
        """The process's answer to a message for which it makes so many calls of the world; result and failure."""
        process, pipe = self._process, self._pipe
        assert pipe is not None, "start comes first"
        limit = self.task.env.step_timeout
        try:
            pipe.send(message)
            if _wait(pipe, process, calls * limit + _GRACE if limit else None):
                if pipe.poll():
                    return pipe.recv()
                raise EOFError
            failure = (
                f"its process gave no answer within {calls} times env.step_timeout={limit:g} seconds and was killed"
            )
        except (EOFError, OSError):
            process.join(_GRACE)
            failure = f"its process died (exit code {process.exitcode})"
        self.kill()
        return None, f"{message[0]}: {failure}"


def _wait(pipe: Connection, process: Any, seconds: float | None) -> bool:
    """Whether there is an answer within ``seconds``, or the process has ended.

    Neither the pipe's end nor the process's sentinel tells of that while one that the world has started holds copies of both.
    """
    try:
        ended = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # this system has none
        ended = os.dup(process.sentinel)
    try:
        return bool(wait([pipe, ended], seconds))
    finally:
        os.close(ended)


def _host(task: Task, pipe: Connection) -> None:
    """Serves a ``ProcessHost`` until it closes the pipe."""
    os.setsid()  # a group of its own, which ``kill`` ends
    die_with_parent()
    leave_to_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    host = LocalHost(task)
    while True:
        try:
            method, *arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((getattr(host, method)(*arguments), ""))
        except WorldError as error:
            pipe.send((None, str(error)))


class Hosts:
    """The hosts of a rollout: with ``env.processes`` as many processes, and a thread for each that waits for it.

    Attributes:
        threads: None where all worlds are in this process.
    """

    def __init__(self, task: Task, most: int) -> None:
        count = min(task.env.processes, most) if can_fork() else 0
        self.task = task
        self.processes = [ProcessHost(task) for _ in range(count)]
        self.threads = ThreadPoolExecutor(count) if count else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        for host in self.processes:
            host.kill()
        if self.threads:
            self.threads.shutdown()

    def waves(self, keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
        """The keys of episodes, as many at a time as there are hosts."""
        size = len(self.processes) or max(1, len(keys))
        return (keys[start : start + size] for start in range(0, len(keys), size))

    def start(self, start: Callable[[Key, Host], T], wave: Sequence[Key]) -> list[T]:
        """``start(key, host)`` for every key of a wave, concurrently where there are processes."""
        if not self.threads:
            return [start(key, LocalHost(self.task)) for key in wave]
        for host in self.processes:
            host.ready()
        return list(self.threads.map(start, wave, self.processes))
