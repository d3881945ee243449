"""Settings of a model without a file in ``conf/model``, chosen by its size and family. Imports no torch.

A folder or hub name given as ``model=`` or ``model.path`` takes the place of a model file in the config's layers, so that no
value of another model is left behind.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spa.common.cache import CACHED, cache_folder
from spa.common.files import expanded

NAME = "preset"  # of the layer, in the group model
LLAMA_LIKE = ("llama", "qwen2", "qwen3", "mistral")  # families in which packing and our decoder are tested to be exact


@dataclass(frozen=True)
class SizeClass:
    """Models with fewer than ``below`` parameters get the settings of the packaged model ``name``."""

    below: float
    name: str
    why: str


SIZE_CLASSES = (
    SizeClass(10e6, "tiny", "the settings of the built-in model, chosen for 345 thousand parameters"),
    SizeClass(
        0.3e9,
        "smollm2-135m",
        "a first look on a CPU: 100 self-play episodes, 20 PPO steps of 64 episodes at five times the paper's "
        "learning rates (not tuned); one turn of history, since states hold all that matters",
    ),
    SizeClass(0.8e9, "qwen2.5-0.5b", "the paper's settings"),
    SizeClass(4e9, "qwen2.5-1.5b", "the paper's settings"),
    SizeClass(
        math.inf,
        "qwen2.5-1.5b-lora",
        "LoRA over frozen bfloat16 weights: full training of actor and critic takes 32 bytes a parameter; "
        "PPO's rates are RAGEN's for LoRA",
    ),
)
GENERIC = SIZE_CLASSES[3]


@dataclass(frozen=True)
class Preset:
    """``settings`` as in a model file; ``reason`` is one line: what is known of the model, and the row's."""

    name: str
    settings: dict[str, Any]
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def preset_for(path: str) -> Preset:
    """The preset of a model folder or hub name. Reads only local files and never fails: what is unreadable counts as unknown."""
    folder = model_folder(path)
    config = _read_config(folder) if folder else {}
    family = str(config.get("model_type", ""))
    count = (count_parameters(config) or count_stored(folder)) if folder else None
    if count:
        known = f"{_size(count)} parameters{f', {family}' if family else ''}"
    else:
        missing = "no model in this folder" if expanded(path).is_dir() else "not on this disk"
        where = "unknown number of parameters" if folder else missing
        count = size_in_name(path)
        known = f"{where}, {_size(count)} by its name" if count else f"{where}, no size in its name: a guess"
    row = next(row for row in SIZE_CLASSES if count < row.below) if count else GENERIC
    settings = _packaged(row.name)
    if row is not SIZE_CLASSES[0]:  # the lengths of its answers depend on its tokenizer
        settings["env"] = {"response_hint": None}
    why = row.why
    if family and (family not in LLAMA_LIKE or _slides(config)):
        why += f"; no packing, which is not exact for {'sliding windows' if family in LLAMA_LIKE else 'this family'}"
        for stage in ("sft", "ppo"):
            settings.setdefault(stage, {})["packing"] = False
    return Preset(row.name, settings, f"{known}; {why}")


def model_folder(path: str) -> Path | None:
    """Where a model's ``config.json`` is: its folder, or a hub name's in the cache; None if on neither."""
    folder = cache_folder(path.removeprefix(CACHED)) if path.startswith(CACHED) else expanded(path)
    if (folder / "config.json").is_file():
        return folder
    if not re.fullmatch(r"\w[\w.-]*/[\w.-]+", path):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(path, "config.json")
    return Path(cached).parent if isinstance(cached, str) else None


def count_parameters(config: Mapping[str, Any]) -> int | None:
    """Number of parameters of a Llama, Qwen2, Qwen3 or Mistral model, from its ``config.json``; None for other families."""
    family = config.get("model_type")
    try:
        hidden, layers, inner = (config[key] for key in ("hidden_size", "num_hidden_layers", "intermediate_size"))
        heads, vocabulary = config["num_attention_heads"], config["vocab_size"]
        head = config.get("head_dim") or hidden // heads
        queries, keys = heads * head, (config.get("num_key_value_heads") or heads) * head
        layer = 2 * hidden * (queries + keys) + 3 * hidden * inner + 2 * hidden
        if family == "qwen2" or (config.get("attention_bias") and family != "mistral"):
            layer += queries + 2 * keys + (hidden if family != "qwen2" else 0)
        if family == "qwen3":
            layer += 2 * head
        if config.get("mlp_bias"):
            layer += 2 * inner + hidden
        ends = 1 if config.get("tie_word_embeddings", False) else 2
        return int(layers * layer + ends * vocabulary * hidden + hidden) if family in LLAMA_LIKE else None
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def count_stored(folder: Path) -> int | None:
    """Number of weights in a folder's safetensors files, from their headers."""
    total = 0
    for file in folder.glob("*.safetensors"):
        try:
            with file.open("rb") as stream:
                header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
        except (OSError, ValueError, KeyError, TypeError, MemoryError):
            return None
    return total or None


def size_in_name(name: str) -> int | None:
    """``Qwen/Qwen2.5-7B-Instruct`` -> 7 billion; None without a size."""
    sizes = re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z])", name.rpartition("/")[2], re.IGNORECASE)
    return int(float(sizes[-1][0]) * (1e9 if sizes[-1][1] in "bB" else 1e6)) if sizes else None


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _slides(config: Mapping[str, Any]) -> bool:
    return bool(config.get("sliding_window")) and config.get("use_sliding_window", True) is not False


def _size(count: int) -> str:
    for unit, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def _packaged(name: str) -> dict[str, Any]:
    """The settings of ``conf/model/NAME.yaml`` without its path."""
    from spa.config.load import conf_folder, read_yaml

    settings = read_yaml(conf_folder() / "model" / f"{name}.yaml")
    settings["model"].pop("path")
    return settings
