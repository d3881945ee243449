"""Which values a config may have, beyond their types. Imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from spa.common.names import choose
from spa.config.schema import Config, EngineConfig, SamplingConfig, SeedConfig, VariantConfig

SEED_RANGE = 10**9  # seeds of a split: its first seed and those that follow, this many
TRACKERS: tuple[str, ...] = ("tensorboard", "wandb", "trackio")

CHOICES: dict[str, tuple[str, ...]] = {
    "env.state_format": ("grid", "coordinates", "random_coordinates"),
    "env.disjoint": ("content", "symmetry", "seed"),
    "agent.style": ("paper", "terse"),
    "agent.prompt": ("base", "world_model"),
    "agent.prompt_after_sft": ("same", "base", "world_model"),
    "agent.planner": ("none", "lookahead", "beam", "mcts", "best_of_n"),
    "model.dtype": ("float32", "bfloat16"),
    "engine.kind": ("transformers", "vllm", "openai"),
    "selfplay.state_format": ("grid", "coordinates", "random_coordinates"),
    "selfplay.policy": ("model", "random", "planner"),
    "selfplay.prompt": ("world_model", "base"),
    "selfplay.states": ("truth", "belief", "shuffled"),
    "selfplay.rows": ("written", "transitions"),
    "selfplay.balance": ("none", "actions", "turn", "success"),
    "sft.loss": ("think_answer", "state", "masked"),
    "sft.precision": ("float32", "bfloat16"),
    "sft.schedule": ("cosine", "wsd", "constant"),
    "sft.use": ("last", "best"),
    "ppo.filter": ("std", "std_rev", "max_mean", "top_p", "off"),
    "ppo.reward_placement": ("end", "turn"),
    "ppo.reward_norm": ("identity", "mean", "mean_std", "asym_clip"),
    "ppo.reward_norm_by": ("state", "inductive", "batch"),
    "ppo.state_match": ("exact", "cells", "changed"),
    "ppo.kl_reward_estimator": ("k1", "k2", "k3"),
    "ppo.kl_loss_estimator": ("k1", "k2", "k3"),
    "ppo.estimator": (
        "gae",
        "turn_gae",
        "bi_level_gae",
        "grpo",
        "dr_grpo",
        "rloo",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
    ),
    "ppo.loss_mask": ("sampled", "answer", "all"),
    "ppo.loss_aggregation": ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"),
    "ppo.critic": ("model", "head", "detached_head", "none"),
    "ppo.precision": ("float32", "bfloat16"),
    "ppo.use": ("last", "best"),
    "ppo.on_collapse": ("stop", "continue"),
}

_INFINITY = math.inf
# Closed intervals; the names in _OPEN_LOW exclude their lower end.
RANGES: dict[str, tuple[float, float]] = {
    "env.max_turns": (1, _INFINITY),
    "env.max_actions_per_turn": (1, _INFINITY),
    "env.max_actions": (1, _INFINITY),
    "env.response_hint": (1, _INFINITY),
    "agent.window": (0, _INFINITY),
    "agent.format_penalty": (-_INFINITY, 0),
    "model.threads": (0, _INFINITY),
    "sampling.temperature": (0, _INFINITY),
    "sampling.top_p": (0, 1),
    "sampling.top_k": (0, _INFINITY),
    "sampling.max_tokens": (1, _INFINITY),
    "sampling.max_tokens_base": (0, _INFINITY),
    "sampling.batch_size": (1, _INFINITY),
    "sampling.processes": (0, _INFINITY),
    "engine.concurrency": (1, _INFINITY),
    "engine.timeout": (0, _INFINITY),
    "engine.retries": (0, _INFINITY),
    "engine.requests_per_minute": (0, _INFINITY),
    "engine.gpu_memory_utilization": (0, 1),
    "engine.tensor_parallel": (1, _INFINITY),
    "engine.max_model_len": (0, _INFINITY),
    "selfplay.groups": (1, _INFINITY),
    "selfplay.group_size": (1, _INFINITY),
    "selfplay.outcome_share": (0, 1),
    "selfplay.plain_rows": (0, _INFINITY),
    "selfplay.val_fraction": (0, 0.9),
    "sft.window": (0, _INFINITY),
    "sft.epochs": (0, _INFINITY),
    "sft.batch_size": (1, _INFINITY),
    "sft.micro_batch_tokens": (1, _INFINITY),
    "sft.max_length": (1, _INFINITY),
    "sft.lr": (0, _INFINITY),
    "sft.weight_decay": (0, _INFINITY),
    "sft.max_grad_norm": (0, _INFINITY),
    "sft.warmup_fraction": (0, 1),
    "sft.decay_fraction": (0, 1),
    "sft.lora_rank": (0, _INFINITY),
    "sft.lora_alpha": (0, _INFINITY),
    "sft.lora_dropout": (0, 0.9),
    "sft.log_every": (1, _INFINITY),
    "sft.val_every": (0, _INFINITY),
    "sft.patience": (0, _INFINITY),
    "sft.save_every": (0, _INFINITY),
    "sft.keep_checkpoints": (1, _INFINITY),
    "sft.eval_worlds": (0, _INFINITY),
    "sft.eval_every": (0, _INFINITY),
    "ppo.steps": (0, _INFINITY),
    "ppo.groups": (1, _INFINITY),
    "ppo.group_size": (1, _INFINITY),
    "ppo.filter_ratio": (0, 1),
    "ppo.dynamic_groups": (0, _INFINITY),
    "ppo.dynamic_rounds": (1, _INFINITY),
    "ppo.reward_scale": (0, _INFINITY),
    "ppo.observation_reward": (0, _INFINITY),
    "ppo.prediction_reward": (0, _INFINITY),
    "ppo.kl_reward_coef": (0, _INFINITY),
    "ppo.kl_loss_coef": (0, _INFINITY),
    "ppo.gamma": (0, 1),
    "ppo.lam": (0, 1),
    "ppo.high_level_gamma": (0, 1),
    "ppo.epochs": (1, _INFINITY),
    "ppo.mini_batches": (1, _INFINITY),
    "ppo.target_kl": (0, _INFINITY),
    "ppo.clip_low": (0, 1),
    "ppo.clip_high": (0, _INFINITY),
    "ppo.dual_clip": (0, _INFINITY),
    "ppo.value_clip": (0, _INFINITY),
    "ppo.value_coef": (0, _INFINITY),
    "ppo.entropy_coef": (0, _INFINITY),
    "ppo.world_model_coef": (0, _INFINITY),
    "ppo.world_model_fraction": (0, 1),
    "ppo.actor_lr": (0, _INFINITY),
    "ppo.critic_lr": (0, _INFINITY),
    "ppo.warmup_steps": (0, _INFINITY),
    "ppo.critic_warmup": (0, _INFINITY),
    "ppo.adam_eps": (0, _INFINITY),
    "ppo.weight_decay": (0, _INFINITY),
    "ppo.max_grad_norm": (0, _INFINITY),
    "ppo.lora_rank": (0, _INFINITY),
    "ppo.critic_lora_rank": (0, _INFINITY),
    "ppo.lora_alpha": (0, _INFINITY),
    "ppo.lora_dropout": (0, 0.9),
    "ppo.micro_batch_tokens": (1, _INFINITY),
    "ppo.val_every": (0, _INFINITY),
    "ppo.val_worlds": (1, _INFINITY),
    "ppo.val_samples": (1, _INFINITY),
    "ppo.save_every": (0, _INFINITY),
    "ppo.keep_checkpoints": (0, _INFINITY),
    "ppo.log_episodes": (0, _INFINITY),
    "ppo.collapse_patience": (1, _INFINITY),
    "ppo.min_valid_rate": (0, 1),
    "ppo.max_repetition": (0, 1),
    "ppo.min_entropy": (0, _INFINITY),
    "planner.depth": (1, _INFINITY),
    "planner.width": (0, _INFINITY),
    "planner.simulations": (1, _INFINITY),
    "planner.exploration": (0, _INFINITY),
    "planner.samples": (1, _INFINITY),
    "planner.proposals": (0, _INFINITY),
    "planner.gamma": (0, 1),
    "planner.min_probability": (0, 1),
    "planner.optimism": (0, _INFINITY),
    "planner.max_questions": (0, _INFINITY),
    "practice.rounds": (1, _INFINITY),
    "practice.worlds": (1, _INFINITY),
    "practice.epochs": (1, _INFINITY),
    "practice.rehearsal": (0, _INFINITY),
    "practice.values": (0, _INFINITY),
    "practice.groups": (1, _INFINITY),
    "practice.group_size": (1, _INFINITY),
    "curriculum.threshold": (0, 1),
    "curriculum.window": (1, _INFINITY),
    "curriculum.rehearsal": (0, 0.9),
    "curriculum.imagined": (0, 1),
    "curriculum.imagined_worlds": (1, _INFINITY),
    "eval.worlds": (1, _INFINITY),
    "eval.samples": (1, _INFINITY),
    "eval.bootstrap": (0, _INFINITY),
    "eval.world_model_worlds": (0, _INFINITY),
    "seeds.run": (0, 2**63 - 1),
    "report.episodes": (0, _INFINITY),
}
_OPEN_LOW = {
    "engine.timeout",
    "engine.gpu_memory_utilization",
    "sampling.top_p",
    "sft.lora_alpha",
    "sft.max_grad_norm",
    "ppo.filter_ratio",
    "ppo.reward_scale",
    "ppo.clip_low",
    "ppo.clip_high",
    "ppo.adam_eps",
    "ppo.max_grad_norm",
    "ppo.lora_alpha",
    "ppo.world_model_fraction",
    "curriculum.threshold",
}


def get_setting(config: Any, key: str) -> Any:
    """The value of a dotted name."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def validate(cfg: Config, variant_names: Sequence[str]) -> None:
    """Checks ranges, choices, variants and seeds of a config.

    Raises:
        ValueError: one line that names the first setting that is wrong, what it may be and what it was.
    """
    for key, options in CHOICES.items():
        choose(key, get_setting(cfg, key), options)
    for key, (low, high) in RANGES.items():
        value = get_setting(cfg, key)
        open_low = key in _OPEN_LOW
        if value is not None and (value < low or value > high or (open_low and value == low)):
            raise ValueError(f"{key} must be {_interval(low, high, open_low)}, not {value}")
    for key in ("env.id", "env.tag", "name", "model.path", "agent.action_sep"):
        if not get_setting(cfg, key).strip():
            raise ValueError(f"{key} must not be empty")
    for key in ("sft.betas", "ppo.betas"):
        betas = get_setting(cfg, key)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{key} must be two numbers from 0 to below 1, not {betas}")
    if 0 < cfg.ppo.dual_clip <= 1:
        raise ValueError(f"ppo.dual_clip must be 0 (off) or more than 1, not {cfg.ppo.dual_clip}")
    if cfg.selfplay.plain_rows and (cfg.selfplay.prompt != "base" or cfg.selfplay.rows != "transitions"):
        raise ValueError("selfplay.plain_rows needs selfplay.rows=transitions and selfplay.prompt=base")
    if cfg.selfplay.prompt == "base" and (cfg.selfplay.filter or cfg.sft.loss != "think_answer"):
        raise ValueError(
            "selfplay.prompt=base writes no states: it needs selfplay.filter=false and sft.loss=think_answer"
        )
    if cfg.sampling.stop and cfg.engine.kind == "openai":
        raise ValueError(
            "sampling.stop cannot be used with engine=openai: a chat server leaves out the string it stops at"
        )
    check_access(cfg.engine)
    _validate_ppo(cfg)
    if not cfg.eval.ks or not all(1 <= k <= cfg.eval.samples for k in cfg.eval.ks):
        raise ValueError(f"eval.ks must be numbers from 1 to eval.samples ({cfg.eval.samples}), not {cfg.eval.ks}")
    # A variant of one's own is the path of a file, which is looked at when the variant is loaded.
    _each(
        "variants",
        cfg.variants,
        lambda variant: variant if variant.endswith((".yaml", ".yml")) else choose("variant", variant, variant_names),
    )
    if not cfg.variants:
        raise ValueError(f"variants must name at least one of {', '.join(variant_names)}")
    _each("report.trackers", cfg.report.trackers, lambda tracker: choose("tracker", tracker, TRACKERS))
    _validate_seeds(cfg.seeds)


def check_access(engine: EngineConfig) -> None:
    """Checks that there is no password or key in a config. The messages do not show what they are about.

    Raises:
        ValueError: there is.
    """
    if re.search("[@?#]", engine.base_url or ""):
        raise ValueError(
            "engine.base_url must be an address alone, without user, password or parameters (@, ? or #): put the key into the "
            "environment variable that engine.api_key_env names"
        )
    if engine.api_key_env and not re.fullmatch(r"[A-Za-z_]\w*", engine.api_key_env, re.ASCII):
        raise ValueError(
            "engine.api_key_env must be the name of an environment variable that holds the key, not the key"
        )


# Estimators that need a critic, and those that compare the episodes of a group.
WITH_VALUES = ("gae", "turn_gae", "bi_level_gae")
WITH_GROUPS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")


def _validate_ppo(cfg: Config) -> None:
    ppo, curriculum = cfg.ppo, cfg.curriculum
    if ppo.critic == "none" and ppo.estimator in WITH_VALUES:
        raise ValueError(
            f"ppo.estimator={ppo.estimator} needs a critic: set ppo.critic to model, head or detached_head, or "
            "choose another estimator (algorithm=grpo, rloo, ...)"
        )
    if ppo.estimator in WITH_GROUPS and ppo.group_size < 2:
        raise ValueError(
            f"ppo.estimator={ppo.estimator} compares the episodes of a world: ppo.group_size must be 2 or more"
        )
    if ppo.reward_norm != "identity" and ppo.reward_placement != "end":
        raise ValueError(
            f"ppo.reward_norm={ppo.reward_norm} is of whole episodes' scores: it needs ppo.reward_placement=end"
        )
    if ppo.critic_lora_rank and (ppo.critic != "model" or ppo.estimator not in WITH_VALUES):
        raise ValueError("ppo.critic_lora_rank needs a critic with a network of its own: ppo.critic=model")
    if ppo.world_model_coef and not cfg.agent.think:
        raise ValueError("ppo.world_model_coef trains states in the think block: it needs agent.think=true")
    if curriculum.mixture and curriculum.levels:
        raise ValueError("curriculum.mixture and curriculum.levels exclude each other")
    if curriculum.imagined and (curriculum.mixture or curriculum.levels):
        raise ValueError("curriculum.imagined excludes curriculum.mixture and curriculum.levels")
    for name, weight in curriculum.mixture.items():
        if weight <= 0:
            raise ValueError(f"curriculum.mixture.{name} must be more than 0, not {weight:g}")


def check_ppo_sampling(sampling: SamplingConfig) -> None:
    """Raises ValueError for sampling that stage 3 cannot learn from (self-play and evaluation may use it)."""
    if sampling.top_p != 1 or sampling.top_k != 0 or sampling.temperature <= 0:
        raise ValueError(
            "PPO needs sampling.top_p=1, sampling.top_k=0 and a temperature above 0: otherwise the tokens are "
            "drawn from another distribution than the one whose log-probs are trained"
        )


def validate_variant(variant: VariantConfig) -> None:
    """Checks one variant's settings; ValueError as in ``validate``."""
    if variant.practice and not variant.sft:
        raise ValueError(f"variant {variant.name} practises in the world model of stage 2: practice needs sft: true")
    choose(f"state_format of variant {variant.name}", variant.state_format, CHOICES["env.state_format"])
    for label, name in (
        ("name", variant.name),
        ("selfplay", variant.selfplay),
        ("shares", variant.shares),
        ("continues", variant.continues),
    ):
        if not re.fullmatch(r"[\w.-]*", name) or name.startswith(".") or (label == "name" and not name):
            raise ValueError(f"{label} of a variant names a folder: letters, digits, _, - and . only, not {name!r}")


def _each(key: str, values: Sequence[str], check: Callable[[str], object]) -> None:
    for value in values:
        check(value)
    if len(set(values)) < len(values):
        raise ValueError(f"{key} names the same twice: {', '.join(values)}")


def _interval(low: float, high: float, open_low: bool) -> str:
    def number(value: float) -> str:
        return f"{value:g}" if abs(value) < 1e15 else str(value)

    if math.isinf(high):
        return f"more than {number(low)}" if open_low else f"{number(low)} or more"
    if math.isinf(low):
        return f"{number(high)} or less"
    return (
        f"more than {number(low)} and at most {number(high)}" if open_low else f"from {number(low)} to {number(high)}"
    )


def _validate_seeds(seeds: SeedConfig) -> None:
    firsts = sorted((getattr(seeds, name), name) for name in ("test", "val", "selfplay", "train"))
    for value, name in firsts:
        if value < 0:
            raise ValueError(f"seeds.{name} must be 0 or more, not {value}")
    for (low, name), (high, other) in pairwise(firsts):
        if high - low < SEED_RANGE:
            raise ValueError(
                f"seeds.{name} ({low}) and seeds.{other} ({high}) are closer than {SEED_RANGE}: "
                "their splits would share seeds"
            )
