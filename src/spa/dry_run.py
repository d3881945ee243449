"""``--dry-run``: what a command would do."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spa.cautions import written_format
from spa.config.load import env_block
from spa.config.schema import Config, PPOConfig, VariantConfig
from spa.config.training import WITH_VALUES
from spa.config.variants import (
    changes_nothing,
    imagines,
    own_steps,
    practice_variants,
    selfplay_name,
    selfplay_variants,
    sft_folder,
    sft_variants,
    source_config,
    variant_config,
)
from spa.preflight import check_command

if TYPE_CHECKING:
    from spa.models.fit import Advice, Estimate


def plan(
    cfg: Config, command: str, variants: list[VariantConfig], model: str | None = None, out: Path | None = None
) -> list[str]:
    """What a command would do in the run folder ``out``, one line per stage; also makes the checks of a real run that need no
    weights and no download.

    Raises:
        ValueError: as ``spa.preflight.check_command``.
    """
    from spa.agent.policy import make_task
    from spa.rl import memory as ppo_memory
    from spa.rl.cost import time_estimates

    check_command(cfg, command, variants, out or Path(), model, local_only=True)
    task = make_task(cfg)
    limits = f"{cfg.env.max_turns} turns of {cfg.env.max_actions_per_turn} actions, {cfg.env.max_actions} in all"
    lines = [f"world: {task.tag} ({cfg.env.id}), {limits}; model: {cfg.model.path}"]
    played, tuned = selfplay_variants(cfg, command, variants), sft_variants(cfg, command, variants)
    lines += _unique(_plan_selfplay(source_config(cfg, variant), selfplay_name(variant)) for variant in played)
    lines += _unique(text for variant in played for text in _lengths(source_config(cfg, variant)))
    sources = [source_config(cfg, variant) for variant in played]
    lines += _unique(
        _play_memory("generate", each, each.selfplay.groups * each.selfplay.group_size)
        for each in sources
        if each.selfplay.policy == "model"
    )
    lines += _unique(_sft_memory(each, "warm-up") for each in sources if each.selfplay.warms_up)
    lines += _unique(_plan_sft(source_config(cfg, variant), sft_folder(Path(), variant).name) for variant in tuned)
    lines += _unique(_sft_memory(source_config(cfg, variant)) for variant in tuned)
    for variant in practice_variants(cfg, command, variants):
        source = source_config(cfg, variant)
        lines.append(
            f"practice {variant.name}: {source.practice.rounds} rounds of plans from {source.practice.worlds} starts, "
            f"{source.planner.depth} actions deep, {source.practice.epochs} epochs (beyond the paper)"
        )
    for variant in variants:
        variant_cfg = variant_config(cfg, variant)
        rl = variant_cfg.ppo
        if command in ("run", "ppo") and variant.rl:
            start = rl.start or (
                "the practised model" if variant.practice else "the SFT model" if variant.sft else "the base model"
            )
            start = f"the last model of variant {variant.continues}" if variant.continues else start
            steps = own_steps(cfg, variant)
            lines.append(
                f"ppo {variant.name}: {steps} steps x {rl.groups} worlds x {rl.group_size} = "
                f"{steps * rl.groups * rl.group_size} episodes, from {start}, "
                f"states: {written_format(cfg, variant)}, prompt: {variant_cfg.agent.prompt}"
            )
            lines.append(f"ppo {variant.name}: {_algorithm(rl)}")
            lines += [f"ppo {variant.name}: {text}" for text in _curriculum(variant_cfg)]
            if imagines(cfg, variant):
                lines.append(
                    f"ppo {variant.name}: before, stage 2's model imagines {variant_cfg.curriculum.imagined_worlds} worlds, "
                    f"{variant_cfg.planner.depth} actions deep (beyond the paper)"
                )
        if command in ("run", "eval"):
            test = variant_cfg.eval
            lines.append(
                f"eval {variant.name}: {test.worlds} test worlds x {test.samples} samples, Pass@k for k in {test.ks}"
            )
            if variant_cfg.agent.planner != "none":
                lines.append(
                    f"eval {variant.name}: each test world once more with {variant_cfg.agent.planner}, "
                    f"{variant_cfg.planner.depth} actions deep (beyond the paper)"
                )
        if changes_nothing(cfg, variant):
            lines.append(
                f"note: the settings of variant {variant.name} are this run's already; it repeats a variant without them"
            )
    if command in ("run", "ppo"):
        configs = [variant_config(cfg, variant) for variant in variants if variant.rl]
        ppo_need = partial(ppo_memory.memory_estimate, local_only=True)
        lines += _unique(
            _memory("ppo", each, ppo_need) + _cards(each, ppo_need, ppo_memory.saving_settings) for each in configs
        )
    if command == "eval":
        configs = [variant_config(cfg, variant) for variant in variants]
        lines += _unique(_play_memory("eval", each, each.eval.worlds * each.eval.samples) for each in configs)
    lines += time_estimates(cfg, command, variants)
    if command == "run":
        lines.append("report: report.html")
    return lines


def imports(cfg: Config, variants: list[VariantConfig]) -> list[str]:
    """A line for each third-party module that ``plan`` imports, and so runs, for the worlds of a config and its variants."""
    from spa.envs.registry import imported_for

    modules: dict[str, str] = {}
    worlds = [("env.id", cfg)]
    for variant in variants:
        worlds += [
            (f"env.id of variant {variant.name}", world_cfg)
            for world_cfg in (variant_config(cfg, variant), source_config(cfg, variant))
        ]
    for setting, world_cfg in worlds:
        mixed = [(f"curriculum.mixture {name}", env_block(name).id) for name in world_cfg.curriculum.mixture]
        for named, world in [(setting, world_cfg.env.id), *mixed]:
            if module := imported_for(world):
                modules.setdefault(module, named)
    return [f"imports: {module} ({setting})" for module, setting in modules.items()]


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def _plan_selfplay(cfg: Config, name: str) -> str:
    from spa.agent.policy import make_task

    play = cfg.selfplay
    who = play.model or (cfg.engine.model if cfg.engine.kind == "openai" else None)
    written = make_task(cfg, state_format=play.state_format).make_env().state_format
    return (
        f"generate{f' {name}' if name else ''}: {play.groups} worlds x {play.group_size} = "
        f"{play.groups * play.group_size} episodes of self-play ({play.policy} policy{f' {who}' if who else ''}, "
        f"states: {play.states}, {written})"
    )


def _lengths(cfg: Config) -> list[str]:
    from spa.agent.lengths import length_notes
    from spa.sft.selfplay import selfplay_task

    source, task = selfplay_task(cfg)
    return length_notes(task, source)


def _plan_sft(cfg: Config, folder: str) -> str:
    tune = cfg.sft
    what = f"LoRA of rank {tune.lora_rank}" if tune.lora_rank else "all weights"
    return f"{folder}: {tune.epochs} epochs, {tune.batch_size} rows a step, loss on {tune.loss}, lr {tune.lr:g}, {what}"


def _play_memory(stage: str, cfg: Config, episodes: int) -> str:
    from spa.rl.memory import play_estimate

    return _memory(stage, cfg, lambda cfg, device, _: play_estimate(cfg, device, episodes=episodes, local_only=True))


def _sft_memory(cfg: Config, stage: str = "sft") -> str:
    from spa.sft.memory import memory_estimate, saving_settings

    need = partial(memory_estimate, longest=cfg.sft.max_length, local_only=True)
    return _memory(stage, cfg, need) + _cards(cfg, need, partial(saving_settings, longest=cfg.sft.max_length))


def _algorithm(rl: PPOConfig) -> str:
    """The settings that define the algorithm."""
    parts = [rl.estimator, f"rewards at the end of each {'turn' if rl.by_turn else 'episode'}"]
    parts.append(f"critic: {rl.critic}" if rl.estimator in WITH_VALUES else "no critic")
    if rl.filter != "off" and rl.filter_ratio < 1:
        parts.append(f"{rl.filter_ratio:.0%} of the groups kept ({rl.filter})")
    if rl.dynamic_groups:
        parts.append(f"until {rl.dynamic_groups} groups are informative")
    if rl.needs_reference:
        parts.append(f"reference model: {rl.reference or 'where it starts'}")
    if rl.observation_reward or rl.prediction_reward:
        parts.append(f"rewards for states: {rl.observation_reward:g} and {rl.prediction_reward:g} ({rl.state_match})")
    if rl.world_model_coef:
        parts.append(f"world-model loss x {rl.world_model_coef:g}")
    if rl.lora_rank:
        parts.append(f"LoRA of rank {rl.lora_rank}")
    return ", ".join(parts)


def _curriculum(cfg: Config) -> list[str]:
    from spa.rl.curriculum import training_tasks

    plan = cfg.curriculum
    if plan.mixture:
        total = sum(plan.mixture.values())
        parts = ", ".join(f"{weight / total:.0%} {name}" for name, weight in plan.mixture.items())
        tasks = zip(plan.mixture, training_tasks(cfg), strict=True)
        own = next((name for name, task in tasks if task.env == cfg.env), "not among them")
        return [f"trains on {parts}; the run's own world is {own}"]
    if plan.levels:
        levels = ", then ".join(str(level) for level in plan.levels)
        return [
            f"trains on {levels}, then the world itself; the next at {plan.threshold:.0%} success over {plan.window} steps"
        ]
    return []


def _memory(stage: str, cfg: Config, estimate: Estimate) -> str:
    """The memory that each process of a stage will need, if the model's config is available locally."""
    from spa.models.fit import available, device_type, fits, shards_of
    from spa.models.memory import UnknownSizes, size

    shards = shards_of(cfg)
    try:
        need, room = estimate(cfg, device_type(cfg), shards), available(cfg)
    except UnknownSizes as error:
        return f"{stage} memory: not known ({error})"
    except ValueError:
        return f"{stage} memory: not known until its config is there: hf download {cfg.model.path} config.json"
    more = f"; MORE than the {size(room)} free" if room is not None and not fits(cfg, need, room) else ""
    return f"{stage} memory{f' per process of {shards}' if shards > 1 else ''}: at most about {need}{more}"


def _cards(cfg: Config, estimate: Estimate, advice: Advice) -> str:
    """``overview`` for models that do not fit everywhere."""
    from spa.models.fit import overview

    try:
        text = overview(cfg, estimate, advice)
    except ValueError:
        return ""
    return "" if text == "1 of 24 GB" else f"; GPUs that hold it: {text}"
