"""Peak memory of stage 2, estimated from the model's config."""

from __future__ import annotations

from functools import partial

from spa.config.schema import Config
from spa.models.fit import check_fits
from spa.models.load import bytes_of, load_config
from spa.models.memory import MemoryEstimate, estimate_training


def memory_estimate(cfg: Config, device: str, shards: int, *, longest: int, local_only: bool = False) -> MemoryEstimate:
    """A ``spa.models.fit.Estimate`` where the longest row has ``longest`` tokens, or ``sft.max_length`` if that is fewer.

    Args:
        local_only: no download.
    """
    sft = cfg.sft
    longest = min(longest, sft.max_length)
    tokens = max(longest, min(sft.micro_batch_tokens, sft.batch_size * longest))
    return estimate_training(
        load_config(cfg.model.path, cfg.model, local_only=local_only),
        tokens=tokens,
        scored=tokens,
        weight_bytes=bytes_of(cfg.model.dtype),
        compute_bytes=min(bytes_of(cfg.model.dtype), bytes_of(sft.precision)),
        checkpointing=cfg.model.gradient_checkpointing,
        lora_rank=sft.lora_rank,
        device=device,
        shards=shards,
    )


SHORT = 128  # tokens; the longest row is hardly ever shorter


def saving_settings(cfg: Config, longest: int) -> dict[str, str]:
    """Settings that may save memory, those that change results last."""
    sft = cfg.sft
    helpful = {
        "model.gradient_checkpointing=true": not cfg.model.gradient_checkpointing,
        "sft.precision=bfloat16": sft.precision == "float32" and cfg.model.dtype == "float32",
        f"sft.micro_batch_tokens={longest}": sft.micro_batch_tokens > longest,
        f"sft.max_length={longest // 2}": longest > 256,
        "sft.lora_rank=16": not sft.lora_rank,
        "sft.lora_rank=16 model.dtype=bfloat16": cfg.model.dtype == "float32",
    }
    remarks = {f"sft.max_length={longest // 2}": f" (longest row: {longest})"}
    return {name: remarks.get(name, "") for name, applies in helpful.items() if applies}


def check_memory(cfg: Config, longest: int | None = None, *, local_only: bool = False) -> None:
    """Rejects training that will not fit in memory.

    Args:
        longest: tokens of the longest row; None: not known yet, so that only what cannot fit with any is rejected.

    Raises:
        ValueError: the estimate exceeds the free memory; the message gives both and the settings that help.
    """
    if not cfg.sft.memory_check:
        return
    length = longest or min(SHORT, cfg.sft.max_length)
    estimate = partial(memory_estimate, longest=length, local_only=local_only)
    check_fits(cfg, "sft", estimate, partial(saving_settings, longest=length))
