"""Starts a command again in several ranks (torchrun's elastic agent) and reports how they ended."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from spa.common.signals import Terminated
from spa.config.schema import Config, VariantConfig
from spa.scale import ranks

_GRACE = 3.0  # seconds that a rank which lost another waits to be ended, so that the other's error comes first
_END = 10  # seconds between SIGTERM and SIGKILL of the ranks that are left


def needed(cfg: Config) -> bool:
    """Whether the ranks are still to be started."""
    return cfg.launcher == "torchrun" and not ranks.under_torchrun()


def check(cfg: Config, variants: Sequence[VariantConfig]) -> None:
    """Checks what several ranks cannot do.

    Raises:
        ValueError: a setting that only one process supports.
    """
    if cfg.launcher == "local" and ranks.world() == 1:
        return
    if ranks.world() == 1:
        raise ValueError("launcher=torchrun is for commands such as `spa run`; from Python use launcher=local")
    one_process = {
        "a chat server": cfg.engine.kind == "openai",
        "agent.planner": cfg.agent.planner != "none",
        "curriculum.imagined": bool(cfg.curriculum.imagined),
        "a variant that practises": any(variant.practice for variant in variants),
    }
    for what, wanted in one_process.items():
        if wanted:
            raise ValueError(f"{what} needs one process: use launcher=local")


def torchrun(cfg: Config, words: Sequence[str]) -> None:
    """Runs ``spa WORDS`` in ``nproc`` ranks on this machine.

    Raises:
        ValueError: no number of processes, or a rank failed: the message names it.
        KeyboardInterrupt: Ctrl-C, or as ``Terminated`` SIGTERM; the ranks have ended.
    """
    import signal

    import torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    count = cfg.nproc or torch.cuda.device_count()
    if not count:
        raise ValueError("launcher=torchrun needs nproc, the number of processes: there is no GPU to count")
    if count % (cfg.scale.shards or count):
        raise ValueError(f"scale.shards={cfg.scale.shards} does not divide the {count} ranks")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the command torchrun does; model.threads sets another number
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        shutdown_timeout=_END,
    )
    logging.disable(logging.ERROR)  # the agent's log repeats at length what is reported below
    try:
        elastic_launch(config, sys.executable)("-m", "spa", *words)
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        message: Any = failure.message
        if failure.exitcode < 0:
            message = f"rank {number} was killed by {failure.signal_name()}"
        elif isinstance(message, dict):
            message = message["message"]
        raise ValueError(message) from None
    except SignalException as error:
        raise (KeyboardInterrupt if error.sigval == signal.SIGINT else Terminated) from None
    finally:
        logging.disable(logging.NOTSET)


def record(error: BaseException) -> None:
    """Leaves this rank's message to torchrun, which reports the first one; the others are ended."""
    text = f"{ranks.place()}: {' '.join(str(error).split()) or type(error).__name__}"
    if not isinstance(error, (ValueError, OSError)):
        text = f"{ranks.place()}: {type(error).__name__}: {error}"
    if isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "NCCL", "c10d")):
        time.sleep(_GRACE)
        text = f"{ranks.place()} lost the other ranks, or waited for them in vain (scale.timeout): {_first_line(error)}"
    data: dict[str, Any] = {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}
    data["extraInfo"]["py_callstack"] = "".join(traceback.format_exception(error))
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": data}, file)
    else:
        print(text, file=sys.stderr)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
