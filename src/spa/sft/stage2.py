"""``spa sft``: combines the data, model and trainer of stage 2."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from spa.agent.chat import Chat
from spa.agent.policy import Policy
from spa.agent.response import forced_tag
from spa.common.checkpoints import latest_checkpoint
from spa.common.clock import measuring
from spa.common.progress import note, progress
from spa.config.schema import Config
from spa.config.seeds import PROBE, stream_seed
from spa.data.dataset import read_rows
from spa.data.encode import Example, encode_rows, merge_turns
from spa.models.load import compute_dtype_bytes, load_config, load_tokenizer, pick_device, weight_bytes
from spa.models.lora import add_configured_lora
from spa.models.memory import MemoryEstimate, estimate_training, free_memory, size
from spa.scale import ranks
from spa.sft.train import Log, SFTTrainer, check_validation


def data_files(data: Path) -> tuple[Path, Path | None]:
    """The training file and the validation file (if any) of a folder of stage 1 or of the original code, or a single file.

    Raises:
        ValueError: neither is there.
    """
    if data.is_file():
        return data, None
    for train, val in ((data / f"{prefix}train.parquet", data / f"{prefix}val.parquet") for prefix in ("", "wm_")):
        if train.is_file():
            return train, val if val.is_file() else None
    raise ValueError(f"no training data: {data} holds no train.parquet; run `spa generate` first or set sft.data")


def load_examples(cfg: Config, data: Path, chat: Chat) -> tuple[list[Example], list[Example]]:
    """Training and validation examples of stage 1's data; reports how many rows were skipped, and why.

    Raises:
        ValueError: an unreadable file, no trainable row, or settings that need validation rows when there are none.
    """
    settings: dict[str, Any] = {
        "loss": cfg.sft.loss,
        "train_end": cfg.sft.train_end,
        "max_length": cfg.sft.max_length,
    }
    sets: list[list[Example]] = []
    for path in data_files(data):
        rows, skipped = read_rows(path) if path is not None else ([], None)
        if sets and not rows:
            sets.append([])
            continue
        examples, reasons = encode_rows(rows, chat, **settings, skipped=skipped)
        if cfg.sft.merge_turns:
            examples = merge_turns(examples)
        for reason, count in reasons.items():
            note(f"SFT: {count} of {len(rows)} rows of {path.name if path else data} skipped: {reason}")
        sets.append(examples)
    check_validation(cfg.sft, bool(sets[1]))
    return sets[0], sets[1]


def run_sft(cfg: Config, out: Path, *, data: Path, resume: bool, log: Log) -> Path:
    """Stage 2 on the data of stage 1 (a folder, or one data file); returns the folder of the model that stage 3 starts from.

    Raises:
        ValueError: data that cannot be read or trained on, a model that cannot be loaded or does not fit, divergence.
    """
    sft = cfg.sft
    chat = Chat(load_tokenizer(cfg.model.path), forced=forced_tag(cfg.agent.think))
    train, val = load_examples(cfg, data, chat)
    check_memory(cfg, max(len(example.ids) for example in train))
    found = latest_checkpoint(out) if resume else None
    # With LoRA the checkpoint holds merged weights: training resumes from the base and the adapters.
    policy = Policy.load(cfg, str(found[1]) if found and not sft.lora_rank else None)
    if sft.lora_rank:
        add_configured_lora(policy.model, sft, sft.lora_rank, cfg.seeds.run, "sft")
    trainer = SFTTrainer(
        policy.model,
        policy.tokenizer,
        train,
        val,
        sft,
        out,
        seed=cfg.seeds.run,
        log=log,
        measure=lambda step: measure(cfg, policy) if sft.eval_worlds else {},
    )
    with progress(trainer.total, "SFT") as bar:
        trainer.on_step = lambda step, loss: bar.advance(1, loss=loss)
        if found:
            bar.advance(found[0])
        folder = trainer.train(resume=resume)
    if sft.eval_worlds:
        if sft.use == "best" and trainer.best_step != trainer.step:
            policy = Policy.load(cfg, str(folder))
        log(trainer.step, measure(cfg, policy))
    return folder


@measuring()
def measure(cfg: Config, policy: Policy) -> dict[str, float]:
    """World-model metrics on ``sft.eval_worlds`` validation worlds, in the format of the self-play data."""
    from spa.evaluate.probe import probe_world_model

    with ranks.whole(policy.model):
        metrics, _ = probe_world_model(
            cfg,
            policy,
            state_format=cfg.selfplay.state_format,
            worlds=cfg.sft.eval_worlds,
            seed=stream_seed(cfg.seeds.run, PROBE, 0),
        )
    return metrics


def memory_estimate(cfg: Config, longest: int, *, local_only: bool = False) -> MemoryEstimate:
    """Peak memory of stage 2 if the longest row has ``longest`` tokens; reads the model's config, not its weights.

    Raises:
        ValueError: the model's config cannot be read.
    """
    sft = cfg.sft
    tokens = max(longest, min(sft.micro_batch_tokens, sft.batch_size * longest))
    return estimate_training(
        load_config(cfg.model.path, local_only=local_only),
        tokens=tokens,
        scored=tokens,
        weight_bytes=weight_bytes(cfg.model),
        compute_bytes=min(weight_bytes(cfg.model), compute_dtype_bytes(sft.precision)),
        checkpointing=cfg.model.gradient_checkpointing,
        lora_rank=sft.lora_rank,
        device=pick_device(cfg.model.device).type,
    )


def check_memory(cfg: Config, longest: int) -> None:
    """Rejects training that will not fit in memory.

    Raises:
        ValueError: the estimate exceeds the free memory; the message gives both and the settings that help.
    """
    free = free_memory(pick_device(cfg.model.device))
    if not cfg.sft.memory_check or free is None:
        return
    estimate = memory_estimate(cfg, longest)
    if estimate.total - estimate.process <= free:  # the process is there already
        return
    helpful = {
        "model.gradient_checkpointing=true": not cfg.model.gradient_checkpointing,
        "sft.precision=bfloat16": cfg.sft.precision == "float32" and cfg.model.dtype == "float32",
        f"sft.micro_batch_tokens={longest}": cfg.sft.micro_batch_tokens > longest,
        f"a smaller sft.max_length (longest row: {longest})": True,
        "sft.lora_rank=16": not cfg.sft.lora_rank,
        "model.dtype=bfloat16": cfg.model.dtype == "float32",
    }
    names = [name for name, applies in helpful.items() if applies and _helps(cfg, name, longest, estimate)]
    raise ValueError(
        f"SFT of {cfg.model.path} needs about {estimate}, but {size(free)} are free on {pick_device(cfg.model.device)}. "
        f"What helps: {', '.join(names)}; or sft.memory_check=false to try all the same"
    )


def _helps(cfg: Config, setting: str, longest: int, now: MemoryEstimate) -> bool:
    """Whether a setting lowers the estimate by at least 5%; True for advice that is not a setting."""
    from spa.config.overrides import apply_overrides

    if " " in setting:
        return True
    other = apply_overrides(dataclasses.replace(cfg), [setting])
    return memory_estimate(other, longest).total < 0.95 * now.total
