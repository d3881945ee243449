"""Ranks placed by Ray Train: each of its workers starts the command as torchrun would, in a process that ends with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from spa.config.schema import Config
from spa.scale import launch, ranks


def ray_train(cfg: Config, words: Sequence[str], folder: Path) -> None:
    """``launch.start`` on the Ray cluster of ``RAY_ADDRESS``, else of this machine, once; waits for room on its nodes.

    All nodes see this working directory, ``folder`` and its parent. Ray writes a few bytes beside ``folder`` and they are removed.

    Raises:
        Lost: a rank, a worker or a node was lost.
        ValueError: no extra ``ray``, no number of ranks, or what a rank recorded.
    """
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError as error:
        raise ValueError(f"launcher=ray needs the extra ray: pip install 'spa-agent[ray]' ({error})") from error
    if not ray.is_initialized():
        ray.init(logging_level="WARNING")
    gpus = int(ray.cluster_resources().get("GPU", 0))
    storage, name = folder.resolve().parent, f".ray-{uuid4().hex}"
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"words": list(words), "cwd": os.getcwd()},
        torch_config=TorchConfig(backend="gloo"),  # of the workers; the ranks join a group of their own
        scaling_config=ScalingConfig(num_workers=launch.count_of(cfg, gpus), use_gpu=gpus > 0),
        # launch.start starts again, but not after a user's mistake
        run_config=RunConfig(storage_path=str(storage), name=name, failure_config=FailureConfig(max_failures=0)),
    )
    try:
        trainer.fit()
    except WorkerGroupError as error:
        failures = sorted(error.worker_failures.items())
        said = [each for _, each in failures if isinstance(each, ValueError)]
        dead = [number for number, each in failures if not isinstance(each, (ValueError, launch.Lost))]
        if dead and not said:
            raise launch.Lost(f"rank {dead[0]} was lost with its worker or node") from None
        raise (said or [each for _, each in failures])[0] from None
    finally:
        shutil.rmtree(storage / name, ignore_errors=True)


def _worker(job: dict[str, Any]) -> None:
    """Runs one rank, in a process of its own: signals, limits of time and messages are then those of ``launcher=torchrun``.

    Raises:
        Lost: it was killed, or lost another one.
        ValueError: what it recorded.
    """
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    number = get_context().get_world_rank()
    # As with torchrun the ranks meet in a store outside them, which a rank that is stopped does not stop.
    store = TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False) if number == 0 else None
    port = broadcast_from_rank_zero(store.port if store else None)
    with TemporaryDirectory() as folder:
        places, file = Path(folder), Path(folder, "error.json")
        meeting = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "ray"}
        environment = {**os.environ, **meeting, "TORCHELASTIC_ERROR_FILE": str(file), ranks.PLACES: folder}
        command = [sys.executable, "-m", "spa", *job["words"]]
        code = subprocess.run(command, env=environment, cwd=job["cwd"]).returncode
        if code:
            message = json.loads(file.read_bytes())["message"] if file.is_file() else ""
            raise launch.failure(number, code, message, places)
