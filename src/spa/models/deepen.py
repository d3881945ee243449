"""The built-in model with twice the layers. Imports no torch."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from spa.common.cache import cache_folder
from spa.common.files import atomic_file, atomic_write
from spa.common.manifest import digest

_SILENT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # what a block adds to the residual stream
_CARD = """---
license: apache-2.0
library_name: transformers
---
# The built-in model of SPA with twice the layers

Each layer is followed by a copy that adds nothing until it is trained, so that it computes what the built-in model does.
"""
_COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def deepened(base: Path) -> Path:
    """The Llama of ``base`` with each layer followed by a copy that adds nothing yet, so that its logits are the same until
    training moves the copy (block expansion, LLaMA Pro, arXiv 2401.02415). Made once, in the user's cache.

    Args:
        base: a folder with one safetensors file in a type that NumPy has.

    Raises:
        OSError: the cache cannot be written.
    """
    source = base / "model.safetensors"
    folder = cache_folder(f"{base.name}-deep-{digest(source)[:12]}")
    if (folder / "config.json").is_file():
        return folder
    import numpy as np
    from safetensors.numpy import load_file, save_file

    weights = {}
    for name, weight in load_file(source).items():
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        if layer is None:
            weights[name] = weight
            continue
        number, rest = int(layer[1]), layer[2]
        weights[f"model.layers.{2 * number}.{rest}"] = weight
        weights[f"model.layers.{2 * number + 1}.{rest}"] = np.zeros_like(weight) if rest in _SILENT else weight.copy()
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] *= 2
    # File by file: two processes that do so at once write the same. The config, which says that all is there, comes last.
    with atomic_file(folder / source.name) as file:
        save_file(weights, file, metadata={"format": "pt"})
    for name in _COPIED:
        with atomic_file(folder / name) as file:
            shutil.copyfile(base / name, file)
    atomic_write(folder / "README.md", _CARD)
    atomic_write(folder / "config.json", json.dumps(config, indent=2))
    return folder
