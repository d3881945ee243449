"""Settings of stages 2 and 3. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from spa.config.fields import (
    STRICT,
    AboveZero,
    Count,
    Flag,
    NonNegative,
    Number,
    Positive,
    Precision,
    Share,
    ShareAboveZero,
    UpTo90,
    setting,
)

Betas = Annotated[list[Annotated[Number, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
KLEstimator = Literal["k1", "k2", "k3"]
Use = Literal["last", "best"]
LORA_TARGETS = "Names of linear layers, or all-linear."
PACKING = "Concatenate rows instead of padding them; each sees only itself."
COMPILE = "torch.compile feed-forward parts and norms."
WITH_VALUES = ("gae", "turn_gae", "bi_level_gae")  # estimators that need a critic
WITH_GROUPS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")  # those that compare episodes of one world
# Those defined with whitened advantages.
WHITENED = (*WITH_VALUES, "reinforce_plus_plus", "reinforce_plus_plus_baseline")


@dataclass(config=STRICT)
class SFTConfig:
    """Stage 2 ([SFT](selfplay-and-sft.md#stage-2-spa-sft))."""

    data: str | None = setting(None, "Folder with train.parquet and val.parquet, or one parquet; null = stage 1.")
    loss: Literal["think_answer", "state", "masked"] = setting(
        "think_answer", "Trained tokens; masked: the paper's Fig. 4."
    )
    train_end: Flag = setting(True, "Also train the end-of-turn token.")
    window: Count | None = setting(None, "Turns of history in a prompt; null = agent.window, 0 = all.")
    epochs: Positive = setting(5, "Passes over the data.")
    batch_size: Positive = setting(16, "Rows per optimizer step.")
    merge_turns: Flag = setting(True, "Train rows that are prefixes of one another as one sequence.")
    micro_batch_tokens: Positive = setting(8192, "Tokens per forward pass.")
    packing: Flag = setting(True, PACKING)
    compile: Flag = setting(False, COMPILE)
    max_length: Positive = setting(2048, "Tokens per row; longer rows are skipped.")
    precision: Precision = setting("float32", "Of matrix products (autocast); weights stay in model.dtype.")
    lr: NonNegative = setting(1e-4, "Peak learning rate.")
    betas: Betas = setting([0.9, 0.95], "Of AdamW.")
    weight_decay: NonNegative = setting(0.01, "Of AdamW.")
    max_grad_norm: AboveZero = setting(1.0, "Gradient clipping.")
    warmup_fraction: Share = setting(0.1, "Share of the steps with linear warm-up.")
    schedule: Literal["cosine", "wsd", "constant"] = setting("cosine", "After warm-up; wsd: constant, then a cosine.")
    decay_fraction: Share = setting(0.1, "wsd: share of the steps with the cosine, to 0.")
    lora_rank: Count = setting(0, "0 = full fine-tuning.")
    lora_alpha: AboveZero = setting(16.0, "Scale of LoRA.")
    lora_dropout: UpTo90 = setting(0.0, "Dropout of LoRA.")
    lora_targets: list[str] = setting(["all-linear"], LORA_TARGETS)
    log_every: Positive = setting(10, "Optimizer steps.")
    val_every: Count = setting(0, "Optimizer steps; 0 = after every epoch.")
    patience: Count = setting(0, "Stop after so many validations without a better loss; 0 = never.")
    use: Use = setting("last", "Checkpoint for stage 3; best = lowest validation loss.")
    save_every: Count = setting(0, "Optimizer steps; 0 = after every epoch.")
    keep_checkpoints: Count = setting(2, "Newest to keep, and the best; 0 = all.")
    eval_worlds: Count = setting(
        32, "Held-out worlds for measuring the world model before and after training; 0 = off."
    )
    eval_every: Count = setting(0, "Optimizer steps between further measurements; 0 = none.")
    memory_check: Flag = setting(True, "Refuse to start if the estimated memory is not free.")


@dataclass(config=STRICT)
class PPOConfig:
    """Stage 3 ([algorithms](algorithms.md))."""

    steps: Count = setting(1000, "PPO steps.")
    groups: Positive = setting(32, "Worlds per step.")
    group_size: Positive = setting(8, "Episodes per world.")
    start: str | None = setting(None, "Where RL starts: a checkpoint, stage folder or hub name; null = the variant's.")

    # Which groups are trained on
    filter: Literal["std", "std_rev", "max_mean", "top_p", "off"] = setting(
        "std", "Selects groups by the spread of their scores."
    )
    filter_ratio: ShareAboveZero = setting(
        0.25, "Share of the groups to keep (top_p: of the summed variance); 1 = all."
    )
    dynamic_groups: Count = setting(0, "Play until so many groups have different scores; 0 = off.")
    dynamic_rounds: Positive = setting(4, "Most rounds of ppo.groups worlds per step for ppo.dynamic_groups.")

    # Rewards
    reward_placement: Literal["end", "turn"] = setting(
        "end", "end: an episode's sum on its last trained token; turn: each turn's reward on its own last token."
    )
    reward_scale: AboveZero = setting(1.0, "Factor of the rewards.")
    reward_norm: Literal["identity", "mean", "mean_std", "asym_clip"] = setting(
        "identity", "Of episode scores; needs ppo.reward_placement=end."
    )
    reward_norm_by: Literal["state", "inductive", "batch"] = setting(
        "state", "state: a group; inductive: a task's tag."
    )
    observation_reward: NonNegative = setting(0.0, "Reward per turn for an accurate observation.")
    prediction_reward: NonNegative = setting(0.0, "Reward per turn for an accurate prediction.")
    state_match: Literal["exact", "cells", "changed"] = setting(
        "exact", "Score of a state: all or nothing, share of correct cells, or of the cells that changed."
    )
    kl_reward_coef: NonNegative = setting(0.0, "KL to the reference model, subtracted from each token's reward.")
    kl_reward_estimator: KLEstimator = setting("k1", "Of the KL in the reward.")
    kl_loss_coef: NonNegative = setting(0.0, "KL to the reference model in the loss.")
    kl_loss_estimator: KLEstimator = setting("k3", "Of the KL in the loss.")
    reference: str | None = setting(None, "Reference model of the KL; null = where RL starts.")

    # Advantages
    estimator: Literal[
        "gae",
        "turn_gae",
        "bi_level_gae",
        "grpo",
        "dr_grpo",
        "rloo",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
    ] = setting("gae", "Advantage estimator.")
    gamma: Share = setting(
        1.0,
        "Discount per trained token (turn_gae: per turn). Where all episodes score the same, nothing is updated, "
        "however long each took.",
    )
    lam: Share = setting(1.0, "Lambda of GAE.")
    high_level_gamma: Share = setting(0.95, "bi_level_gae: discount per turn.")
    whiten_advantages: Flag | None = setting(None, f"null = for {', '.join(WHITENED)}.")

    # Loss
    epochs: Positive = setting(1, "Passes over a batch.")
    mini_batches: Positive = setting(1, "Optimizer steps per pass.")
    target_kl: NonNegative = setting(0.0, "Stop on a batch at this KL from the policy that played; 0 = off.")
    loss_mask: Literal["sampled", "answer", "all"] = setting(
        "sampled",
        "Trained tokens; answer: the answer's, or all if there is none; all: context too (the original: but the system message).",
    )
    loss_aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = (
        setting("token-mean", "How token losses become one loss.")
    )
    clip_low: Annotated[Number, Field(gt=0, le=1)] = setting(0.2, "Clipping of the ratio below 1.")
    clip_high: AboveZero = setting(0.28, "Clipping of the ratio above 1.")
    dual_clip: NonNegative = setting(3.0, "Bounds the loss of negative advantages; more than 1, or 0 = off.")
    silence_below: Share = setting(
        0.0, "No policy loss for tokens of positive advantage sampled with a lower probability (STAPO); 0 = off."
    )
    value_clip: NonNegative = setting(0.5, "Clipping of the critic's change; 0 = off.")
    value_coef: NonNegative = setting(1.0, "Weight of the value loss.")
    entropy_coef: NonNegative = setting(0.001, "Weight of the entropy bonus.")
    world_model_coef: NonNegative = setting(
        0.0, "Weight of a loss on the true states of the turns just played; 0 = off."
    )
    rollout_is: Literal["none", "token", "sequence"] = setting(
        "none", "Importance weights where the engine's log-probs differ from training's."
    )
    rollout_is_threshold: AboveZero = setting(2.0, "Truncation of the weights of ppo.rollout_is.")
    world_model_fraction: ShareAboveZero = setting(0.25, "Share of the step's episodes for ppo.world_model_coef.")

    # Optimisation
    critic: Literal["model", "head", "detached_head", "none"] = setting(
        "model",
        "model: its own network; head: on the actor's trunk, which it trains too; detached_head: leaves the "
        "trunk alone.",
    )
    actor_lr: NonNegative = setting(1e-6, "Peak learning rate of the actor.")
    critic_lr: NonNegative = setting(1e-5, "Peak learning rate of the critic.")
    warmup_steps: Count = setting(0, "Optimizer steps of linear warm-up.")
    critic_warmup: Count = setting(0, "PPO steps that train the critic alone.")
    betas: Betas = setting([0.9, 0.999], "Of AdamW.")
    adam_eps: AboveZero = setting(1e-8, "Of AdamW.")
    weight_decay: NonNegative = setting(0.01, "Of AdamW.")
    max_grad_norm: AboveZero = setting(1.0, "Gradient clipping.")
    lora_rank: Count = setting(0, "Of the actor; 0 = full training.")
    critic_lora_rank: Count = setting(0, "Of a critic with its own network; 0 = full training.")
    lora_alpha: AboveZero = setting(64.0, "Scale of LoRA.")
    lora_dropout: UpTo90 = setting(0.0, "Dropout of LoRA.")
    lora_targets: list[str] = setting(["all-linear"], LORA_TARGETS)
    micro_batch_tokens: Positive = setting(8192, "Tokens per forward pass.")
    packing: Flag = setting(True, PACKING)
    compile: Flag = setting(False, COMPILE)
    precision: Precision = setting("float32", "Of the update's matrix products (autocast).")

    memory_check: Flag = setting(True, "Refuse to start if the estimated memory is not free.")

    # Validation and checkpoints
    val_every: Count = setting(10, "Steps between validations; 0 = never.")
    val_before_train: Flag = setting(True, "Validate before the first step.")
    val_worlds: Positive = setting(128, "Validation worlds.")
    val_samples: Positive = setting(1, "Episodes per validation world.")
    use: Use = setting("last", "Checkpoint to evaluate; best = highest validation Pass@1.")
    save_every: Count = setting(100, "Steps; the last is always saved.")
    keep_checkpoints: Count = setting(2, "Newest to keep, and with ppo.use=best the best; 0 = all.")
    log_episodes: Count = setting(8, "Training episodes written per step.")
    keep_episodes: Count = setting(
        1000, "Files of training episodes to keep (one a step, spread evenly, at least 2); 0 = all."
    )

    # Detection of policy collapse
    on_collapse: Literal["stop", "continue"] = setting(
        "stop", "Whether a [collapse](algorithms.md#collapse) of the policy ends the run."
    )
    collapse_patience: Positive = setting(
        5, "Steps in a row beyond min_valid_rate, max_repetition or min_entropy that count as collapse."
    )
    min_valid_rate: Share = setting(0.05, "Least share of turns with a valid action, once it was twice that; 0 = off.")
    max_repetition: Share = setting(0.5, "Largest share of responses ending in a loop; 1 = off.")
    min_entropy: NonNegative = setting(0.0, "Least entropy in nats per token; 0 = off.")

    @property
    def needs_reference(self) -> bool:
        """Whether the reward or the loss has a KL to a reference model."""
        return bool(self.kl_reward_coef or self.kl_loss_coef)

    @property
    def by_turn(self) -> bool:
        """Whether the estimator reads each turn's reward; a group baseline reads their sum."""
        return self.reward_placement == "turn" and self.estimator not in WITH_GROUPS

    @model_validator(mode="after")
    def _settings_agree(self) -> PPOConfig:
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"ppo.dual_clip must be 0 (off) or more than 1, not {self.dual_clip}")
        if self.critic == "none" and self.estimator in WITH_VALUES:
            raise ValueError(
                f"ppo.estimator={self.estimator} needs a critic: set ppo.critic to model, head or detached_head, or "
                "choose another estimator (algorithm=grpo, rloo, ...)"
            )
        if self.estimator in WITH_GROUPS and self.group_size < 2:
            raise ValueError(
                f"ppo.estimator={self.estimator} compares the episodes of a world: ppo.group_size must be 2 or more"
            )
        filters = self.filter == "top_p" or (self.filter != "off" and self.filter_ratio < 1)
        if self.group_size < 2 and (self.dynamic_groups or filters):
            name, off = f"ppo.filter={self.filter}", "ppo.filter=off"
            if self.dynamic_groups:
                name, off = "ppo.dynamic_groups", "ppo.dynamic_groups=0"
            raise ValueError(f"{name} compares the episodes of a world: set ppo.group_size to 2 or more, or {off}")
        if self.use == "best" and not self.val_every:
            raise ValueError("ppo.use=best needs validation: set ppo.val_every, or ppo.use=last")
        if self.reward_norm != "identity" and self.reward_placement != "end":
            raise ValueError(
                f"ppo.reward_norm={self.reward_norm} is of whole episodes' scores: it needs ppo.reward_placement=end"
            )
        if self.critic_lora_rank and (self.critic != "model" or self.estimator not in WITH_VALUES):
            raise ValueError(
                "ppo.critic_lora_rank needs a critic with a network of its own: set ppo.critic=model, or ppo.critic_lora_rank=0"
            )
        return self
