"""``--dry-run``: what a command would do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spa.checks import check_tasks
from spa.runs.arms import arm_config, changes_nothing, given_data, selfplay_name, sft_folder, source_config
from spa.runs.schema import ArmConfig, Config


def plan(cfg: Config, stages: list[str], arms: list[ArmConfig]) -> list[str]:
    """What a command would do, one line a stage; also checks what can be checked without a model.

    Raises:
        ValueError: a world, setting or prompt that does not exist.
    """
    from spa.agent.player import make_task

    check_tasks(cfg, arms)
    task = make_task(cfg)
    limits = f"{cfg.env.max_turns} turns of {cfg.env.max_actions_per_turn} actions, {cfg.env.max_actions} in all"
    lines = [f"world: {task.tag} ({cfg.env.id}), {limits}; model: {cfg.model.path}"]
    wanted = set(stages) if "run" not in stages else {"generate", "sft", "ppo", "eval", "report"}
    tuned: list[ArmConfig | None] = [arm for arm in arms if arm.sft] if "run" in stages or arms else [None]
    if "generate" in wanted:
        played = [arm for arm in tuned if "run" not in stages or not given_data(cfg, arm)]
        lines += _unique(_plan_selfplay(source_config(cfg, arm), selfplay_name(arm)) for arm in played)
    if "sft" in wanted:
        lines += _unique(_plan_sft(source_config(cfg, arm), sft_folder(Path(), arm).name) for arm in tuned)
        lines += _plan_memory(cfg) if tuned else []
    for arm in arms:
        own = arm_config(cfg, arm)
        rl = own.ppo
        if "ppo" in wanted and arm.rl:
            lines.append(
                f"ppo {arm.name}: {rl.steps} steps x {rl.groups} worlds x {rl.group_size} = "
                f"{rl.steps * rl.groups * rl.group_size} episodes, from {'the SFT model' if arm.sft else 'the base model'}, "
                f"states: {arm.state_format}, prompt: {own.agent.prompt}"
            )
        if "eval" in wanted:
            test = own.eval
            lines.append(
                f"eval {arm.name}: {test.worlds} test worlds x {test.samples} samples, Pass@k for k in {test.ks}"
            )
        if changes_nothing(cfg, arm):
            lines.append(f"note: the settings of arm {arm.name} are this run's already; it repeats an arm without them")
    if "report" in wanted:
        lines.append("report: report.html")
    return lines


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def _plan_selfplay(cfg: Config, name: str) -> str:
    play = cfg.selfplay
    who = play.model or (cfg.engine.model if cfg.engine.kind == "openai" else None)
    return (
        f"generate{f' {name}' if name else ''}: {play.groups} worlds x {play.group_size} = "
        f"{play.groups * play.group_size} episodes of self-play ({play.policy} policy{f' {who}' if who else ''}, "
        f"states: {play.states}, {play.state_format})"
    )


def _plan_sft(cfg: Config, folder: str) -> str:
    tune = cfg.sft
    what = f"LoRA of rank {tune.lora_rank}" if tune.lora_rank else "all weights"
    return f"{folder}: {tune.epochs} epochs, {tune.batch_size} rows a step, loss on {tune.loss}, lr {tune.lr:g}, {what}"


def _plan_memory(cfg: Config) -> list[str]:
    """What stage 2 will need, where the model's config is at hand."""
    from spa.worldmodel.stage2 import memory_estimate

    try:
        estimate = memory_estimate(cfg, cfg.sft.max_length, local_only=True)
    except ValueError:
        return ["sft memory: not known before the model's config has been downloaded"]
    return [f"sft memory: at most about {estimate}"]
