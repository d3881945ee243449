"""LoRA adapters through peft, added in place, so that other code needs no changes."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.pytorch_utils import Conv1D

from spa.config.schema import PPOConfig, SFTConfig
from spa.scale import ranks

_ADAPTER = "default"


def add_lora(model: Any, config: SFTConfig | PPOConfig, rank: int, seed: int = 0) -> None:
    """Freezes the model and gives its linear layers trainable adapters ``B A alpha / rank`` that start at 0, in float32.

    Args:
        config: ``lora_targets`` are name suffixes of linear layers (``q_proj``); ``all-linear`` means all except the output head.
        seed: of A's initial values; the global random state is unchanged.

    Raises:
        ValueError: peft is not installed, or a target names no linear layer.
    """
    stage = "ppo" if isinstance(config, PPOConfig) else "sft"
    peft, targets = _peft(stage), config.lora_targets
    linear = {name: each for name, each in model.named_modules() if isinstance(each, torch.nn.Linear | Conv1D)}
    if targets == ["all-linear"]:  # peft's own would include the fused experts of a mixture, which cannot be merged
        head = model.get_output_embeddings()
        targets = sorted({name.rpartition(".")[2] for name, each in linear.items() if each is not head})
    elif unknown := [target for target in targets if not any(f".{name}".endswith(f".{target}") for name in linear)]:
        raise ValueError(
            f"{stage}.lora_targets={unknown} names no layer of {type(model).__name__}; its linear layers are "
            f"{', '.join(sorted({name.rpartition('.')[2] for name in linear}))}"
        )
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model)
    # Without its wrapper peft freezes nothing and gives adapters the model's dtype: small updates vanish in bfloat16.
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.float()


def _peft(stage: str = "sft") -> Any:
    """The package; untyped, since it is optional."""
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise ValueError(f"{stage}.lora_rank needs peft: pip install 'spa-agent[lora]'") from error


def has_lora(model: Any) -> bool:
    return bool(getattr(model, "peft_config", None))


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Disables the adapters within the context."""
    layers = [module for module in model.modules() if isinstance(module, _peft().tuners.tuners_utils.BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def adapter_state(model: Any) -> dict[str, Tensor]:
    """The adapters' tensors by name."""
    return {name: p.detach().cpu().clone() for name, p in adapter_weights(model)}


def adapter_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The adapters' parameters by name."""
    return ((name, p) for name, p in model.named_parameters() if "lora_" in name)


def load_adapter_state(model: Any, state: Mapping[str, Tensor]) -> None:
    """Loads the result of ``adapter_state``.

    Raises:
        ValueError: the adapters have other layers or another rank.
    """
    adapters = dict(adapter_weights(model))
    if {name: tuple(t.shape) for name, t in adapters.items()} != {name: tuple(t.shape) for name, t in state.items()}:
        raise ValueError("the checkpoint's LoRA adapters are of other layers or of another rank than the config's")
    ranks.copy_weights(model, state)


@torch.no_grad()
def merged_state(model: Any) -> dict[str, Tensor]:
    """The weights of the plain model with the adapters merged; the model itself is unchanged.

    Merging in place and undoing it would round, so saving would change the run. Sums are rounded to bfloat16 up or down at random,
    in proportion to the distances: of updates below half of a weight's precision, which the nearest value would drop one and all,
    their sum over many weights stays (dev/LOG.md, section 67).
    """
    layer_type = _peft().tuners.lora.LoraLayer
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if "lora_" not in name:
            state[name.replace(".base_layer.", ".")] = tensor
    for name, module in model.named_modules():
        if isinstance(module, layer_type):
            weight = state[f"{name}.weight"]
            merged = weight.float() + module.get_delta_weight(_ADAPTER).float()
            state[f"{name}.weight"] = _rounded(merged.contiguous(), weight.dtype, zlib.crc32(name.encode()))
    return state


def _rounded(exact: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """float32 as another type; bfloat16 by stochastic rounding, which leaves its own values as they are."""
    if dtype is not torch.bfloat16:
        return exact.to(dtype)
    if isinstance(exact, DTensor):
        local = _rounded(exact.to_local(), dtype, seed)
        return DTensor.from_local(local, exact.device_mesh, exact.placements, shape=exact.shape, stride=exact.stride())
    draws = torch.Generator(exact.device).manual_seed(seed)
    below = torch.randint(1 << 16, exact.shape, generator=draws, dtype=torch.int32, device=exact.device)
    # A bfloat16 is the first half of a float32: the carry of a draw in the second rounds up.
    return ((exact.view(torch.int32) + below) & -(1 << 16)).view(torch.float32).to(dtype)


def save_adapter(model: Any, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Writes only the adapters (``state``, else the model's), in the format of ``PeftModel.from_pretrained(base, folder)``."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = _peft().get_peft_model_state_dict(model, state_dict=state, adapter_name=_ADAPTER)
    named = {
        f"base_model.model.{name.removeprefix('base_model.model.')}": t.contiguous() for name, t in tensors.items()
    }
    save_file(named, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    settings = model.peft_config[_ADAPTER]
    settings.inference_mode = True
    if isinstance(settings.target_modules, set):  # whose order differs from process to process
        settings.target_modules = sorted(settings.target_modules)
    settings.save_pretrained(str(folder))
    settings.inference_mode = False
