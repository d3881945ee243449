"""torch.compile where it can be of use beside packed attention: the feed-forward parts and norms of every block."""

from __future__ import annotations

from typing import Any


def compile_blocks(model: Any, setting: str) -> None:
    """Compiles the blocks' feed-forward parts and norms in place, for rows of any number; weights keep their names.

    Attention stays as it is: packed rows are cut in Python. Compilation happens at the first passes and takes a C++ compiler on a
    CPU. Compiling twice changes nothing.

    Args:
        setting: its name, for the error message.

    Raises:
        ValueError: a model without such blocks.
    """
    blocks = [module for module in model.modules() if hasattr(module, "self_attn") and hasattr(module, "mlp")]
    if not blocks:
        raise ValueError(
            f"{setting} knows blocks with self_attn and mlp, which {type(model).__name__} has not; set it to false"
        )
    for block in blocks:
        norms = (getattr(block, name, None) for name in ("input_layernorm", "post_attention_layernorm"))
        for part in (block.mlp, *norms):
            if part is not None and part._compiled_call_impl is None:
                part.compile(dynamic=True)
