"""torch.compile for what packed attention leaves compilable: the feed-forward parts and norms of every block."""

from __future__ import annotations

from typing import Any


def compile_blocks(model: Any, setting: str) -> None:
    """Compiles the blocks' feed-forward parts and norms in place, for any number of rows; weights keep their names.

    Attention is not compiled: packed rows are split in Python. Compilation happens in the first passes and needs a C++
    compiler on a CPU. Compiling twice has no effect.

    Args:
        setting: name of the setting, for the error message.

    Raises:
        ValueError: the model has no such blocks.
    """
    blocks = [module for module in model.modules() if hasattr(module, "self_attn") and hasattr(module, "mlp")]
    if not blocks:
        raise ValueError(
            f"{setting} supports only blocks with self_attn and mlp, which {type(model).__name__} lacks; set it to false"
        )
    for block in blocks:
        norms = (getattr(block, name, None) for name in ("input_layernorm", "post_attention_layernorm"))
        for part in (block.mlp, *norms):
            if part is not None and part._compiled_call_impl is None:
                part.compile(dynamic=True)
