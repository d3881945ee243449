"""The trainer's tensors in a checkpoint of several ranks: each rank writes and reads its part, in safetensors files.

``torch.distributed.checkpoint`` lays them out anew for another number of ranks, also for one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from spa.common.errors import first_line
from spa.common.files import atomic_folder, naming
from spa.scale import ranks

FOLDER = "trainer_state"
FILE = 2**28  # bytes of all ranks' parts of a file, which is copied twice in memory while it is written


@contextmanager
def shared_folder(path: Path) -> Iterator[Path]:
    """``atomic_folder`` for all ranks: each may write into the temporary folder, which appears when all have."""
    from torch.distributed import barrier

    if ranks.is_main():
        with atomic_folder(path) as temporary:
            ranks.gather(str(temporary))
            yield temporary
            barrier()
    else:
        with naming(path):
            yield Path(ranks.gather("")[0])
        barrier()
    barrier()  # nobody looks for the folder before it is there


@contextmanager
def _first_failure(folder: Path) -> Iterator[None]:
    """Raises the first failure of a rank in place of torch's ``CheckpointException``, which is no ``Exception``.

    Raises:
        OSError: it names ``folder``.
        RuntimeError: any other failure, with its first line.
    """
    try:
        yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if not isinstance(first, Exception):  # Ctrl-C
            raise first from None
        if isinstance(first, OSError) and first.errno is not None:
            raise OSError(first.errno, os.strerror(first.errno), str(folder)) from error
        raise RuntimeError(f"{folder}: {first_line(first)}") from error


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def named_tensors(optimizer: torch.optim.Optimizer, modules: Mapping[str, Any]) -> dict[str, Tensor]:
    """The optimizer's states by place of their parameter, and the trained weights of ``modules``; not copied."""
    tensors = {
        f"optimizer.{place}.{name}": value
        for place, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
    }
    for prefix, module in modules.items():
        weights = ((name, weight) for name, weight in module.named_parameters() if weight.requires_grad)
        tensors |= {f"{prefix}.{name}": weight.detach() for name, weight in weights}
    return tensors


def storage_writer(folder: Path, tensors: Mapping[str, Tensor]) -> HuggingFaceStorageWriter:
    """Writes safetensors files of at most ``FILE`` bytes, a tensor of its own size at least."""
    files, written = {}, 0
    for name, tensor in tensors.items():
        files[name] = 1 + written // FILE
        written += tensor.nbytes
    return HuggingFaceStorageWriter(str(folder), files, save_distributed=True)


def save_tensors(folder: Path, optimizer: torch.optim.Optimizer, modules: Mapping[str, Any]) -> None:
    """Writes optimizer states and the trained weights of ``modules``; called by all ranks.

    Raises:
        OSError: a rank cannot write its part.
    """
    tensors = named_tensors(optimizer, modules)
    with _first_failure(folder):
        save(tensors, storage_writer=storage_writer(folder / FOLDER, tensors))


def load_tensors(folder: Path, optimizer: torch.optim.Optimizer, modules: Mapping[str, Any]) -> None:
    """Reads what ``save_tensors`` wrote, in place, on any number of ranks.

    Raises:
        ValueError: the checkpoint is of other weights.
        OSError: a rank cannot read its part.
    """
    reader = HuggingFaceStorageReader(str(folder / FOLDER))
    saved = reader.read_metadata().state_dict_metadata
    parameters = _parameters(optimizer)
    optimizer.state.clear()
    for key in saved:
        kind, _, rest = key.partition(".")
        if kind == "optimizer" and int(rest.partition(".")[0]) < len(parameters):
            place, _, name = rest.partition(".")
            parameter = parameters[int(place)]
            empty = torch.zeros(()) if name == "step" else torch.zeros_like(parameter, requires_grad=False)
            optimizer.state[parameter][name] = empty
    tensors = named_tensors(optimizer, modules)
    if tensors.keys() != saved.keys():
        other = sorted(tensors.keys() ^ saved.keys())[0]
        raise ValueError(f"{folder} is a checkpoint of other weights than the config's ({other})")
    with _first_failure(folder), warnings.catch_warnings():  # a single rank reads without a process group
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, storage_reader=reader)
