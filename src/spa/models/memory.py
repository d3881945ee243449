"""Estimates the memory that training needs, before it starts, and the memory available."""

from __future__ import annotations

import gc
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from spa.common.errors import first_line
from spa.common.limits import installed_memory
from spa.scale import ranks

GIB = 2**30
PROCESS = {"cpu": 440 * 2**20, "cuda": GIB // 2}
"""Bytes before a model is loaded: Python, torch and transformers (measured), or a CUDA context (not measured here)."""
PEFT = GIB // 8  # the same for peft, on a CPU
FRAGMENTED = {"cpu": 0.5, "cuda": 0.0}
"""Memory that the allocator loses, per byte of activations. glibc before 2.38 often cannot reuse freed aligned blocks: 0.3 to 0.9
measured. CUDA: not measured here."""
FRAGMENTED_LORA = {2: 0.65, 4: 1.05}
"""The same with LoRA on a CPU, by bytes of a number: small gradients reuse little."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one process by purpose at the peak of a training step. ``logits`` includes the passing gradient of the head's
    weights, ``gathered`` is what of the other shards is there at once. ``saving`` is what a checkpoint of several ranks needs
    when gradients, activations, logits and gathered weights are gone."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    fragmentation: int
    process: int
    gathered: int = 0
    saving: int = 0

    @property
    def resident(self) -> int:
        return self.weights + self.optimizer

    @property
    def total(self) -> int:
        step = self.gradients + self.activations + self.logits + self.fragmentation + self.gathered
        return self.process + self.weights + self.optimizer + max(step, self.saving)

    def __str__(self) -> str:
        parts = [part.name for part in fields(self) if getattr(self, part.name) and part.name != "saving"]
        return f"{size(self.total)} ({', '.join(f'{part} {size(getattr(self, part))}' for part in parts)})"


def size(count: int) -> str:
    """A human-readable number of bytes."""
    return f"{count / GIB:.1f} GiB" if count >= 0.1 * GIB else f"{count / 2**20:.0f} MiB"


class UnknownSizes(ValueError):
    """A model's config does not say how large its layers are."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a language model. ``inner`` is the width of the feed-forward part, ``head`` that of an attention head."""

    hidden: int
    layers: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: Any) -> Sizes:
        """From a transformers config; of a model of several parts those of its text part.

        Raises:
            UnknownSizes: the config lacks one that has no usual value.
        """
        text = config.get_text_config()

        def number(*names: str, usual: int | None = None) -> int:
            for name in names:
                try:
                    value = getattr(text, name, None)
                except RuntimeError:  # transformers: one of each layer
                    continue
                if isinstance(value, list | tuple):
                    value = max(value, default=None)
                if isinstance(value, int) and value > 0:
                    return value
            if usual is None:
                raise UnknownSizes(f"the config of {text.model_type} models has no {names[0]}")
            return usual

        hidden, heads = number("hidden_size"), number("num_attention_heads")
        return cls(
            hidden=hidden,
            layers=number("num_hidden_layers"),
            inner=number("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", usual=4 * hidden),
            heads=heads,
            kv_heads=number("num_key_value_heads", usual=heads),
            head=number("head_dim", usual=hidden // heads),
            vocabulary=number("vocab_size"),
            tied=bool(getattr(text, "tie_word_embeddings", False)),
        )


def estimate_training(
    config: Any,
    *,
    tokens: int,
    scored: int,
    weight_bytes: int,
    compute_bytes: int,
    checkpointing: bool,
    lora_rank: int,
    device: str = "cpu",
    shards: int = 1,
) -> MemoryEstimate:
    """Peak memory of one forward and backward pass and of AdamW, from a transformers config alone (no weights are loaded).
    Gradients are counted in full beside the activations, as in every pass of a step but the first.

    Counts, for a Llama-like block, the tensors that autograd keeps per token and layer (inputs of norms and products,
    queries, keys, values, the three of the gated MLP) in ``compute_bytes``, norms in float32. Frozen norms keep only their
    input; adapters in float32 of a layer in another type keep a copy of its input each, and the layer keeps none. With
    ``checkpointing`` only one input per layer is kept, and one layer at a time is recomputed.

    Args:
        tokens: of the largest forward pass; ``scored``: how many of them have their log-prob computed.
        weight_bytes: of one weight; gradients and both Adam states each have the same size (for adapters: 4).
        lora_rank: 0 if all weights are trained.
        device: cpu or cuda.
        shards: FSDP2 ranks that weights, gradients and optimizer are divided among. Each gathers one layer while the next
            one arrives, and keeps the embeddings and the head (assumed, not measured).

    Raises:
        UnknownSizes: see ``Sizes.of``.
    """
    from spa.models.forward import CHUNK_LOGITS

    total, sizes = count_parameters(config), Sizes.of(config)
    hidden, layers, inner = sizes.hidden, sizes.layers, sizes.inner
    queries, keys = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
    trained, trained_bytes = total, weight_bytes
    # Numbers per token kept for the backward pass of matrix and elementwise products, and of norms.
    products = 2 * hidden + 3 * queries + 2 * keys + 4 * inner
    norms = 4 * hidden  # input and normalised input of both, in float32
    copies = 0  # of every adapted layer's input, in float32
    if lora_rank:
        norms = 2 * hidden
        if compute_bytes < 4:
            products -= 2 * hidden + queries + inner
            copies = 5 * hidden + queries + inner
        trained_bytes = 4
        sides = 2 * (hidden + queries) + 2 * (hidden + keys) + 3 * (hidden + inner)
        trained = lora_rank * layers * sides
    layer = tokens * (products * compute_bytes + (norms + copies) * 4)
    residual = tokens * hidden * 4  # the residual stream stays in float32
    cast = total * compute_bytes if compute_bytes < weight_bytes else 0  # autocast keeps a copy of the weights
    activations = (layers * residual + layer if checkpointing else layers * layer) + cast + tokens * 3 * hidden * 4
    chunk = min(scored * sizes.vocabulary, CHUNK_LOGITS[device])
    # The head's gradient passes through a tensor of its own; for a head tied to the embeddings it waits for theirs.
    heads_gradients = 0 if lora_rank else 2 if sizes.tied else 1
    tables, table = 1 if sizes.tied else 2, sizes.vocabulary * hidden
    block = (total - tables * table) // layers
    gathered = (2 * block + tables * table) * compute_bytes
    if not lora_rank:  # the gradients of a layer and of the embeddings, before they are divided
        gathered += (block + (tables - 1) * table) * compute_bytes
    lost = FRAGMENTED_LORA[compute_bytes] if lora_rank and device == "cpu" else FRAGMENTED[device]
    saving = 0
    if shards > 1:
        from spa.scale.checkpoints import FILE

        lost = 0.0  # ranks give freed memory back to the system (``scale.ranks``)
        # The main rank has the whole weights, and every rank two copies of its part of a file.
        saving = total * weight_bytes + 2 * min(FILE, 2 * trained * trained_bytes) // shards
    return MemoryEstimate(
        weights=(total * weight_bytes + (trained * trained_bytes if lora_rank else 0)) // shards,
        gradients=trained * trained_bytes // shards,
        optimizer=2 * trained * trained_bytes // shards,
        activations=activations,
        logits=3 * 4 * chunk + heads_gradients * table * 4,
        fragmentation=int(lost * activations),
        process=PROCESS[device] + (PEFT if lora_rank and device == "cpu" else 0),
        gathered=gathered if shards > 1 else 0,
        saving=saving,
    )


BLOCKED = 2**18  # weights of a layer; of fewer a blocked copy, which the engine makes, saves no time


def blocked_bytes(config: Any, *, adapters: bool = False) -> int:
    """Bytes of the blocked copy of float32 weights that the engine keeps while it plays on a CPU, where there is room for it.

    Args:
        adapters: whether the layers have LoRA adapters; then only the head is copied.
    """
    sizes = Sizes.of(config)
    head = sizes.vocabulary * sizes.hidden
    large = 0 if adapters or sizes.hidden * sizes.inner < BLOCKED else count_parameters(config) - head
    if not sizes.tied:
        large -= head if large else 0
    return 4 * (large + (head if head >= BLOCKED else 0))


def cache_bytes(config: Any, itemsize: int) -> int:
    """Bytes of the keys and values of one token, in numbers of ``itemsize`` bytes."""
    sizes = Sizes.of(config)
    return 2 * sizes.layers * sizes.kv_heads * sizes.head * itemsize


def count_parameters(config: Any) -> int:
    """Number of parameters of a config's causal model; allocates nothing.

    Raises:
        UnknownSizes: the model needs a package that is missing.
        ValueError: there is no causal model of this config.
    """
    from spa.config import presets

    counted = presets.count_parameters(config.to_dict())
    if counted is not None:
        return counted
    return sum({id(p): p.numel() for p in empty_model(config).parameters()}.values())


def empty_model(config: Any) -> Any:
    """A config's causal model on torch's meta device, where weights take no memory.

    Raises:
        UnknownSizes, ValueError: as ``count_parameters``.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=_trusted(config))
    except ImportError as error:
        raise UnknownSizes(first_line(error)) from error


def _trusted(config: Any) -> bool:
    """Whether the config is of a class that its model brought along, whose code ``model.trust_remote_code`` has let run."""
    return type(config).__module__.startswith("transformers_modules.")


def free_memory(device: torch.device) -> int | None:
    """Bytes that a process can still allocate on a device, or None if unknown. On CUDA what torch keeps for itself is free, too;
    ranks on one machine share that of a CPU, which is all its memory where the system does not say what is free (macOS).
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    values = [value for value in (_meminfo("MemAvailable"), _cgroup_free()) if value is not None]
    free = min(values) if values else installed_memory()
    return None if free is None else free // ranks.on_machine()


def give_back() -> None:
    """Gives the GPU memory that torch keeps for later tensors back to the driver, for a library that allocates there itself."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _meminfo(name: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup_free(group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes left under the container's limit; what the kernel keeps of files read before counts as left."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        files = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - used + int(files.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None
