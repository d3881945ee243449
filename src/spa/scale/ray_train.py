"""Ranks placed by Ray Train: each of its workers starts the command as torchrun would, in a process that ends with it."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn
from uuid import uuid4

from spa.common.files import atomic_write
from spa.common.progress import note
from spa.common.signals import die_with_parent
from spa.config.schema import Config
from spa.scale import launch, ranks

_FAILED = "failed.json"


def ray_train(cfg: Config, words: Sequence[str], folder: Path) -> None:
    """``launch.start`` on the Ray cluster of ``RAY_ADDRESS``, else of this machine, once; waits for room on its nodes.

    Ray handles signals in its own way, so it runs in another process. All nodes see this working directory, ``folder`` and its
    parent. A few bytes are written beside ``folder`` and removed.

    Raises:
        Lost: a rank, a worker or a node was lost.
        ValueError: no extra ``ray``, no cluster, no number of ranks, or what a rank recorded.
        KeyboardInterrupt: as ``launch.start``.
    """
    shared = folder.resolve().parent / f".ray-{uuid4().hex}"
    process = multiprocessing.get_context("spawn").Process(target=_place, args=(cfg, list(words), shared))
    process.start()
    try:
        process.join()
        if (shared / _FAILED).is_file():
            failed = json.loads((shared / _FAILED).read_bytes())
            raise (launch.Lost if failed["lost"] else ValueError)(failed["message"])
        if process.exitcode:
            raise ValueError(f"launcher=ray: the process that uses Ray ended with code {process.exitcode}")
    finally:
        process.terminate()
        process.join(launch.END)
        process.kill()
        shutil.rmtree(shared, ignore_errors=True)


def _place(cfg: Config, words: Sequence[str], shared: Path) -> None:
    """Runs the ranks until they end, in a process of its own; a failure is left in ``shared``."""
    die_with_parent()
    os.setsid()  # Ctrl-C is the parent's
    try:
        _run(cfg, words, shared)
    except (ValueError, launch.Lost) as error:
        if not (shared / _FAILED).is_file():
            _leave(error, shared)


def _run(cfg: Config, words: Sequence[str], shared: Path) -> None:
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError as error:
        raise ValueError(f"launcher=ray needs the extra ray: pip install 'spa-agent[ray]' ({error})") from error

    def end(*_: object) -> NoReturn:
        ray.shutdown()
        os._exit(0)

    _join()
    signal.signal(signal.SIGTERM, end)  # Ray's aborts the process
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    kind = "GPU" if gpus and cfg.model.device != "cpu" else "CPU"
    count, there = launch.count_of(cfg, gpus), resources.get(kind, 0)
    if there < count:
        note(f"waiting for {count} {kind}s: the Ray cluster has {there:g}")
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"words": list(words), "cwd": os.getcwd(), "shared": str(shared)},
        torch_config=TorchConfig(backend="gloo"),  # of the workers; the ranks join a group of their own
        scaling_config=ScalingConfig(num_workers=count, use_gpu=kind == "GPU"),
        # launch.start starts again, but not after a user's mistake
        run_config=RunConfig(
            storage_path=str(shared.parent), name=shared.name, failure_config=FailureConfig(max_failures=0)
        ),
    )
    try:
        trainer.fit()
    except WorkerGroupError as error:
        raise launch.Lost(f"rank {min(error.worker_failures)} was lost with its worker or node") from None


def _join() -> None:
    """Joins the cluster of ``RAY_ADDRESS``. Raises ValueError if there is none."""
    import ray

    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit() and "/" not in host:  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(logging_level="WARNING")
    except (OSError, RuntimeError) as error:
        where = f"RAY_ADDRESS={address}" if address else "of this machine"
        raise ValueError(f"launcher=ray cannot join the Ray cluster {where}: {error}") from None


def _leave(error: Exception, shared: Path) -> None:
    """Leaves what failed for the process that started the ranks."""
    record = {"message": str(error), "lost": isinstance(error, launch.Lost)}
    atomic_write(shared / _FAILED, json.dumps(record))


def _worker(job: dict[str, Any]) -> None:
    """Runs one rank, in a process of its own: signals, limits of time and messages are then those of ``launcher=torchrun``.

    The first rank that fails leaves a file and ends the others: raising here, Ray would print tracebacks.
    """
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    number = get_context().get_world_rank()
    # As with torchrun the ranks meet in a store outside them, which a rank that is stopped does not stop.
    host, main = os.environ["MASTER_ADDR"], number == 0
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False) if main else None
    port = broadcast_from_rank_zero(store.port if store else None)
    store = store or TCPStore(host, port, is_master=False)
    with TemporaryDirectory() as folder:
        places, file = Path(folder), Path(folder, "error.json")
        meeting = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "ray"}
        environment = {**os.environ, **meeting, "TORCHELASTIC_ERROR_FILE": str(file), ranks.PLACES: folder}
        command = [sys.executable, "-m", "spa", *job["words"]]
        with subprocess.Popen(command, env=environment, cwd=job["cwd"]) as rank:
            while (code := rank.poll()) is None and not store.check(["failed"]):
                time.sleep(0.2)
            if code is None:
                rank.terminate()
                try:
                    rank.wait(launch.END)
                except subprocess.TimeoutExpired:
                    rank.kill()
            elif code and store.add("failed", 1) == 1:
                message = json.loads(file.read_bytes())["message"] if file.is_file() else ""
                _leave(launch.failure(number, code, message, places), Path(job["shared"]))
    store.add("ended", 1)
    while main and store.add("ended", 0) < get_context().get_world_size():  # the others still ask this store
        time.sleep(0.2)
