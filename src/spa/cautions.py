"""Notes on a command that runs, but not to the effect that its user is likely to expect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from spa.agent.episode import read_episodes
from spa.agent.task import Task
from spa.agent.worlds import content_of
from spa.common.files import expanded
from spa.config.schema import Config, PPOConfig, VariantConfig
from spa.config.training import WITH_GROUPS, WITH_VALUES
from spa.config.variants import sft_variants, source_config, variant_config
from spa.envs.checked import WorldError
from spa.runs.record import run_around


def cautions(cfg: Config, stage: str, variants: Sequence[VariantConfig]) -> Iterator[str]:
    """What a command would do in vain: settings that leave a model as it is, or a variant like another, or a planner without a
    world model, or one that no planner asks."""
    vanish = "steps are mostly too small for bfloat16 weights, which stay as they are: set model.dtype=float32 or"
    for tuned in (source_config(cfg, each) for each in sft_variants(cfg, stage, variants)):
        if tuned.model.dtype == "bfloat16" and not tuned.sft.lora_rank:
            yield f"stage 2: {vanish} sft.lora_rank=32"
    plays = cfg.agent.planner != "none"
    only_base = stage == "eval" and [each.name for each in variants] == ["base"]
    if only_base and not plays and (run := _run_of(cfg.model.path)):
        yield (
            f"{cfg.model.path} was trained in the run {run}, but is asked as an untrained model, in the config's state format: "
            "name its variant with --variant"
        )
    if only_base and plays and not cfg.planner.model and cfg.model.path.startswith("builtin:"):
        yield (
            f"{cfg.model.path} is not trained to predict single moves, which agent.planner={cfg.agent.planner} asks about: give "
            "--model, such as RUN/sft-plan, or planner.model"
        )
    configs = [variant_config(cfg, variant) for variant in variants if stage in ("eval", "run")]
    if cfg.planner.model and all(each.agent.planner == "none" for each in configs) and configs:
        yield f"planner.model={cfg.planner.model} without effect: set agent.planner"
    for variant in variants if stage == "run" else ():
        each = variant_config(cfg, variant)
        learns = variant.sft and source_config(cfg, variant).selfplay.rows == "transitions"
        other_model = each.planner.model or (variant.rl and each.ppo.start)  # which may have learnt it
        if each.agent.planner != "none" and not learns and not other_model:
            yield (
                f"variant {variant.name} is not trained to predict single moves (sft: true with selfplay.rows=transitions), which "
                f"agent.planner={each.agent.planner} asks about: its planner will play badly"
            )
    for variant in variants if stage in ("run", "ppo") else ():
        each = variant_config(cfg, variant)
        if not variant.rl:
            continue
        if each.model.dtype == "bfloat16" and not each.ppo.lora_rank:
            yield f"variant {variant.name}: {vanish} ppo.lora_rank=32"
        if each.ppo.estimator in WITH_GROUPS and each.ppo.gamma != PPOConfig().gamma:
            yield f"variant {variant.name}: ppo.gamma without effect, since {each.ppo.estimator} reads an episode's plain sum"
        if each.ppo.reference and not each.ppo.needs_reference:
            yield f"variant {variant.name}: ppo.reference without effect: set ppo.kl_loss_coef or ppo.kl_reward_coef"
        most = each.ppo.groups * each.ppo.dynamic_rounds
        if each.ppo.dynamic_groups > most:
            yield (
                f"variant {variant.name}: ppo.dynamic_groups={each.ppo.dynamic_groups} is out of reach of ppo.groups x "
                f"ppo.dynamic_rounds = {most} worlds: every step plays them all"
            )
        if each.ppo.estimator in WITH_VALUES and each.ppo.critic_warmup >= each.ppo.steps:
            yield (
                f"variant {variant.name}: all {each.ppo.steps} steps train the critic alone "
                f"(ppo.critic_warmup={each.ppo.critic_warmup}), so its policy stays as it is"
            )
        if not variant.sft and written_format(cfg, variant) != variant.state_format:
            yield (
                f"variant {variant.name}: this world writes states in one way, not as {variant.state_format}: without "
                "stage 2 this is plain RL"
            )


def _run_of(model: str) -> Path | None:
    """The run whose checkpoint a model is, if it is one; an export within a run is none."""
    folder = expanded(model).absolute()
    return run_around(folder) if folder.parent.name == "checkpoints" else None


def split_by_symmetry(cfg: Config) -> str:
    """What to say if worlds are told apart less strictly than this world could; "" if not."""
    from spa.agent.policy import make_task

    if cfg.env.disjoint != "content":
        return ""
    env = make_task(cfg).make_env()
    try:
        _, info = env.reset(seed=0)
    except WorldError:  # which the stage itself reports
        return ""
    finally:
        env.close()
    if not info.get("symmetry"):
        return ""
    return (
        "test worlds may be mirror images or rotations of training worlds: env.disjoint=symmetry keeps these apart, too"
    )


def written_format(cfg: Config, variant: VariantConfig) -> str:
    """How states are written in a variant's stage 3 and evaluation: as it asks, if the world can."""
    from spa.agent.policy import make_task

    return make_task(variant_config(cfg, variant), state_format=variant.state_format).make_env().state_format


def changed_world(source: Config, selfplay: Path) -> str:
    """What to say if the first episode of stage 1 would go otherwise now; "" if it would not, or if none was played.

    Args:
        source: the config of that stage.
        selfplay: its folder.
    """
    played = None
    with suppress(ValueError):  # no episodes, or damaged ones, which `spa verify` reports
        played = next((each for each in read_episodes(selfplay / "episodes.jsonl") if each.turns), None)
    if played is None:
        return ""
    task = Task(replace(source.env, state_format=source.selfplay.state_format), source.agent)
    recorded: list[tuple[str, float]] = []
    replayed: list[tuple[str, float]] = []
    env = task.make_env()
    try:
        state, info = env.reset(seed=played.seed, options={"noise_seed": played.noise_seed})
        begins = (state, content_of(state, info)) == (played.turns[0].state, played.content)
        with suppress(WorldError):  # which it did not raise then
            for turn in played.turns if begins else ():
                recorded += zip((*turn.between, turn.next_state), turn.rewards, strict=False)
                for action in turn.executed:
                    state, reward, *_ = env.step(action)
                    replayed.append((state, reward))
    except WorldError:  # which the stage itself reports
        return ""
    finally:
        env.close()
    if begins and replayed == recorded:
        return ""
    return (
        f"world {task.env.id!r} has changed since {selfplay} was played: seed {played.seed} {'goes on' if begins else 'begins'} "
        "otherwise, so stages 1 and 2 are of another world than what follows; generate into a new folder unless this is meant "
        "(spa verify says more)"
    )
