"""Every setting of every stage, typed. The YAML files in ``spa/conf`` fill these in; unknown keys are errors.

Each class is one block of the config. A field's comment states its meaning and unit; the paper's or the original code's
value is given where ours differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class EnvConfig:
    """A task: a world, its settings and the limits under which it is played (the original's ``custom_envs.<Tag>``)."""

    id: str = "sokoban"  # a name `spa env list` shows, a Gymnasium id, or "module:Class"
    tag: str = "SimpleSokoban"  # the name under which metrics are logged
    settings: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the world's constructor
    state_format: str = "grid"  # grid | coordinates (the paper's "SE") | random_coordinates (wrong ones; paper, Fig. 5)
    max_turns: int = 5
    max_actions_per_turn: int = 5  # further ones are not played (their price: agent.penalize_extra_actions)
    max_actions: int = 10  # per episode; the episode ends when they are used up
    instruction: str | None = None  # prompt=base, style=paper; null = the built-in text of the world
    instruction_world_model: str | None = None  # prompt=world_model, style=paper
    response_hint: int | None = (
        None  # "Max response length" in the paper's prompt, in words; null = sampling.max_tokens
    )
    # how splits are kept apart: content (no world in two splits) | symmetry (nor its rotations and mirror images, in worlds that
    # know them) | seed (ranges of seeds alone)
    disjoint: str = "content"


@dataclass
class AgentConfig:
    """How the model is asked and how its answers are read."""

    style: str = "paper"  # paper (the original's wording) | terse (state, format tags, actions left)
    prompt: str = "base"  # base | world_model: whether stage 3 and evaluation ask for observation and prediction
    prompt_after_sft: str = (
        "same"  # the same for variants that start from stage 2: base | world_model | same (as agent.prompt)
    )
    think: bool = True  # force `<think>` at the start of a response; False forces `<answer>`
    action_sep: str = "||"
    window: int = 0  # turns of history the model sees; 0 = all (one token sequence an episode)
    # Who chooses in evaluation: none | lookahead | beam | mcts | best_of_n (see the block planner); beyond the paper
    planner: str = "none"
    format_penalty: float = -0.1  # once per turn with a dropped action, no valid action or a bad format
    penalize_extra_actions: bool = False  # ... or with more actions than a turn may have (the original: no penalty)


@dataclass
class ModelConfig:
    path: str = "builtin:tiny"  # builtin:tiny | a Hugging Face folder | a hub name
    dtype: str = "float32"  # of the weights: float32 | bfloat16
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    threads: int = 0  # CPU threads of torch; 0 = torch's own choice
    gradient_checkpointing: bool = False


@dataclass
class SamplingConfig:
    """Training needs top_p 1 and top_k 0: otherwise log-probs are of another distribution than the one trained."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    max_tokens: int = 400  # per turn
    max_tokens_base: int = 0  # the same for agent.prompt=base, whose answers hold no states; 0 = max_tokens
    stop: list[str] = field(default_factory=list)  # a response ends once it contains one of these, e.g. </answer>
    batch_size: int = 256  # episodes decoded at once
    processes: int = 0  # that play on a CPU, with one thread each; 0 = as many as help (Linux only), 1 = this one alone


@dataclass
class EngineConfig:
    """Who writes the text in self-play and in `spa eval`. Training always plays with the weights it trains."""

    kind: str = "transformers"  # transformers | vllm | openai (any server with an OpenAI-compatible chat API)
    base_url: str | None = None  # openai: address of the API, such as http://localhost:8000/v1
    model: str | None = None  # openai: the model's name on the server
    api_key_env: str = (
        "OPENAI_API_KEY"  # openai: the environment variable that holds the key; none is sent if it is unset
    )
    concurrency: int = 16  # openai: requests under way at once
    timeout: float = 120.0  # openai: seconds until a request counts as failed
    retries: int = 5  # openai: further tries of a failed request, with exponential backoff
    requests_per_minute: int = 0  # openai: 0 = no limit of our own (the server's 429 answers are always heeded)
    prefill: bool = False  # openai: begin the answer with the forced tag (vLLM's continue_final_message)
    gpu_memory_utilization: float = 0.9  # vllm
    tensor_parallel: int = 1  # vllm: GPUs
    max_model_len: int = 0  # vllm: tokens; 0 = the model's own


@dataclass
class SelfPlayConfig:
    """Stage 1. The original: 160 groups of 8 = 1,280 trajectories."""

    model: str | None = None  # who plays: a checkpoint folder or hub name; null = model.path, the base model
    groups: int = 160  # worlds
    group_size: int = 8  # episodes per world
    state_format: str = "coordinates"
    # model | random (uniform actions, a fixed thought; paper, Table 5) | planner (agent.planner; with a selfplay.model that
    # was trained on transitions: beyond the paper)
    policy: str = "model"
    states: str = (
        "truth"  # truth | belief (keep what the model wrote; paper, Table 3) | shuffled (of other turns: a control)
    )
    prompt: str = "world_model"  # world_model | base: with base no states are written (a control; needs filter=false)
    # written (the responses with true states; the paper's) | transitions (each move by itself, with its reward and end, in a fixed
    # layout that can be asked "what if?": beyond the paper, for planning)
    rows: str = "written"
    plain_rows: float = (
        0.0  # transitions with prompt=base: answers as they were given beside them, by number, to keep the policy
    )
    outcome_share: float = (
        0.0  # transitions: rows of a rarer reward or end are repeated until they are this share of all; 0 = off
    )
    filter: bool = True  # keep rows whose response has observation and prediction in a think block before the answer
    success_only: bool = False  # keep rows of won episodes only
    deduplicate: bool = False  # drop rows with the same prompt and response
    balance: str = "none"  # none | actions | turn | success: no class has more rows than the median of their sizes
    val_fraction: float = 0.2  # of the episodes


@dataclass
class SFTConfig:
    """Stage 2. Defaults are the original's command line."""

    data: str | None = None  # folder with train.parquet and val.parquet, or one parquet; null = selfplay/ of --out
    loss: str = "think_answer"  # think_answer (paper, Eq. 1-2) | state | masked (the paper's ablation, Fig. 4)
    train_end: bool = True  # also train the end-of-turn token after the answer
    window: int | None = None  # turns of history in a row's prompt; null = agent.window, 0 = all
    epochs: int = 5
    batch_size: int = 16  # rows per optimizer step
    merge_turns: bool = True  # train the turns of an episode as one sequence where a row is the beginning of another
    micro_batch_tokens: int = 8192  # tokens per forward pass; a step of more accumulates gradients
    packing: bool = True  # rows of a forward pass one behind the other without padding, each seeing itself alone
    compile: bool = False  # torch.compile of feed-forward parts and norms; gains little for small models on a CPU
    max_length: int = 2048  # tokens; longer rows are skipped and counted
    precision: str = "float32"  # float32 | bfloat16: of the matrix products (autocast; weights stay in model.dtype)
    lr: float = 1e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    warmup_fraction: float = 0.1
    schedule: str = "cosine"  # cosine | wsd (constant, then a cosine over the last decay_fraction) | constant
    decay_fraction: float = 0.1  # wsd: share of the steps in which the learning rate falls to 0
    lora_rank: int = 0  # 0 = full fine-tuning; checkpoints are merged models either way
    lora_alpha: float = 16.0
    lora_dropout: float = 0.0
    lora_targets: list[str] = field(default_factory=lambda: ["all-linear"])  # names of linear layers, or all-linear
    log_every: int = 10  # optimizer steps
    val_every: int = 0  # optimizer steps between validation losses; 0 = at the end of every epoch
    patience: int = 0  # stop after so many validations in a row without a better loss; 0 = never
    use: str = "last"  # last | best (by validation loss): the checkpoint that stage 3 starts from
    save_every: int = 0  # optimizer steps; 0 = at the end of every epoch
    keep_checkpoints: int = 2  # the newest; the best is kept besides
    eval_worlds: int = 32  # held-out worlds on which the world model is measured; 0 = off
    eval_every: int = 0  # optimizer steps between these measurements; 0 = after training only
    memory_check: bool = True  # refuse to start where the estimated memory exceeds what is free


@dataclass
class PPOConfig:
    """Stage 3 (docs/algorithms.md). Defaults are the original's (RAGEN and verl); conf/model/tiny.yaml has a tiny model's."""

    steps: int = 1000
    groups: int = 32  # worlds per step
    group_size: int = 8  # episodes per world
    start: str | None = (
        None  # where RL starts: a checkpoint, a stage's folder or a hub name; null = as the variant says
    )

    # Which groups are trained on
    filter: str = "std"  # std | std_rev | max_mean | top_p (by the spread of a group's scores) | off
    filter_ratio: float = 0.25  # share of the groups that is kept (top_p: of the sum of their variances); 1 = all
    dynamic_groups: int = 0  # play on until so many groups have episodes of different scores; 0 = off
    dynamic_rounds: int = 4  # most rounds of `groups` worlds that a step plays for dynamic_groups

    # Rewards
    reward_placement: str = (
        "end"  # end (the episode's reward on its last sampled token) | turn (each turn's on its own)
    )
    reward_scale: float = 1.0
    reward_norm: str = (
        "identity"  # identity | mean | mean_std | asym_clip: of the episodes' scores; needs placement end
    )
    reward_norm_by: str = "state"  # state (within a group) | inductive (within a task's tag) | batch
    observation_reward: float = 0.0  # a turn's reward for an observation that is right (the vagen variant)
    prediction_reward: float = 0.0  # the same for its prediction
    state_match: str = "exact"  # exact | cells (share of the grid that is right) | changed (of the cells that changed)
    kl_reward_coef: float = 0.0  # KL to the reference model, taken from the reward of every token
    kl_reward_estimator: str = "k1"  # k1 | k2 | k3
    kl_loss_coef: float = 0.0  # KL to the reference model, in the loss
    kl_loss_estimator: str = "k3"  # k1 | k2 | k3
    reference: str | None = None  # the reference model, loaded only if a coefficient is not 0; null = where RL starts

    # Advantages
    estimator: str = "gae"  # or turn_gae, bi_level_gae, grpo, dr_grpo, rloo, reinforce_plus_plus[_baseline]
    gamma: float = 1.0  # per trained token (turn_gae: per turn)
    lam: float = 1.0
    high_level_gamma: float = 0.95  # per turn, bi_level_gae only
    whiten_advantages: bool | None = None  # null = as the estimator is defined: all but grpo, dr_grpo and rloo

    # Loss
    epochs: int = 1  # passes over a batch
    mini_batches: int = 1  # optimizer steps per pass
    target_kl: float = (
        0.0  # no further step on a batch once a mini-batch is so far from the policy that played; 0 = off
    )
    loss_mask: str = (
        "sampled"  # sampled | answer (tokens of the answer span) | all (context too; the original's default)
    )
    loss_aggregation: str = (
        "token-mean"  # token-mean | seq-mean-token-mean | seq-mean-token-sum | seq-mean-token-sum-norm
    )
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 3.0  # 0 = off
    value_clip: float = 0.5  # 0 = off
    value_coef: float = 1.0
    entropy_coef: float = 0.001
    world_model_coef: float = 0.0  # auxiliary loss on the true states of the turns just played; 0 = off
    world_model_fraction: float = 0.25  # share of these turns that it uses

    # Optimisation
    critic: str = "model"  # model (a network of its own) | head (on the actor's trunk, which it trains too) | detached_head | none
    actor_lr: float = 1e-6
    critic_lr: float = 1e-5
    warmup_steps: int = 0  # optimizer steps of linear warm-up
    critic_warmup: int = 0  # PPO steps in which only the critic learns
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    adam_eps: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    lora_rank: int = 0  # of the actor; 0 = all its weights are trained
    critic_lora_rank: int = 0  # of a critic with a network of its own
    lora_alpha: float = 64.0
    lora_dropout: float = 0.0
    lora_targets: list[str] = field(default_factory=lambda: ["all-linear"])  # names of linear layers, or all-linear
    micro_batch_tokens: int = 8192  # tokens per forward pass
    packing: bool = True  # rows of a forward pass one behind the other without padding, each seeing itself alone
    compile: bool = False  # torch.compile of feed-forward parts and norms; gains little for small models on a CPU
    precision: str = "float32"  # float32 | bfloat16: of the matrix products of the update (autocast)

    # Validation and checkpoints
    val_every: int = 10  # steps; 0 = never
    val_before_train: bool = True
    val_worlds: int = 128
    val_samples: int = 1  # episodes per validation world
    use: str = "last"  # last | best (by validation Pass@1): the checkpoint that is evaluated
    save_every: int = 100  # steps; the last step is always saved
    keep_checkpoints: int = 2  # the newest; with use=best the best is kept besides
    log_episodes: int = 8  # training episodes written per step

    # What counts as a collapse: true for so many steps in a row
    on_collapse: str = (
        "stop"  # stop (naming the last good checkpoint) | continue (a warning; a non-finite step is left out)
    )
    collapse_patience: int = 5
    min_valid_rate: float = 0.05  # share of turns with a valid action, once it was twice as high; 0 = off
    max_repetition: float = 0.5  # share of responses that end in a loop of at most eight tokens; 1 = off
    min_entropy: float = 0.0  # nats a token; 0 = off


SIMULATOR = "simulator"  # as planner.model


@dataclass
class PlannerConfig:
    """How ``agent.planner`` searches in the model's own predictions (docs/planning.md). Beyond the paper."""

    depth: int = 10  # actions looked ahead, at most those left
    width: int = 0  # beam: states of a layer that are followed; 0 = all
    simulations: int = 64  # mcts: per decision
    exploration: float = 1.25  # mcts: weight of the prior (PUCT)
    samples: int = 1  # answers to a question: 1 = the likeliest, more are drawn (for worlds with chance)
    proposals: int = 0  # actions drawn from the plain policy: mcts' prior, and the actions of a world that lists none
    gamma: float = 0.95  # discount per action: what makes a short way better than a long one
    min_probability: float = 0.2  # answers that the model gives less are not built on; of several samples all are
    optimism: float = 0.1  # value of a state at which the search stops, in units of reward
    max_questions: int = 0  # per decision; 0 = no limit
    values: bool = False  # ask what moves are worth, too (see practice.values)
    # who imagines: a checkpoint, a stage's folder or a hub name; null = the model that plays; simulator = nobody, the true world
    # is looked at: what better imagination could reach at most
    model: str | None = None


@dataclass
class PracticeConfig:
    """Practice in imagination between stages 2 and 3, for variants with ``practice: true`` (docs/planning.md). Beyond the paper."""

    rounds: int = (
        1  # of planning and teaching; from the second on the policy plays before, and the world model is trained anew
    )
    worlds: int = (
        1000  # whose start states are planned from, each round: a third self-play worlds, the rest training worlds
    )
    whole: bool = False  # imagine all that planner.depth reaches, not only up to the first way to a gain
    epochs: int = 3  # of fine-tuning on the plans; the rest is as in stage 2
    rehearsal: float = 1.0  # rows of transitions beside those of plans, by number: against forgetting the world
    values: float = (
        0.0  # rows of what moves are worth beside those of plans, by number: for planner.values and best_of_n
    )
    groups: int = 100  # worlds played before the second round and each later one
    group_size: int = 8  # episodes per world


@dataclass
class CurriculumConfig:
    """Which worlds stage 3 trains on. Validation and evaluation always play the run's own."""

    mixture: dict[str, float] = field(
        default_factory=dict
    )  # configs (as `env=NAME`) and their weights; empty = the run's own
    levels: list[dict[str, Any]] = field(
        default_factory=list
    )  # `env.settings` of easier worlds that come before the run's own
    threshold: float = 0.7  # training success at which the next level begins
    window: int = 3  # steps over which it is measured
    rehearsal: float = 0.0  # share of the worlds that is drawn from levels already passed
    # Beyond the paper (docs/planning.md): share of the worlds that are not real but imagined by the model of stage 2
    imagined: float = 0.0
    imagined_worlds: int = 500  # how many of them it imagines, once
    imagined_file: str | None = None  # them, if they are there already; null = the run makes them


@dataclass
class EvalConfig:
    worlds: int = 128
    samples: int = 8  # per world
    ks: list[int] = field(default_factory=lambda: [1, 8])
    bootstrap: int = 2000  # resamples of the worlds for 95% intervals
    world_model_worlds: int = 32  # worlds on which observation and prediction accuracy are measured; 0 = off


@dataclass
class SeedConfig:
    """First seeds of the splits: disjoint ranges of 10**9. ``run`` seeds all randomness of training and sampling, and chooses where
    in their ranges self-play and training begin: each run has worlds of its own there."""

    run: int = 0
    test: int = 0
    val: int = 1_000_000_000
    selfplay: int = 2_000_000_000
    train: int = 3_000_000_000


@dataclass
class VariantConfig:
    """One row of the comparison."""

    name: str = "vanilla"
    state_format: str = "grid"
    sft: bool = False  # start from stage 2's model
    practice: bool = False  # ... after practice in imagination (beyond the paper)
    rl: bool = True
    settings: dict[str, Any] = field(default_factory=dict)  # of all stages of this variant, over the run's
    source: dict[str, Any] = field(default_factory=dict)  # of its stages 1 and 2 alone; `env: NAME` plays another world
    selfplay: str = ""  # name of a stage 1 of its own: folder selfplay-NAME; variants with one name share it
    shares: str = ""  # name of stages 1, 2 and practice of its own; variants with one name share them
    continues: str = ""  # a variant like this one but for fewer ppo.steps: its stage 3 is gone on with, not done again


@dataclass
class ReportConfig:
    episodes: int = 6  # shown per variant
    trackers: list[str] = field(default_factory=list)  # tensorboard | wandb | trackio, besides metrics.jsonl


@dataclass
class Config:
    """The whole resolved config of a run; ``config.yaml`` in its folder."""

    name: str = "sokoban"
    env: EnvConfig = field(default_factory=EnvConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    selfplay: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    practice: PracticeConfig = field(default_factory=PracticeConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    seeds: SeedConfig = field(default_factory=SeedConfig)
    variants: list[str] = field(default_factory=lambda: ["vanilla", "spa"])
    report: ReportConfig = field(default_factory=ReportConfig)
