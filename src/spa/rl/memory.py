"""Peak memory of play and of stage 3, estimated from the model's config."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from spa.config.schema import Config
from spa.config.training import WITH_VALUES
from spa.models.fit import check_fits, ranks_of
from spa.models.load import bytes_of, context_length, load_config
from spa.models.memory import (
    PROCESS,
    MemoryEstimate,
    blocked_bytes,
    cache_bytes,
    count_parameters,
    estimate_training,
    size,
)
from spa.rl.curriculum import training_tasks

PROMPT = 512  # tokens of a turn's user message, about


@dataclass(frozen=True)
class PlayMemory:
    """Bytes while episodes are played: ``weights`` of the model, ``copy`` of them that the engine makes (blocked for a CPU,
    vLLM's own), and the keys and values (``cache``) of all episodes at once. If these do not fit, fewer play at once."""

    weights: int
    copy: int
    cache: int
    process: int

    @property
    def resident(self) -> int:
        return self.weights

    @property
    def total(self) -> int:
        return self.process + self.weights + self.copy + self.cache

    def __str__(self) -> str:
        copy = f", the engine's copy {size(self.copy)}" if self.copy else ""
        return (
            f"{size(self.total)} (weights {size(self.weights)}{copy}, keys and values {size(self.cache)} or fewer episodes at "
            f"once, process {size(self.process)})"
        )


@dataclass(frozen=True)
class PPOMemory:
    """Bytes per process. ``process`` and ``states`` (weights, both Adam states) are always resident; an update also needs the
    gradients, the activations and logits of one network at a time, and what it gathers of other shards. A rollout needs
    ``copy`` and the keys and values (``rollout``: of all episodes at once) instead of these, a checkpoint of several ranks
    ``saving``."""

    states: int
    gradients: int
    activations: int
    gathered: int
    copy: int
    row: int
    rollout: int
    process: int
    saving: int = 0

    @property
    def resident(self) -> int:
        return self.states

    @property
    def total(self) -> int:
        update = self.gradients + self.activations + self.gathered
        return self.process + self.states + max(update, self.saving, self.copy + self.row)

    def __str__(self) -> str:
        gathered = f", gathered {size(self.gathered)}" if self.gathered else ""
        copy = f" and the engine's copy of the weights {size(self.copy)}" if self.copy else ""
        return (
            f"{size(self.total)} (weights and Adam's states {size(self.states)}, gradients {size(self.gradients)}, activations "
            f"{size(self.activations)}{gathered}, process {size(self.process)}); a rollout's keys and values{copy} in place of "
            f"gradients and activations: {size(self.rollout)}, or fewer episodes at once"
        )


def play_estimate(cfg: Config, device: str, *, episodes: int, local_only: bool = False) -> PlayMemory:
    """Of self-play and evaluation of ``episodes`` with full-length responses; every process has all weights.

    Raises:
        ValueError: the model's config cannot be read.
    """
    model = load_config(cfg.model.path, cfg.model, local_only=local_only)
    weights = count_parameters(model) * bytes_of(cfg.model.dtype)
    vllm = cfg.engine.kind == "vllm"
    copy, row = _engine(cfg, model, device)
    at_once = min(cfg.sampling.batch_size, episodes)
    return PlayMemory(0 if vllm else weights, copy, (at_once + 1) * row, PROCESS[device])


def _engine(cfg: Config, model: Any, device: str, *, adapters: bool = False) -> tuple[int, int]:
    """Bytes of the engine's copy of the weights, and of an episode's keys and values."""
    itemsize = bytes_of(cfg.model.dtype)
    if cfg.engine.kind == "vllm":
        itemsize = bytes_of(cfg.engine.dtype or cfg.model.dtype)
        copy = count_parameters(model) * itemsize
    else:
        copy = blocked_bytes(model, adapters=adapters) if device == "cpu" and cfg.model.dtype == "float32" else 0
    longest = max(cfg.sampling.max_tokens, cfg.sampling.max_tokens_base)  # both prompts are played
    return copy, _longest(cfg, model, longest) * cache_bytes(model, itemsize)


def _longest(cfg: Config, model: Any, response: int) -> int:
    """Tokens of a row of responses of ``response`` tokens."""
    turns = max(task.env.max_turns for task in training_tasks(cfg)) if cfg.curriculum.mixture else cfg.env.max_turns
    tokens = (cfg.agent.window or turns) * (PROMPT + response)
    return min(tokens, context_length(model) or tokens)


def memory_estimate(cfg: Config, device: str, shards: int, *, local_only: bool = False) -> PPOMemory:
    """A ``spa.models.fit.Estimate`` of actor, critic, reference and rollout, all of full-length responses.

    Args:
        local_only: no download.
    """
    config, model = cfg.ppo, load_config(cfg.model.path, cfg.model, local_only=local_only)
    weights = bytes_of(cfg.model.dtype)
    compute = min(weights, bytes_of(config.precision))

    longest = _longest(cfg, model, cfg.sampling.limit(cfg.agent.prompt))
    tokens = max(config.micro_batch_tokens, longest)  # a longer row has a pass of its own

    def network(rank: int, scored: int) -> MemoryEstimate:
        return estimate_training(
            model,
            tokens=tokens,
            scored=scored,
            weight_bytes=weights,
            compute_bytes=compute,
            checkpointing=cfg.model.gradient_checkpointing,
            lora_rank=rank,
            device=device,
            shards=shards,
        )

    networks = [network(config.lora_rank, tokens)]
    if config.critic == "model" and config.estimator in WITH_VALUES:
        networks.append(network(config.critic_lora_rank, 0))
    states = sum(each.weights + each.optimizer for each in networks)
    if config.needs_reference and not (config.lora_rank and config.reference is None):
        states += count_parameters(model) * weights // shards
    rows = min(cfg.sampling.batch_size, -(-config.groups * config.group_size // max(shards, ranks_of(cfg))))
    copy, row = _engine(cfg, model, device, adapters=bool(config.lora_rank))
    return PPOMemory(
        states=states,
        gradients=sum(each.gradients for each in networks),
        activations=max(each.activations + each.logits for each in networks)
        + sum(each.fragmentation for each in networks),  # each network's passes lose memory of their own
        gathered=max(each.gathered for each in networks),
        copy=copy,
        row=row,
        rollout=copy + (rows + 1) * row,
        process=max(each.process for each in networks),
        saving=networks[0].saving,
    )


def saving_settings(cfg: Config) -> dict[str, str]:
    """Settings of stage 3 that may save memory, those that change results last."""
    ppo = cfg.ppo
    critic = ppo.critic == "model" and ppo.estimator in WITH_VALUES
    helpful = {
        "model.gradient_checkpointing=true": not cfg.model.gradient_checkpointing,
        "ppo.precision=bfloat16": ppo.precision == "float32" and cfg.model.dtype == "float32",
        "ppo.micro_batch_tokens=2048": ppo.micro_batch_tokens > 2048,
        "ppo.critic=head": critic and not ppo.critic_lora_rank,
        "ppo.lora_rank=32": not ppo.lora_rank,
        "model.dtype=bfloat16": cfg.model.dtype == "float32",
        "ppo.critic=head ppo.critic_lora_rank=0": critic and bool(ppo.critic_lora_rank),
    }
    remarks = {"ppo.lora_rank=32": " (with ten times ppo.actor_lr)"}
    return {name: remarks.get(name, "") for name, applies in helpful.items() if applies}


def check_memory(cfg: Config, *, local_only: bool = False) -> None:
    """Rejects a stage 3 that will not fit in memory.

    Raises:
        ValueError: the estimate exceeds what is free; the message gives both and the settings that make it fit.
    """
    if cfg.ppo.memory_check:
        check_fits(cfg, "ppo", partial(memory_estimate, local_only=local_only), saving_settings)
