"""Small networks of the families that users bring."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen2Config

# The shape of Qwen2.5-1.5B
BIG = Qwen2Config(
    num_hidden_layers=28,
    hidden_size=1536,
    num_attention_heads=12,
    num_key_value_heads=2,
    intermediate_size=8960,
    vocab_size=151_936,
    tie_word_embeddings=True,
)


def network(family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A random two-layer model with grouped keys and values; ``family`` is llama, qwen2, qwen3 or mistral."""
    import transformers

    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}
    settings: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "sliding_window": None,
        **changes,
    }
    if family == "llama":
        del settings["sliding_window"]
    config = getattr(transformers, f"{names[family]}Config")(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return getattr(transformers, f"{names[family]}ForCausalLM")(config)


def random_model(family: str, **changes: Any) -> Any:
    """A random model of any family of transformers, with logits far from uniform."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    config = AutoConfig.for_model(family, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.3)
    return model.eval()


def with_images() -> Any:
    """A random Gemma 3, whose config has the sizes of its language model one level down."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {"hidden_size": 32, "head_dim": 8, "intermediate_size": 48, "vocab_size": 128, "sliding_window": 64}
    text |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "query_pre_attn_scalar": 8}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=127)
    with torch.random.fork_rng(devices=[]):
        return Gemma3ForConditionalGeneration(config).eval()
