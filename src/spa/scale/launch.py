"""Starts a command again in several ranks, and reports how they ended; lost ranks are started again."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from spa.common.errors import error_message
from spa.common.progress import note
from spa.common.signals import Terminated
from spa.config.overrides import split_override
from spa.config.schema import Config, VariantConfig
from spa.config.variants import variant_config
from spa.scale import ranks

_GRACE = 3.0  # seconds that a rank which lost another waits to be ended, so that the other's error comes first
END = 10  # seconds between SIGTERM and SIGKILL of the ranks that are left


def needed(cfg: Config) -> bool:
    """Whether the ranks are still to be started."""
    return cfg.launcher != "local" and not ranks.under_torchrun()


def check(cfg: Config, variants: Sequence[VariantConfig]) -> None:
    """Checks that the ranks of a config, to be started or joined, can do what it wants.

    Raises:
        ValueError: a setting that only one process supports, or as ``count_of``.
    """
    if cfg.launcher == "local" and ranks.world() == 1:
        return
    configs = [cfg, *(variant_config(cfg, variant) for variant in variants)]
    one_process = {
        "a chat server": any(each.engine.kind == "openai" for each in configs),
        "agent.planner": any(each.agent.planner != "none" for each in configs),
        "curriculum.imagined": any(each.curriculum.imagined for each in configs),
        "a variant that practises": any(variant.practice for variant in variants),
    }
    for what, wanted in one_process.items():
        if wanted:
            raise ValueError(f"{what} needs one process: use launcher=local")
    if ":" in cfg.model.device:
        raise ValueError(
            f"model.device={cfg.model.device} is one GPU: set it to auto or cuda, so that each rank has its own"
        )
    if cfg.launcher != "ray" or cfg.nproc or ranks.under_torchrun():  # else one per GPU of the Ray cluster
        import torch

        count_of(cfg, torch.cuda.device_count())


def unused(cfg: Config, settings: Sequence[str]) -> list[str]:
    """A line for each ``key=value`` setting of a command that one process does not use."""
    if cfg.launcher != "local" or ranks.under_torchrun():
        return []
    launching = [setting for setting in settings if split_override(setting)[0] in ("nproc", "scale.shards")]
    return [
        f"{setting} has no effect with launcher=local: set launcher=torchrun or launcher=ray" for setting in launching
    ]


class Lost(Exception):
    """A rank was killed or does not answer: ranks that are started again go on from the last checkpoint."""


def start(cfg: Config, words: Sequence[str], folder: Path, again: Sequence[str]) -> None:
    """Runs ``spa WORDS``, which writes to ``folder``, in ``nproc`` ranks; after a loss up to ``scale.restarts`` times
    ``spa AGAIN``, which resumes with the settings that ``folder`` holds.

    Raises:
        ValueError: no number of ranks, or a rank failed: the message names it.
        KeyboardInterrupt: Ctrl-C, or as ``Terminated`` SIGTERM; the ranks have ended.
    """
    for left in range(cfg.scale.restarts, -1, -1):
        try:
            if cfg.launcher == "ray":
                from spa.scale.ray_train import ray_train

                ray_train(cfg, words, folder)
            else:
                torchrun(cfg, words)
            return
        except Lost as error:
            if not left:
                raise ValueError(str(error)) from None
            note(f"{error}; continuing from the last checkpoint")
            words = again if (folder / "config.yaml").is_file() else [*words, "--resume"]


def count_of(cfg: Config, gpus: int) -> int:
    """The number of ranks: those that this process is one of, else ``nproc``, else one per GPU.

    Raises:
        ValueError: there is none, ``scale.shards`` does not divide it, or this machine has fewer GPUs.
    """
    count = ranks.world() if ranks.under_torchrun() else cfg.nproc or gpus
    if not count:
        raise ValueError(f"launcher={cfg.launcher} needs nproc, the number of processes: there is no GPU to count")
    if cfg.launcher == "torchrun" and not ranks.under_torchrun() and cfg.model.device != "cpu" and 0 < gpus < count:
        raise ValueError(f"nproc={count} is more than the {gpus} GPUs of this machine: each rank needs its own")
    if count % (cfg.scale.shards or count):
        raise ValueError(f"scale.shards={cfg.scale.shards} does not divide the {count} ranks")
    return count


def torchrun(cfg: Config, words: Sequence[str]) -> None:
    """``start`` on this machine, once.

    Raises:
        Lost: a rank was killed or does not answer.
    """
    import torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the command torchrun does; model.threads sets another number
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count_of(cfg, torch.cuda.device_count()),
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        # The default is the machine's full name, which macOS often cannot resolve.
        local_addr="localhost",
        max_restarts=0,  # it would start again after a user's mistake, too
        shutdown_timeout=END,
    )
    logging.disable(logging.ERROR)  # the agent's log repeats at length what is reported below
    try:
        with TemporaryDirectory() as places:
            os.environ[ranks.PLACES] = places
            try:
                elastic_launch(config, sys.executable)("-m", "spa", *words)
            except ChildFailedError as error:
                number, first = error.get_first_failure()
                raise failure(number, first.exitcode, first.message, Path(places)) from None
    except SignalException as error:
        raise (KeyboardInterrupt if error.sigval == signal.SIGINT else Terminated) from None
    finally:
        os.environ.pop(ranks.PLACES, None)
        logging.disable(logging.NOTSET)


def failure(number: int, code: int, message: Any, places: Path) -> Exception:
    """What a rank's end means: ``Lost``, or a ValueError with what it recorded.

    Args:
        code: of the process; below 0 a signal. 130 and 143 are those of a command that SIGINT or SIGTERM ended.
        message: what ``record`` wrote under this name.
        places: where the ranks wrote what they were doing.
    """
    if code in (130, 143) and not isinstance(message, dict):
        code = 128 - code
    if code < 0:
        file = places / str(number)
        place = f", {file.read_text(encoding='utf-8')}," if file.is_file() else ""
        return Lost(f"rank {number}{place} was killed by {signal.Signals(-code).name}")
    if not isinstance(message, dict):
        return ValueError(f"rank {number} ended with code {code} and no message")
    return (Lost if message["extraInfo"]["lost"] else ValueError)(message["message"])


def record(error: BaseException) -> None:
    """Leaves this rank's message to the launcher, which reports the first one; the others are ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by the launcher, in silence
    text = f"{ranks.place()}: {error_message(error)}"
    if not isinstance(error, (ValueError, OSError)):
        text = f"{ranks.place()}: {type(error).__name__}: {error}"
    lost = isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "NCCL", "c10d"))
    if lost:
        silent = ranks.silent(_GRACE)
        text = f"{ranks.place()} lost the other ranks: {(str(error).splitlines() or [''])[0]}"
        if silent:
            text = f"{silent} was lost: it ended, or did not answer {ranks.place()}, for scale.timeout seconds"
    details = {"timestamp": str(int(time.time())), "lost": lost}
    shown = text if isinstance(error, (ValueError, OSError)) else f"{''.join(traceback.format_exception(error))}{text}"
    details["py_callstack"] = shown  # all that torchrun itself prints
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": text, "extraInfo": details}}, file)
    else:
        print(text, file=sys.stderr)
