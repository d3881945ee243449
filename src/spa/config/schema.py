"""Every setting: its type, range, default and description, each written once. Imports no torch.

Each class is one block of the config; ``SFTConfig`` and ``PPOConfig`` are in ``training``. The YAML files in ``spa/conf`` fill
the blocks in, ``docs/configuration.md`` lists them, and ``spa config --explain KEY`` shows one setting. Defaults are the values
of the paper or of the original code where these give any. An unknown key, another type or a value out of range is a
``ValueError``, on assignment too.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from spa.config.fields import (
    DISTINCT,
    NAMES_FOLDER,
    STRICT,
    AboveZero,
    Count,
    Flag,
    Folder,
    Key,
    Mapping,
    NonNegative,
    Number,
    Positive,
    Precision,
    Prompt,
    Seconds,
    Share,
    ShareAboveZero,
    StateFormat,
    Temperature,
    Text,
    Threads,
    UpTo90,
    UpToSeconds,
    setting,
)
from spa.config.training import PPOConfig as PPOConfig
from spa.config.training import SFTConfig as SFTConfig

SEED_RANGE = 10**9  # number of consecutive seeds in a split
SIMULATOR = "simulator"  # as planner.model
Planner = Literal["none", "lookahead", "beam", "mcts", "best_of_n"]


@dataclass(config=STRICT)
class EnvConfig:
    """A world and the limits under which it is played."""

    id: Text = setting("sokoban", "A name from `spa env list`, a Gymnasium id or `module:Class`.")
    tag: Text = setting("SimpleSokoban", "Name in the metrics.")
    settings: Mapping = setting({}, "Arguments of the world's constructor.")
    state_format: StateFormat = setting(
        "grid",
        'How states are written (variants set it); coordinates: the paper\'s "SE"; random_coordinates: wrong ones (Fig. 5).',
    )
    max_turns: Positive = setting(5, "Turns per episode.")
    max_actions_per_turn: Positive = setting(5, "Further actions are not played.")
    max_actions: Positive = setting(10, "Actions per episode.")
    instruction: str | None = setting(None, "Text for agent.prompt=base with agent.style=paper; null = the world's.")
    instruction_world_model: str | None = setting(None, "The same for agent.prompt=world_model.")
    response_hint: Positive | None = setting(
        None,
        "Length in words that prompts of agent.style=paper state; null = from true answers "
        "(agent.prompt=base: sampling.max_tokens).",
    )
    step_timeout: UpToSeconds = setting(
        300.0, "Seconds per call of the world, after which its episode fails; 0 = no limit."
    )
    max_state_chars: Positive = setting(100_000, "Characters of a state; a longer one fails the episode.")
    max_failed: Share = setting(0.5, "Share of failed episodes above which the run stops.")
    processes: Count = setting(
        0, "Episodes played at once, each world in its own process (slow worlds; Linux); 0 = in this process."
    )
    disjoint: Literal["content", "symmetry", "seed"] = setting(
        "content",
        "What splits do not share: content = worlds; symmetry = nor their rotations and mirror images, where "
        "reported; seed = seeds only.",
    )


@dataclass(config=STRICT)
class AgentConfig:
    """How the model is prompted and its responses are read."""

    style: Literal["paper", "terse"] = setting(
        "paper", "paper: the original's wording; terse: state, tags, actions left."
    )
    prompt: Prompt = setting("base", "Of stage 3 and evaluation; world_model asks for observation and prediction.")
    prompt_after_sft: Literal["same", "base", "world_model"] = setting(
        "same", "agent.prompt for variants that start from stage 2."
    )
    think: Flag = setting(True, "Force responses to begin with `<think>`; false: with `<answer>`.")
    action_sep: Text = setting("||", "Separates the actions of an answer.")
    window: Count = setting(0, "Turns of history that the model sees; 0 = all (one token sequence per episode).")
    planner: Planner = setting("none", "Who acts in evaluation ([planners](planning.md#planners); beyond the paper).")
    format_penalty: Annotated[Number, Field(le=0)] = setting(
        -0.1,
        "Reward of a turn with a dropped action, no valid action or a bad format; in a world that lists no actions, any text is "
        "valid.",
    )
    penalize_extra_actions: Flag = setting(False, "Also penalize too many actions (the original does not).")


@dataclass(config=STRICT)
class ModelConfig:
    """The model that is trained."""

    path: Text = setting(
        "builtin:tiny",
        "builtin:tiny, builtin:tiny4 (with four layers, not two), cache:NAME (`spa model get`), a folder or a hub name.",
    )
    revision: str | None = setting(None, "Commit, tag or branch of a hub name; null = newest.")
    trust_remote_code: Flag = setting(False, "Run Python code that comes with the model: only from authors you trust.")
    dtype: Precision = setting("float32", "Type of the weights.")
    device: str = setting("auto", "auto, cpu, cuda or cuda:N.")
    threads: Threads = setting(0, "CPU threads of torch; 0 = torch's choice.")
    device_memory: NonNegative = setting(0.0, "GB of a GPU to plan for, on any machine; 0 = what is free here.")
    gradient_checkpointing: Flag = setting(False, "Saves memory, takes time.")


@dataclass(config=STRICT)
class SamplingConfig:
    """PPO needs top_p=1, top_k=0 and a temperature above 0."""

    temperature: Temperature = setting(1.0, "0 = greedy.")
    top_p: ShareAboveZero = setting(1.0, "Nucleus sampling; 1 = off.")
    top_k: Count = setting(0, "Likeliest tokens to sample from; 0 = all.")
    max_tokens: Positive = setting(400, "Tokens per turn.")
    max_tokens_base: Count = setting(0, "Tokens per turn with agent.prompt=base; 0 = max_tokens.")
    stop: list[Annotated[str, Field(min_length=1)]] = setting([], "Strings that end a response, e.g. `</answer>`.")
    batch_size: Positive = setting(256, "Episodes decoded at once.")
    processes: Count = setting(0, "Processes that play on a CPU; 0 = as many as help (Linux).")

    def limit(self, prompt: str) -> int:
        """Tokens per turn in a prompt mode."""
        return (self.max_tokens_base if prompt == "base" else 0) or self.max_tokens


@dataclass(config=STRICT)
class EngineConfig:
    """What generates text ([engines](engines.md))."""

    kind: Literal["transformers", "vllm", "openai"] = setting("transformers", "openai: any OpenAI-compatible server.")
    base_url: str | None = setting(None, "openai: address, such as http://localhost:8000/v1.")
    model: str | None = setting(None, "openai: name on the server.")
    api_key_env: str = setting("OPENAI_API_KEY", "openai: environment variable with the key; unset = no key.")
    concurrency: Positive = setting(16, "openai: simultaneous requests.")
    timeout: Seconds = setting(120.0, "openai: seconds per request.")
    episode_timeout: Seconds = setting(3600.0, "openai: seconds for all requests of an episode.")
    max_reply_bytes: Positive = setting(1_000_000, "openai: a larger reply (decompressed) is a failure.")
    retries: Count = setting(5, "openai: per request, with exponential backoff.")
    requests_per_minute: Count = setting(0, "openai: rate limit; 0 = none.")
    prefill: Flag = setting(False, "openai: begin responses with the forced tag.")
    prefill_text: str | None = setting(
        None, "openai: the part of it to begin with (on an exported model's card); null = all."
    )
    gpu_memory_utilization: ShareAboveZero = setting(0.9, "vllm: share of the GPU's memory.")
    tensor_parallel: Positive = setting(1, "vllm: GPUs.")
    max_model_len: Count = setting(0, "vllm: context in tokens; 0 = the model's.")
    dtype: Precision | None = setting(None, "vllm: of its weights; null = model.dtype.")
    enforce_eager: Flag = setting(False, "vllm: no compilation, no CUDA graphs: starts sooner, samples slower.")
    max_logprob_diff: AboveZero | None = setting(
        None, "vllm: mean log-prob difference from training, in nats, that stops a run; null = by dtype."
    )

    @model_validator(mode="after")
    def _names_a_server_and_no_secret(self) -> EngineConfig:
        """Messages about a secret omit the value, which may contain a password or key."""
        if re.search("[@?#]", self.base_url or ""):
            raise ValueError(
                "engine.base_url must be an address alone, without user, password or parameters (@, ? or #): put the key "
                "into the environment variable that engine.api_key_env names"
            )
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"engine.base_url must begin with http:// or https://, not be {self.base_url!r}")
        try:
            address = "http://none" if self.base_url is None else self.base_url
            parts = urlsplit(address)
            host = (parts.hostname or "").encode("idna")
            is_address = host and parts.port != 0 and address.isascii() and address.isprintable() and " " not in address
        except ValueError:  # of a bracket, a port that is no number up to 65535, or an empty part of a name
            is_address = False
        if not is_address:
            raise ValueError(
                f"engine.base_url must be an address such as http://localhost:8000/v1, not {self.base_url!r}"
            )
        if (text := self.prefill_text) is not None and not (text and "<think>".startswith(text)):
            raise ValueError(f"engine.prefill_text must be the beginning of <think>, such as <think, not {text!r}")
        if self.api_key_env and not re.fullmatch(r"[A-Za-z_]\w*", self.api_key_env, re.ASCII):
            raise ValueError(
                "engine.api_key_env must be the name of an environment variable that holds the key, not the key"
            )
        return self


@dataclass(config=STRICT)
class SelfPlayConfig:
    """Stage 1 ([self-play](selfplay-and-sft.md))."""

    model: str | None = setting(None, "Who plays: a checkpoint folder or hub name; null = model.path.")
    groups: Positive = setting(160, "Worlds.")
    group_size: Positive = setting(8, "Episodes per world.")
    state_format: StateFormat = setting("coordinates", "How states are written in stages 1 and 2.")
    policy: Literal["model", "random", "explore", "planner"] = setting(
        "model",
        "random: uniform actions, a fixed thought (paper, Table 5); explore: the same, towards moves not made before in the "
        "world; planner: agent.planner, with a selfplay.model trained on transitions.",
    )
    states: Literal["truth", "belief", "shuffled"] = setting(
        "truth", "belief: what the model wrote (paper, Table 3); shuffled: those of randomly drawn turns (control)."
    )
    constrained: Flag = setting(False, "Sample only responses of the format (needs `spa-agent[constrained]`).")
    prompt: Prompt = setting("world_model", "base writes no states (control; needs selfplay.filter=false).")
    rows: Literal["written", "transitions"] = setting(
        "written",
        "written: responses with true states; transitions: single moves for [planning](planning.md#transitions).",
    )
    plain_rows: NonNegative = setting(0.0, "transitions, prompt=base: plain rows per transition row.")
    outcome_share: Share = setting(0.0, "transitions: repeat rare rewards and ends up to this share; 0 = off.")
    shots: Count = setting(0, "policy=model: worked examples before an episode ([cold start](cold-start.md)).")
    tries: Positive = setting(4, "policy=model: samples of a response that selfplay.filter would drop.")
    warmup_rows: Count = setting(0, "policy=model: rows of random play that train a throw-away copy, which then plays.")
    filter: Flag = setting(True, "Keep only responses with observation, prediction and answer in the right places.")
    success_only: Flag = setting(False, "Keep only successful episodes.")
    deduplicate: Flag = setting(False, "Drop rows with equal prompt and response.")
    balance: Literal["none", "actions", "turn", "success"] = setting("none", "Cap classes at their median size.")
    val_fraction: UpTo90 = setting(0.2, "Share of the worlds for validation rows.")
    early_turns: Count = setting(12, "Turns before the first report and early stop; 0 = neither.")
    min_kept: Share = setting(0.05, "Stop if a smaller share of the turns gives a row; 0 = never.")

    @property
    def warms_up(self) -> bool:
        """Whether a copy of the model is trained before it plays."""
        return self.policy == "model" and self.warmup_rows > 0

    @property
    def without_model(self) -> bool:
        """Whether actions are drawn and no model writes a response."""
        return self.policy in ("random", "explore")


@dataclass(config=STRICT)
class PlannerConfig:
    """How `agent.planner` searches ([planning](planning.md))."""

    depth: Positive = setting(10, "Actions looked ahead.")
    width: Count = setting(0, "lookahead, beam, practice and imagined worlds: states expanded per layer; 0 = all.")
    simulations: Positive = setting(64, "mcts: per decision.")
    exploration: NonNegative = setting(1.25, "mcts: weight of the prior (PUCT).")
    samples: Positive = setting(1, "Predictions per move: 1 = the likeliest, more are sampled (stochastic worlds).")
    proposals: Count = setting(
        0, "Actions sampled from the policy: mcts' prior, or those searched where the world lists none."
    )
    gamma: Share = setting(0.95, "Discount per action; with 1 a detour is as good as the shortest way.")
    min_probability: Share = setting(0.2, "Expand only predictions at least this likely (of several samples, all).")
    optimism: Number = setting(
        0.1, "Value of a state at which the search stops, also where no action is left, in units of reward."
    )
    whole: Flag = setting(
        False, "lookahead, beam, practice: imagine everything within depth, as a later end may pay more than the first."
    )
    max_questions: Count = setting(
        0,
        "Most moves asked about per decision, after the first ones; samples and proposals do not count; 0 = no limit.",
    )
    max_tokens: Count = setting(
        0, "Most tokens written per decision, after those about the first moves, cached answers included; 0 = no limit."
    )
    values: Flag = setting(False, "Also query the [values](planning.md#move-values) of moves.")
    model: str | None = setting(
        None,
        "World model: a checkpoint, a stage's folder, a hub name or simulator (the true world); null = the "
        "model that plays.",
    )


@dataclass(config=STRICT)
class PracticeConfig:
    """For variants with `practice: true` ([practice](planning.md#practice))."""

    rounds: Positive = setting(1, "Rounds of planning and fine-tuning.")
    worlds: Positive = setting(1000, "Start states per round: a third self-play, the rest training worlds.")
    whole: Flag = setting(False, "Imagine everything within planner.depth, not only up to the first gain.")
    epochs: Positive = setting(6, "Epochs on the plans.")
    rehearsal: NonNegative = setting(1.0, "Transition rows per plan row.")
    values: NonNegative = setting(0.0, "Rows with values of moves per plan row.")
    groups: Positive = setting(100, "Worlds played before each round but the first.")
    group_size: Positive = setting(8, "Episodes per world.")


@dataclass(config=STRICT)
class CurriculumConfig:
    """The worlds of stage 3's training ([curriculum](algorithms.md#curriculum-and-transfer))."""

    mixture: dict[Key, AboveZero] = setting({}, "Configs and their weights; empty = the run's own world.")
    levels: list[Mapping] = setting([], "`env.settings` of easier worlds before the run's own.")
    threshold: ShareAboveZero = setting(0.7, "Training success at which the next level begins.")
    window: Positive = setting(3, "Steps over which success is averaged.")
    rehearsal: UpTo90 = setting(0.0, "Share of worlds from levels already passed.")
    imagined: Share = setting(0.0, "Share of [imagined worlds](planning.md#imagined-worlds-for-rl).")
    imagined_worlds: Positive = setting(500, "How many worlds are imagined, once.")
    imagined_file: str | None = setting(None, "File of imagined worlds; null = the run makes them.")

    @model_validator(mode="after")
    def _one_source(self) -> CurriculumConfig:
        if self.mixture and self.levels:
            raise ValueError("curriculum.mixture and curriculum.levels exclude each other")
        if self.imagined and (self.mixture or self.levels):
            raise ValueError("curriculum.imagined excludes curriculum.mixture and curriculum.levels")
        return self


@dataclass(config=STRICT)
class EvalConfig:
    """Evaluation on held-out worlds ([evaluation](evaluation.md))."""

    worlds: Positive = setting(128, "Test worlds.")
    samples: Positive = setting(8, "Episodes per world.")
    ks: Annotated[list[Positive], Field(min_length=1)] = setting([1, 8], "The k of Pass@k, at most eval.samples.")
    bootstrap: Positive = setting(2000, "Resamples of the worlds for intervals.")
    world_model_worlds: Count = setting(32, "Worlds for observation and prediction accuracy; 0 = off.")

    @model_validator(mode="after")
    def _enough_samples(self) -> EvalConfig:
        if max(self.ks) > self.samples:
            fitting = [k for k in self.ks if k <= self.samples] or [self.samples]
            raise ValueError(
                f"eval.ks must be numbers from 1 to eval.samples ({self.samples}), not {self.ks}: set "
                f"'eval.ks=[{','.join(map(str, fitting))}]'"
            )
        return self


@dataclass(config=STRICT)
class SeedConfig:
    """First seeds of the splits: disjoint ranges of 10^9."""

    run: Annotated[Count, Field(le=2**63 - 1)] = setting(
        0, "Seed of training and sampling; also where in their ranges the worlds of self-play and training begin."
    )
    test: Count = setting(0, "Test worlds.")
    val: Count = setting(1_000_000_000, "Validation worlds.")
    selfplay: Count = setting(2_000_000_000, "Self-play worlds.")
    train: Count = setting(3_000_000_000, "Training worlds.")

    @model_validator(mode="after")
    def _disjoint(self) -> SeedConfig:
        firsts = sorted((getattr(self, name), name) for name in ("test", "val", "selfplay", "train"))
        for (low, name), (high, other) in pairwise(firsts):
            if high - low < SEED_RANGE:
                raise ValueError(
                    f"seeds.{name} ({low}) and seeds.{other} ({high}) are closer than {SEED_RANGE}: "
                    "their splits would share seeds"
                )
        return self


@dataclass(config=STRICT)
class ReportConfig:
    """The report and the trackers."""

    episodes: Count = setting(
        6, "Test episodes shown per variant, and as many of its training; fewer if they are long."
    )
    sample_every: Count = setting(10, "Steps of stage 3 between episodes shown on a terminal; 0 = never.")
    trackers: Annotated[list[Literal["tensorboard", "wandb", "trackio"]], DISTINCT] = setting(
        [], "Besides metrics.jsonl."
    )


@dataclass(config=STRICT)
class ScaleConfig:
    """Several ranks ([ranks](ranks.md))."""

    shards: Count = setting(0, "Ranks that share weights, gradients and optimizer states (a node's); 0 = all.")
    timeout: Seconds = setting(600.0, "Seconds after which a silent rank counts as lost.")
    restarts: Count = setting(3, "Restarts from the last checkpoint after ranks were killed or hang.")


@dataclass(config=STRICT)
class VariantConfig:
    """One row of the comparison, or a YAML file of your own."""

    name: Annotated[Text, NAMES_FOLDER] = setting("vanilla", "Its name in tables.")
    state_format: StateFormat = setting("grid", "How states are written in stage 3 and evaluation.")
    sft: Flag = setting(False, "Start from the model of stage 2.")
    practice: Flag = setting(False, "Practise in imagination after stage 2. Beyond the paper.")
    rl: Flag = setting(True, "Run stage 3.")
    settings: Mapping = setting({}, "Settings of all its stages, over the run's.")
    source: Mapping = setting({}, "Settings of its stages 1 and 2 only; `env: NAME` plays another world.")
    selfplay: Folder = setting("", "Name of its own stage 1, shared by variants with this name.")
    shares: Folder = setting("", "Name of its own stages 1, 2 and practice, likewise shared.")
    continues: Folder = setting("", "A variant that differs in fewer ppo.steps only; its stage 3 is continued.")

    @model_validator(mode="after")
    def _has_world_model(self) -> VariantConfig:
        if self.practice and not self.sft:
            raise ValueError(f"variant {self.name} practises in the world model of stage 2: practice needs sft: true")
        return self


@dataclass(config=STRICT)
class Config:
    """The whole resolved config of a run; `config.yaml` in its folder."""

    name: Text = setting("sokoban", "Name of the run.")
    env: EnvConfig = Field(default_factory=EnvConfig)
    agent: AgentConfig = Field(default_factory=AgentConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    selfplay: SelfPlayConfig = Field(default_factory=SelfPlayConfig)
    sft: SFTConfig = Field(default_factory=SFTConfig)
    ppo: PPOConfig = Field(default_factory=PPOConfig)
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    planner: PlannerConfig = Field(default_factory=PlannerConfig)
    practice: PracticeConfig = Field(default_factory=PracticeConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    seeds: SeedConfig = Field(default_factory=SeedConfig)
    variants: Annotated[list[str], Field(min_length=1), DISTINCT] = setting(
        ["vanilla", "spa"], "What `spa run` compares, besides base."
    )
    launcher: Literal["local", "torchrun", "ray"] = setting(
        "local", "local: one process; torchrun: nproc on this machine; ray: nproc on a Ray cluster."
    )
    nproc: Count = setting(0, "Processes; 0 = one per GPU.")
    report: ReportConfig = Field(default_factory=ReportConfig)
    scale: ScaleConfig = Field(default_factory=ScaleConfig)

    @model_validator(mode="after")
    def _blocks_agree(self) -> Config:
        play = self.selfplay
        if play.plain_rows and (play.prompt != "base" or play.rows != "transitions"):
            raise ValueError("selfplay.plain_rows needs selfplay.rows=transitions and selfplay.prompt=base")
        if play.prompt == "base" and (play.filter or self.sft.loss != "think_answer"):
            raise ValueError(
                "selfplay.prompt=base writes no states: it needs selfplay.filter=false and sft.loss=think_answer"
            )
        if self.sampling.stop and self.engine.kind == "openai":
            raise ValueError(
                "sampling.stop cannot be used with engine=openai, where a chat server leaves out the string it stops at: set "
                "'sampling.stop=[]'"
            )
        if self.agent.prompt == "world_model" and not self.agent.think:
            raise ValueError("agent.prompt=world_model asks for states in the think block: it needs agent.think=true")
        for name in ("world_model_coef", "observation_reward", "prediction_reward"):
            if getattr(self.ppo, name) and not self.agent.think:
                raise ValueError(f"ppo.{name} is about states in the think block: it needs agent.think=true")
        return self


def check_ppo_sampling(sampling: SamplingConfig) -> None:
    """Raises ValueError for sampling that stage 3 cannot learn from (self-play and evaluation may use it)."""
    if sampling.top_p != 1 or sampling.top_k != 0 or sampling.temperature <= 0:
        raise ValueError(
            "PPO needs sampling.top_p=1, sampling.top_k=0 and a temperature above 0: otherwise the tokens are "
            "drawn from another distribution than the one whose log-probs are trained"
        )
