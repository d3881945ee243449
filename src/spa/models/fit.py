"""Whether a stage fits into memory, here or on GPUs of a size, and the settings that would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from spa.common.progress import note
from spa.config.overrides import apply_overrides
from spa.config.schema import Config
from spa.models import memory
from spa.models.load import pick_device
from spa.models.memory import GIB, UnknownSizes, size
from spa.scale import ranks

CARDS = (24, 40, 80, 141)
"""Memory of common GPUs in GiB (their makers write GB)."""
SHARDS = (1, 2, 4, 8, 16, 32, 64)
_USABLE = 0.97  # share of a GPU's memory that its driver leaves


class Need(Protocol):
    """An estimate in bytes; ``process`` is there before the stage begins, ``resident`` stays while vLLM plays."""

    @property
    def process(self) -> int: ...
    @property
    def resident(self) -> int: ...
    @property
    def total(self) -> int: ...


Estimate = Callable[[Config, str, int], Need]
"""What one process needs by config, device type (cpu or cuda) and number of shards.

Raises:
    ValueError: the model's config cannot be read.
"""
Advice = Callable[[Config], Mapping[str, str]]
"""Settings that save memory, those that change results last, with remarks to print after them."""


def device_type(cfg: Config) -> str:
    return "cuda" if cfg.model.device_memory else pick_device(cfg.model.device).type


def ranks_of(cfg: Config) -> int:
    """The number of ranks: torchrun's, or those that the launcher will start."""
    if ranks.under_torchrun() or cfg.launcher == "local":
        return ranks.started()
    return max(1, cfg.nproc or torch.cuda.device_count())


def shards_of(cfg: Config) -> int:
    """Ranks that the weights are divided among."""
    return min(cfg.scale.shards or ranks_of(cfg), ranks_of(cfg))


def available(cfg: Config) -> int | None:
    """Bytes that a process can take besides those it has already, or None if unknown; ranks on a CPU share it."""
    if cfg.model.device_memory:
        return int(cfg.model.device_memory * _USABLE * GIB)
    device = pick_device(cfg.model.device)
    free = memory.free_memory(device)
    to_be_started = 1 if ranks.under_torchrun() else ranks_of(cfg)  # others are counted in what is free
    return free if free is None or device.type != "cpu" else free // to_be_started


def fits(cfg: Config, need: Need, room: int) -> bool:
    return need.total - (0 if cfg.model.device_memory else need.process) <= room


def check_fits(cfg: Config, stage: str, estimate: Estimate, advice: Advice) -> None:
    """Refuses a stage that does not fit; a note says so if its memory cannot be estimated.

    Raises:
        ValueError: it does not; the message says how much it needs and which settings make it fit. Or vLLM is to take memory that
            training keeps.
    """
    room = available(cfg)
    if room is None:
        return
    device, shards = device_type(cfg), shards_of(cfg)
    try:
        need = estimate(cfg, device, shards)
    except UnknownSizes as error:
        note(f"{stage.upper()} of {cfg.model.path}: memory is not checked ({error})")
        return
    if fits(cfg, need, room):
        if cfg.engine.kind == "vllm" and device == "cuda" and (stage != "sft" or cfg.sft.eval_worlds):
            _check_vllm(cfg, stage, need, room)
        return
    settings = settings_that_fit(
        cfg, lambda candidate: fits(candidate, estimate(candidate, device, shards), room), advice
    )
    if settings:
        helps = f"What makes it fit: {' '.join(settings)}"
    else:
        saving = [
            name
            for name in advice(cfg)
            if _saves(cfg, name, need, lambda candidate: estimate(candidate, device, shards))
        ]
        helps = f"What helps, but not enough: {', '.join(saving) or 'a smaller model'}"
    if device == "cuda":
        enough = [count for count in SHARDS if count > shards and fits(cfg, estimate(cfg, device, count), room)]
        helps += f"; or {enough[0]} GPUs, which share the weights" if enough else ""
    where = (
        f"a GPU of {cfg.model.device_memory:g} GB has {size(room)}"
        if cfg.model.device_memory
        else f"{size(room)} are free on {pick_device(cfg.model.device)}"
    )
    raise ValueError(
        f"{stage.upper()} of {cfg.model.path} needs about {need}, but {where}. {helps}; or {stage}.memory_check=false to try "
        "anyway"
    )


def _check_vllm(cfg: Config, stage: str, need: Need, room: int) -> None:
    """Refuses a share of the GPU for vLLM that overlaps with what training keeps there while vLLM plays."""
    whole = int(cfg.model.device_memory * GIB) or torch.cuda.mem_get_info(pick_device(cfg.model.device))[1]
    resident = need.resident + (need.process if cfg.model.device_memory else 0)
    most = (room - resident) / whole
    share = cfg.engine.gpu_memory_utilization
    if share > most:
        raise ValueError(
            f"{stage.upper()} of {cfg.model.path} keeps {size(resident)} on the GPU while vLLM plays, so "
            f"engine.gpu_memory_utilization={share:g} of its {size(whole)} is too much: set it to {int(100 * most) / 100:g} or "
            f"less; or {stage}.memory_check=false to try anyway"
        )


def settings_that_fit(cfg: Config, fit: Callable[[Config], bool], advice: Advice) -> list[str]:
    """Settings, in the order of ``advice``, with which a stage fits, none of them superfluous; empty if there are none."""
    chosen: list[str] = []
    for setting in advice(cfg):
        chosen.append(setting)
        if fit(apply_overrides(cfg, _values(chosen))):
            break
    else:
        return []
    for setting in list(chosen[:-1]):
        fewer = [each for each in chosen if each != setting]
        if fit(apply_overrides(cfg, _values(fewer))):
            chosen = fewer
    remarks = advice(cfg)
    return [f"{setting}{remarks[setting]}" for setting in chosen]


def _values(settings: list[str]) -> list[str]:
    """One advice may hold several settings."""
    return [each for setting in settings for each in setting.split()]


def _saves(cfg: Config, setting: str, now: Need, estimate: Callable[[Config], Need]) -> bool:
    return estimate(apply_overrides(cfg, _values([setting]))).total < 0.95 * now.total


def overview(cfg: Config, estimate: Estimate, advice: Advice) -> str:
    """How many GPUs of each size hold a stage, and the settings with which one of them does."""
    parts: list[str] = []
    for card in CARDS:
        room = int(card * _USABLE * GIB)

        def fit(candidate: Config, shards: int = 1, room: int = room) -> bool:
            return estimate(candidate, "cuda", shards).total <= room

        if fit(cfg):
            return ", ".join([*parts, f"1 of {card} GB"])
        count = next((str(count) for count in SHARDS if fit(cfg, count)), f"more than {SHARDS[-1]}")
        alone = " ".join(settings_that_fit(cfg, fit, advice))
        parts.append(f"{count} of {card} GB{f' (1 with {alone})' if alone else ''}")
    return ", ".join(parts)
