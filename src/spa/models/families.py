"""The families of models whose layers we compute ourselves, as transformers does."""

from __future__ import annotations

from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")


def is_llama_like(model: Any) -> bool:
    """Whether every layer is one of Llama's, with attention over all that came before."""
    config = model.config
    layers = getattr(config, "layer_types", None) or []
    return (
        config.model_type in FAMILIES
        and all(kind == "full_attention" for kind in layers)
        and not (getattr(config, "sliding_window", None) and not layers)
        and not getattr(config, "quantization_config", None)
    )
