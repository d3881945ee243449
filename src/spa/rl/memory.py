"""Peak memory of stage 3, estimated from the model's config."""

from __future__ import annotations

from dataclasses import dataclass

from spa.config.schema import Config
from spa.models.load import compute_dtype_bytes, load_config, pick_device, weight_bytes
from spa.models.memory import MemoryEstimate, cache_bytes, count_parameters, estimate_training, size
from spa.rl.advantages import ESTIMATORS
from spa.rl.reference import needs_reference

PROMPT = 512  # tokens of a turn's user message, about


@dataclass(frozen=True)
class PPOMemory:
    """Bytes. ``process`` and ``states`` (weights, both Adam states) are always resident; an update also needs the gradients, and
    the activations and logits of one network at a time. ``rollout`` is the KV cache of all episodes at once, needed instead
    during play: if it does not fit, fewer play at once."""

    states: int
    gradients: int
    activations: int
    rollout: int
    process: int

    @property
    def total(self) -> int:
        return self.process + self.states + self.gradients + self.activations

    def __str__(self) -> str:
        return (
            f"{size(self.total)} (weights and Adam's states {size(self.states)}, gradients {size(self.gradients)}, activations "
            f"{size(self.activations)}, process {size(self.process)}); a rollout's keys and values in place of gradients and "
            f"activations: {size(self.rollout)}, or fewer episodes at once"
        )


def memory_estimate(cfg: Config, *, local_only: bool = False) -> PPOMemory:
    """Of actor, critic, reference and rollout. ``local_only``: no download.

    The KV cache is counted for full-length responses.

    Raises:
        ValueError: the model's config cannot be read.
    """
    config, model = cfg.ppo, load_config(cfg.model.path, cfg.model, local_only=local_only)
    weights = weight_bytes(cfg.model)
    compute = min(weights, compute_dtype_bytes(config.precision))

    def network(rank: int, scored: int) -> MemoryEstimate:
        return estimate_training(
            model,
            tokens=config.micro_batch_tokens,
            scored=scored,
            weight_bytes=weights,
            compute_bytes=compute,
            checkpointing=cfg.model.gradient_checkpointing,
            lora_rank=rank,
            device=pick_device(cfg.model.device).type,
        )

    networks = [network(config.lora_rank, config.micro_batch_tokens)]
    if config.critic == "model" and ESTIMATORS[config.estimator].values:
        networks.append(network(config.critic_lora_rank, 0))
    states = sum(each.weights + each.optimizer for each in networks)
    if needs_reference(config) and not (config.lora_rank and config.reference is None):
        states += count_parameters(model) * weights
    turns = cfg.env.max_turns if cfg.agent.window == 0 else cfg.agent.window
    rows = min(cfg.sampling.batch_size, config.groups * config.group_size)
    return PPOMemory(
        states=states,
        gradients=sum(each.gradients for each in networks),
        activations=max(each.activations + each.logits + each.fragmentation for each in networks),
        rollout=rows * turns * (PROMPT + cfg.sampling.max_tokens) * cache_bytes(model, weights),
        process=max(each.process for each in networks),
    )
