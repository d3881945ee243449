"""Networks whose weights, gradients and optimizer states are divided among ranks: FSDP2 and DTensor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import MethodType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.distributed import new_subgroups_by_enumeration
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from spa.scale import ranks

# The last layer returns a view (models/last_layer.py), and nothing changes it in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
_sharded: WeakSet[Any] = WeakSet()
_meshes: dict[tuple[str, int, int], DeviceMesh] = {}


def mesh(device: str) -> DeviceMesh:
    """All ranks, or (copies, shards) of HSDP: shards within a node, copies across nodes."""
    key = (device, ranks.world(), ranks.shards())
    if key not in _meshes:
        copies = ranks.world() // ranks.shards()
        if copies == 1:
            _meshes[key] = init_device_mesh(device, (ranks.world(),), mesh_dim_names=("shard",))
        else:
            _meshes[key] = _grid(device, torch.arange(ranks.world()).view(copies, ranks.shards()))
    return _meshes[key]


def _grid(device: str, numbers: Tensor) -> DeviceMesh:
    """The mesh of ranks (copies, shards); the groups of ``init_device_mesh`` wait for torch's time, not for ``scale.timeout``."""
    limit = timedelta(seconds=ranks.timeout())
    groups = [new_subgroups_by_enumeration(part.tolist(), timeout=limit)[0] for part in (numbers.T, numbers)]
    return DeviceMesh.from_group(groups, device, mesh=numbers, mesh_dim_names=("replicate", "shard"))


def shard(network: Any, *, precision: str = "float32") -> None:
    """Divides a network in place: one group of parameters a block, one for the rest (embeddings, last norm, heads).

    Gradients are summed, not averaged: every rank's loss is its part of the whole loss.

    Args:
        network: a transformers model, or a small module that is one group.
        precision: of the gathered weights and the products; the shards keep their type.
    """
    if isinstance(network, FSDPModule):
        return
    names = getattr(network, "_no_split_modules", None) or ()
    policy = MixedPrecisionPolicy()
    if names and precision == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": mesh(next(network.parameters()).device.type), "mp_policy": policy}
    for block in [module for module in network.modules() if type(module).__name__ in names]:
        fully_shard(block, **options)
    # The head's weights are read after the forward pass of the trunk: the outermost group stays until the backward pass.
    fully_shard(network, reshard_after_forward=False, **options)
    _sharded.add(network)
    for part in _parts([network]):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sums
    if names:
        network.sharded_trunk = MethodType(_trunk, network)
        register_fsdp_forward_method(network, "sharded_trunk")


def _trunk(network: Any, **inputs: Any) -> Any:
    return network.base_model(**inputs)


def _parts(networks: Sequence[Any]) -> list[FSDPModule]:
    return [module for network in networks for module in network.modules() if isinstance(module, FSDPModule)]


def _reshard(*_: Any) -> None:
    """Before every step: weights gathered for a pass without a backward pass would be used again, outdated."""
    for part in _parts(list(_sharded)):
        part.reshard()


register_optimizer_step_pre_hook(_reshard)


@contextmanager
def unsharded(networks: Sequence[Any]) -> Iterator[None]:
    """See ``ranks.whole``."""
    parts = _parts(networks)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(all(part is not network for network in networks), recurse=False)


def like(value: Tensor, target: Tensor) -> Tensor:
    """A whole tensor in the layout of ``target``; every rank has the whole."""
    if not isinstance(target, DTensor):
        return value
    value = value.to(target.device)
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)


def on_main_cpu(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors in the main rank's memory; nothing on the others."""
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        value = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if ranks.is_main():
            result[name] = value.detach().cpu()
    return result
