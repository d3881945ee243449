"""The ranks of a run: processes that run the same Python, know all episodes, and divide forward passes and playing.

Decisions are taken from numbers that every rank has, so all ranks take the same ones. Only the main rank (0) writes files.
Without ``join`` there is one rank, nothing is sent, and torch is not imported.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np

from spa.common.progress import set_quiet
from spa.common.signals import die_with_parent
from spa.config.schema import ScaleConfig

T = TypeVar("T")
Key = tuple[int, int]  # group, member

_rank, _world, _shards = 0, 1, 1
_timeout = 0.0
_place = ""  # stage and step, for messages
PLACES = "SPA_PLACES"  # the environment variable that names a folder for the places of all ranks (``launch.failure``)


def world() -> int:
    """The number of ranks."""
    return _world


def rank() -> int:
    return _rank


def is_main() -> bool:
    """Whether this rank writes files and messages."""
    return _rank == 0


def shards() -> int:
    """Ranks that a network's weights are divided among; with fewer than ``world()`` every such set holds a copy (HSDP)."""
    return _shards


def timeout() -> float:
    """Seconds that a rank waits for the others (``scale.timeout``)."""
    return _timeout


def under_torchrun() -> bool:
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


@contextmanager
def joined(config: ScaleConfig, device: str = "auto") -> Iterator[None]:
    """Joins the ranks that torchrun started; elsewhere does nothing. ``device``: ``model.device``."""
    global _rank, _world, _shards, _timeout
    if not under_torchrun():
        yield
        return
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    die_with_parent()  # else a rank would go on and hold the run's lock
    number = started()
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        raise ValueError(
            "torchrun --max-restarts is not supported: restarted ranks read stale addresses from torchrun's store and cannot join. "
            "Remove it and give the command again with --resume, as examples/scale/train.sbatch does, or use launcher=torchrun"
        )
    if torch.cuda.is_available() and device != "cpu":
        local = int(os.environ.get("LOCAL_RANK", 0))
        torch.cuda.set_device(local if torch.cuda.device_count() > 1 else 0)  # one: a scheduler shows each rank its own
    else:
        _give_memory_back()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and device != "cpu" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=config.timeout))
    except dist.DistError as error:
        raise ValueError(
            f"cannot join the other ranks at {os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT')} "
            f"({str(error).splitlines()[0]}); for one process unset RANK, WORLD_SIZE and MASTER_ADDR"
        ) from error
    _rank, _world, _shards = dist.get_rank(), number, config.shards or number
    _timeout = config.timeout
    if not is_main():
        set_quiet()
    yield
    dist.destroy_process_group()  # not after an error: others may be gone, and the message names this rank
    _rank, _world, _shards = 0, 1, 1


def started() -> int:
    """The number of processes that torchrun started, 1 without it.

    Raises:
        ValueError: its variables are no numbers.
    """
    if not under_torchrun():
        return 1
    try:
        int(os.environ["RANK"])
        return int(os.environ["WORLD_SIZE"])
    except ValueError:
        raise ValueError(
            f"RANK={os.environ['RANK']} and WORLD_SIZE={os.environ['WORLD_SIZE']} must be numbers, as torchrun sets them; for one "
            "process unset them"
        ) from None


def on_machine() -> int:
    """The number of ranks on this machine, which share its memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", started())) if under_torchrun() else 1


def _give_memory_back() -> None:
    """Weights are gathered and freed all the time, and glibc keeps freed blocks below a size that grows (dev/traps.md)."""
    import ctypes
    import sys

    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(-3, 2**20)  # M_MMAP_THRESHOLD: blocks of 1 MiB go back to the system when freed


def set_place(text: str) -> None:
    """Sets the stage and step that ``place`` names."""
    global _place
    _place = text
    if _world > 1 and PLACES in os.environ:
        with open(os.path.join(os.environ[PLACES], str(_rank)), "w", encoding="utf-8") as file:
            file.write(text)


def place() -> str:
    """``"rank 1, PPO step 3"``."""
    return f"rank {_rank}" + (f", {_place}" if _place else "")


def silent(seconds: float) -> str:
    """``"rank 2"``: the ranks that have not called this within ``seconds``, since they were killed, are stopped or hang."""
    import time

    from torch.distributed.distributed_c10d import _get_default_store

    try:
        store = _get_default_store()
        store.set(f"lost/{_rank}", "1")
        time.sleep(seconds)
        quiet = [str(number) for number in range(_world) if not store.check([f"lost/{number}"])]
    except (RuntimeError, ValueError):  # the store was lost, too; or no group was joined
        return ""
    return f"rank {', '.join(quiet)}" if quiet else ""


def gather(value: T) -> list[T]:
    """Every rank's value, in the order of ranks."""
    if _world == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * _world
    dist.all_gather_object(values, value)
    return values


def on_main(work: Callable[[], T]) -> T:
    """What ``work`` returns on the main rank; its exception is raised on all. The others wait."""
    if _world == 1:
        return work()
    import torch.distributed as dist

    outcome: list[Any] = [None, None]
    if is_main():
        try:
            outcome[0] = work()
        except Exception as error:
            outcome[1] = _portable(error)
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def _portable(error: Exception, prefix: str = "") -> Exception:
    """The exception without its cause, or its text where another rank could not make it of a text alone."""
    kind = type(error)
    try:
        return RuntimeError(f"{prefix}{error}") if "<locals>" in kind.__qualname__ else kind(f"{prefix}{error}")
    except Exception:
        return RuntimeError(f"{prefix}{error}")


def add(*sums: MutableMapping[str, float]) -> None:
    """Replaces each mapping's numbers by their sums over the ranks; a missing one counts as 0."""
    if _world == 1:
        return
    gathered = gather([dict(each) for each in sums])
    for number, totals in enumerate(sums):
        for part in gathered[_rank + 1 :] + gathered[:_rank]:
            for name in part[number]:
                totals.setdefault(name, 0.0)
        for name in totals:  # in the order of ranks, so that every rank has the same bits
            values = [part[number].get(name, 0.0) for part in gathered]
            finite = all(map(math.isfinite, values))  # fsum refuses inf - inf
            totals[name] = math.fsum(values) if finite else sum(values)


def not_finite(value: float) -> str:
    """``" on rank 1"`` for the ranks whose ``value`` is not finite; empty on a single rank."""
    bad = [str(number) for number, each in enumerate(gather(value)) if not math.isfinite(each)]
    return f" on rank {', '.join(bad)}" if bad and _world > 1 else ""


def passes(
    rows: Sequence[Sequence[int]], group: Callable[[Sequence[Sequence[int]]], list[list[int]]]
) -> list[tuple[list[int], bool]]:
    """This rank's forward passes over ``rows`` (token ids), and whether each counts.

    Ranks get about equally many tokens; rows with a common beginning stay together. All ranks have equally many passes, since
    each is a collective operation: those with fewer repeat a row that does not count.

    Args:
        group: divides rows into passes (indices).
    """
    if _world == 1:
        return [(indices, True) for indices in group(rows)]
    order = sorted(range(len(rows)), key=lambda i: list(rows[i]))
    lengths = np.array([len(rows[i]) for i in order])
    owners = (lengths.cumsum() - lengths / 2) * _world // lengths.sum()
    parts = [[order[i] for i in np.flatnonzero(owners == number)] for number in range(_world)]
    divided = [[[part[i] for i in each] for each in group([rows[i] for i in part])] if part else [] for part in parts]
    spare = (order[:1], False)
    return [(indices, True) for indices in divided[_rank]] + [spare] * (max(map(len, divided)) - len(divided[_rank]))


def play_divided(play: Callable[[Container[Key]], list[T]], skip: Container[Key]) -> list[T]:
    """Episodes in order: rank r plays groups r, r + world, ..., and all get all.

    Args:
        play: plays all episodes but the (group, member) it is given.

    Raises: what ``play`` raises on any rank, naming that rank.
    """
    if _world == 1:
        return play(skip)
    episodes: list[T] = []
    failed: Exception | None = None
    try:
        episodes = play(_Others(skip))
    except Exception as error:
        failed = _portable(error, f"{place()}: ")
    shares = gather((episodes, failed))
    for _, problem in shares:
        if problem is not None:
            raise problem
    played: list[Any] = [episode for part, _ in shares for episode in part]
    return sorted(played, key=lambda episode: (episode.group, episode.member))


class _Others:
    """The episodes that this rank does not play."""

    def __init__(self, skip: Container[Key]) -> None:
        self.skip = skip

    def __contains__(self, key: object) -> bool:
        return key[0] % _world != _rank or key in self.skip  # type: ignore[index]


def shard(*networks: Any, precision: str = "float32") -> None:
    """Divides networks among the ranks, in place; None and what is divided already stays."""
    if _world == 1:
        return
    from spa.scale import fsdp

    for network in networks:
        if network is not None:
            fsdp.shard(network, precision=precision)


def copy_weights(network: Any, state: Mapping[str, Any]) -> None:
    """Copies whole tensors into the parameters and buffers of the same names, sharded or not.

    Raises:
        ValueError: ``state`` has a name or shape that the network has not.
    """
    import torch

    targets = dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers())
    wrong = [name for name, value in state.items() if name not in targets or targets[name].shape != value.shape]
    if wrong:
        raise ValueError(f"the checkpoint's {wrong[0]} is not of this model")
    if _world > 1:
        from spa.scale.fsdp import like

        state = {name: like(value, targets[name]) for name, value in state.items()}
    with torch.no_grad():
        for name, value in state.items():
            targets[name].copy_(value)


def load_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """Loads an optimizer's whole state, as one process saves it; sharded parameters get their parts."""
    optimizer.load_state_dict(state)
    if _world == 1:
        return
    from spa.scale.fsdp import like

    for parameter, values in optimizer.state.items():
        values.update({name: like(value, parameter) for name, value in values.items() if name != "step"})


def whole(*networks: Any) -> AbstractContextManager[None]:
    """Context in which every rank has all weights of sharded networks; forward passes in it send nothing."""
    if _world == 1:
        return nullcontext()
    from spa.scale.fsdp import unsharded

    return unsharded([network for network in networks if network is not None])
