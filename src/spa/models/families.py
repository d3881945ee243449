"""Model families whose layers we compute ourselves, exactly as transformers does."""

from __future__ import annotations

from typing import Any

from spa.config.presets import LLAMA_LIKE


def is_llama_like(model: Any) -> bool:
    """Whether every layer is a Llama layer with full causal attention."""
    config = model.config
    layers = getattr(config, "layer_types", None) or []
    return (
        config.model_type in LLAMA_LIKE
        and all(kind == "full_attention" for kind in layers)
        and not (getattr(config, "sliding_window", None) and not layers)
        and not getattr(config, "quantization_config", None)
    )
