"""How long each stage takes at most, from a model's products and this machine's speed: an order of magnitude, not calibrated."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from spa.config.schema import Config, VariantConfig
from spa.config.variants import given_data, needs_sft, source_config, variant_config
from spa.models.load import load_config, pick_device
from spa.models.memory import count_parameters
from spa.rl.advantages import ESTIMATORS
from spa.rl.memory import PROMPT
from spa.rl.reference import needs_reference

TOO_SMALL = 10e6  # parameters below which Python, not the products, takes the time
EFFICIENCY = 0.5  # speed of a whole pass, attention and all, relative to that of a large product alone (assumed)
WIDTH = 2048  # of the products that are timed
MESSAGE = 128  # tokens of a later turn's user message, about, with the full history


@dataclass(frozen=True)
class Speed:
    """Products of this machine in FLOP/s: of many rows at once, and of the rows decoded at once."""

    many: float
    few: float


def time_estimates(cfg: Config, wanted: Collection[str], variants: Sequence[VariantConfig]) -> list[str]:
    """One line with a time for each of the ``wanted`` stages, and one with the assumptions; none where they would not be sound:
    for a chat server, vLLM, a model of fewer than 10 million parameters, or one whose config is not on this disk."""
    try:
        model = load_config(cfg.model.path, cfg.model, local_only=True)
        device = pick_device(cfg.model.device)
    except ValueError:
        return []
    parameters = count_parameters(model)
    if cfg.engine.kind != "transformers" or parameters < TOO_SMALL:
        return []
    speed = measure(device, getattr(torch, cfg.model.dtype), min(cfg.sampling.batch_size, 64))
    tuned = [variant for variant in variants if needs_sft(cfg, variant)]
    sources = _distinct(source_config(cfg, variant) for variant in tuned) if variants else [cfg]
    played = [cfg] if not variants else _distinct(source_config(cfg, v) for v in tuned if not given_data(cfg, v))
    variant_cfgs = [(variant, variant_config(cfg, variant)) for variant in variants]
    stages = {
        "generate": sum(_selfplay(source, parameters, speed) for source in played),
        "sft": sum(_sft(source, parameters, speed) for source in sources),
        "ppo": sum(_ppo(variant_cfg, parameters, speed) for variant, variant_cfg in variant_cfgs if variant.rl),
        "eval": sum(
            _play(variant_cfg, variant_cfg.eval.worlds * variant_cfg.eval.samples, parameters, speed)
            for _, variant_cfg in variant_cfgs
        ),
    }
    times = [f"{stage} {about(seconds)}" for stage, seconds in stages.items() if stage in wanted and seconds]
    if not times:
        return []
    return [
        f"time, at most about: {', '.join(times)} (an order of magnitude)",
        f"time assumes: every turn is played with responses of sampling.max_tokens; {parameters / 1e6:.0f} million parameters; "
        f"{speed.many / 1e9:.0f} GFLOP/s in large products and {speed.few / 1e9:.0f} in decoding, measured now on {device.type} "
        f"in 0.2 s beside whatever else runs here, {EFFICIENCY:.0%} of it in a whole pass",
    ]


def measure(device: torch.device, dtype: torch.dtype, rows: int) -> Speed:
    """Times products of two sizes for 0.1 s each."""
    weights = [torch.randn(WIDTH, WIDTH, dtype=dtype, device=device) for _ in range(4)]  # more than fits a cache
    speeds = []
    for count in (1024, rows):
        states, done, started = torch.randn(count, WIDTH, dtype=dtype, device=device), 0, 0.0
        while not done or time.perf_counter() - started < 0.1:
            states @ weights[done % 4].T
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if not started:
                started = time.perf_counter()  # the first product starts threads and libraries
            else:
                done += 1
        speeds.append(2 * count * WIDTH**2 * done / (time.perf_counter() - started))
    return Speed(*speeds)


def about(seconds: float) -> str:
    """``"3 min"``, ``"2 h"`` or ``"12 days"``: one or two digits, since no more are known."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= (2 if unit == "days" else 1) * size:
            return f"{float(f'{seconds / size:.{1 if seconds / size < 10 else 2}g}'):.0f} {unit}"
    return "1 min"


def _tokens(cfg: Config) -> int:
    """Of an episode's training sequences."""
    turns, response = cfg.env.max_turns, cfg.sampling.max_tokens
    return turns * (PROMPT + response) if cfg.agent.window else PROMPT - MESSAGE + turns * (MESSAGE + response)


def _play(cfg: Config, episodes: int, parameters: int, speed: Speed) -> float:
    """Seconds to play ``episodes``: prompts are read at the speed of large products, responses at that of decoding."""
    responses = cfg.env.max_turns * cfg.sampling.max_tokens
    read, written = (2 * parameters * episodes * count for count in (_tokens(cfg) - responses, responses))
    return (read / speed.many + written / speed.few) / EFFICIENCY


def _pass(cfg: Config, lora: int, parameters: int, speed: Speed) -> float:
    """Seconds to train on a token: 2 FLOP per parameter forward, 2 for the states' and 2 for the weights' gradient."""
    flops = 2 + 2 + (0 if lora else 2) + (2 if cfg.model.gradient_checkpointing else 0)
    return flops * parameters / speed.many / EFFICIENCY


def _selfplay(cfg: Config, parameters: int, speed: Speed) -> float:
    if cfg.selfplay.policy != "model":
        return 0.0
    return _play(cfg, cfg.selfplay.groups * cfg.selfplay.group_size, parameters, speed)


def _sft(cfg: Config, parameters: int, speed: Speed) -> float:
    tokens = cfg.selfplay.groups * cfg.selfplay.group_size * _tokens(cfg) * cfg.sft.epochs
    return tokens * _pass(cfg, cfg.sft.lora_rank, parameters, speed)


def _ppo(cfg: Config, parameters: int, speed: Speed) -> float:
    ppo = cfg.ppo
    episodes = ppo.groups * ppo.group_size
    validated = ppo.val_worlds * ppo.val_samples / ppo.val_every if ppo.val_every else 0
    values = ESTIMATORS[ppo.estimator].values
    passes = ppo.epochs * _pass(cfg, ppo.lora_rank, parameters, speed)
    if values and ppo.critic == "model":
        passes += ppo.epochs * _pass(cfg, ppo.critic_lora_rank, parameters, speed)
    scored = bool(values) + needs_reference(ppo)  # without gradients, before the update
    passes += scored * 2 * parameters / speed.many / EFFICIENCY
    kept = 1.0 if ppo.filter == "off" else ppo.filter_ratio
    step = _play(cfg, episodes, parameters, speed) + kept * episodes * _tokens(cfg) * passes
    return ppo.steps * (step + _play(cfg, 1, parameters, speed) * validated)


def _distinct(configs: Iterable[Config]) -> list[Config]:
    distinct: list[Config] = []
    for config in configs:
        if config not in distinct:
            distinct.append(config)
    return distinct
