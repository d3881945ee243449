"""``spa`` in forked processes, which start at once because this one has imported everything; and what they left."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset  # noqa: F401 - imported here, once, as all that a stage imports
import torch
import transformers.models.llama.modeling_llama  # noqa: F401

import spa.evaluate.play
import spa.pipeline
import spa.rl.trainer
import spa.sft.selfplay
import spa.sft.stage2  # noqa: F401
from spa.cli import main
from spa.common.manifest import MANIFEST, damage
from spa.runs.metrics import read_metrics
from spa.runs.record import DONE, damaged_files, read_done

RUN = "run"  # the run folder, below a command's working directory
SMALL = [
    *("frozen_lake", "model.threads=1", "env.max_turns=2", "sampling.max_tokens_base=30", "sampling.batch_size=8"),
    *("selfplay.groups=6", "selfplay.group_size=2", "eval.worlds=6", "eval.samples=2", "eval.ks=[1,2]", "eval.bootstrap=20"),
    *("sft.epochs=1", "sft.batch_size=6", "sft.log_every=1", "sft.save_every=1", "sft.eval_every=2", "sft.eval_worlds=1"),
    *("ppo.steps=3", "ppo.groups=2", "ppo.group_size=2", "ppo.save_every=1", "ppo.keep_checkpoints=1", "ppo.val_every=2"),
    *("ppo.val_worlds=1", "ppo.warmup_steps=0", "ppo.use=best", "eval.world_model_worlds=1"),
]  # fmt: skip
STAGES = {
    "generate": ["generate"],
    "sft": ["sft"],
    "ppo": ["ppo", "--variant", "spa"],
    "eval": ["eval", "--variant", "spa"],
}
SPLIT = ["model.threads=2", "sampling.processes=2"]  # rollouts in two processes

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
_CLOCKS = re.compile(r"time|second")


class Child:
    """A command that runs in a session of its own; ``output`` is what it has printed, at its end."""

    output: str = ""

    def __init__(self, folder: Path, *argv: str, before: Callable[[], object] = lambda: None) -> None:
        """Starts ``spa ARGV`` in ``folder``, after ``before()`` in its process."""
        self.started = time.monotonic()
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _run(folder, argv, before, writer)
        os.close(writer)

    def wait(self, timeout: float = 300.0) -> int:
        """The exit code, or minus the signal that ended it."""
        while (ended := self.ended()) is None:
            if self.seconds() > timeout:
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        return ended

    def ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        os.set_blocking(self._reader, False)  # a fork that lives on keeps it open
        with suppress(BlockingIOError):
            while text := os.read(self._reader, 1 << 16):
                self.output += text.decode(errors="replace")
        os.close(self._reader)
        return os.waitstatus_to_exitcode(status)

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def left(self, patience: float = 10.0) -> list[int]:
        """Processes of its session that still live after ``patience`` seconds: they end those of a killed one themselves."""
        deadline = time.monotonic() + patience
        while living(self.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        return living(self.pid)


def _run(folder: Path, argv: Sequence[str], before: Callable[[], object], output: int) -> None:
    """The child: never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", buffering=1) for n in (1, 2))  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.argv = ["spa", *argv]
        before()
        code = main(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def out(*argv: str, resume: bool = False) -> list[str]:
    """The words of a quiet command that writes the folder ``run``."""
    return [*argv, "--out", RUN, "--quiet", *(["--resume"] if resume else [])]


def living(leader: int) -> list[int]:
    """The processes of a session that are no zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def on_operation(do: Callable[[int], object]) -> None:
    """Calls ``do(n)`` right before this process changes the file system for the n-th time; its forks do not count."""
    process, count = os.getpid(), 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in _CHANGES) and os.getpid() == process:
            count += 1
            do(count)

    sys.addaudithook(hook)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of a signal."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(caught and int(caught[1], 16) >> (number - 1) & 1)


def kill_at(number: int) -> None:
    """Kills this process right before its ``number``-th change of the file system."""
    on_operation(lambda n: os.kill(os.getpid(), signal.SIGKILL) if n == number else None)


def contents(run: Path) -> dict[str, Any]:
    """What a run folder holds, without clocks and without the record of its commands (``run.json``), by path."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir():
            found[name] = "folder"
        elif path.name == "metrics.jsonl":
            found[name] = [_timeless(record) for record in read_metrics(path)]
        elif path.name == DONE:
            found[name] = _timeless(json.loads(path.read_bytes()), "sha256", "files")
        elif path.suffix == ".pt":  # after a resumption pickle refers to equal strings in another way
            found[name] = _plain(torch.load(path, map_location="cpu", weights_only=True))
        elif path.name == MANIFEST:
            found[name] = {k: v for k, v in json.loads(path.read_bytes())["files"].items() if not k.endswith(".pt")}
        elif path.name == "run.json":
            found[name] = sorted({entry["command"] for entry in json.loads(path.read_bytes())["commands"]})
        else:
            found[name] = path.read_bytes()
    return found


def _plain(state: Any) -> Any:
    """Containers with bytes in place of tensors."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [_plain(value) for value in state]
    return (state.dtype, state.shape, state.numpy().tobytes()) if torch.is_tensor(state) else state


def _timeless(record: dict[str, Any], *more: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not _CLOCKS.search(key) and key not in more}


def damages(run: Path) -> list[str]:
    """Files that are not as the run's own records say."""
    stages = [path.parent for path in run.rglob(DONE)]
    lines = [line for stage in stages for line in damaged_files(stage, read_done(stage))]
    return lines + [line for path in run.rglob(MANIFEST) for line in damage(path.parent)]
