"""A stand-in for a GPU: a device whose tensors lie in main memory and may not be mixed with those of the CPU.

    python -m tests.accelerator NAME key=value...     # `spa run NAME` with the model on it

It computes with the CPU's kernels, so it says nothing about speed or CUDA's own code, but it finds every tensor that was left on
the wrong device, and counts by function where the host waits for a result. It registers a backend for the whole process (PyTorch's
PrivateUse1), hence a process of its own. The last line that it prints is a JSON object of the counts.
"""

from __future__ import annotations

import collections
import copy
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

import spa
from spa.models import load

NAME = "standin"
SOURCES = Path(spa.__file__).parent
_COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")  # may read one device and write the other
_WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal")
waits: collections.Counter[str] = collections.Counter()


class Placed(torch.Tensor):
    """A tensor on the stand-in; ``values`` are on the CPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, requires_grad: bool = False) -> Placed:
        made: Placed = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        made.values = values
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Placed({self.values!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        new: torch.Tensor = Placed(copy.deepcopy(self.values.detach(), memo), self.requires_grad)
        memo[id(self)] = new = torch.nn.Parameter(new, self.requires_grad) if hasattr(self, "_is_param") else new
        return new

    def storage(self) -> Any:  # of safetensors
        return self.values.storage()

    def tolist(self) -> Any:
        _count("tolist")
        return self.values.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class StandIn(TorchDispatchMode):
    """Sends every operation to the device of its tensors, or to the one that is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, tensors = func._schema.name, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    placed = [tensor for tensor in tensors if isinstance(tensor, Placed)]
    here = bool(placed)
    if kwargs.get("device") is not None:
        here = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": "cpu"}
    others = [tuple(tensor.shape) for tensor in tensors if not isinstance(tensor, Placed) and tensor.dim()]
    if placed and others and name not in _COPIES:
        raise RuntimeError(f"{name}: tensors on {NAME} and, of shapes {others}, on cpu")
    if placed and (name in _WAITS or not here or (name == "aten::copy_" and not isinstance(args[0], Placed))):
        _count(name)
    out = func(*tree_map(_values, args), **tree_map(_values, kwargs))
    if name == "aten::copy_":
        return args[0]
    if not here:
        return out
    wrapped = tree_map(lambda leaf: Placed(leaf) if type(leaf) is torch.Tensor else leaf, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if placed else wrapped


def _values(leaf: Any) -> Any:
    return leaf.values if isinstance(leaf, Placed) else leaf


def _count(name: str) -> None:
    """Adds one to the line of ours that waits."""
    for frame in reversed(traceback.extract_stack()):
        if Path(frame.filename).is_relative_to(SOURCES):
            waits[f"{Path(frame.filename).relative_to(SOURCES)}:{frame.name} {name}"] += 1
            return


def register() -> list[torch.library.Library]:
    """Makes the device known to PyTorch, for as long as what it returns is kept."""
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

    class Module(_DummyBackendModule):  # type: ignore[misc]
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16]

    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied weights stay tied

    def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        _values(target).copy_(_values(source))
        return target

    library = torch.library.Library("aten", "IMPL")  # what torch.tensor(..., device=) calls without asking the mode
    library.impl(
        "empty.memory_format", lambda size, dtype=None, **_: Placed(torch.empty(size, dtype=dtype)), "PrivateUse1"
    )
    library.impl(
        "empty_strided",
        lambda size, stride, dtype=None, **_: Placed(torch.empty_strided(size, stride, dtype=dtype)),
        "PrivateUse1",
    )
    library.impl("_copy_from", copy_from, "PrivateUse1")
    return [library]


def main(name: str, *settings: str) -> None:
    from spa import pipeline
    from spa.config.load import load_config

    kept = register()
    load.pick_device = lambda _: torch.device(NAME, 0)
    *settings, out = settings
    cfg = load_config(name, settings)
    with StandIn():
        pipeline.run(cfg, Path(out), resume=False)
    print(json.dumps(waits))
    del kept


if __name__ == "__main__":
    main(*sys.argv[1:])
