"""What training needs beside memory: disk space and packages. Imports no torch at import time."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from spa.config.schema import Config, PPOConfig, SFTConfig, VariantConfig
from spa.config.training import WITH_VALUES
from spa.config.variants import sft_folder, sft_variants, source_config, variant_config
from spa.runs.folder import variants_folder
from spa.runs.record import DONE


def check_disk(cfg: Config, out: Path, stage: str, variants: Sequence[VariantConfig]) -> None:
    """Checks that the checkpoints of a stage fit on the disk of ``out``, as far as the model's config is on this machine.

    Counts weights and both Adam states of what is still to be trained, and the checkpoint that is written before an old one is
    deleted.

    Raises:
        ValueError: they do not fit; the message has both sizes and what helps.
    """
    trainings: dict[Path, SFTConfig | PPOConfig] = {
        sft_folder(out, variant): source_config(cfg, variant).sft for variant in sft_variants(cfg, stage, variants)
    }
    for variant in variants if stage in ("run", "ppo") else ():
        if variant.rl:
            trainings[variants_folder(out) / variant.name / "ppo"] = variant_config(cfg, variant).ppo
    trainings = {folder: settings for folder, settings in trainings.items() if not (folder / DONE).is_file()}
    if not trainings:
        return
    from spa.models.load import bytes_of, load_config
    from spa.models.memory import count_parameters, size

    try:
        weights = count_parameters(load_config(cfg.model.path, cfg.model, local_only=True)) * bytes_of(cfg.model.dtype)
    except ValueError:  # a model that is downloaded later
        return
    needed = 0
    for folder, settings in trainings.items():
        trained = 0 if settings.lora_rank else 2
        if isinstance(settings, PPOConfig) and settings.critic == "model" and settings.estimator in WITH_VALUES:
            trained += 0 if settings.critic_lora_rank else 3
        held = (settings.keep_checkpoints or 2) + (settings.use == "best")  # if all are kept, at least so many
        stored = sum(path.stat().st_size for path in folder.glob("checkpoints/*/**/*") if path.is_file())
        needed += max(0, (1 + trained) * weights * (held + 1) - stored)
    free = shutil.disk_usage(
        next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.is_dir())
    ).free
    if needed > free:
        what = "1 training" if len(trainings) == 1 else f"{len(trainings)} trainings"
        raise ValueError(
            f"the checkpoints of {what} take up to {size(needed)}, and {size(free)} are free in {out}: "
            "use another disk with --out, fewer variants, sft.keep_checkpoints=1 ppo.keep_checkpoints=1, or sft.lora_rank and "
            "ppo.lora_rank"
        )


def check_lora(rank: int, setting: str) -> None:
    """Raises ValueError if adapters are wanted and peft, which trains them, is not installed."""
    if rank and find_spec("peft") is None:
        raise ValueError(f"{setting} needs peft: pip install 'spa-agent[lora]'")
