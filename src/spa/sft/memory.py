"""Peak memory of stage 2, estimated from the model's config."""

from __future__ import annotations

from spa.config.schema import Config
from spa.models.fit import check_fits, device_type, shards_of
from spa.models.load import compute_dtype_bytes, load_config, weight_bytes
from spa.models.memory import MemoryEstimate, estimate_training


def memory_estimate(
    cfg: Config, longest: int, *, local_only: bool = False, device: str = "", shards: int = 0
) -> MemoryEstimate:
    """Peak memory per process if the longest row has ``longest`` tokens; reads the model's config, not its weights.

    Args:
        local_only: no download.
        device: cpu or cuda; default: the config's.
        shards: processes that share the weights; default: the config's.

    Raises:
        ValueError: the model's config cannot be read.
    """
    sft = cfg.sft
    tokens = max(longest, min(sft.micro_batch_tokens, sft.batch_size * longest))
    return estimate_training(
        load_config(cfg.model.path, cfg.model, local_only=local_only),
        tokens=tokens,
        scored=tokens,
        weight_bytes=weight_bytes(cfg.model),
        compute_bytes=min(weight_bytes(cfg.model), compute_dtype_bytes(sft.precision)),
        checkpointing=cfg.model.gradient_checkpointing,
        lora_rank=sft.lora_rank,
        device=device or device_type(cfg),
        shards=shards or shards_of(cfg),
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

    def estimate(candidate: Config, device: str, shards: int) -> MemoryEstimate:
        tokens = min(length, candidate.sft.max_length)
        return memory_estimate(candidate, tokens, local_only=local_only, device=device, shards=shards)

    check_fits(cfg, "sft", estimate, lambda candidate: saving_settings(candidate, length))
