"""What is known of model families: whose layers we compute ourselves, and what becomes of the products of the output head."""

from __future__ import annotations

from typing import Any

from spa.config.presets import LLAMA_LIKE

CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


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


def check_attention(config: Any) -> None:
    """Refuses architectures for which transformers has no ``sdpa`` attention.

    Raises:
        ValueError: it is one of these, such as Mamba, GPT-J or gpt-oss.
    """
    from transformers import AutoModelForCausalLM

    architecture = AutoModelForCausalLM._model_mapping.get(type(config), None)  # None: of a model with code of its own
    if architecture is not None and not getattr(architecture, "_supports_sdpa", True):
        raise ValueError(
            f"{config.model_type} models have no sdpa attention in transformers, which SPA needs: choose another model"
        )


def check_packing(config: Any, setting: str) -> None:
    """Refuses to pack rows of a model with sliding windows.

    Raises:
        ValueError: it has them; the message says to set ``setting`` to false.
    """
    text = config.get_text_config()
    if getattr(text, "use_sliding_window", True) and getattr(text, "sliding_window", None):
        raise ValueError(f"it has sliding-window attention, which cannot be packed: use {setting}=false")


def rescales_rope(config: Any) -> bool:
    """Whether positions turn by other angles once a text is long, which keys that decoding has cached do not follow."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    # Some families have parameters for each kind of layer.
    kinds = [parameters, *(each for each in parameters.values() if isinstance(each, dict))]
    return any(each.get("rope_type") in ("dynamic", "longrope") for each in kinds)


def logit_scale(config: Any) -> float:
    """What the model multiplies the products of its output head by: Cohere and Falcon-H1 multiply, Granite divides.

    Raises:
        ValueError: it caps its logits, as Gemma 2 does.
    """
    text = config.get_text_config()
    for name in CAPS:
        if getattr(text, name, None):
            raise ValueError(f"its logits are capped ({name}={getattr(text, name):g}), which training cannot reproduce")
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):
        scale *= getattr(text, name, None) or 1.0
    return float(scale / (getattr(text, "logits_scaling", None) or 1.0))
