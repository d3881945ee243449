"""The recipe, top to bottom: self-play -> SFT -> PPO -> evaluation -> report. Each function is one command.

    out/config.yaml, run.json         what was asked for, with what versions
    out/selfplay/                     stage 1: train.parquet, val.parquet, episodes.jsonl
    out/sft/                          stage 2: metrics.jsonl, checkpoints/
    out/selfplay-<name>/, sft-<arm>/  the same for arms that change stages 1 and 2
    out/arms/<arm>/ppo/               stage 3: metrics.jsonl, checkpoints/, episodes/
    out/arms/<arm>/eval/              result.json, episodes.jsonl
    out/report.html

A finished stage leaves ``done.json`` in its folder; with ``resume`` it is not run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spa.runs.arms import (
    arm_config,
    arms_of,
    changes_nothing,
    check_arms,
    selfplay_folder,
    selfplay_name,
    sft_folder,
    source_config,
)
from spa.runs.folder import RunFolder
from spa.runs.schema import ArmConfig, Config
from spa.runs.stage import Stage

if TYPE_CHECKING:
    from spa.agent.chat import Chat


def run(cfg: Config, out: Path, *, resume: bool) -> None:
    """All stages for all arms, then the table and the report."""
    arms = arms_of(cfg)
    _begin(cfg, out, "run", resume, arms=arms)
    with_sft = [arm for arm in arms if arm.sft]
    for arm in {selfplay_folder(out, arm): arm for arm in reversed(with_sft) if not _given_data(cfg, arm)}.values():
        _generate(cfg, arm, out, resume=True)
    for arm in {sft_folder(out, arm): arm for arm in reversed(with_sft)}.values():
        _sft(cfg, arm, out, resume=True)
    for arm in arms:
        if arm.rl:
            _ppo(cfg, arm, out, resume=True)
        _evaluate(cfg, arm, out, model=None, resume=True)
    print(f"Report: {report(out)}")


def generate(cfg: Config, out: Path, *, resume: bool, arm: ArmConfig | None = None) -> None:
    """Stage 1, the run's or that of an arm: the base model plays itself; what it wrote of states is replaced by the truth."""
    name = selfplay_name(arm)
    _begin(cfg, out, f"generate {name}".rstrip(), resume, arms=[arm] if arm else [])
    _generate(cfg, arm, out, resume=resume)


def sft(cfg: Config, out: Path, *, resume: bool, arm: ArmConfig | None = None) -> None:
    """Stage 2, the run's or that of an arm: fine-tuning on the self-play data gives the model a world model."""
    own = sft_folder(out, arm).name.removeprefix("sft").removeprefix("-")
    _begin(cfg, out, f"sft {own}".rstrip(), resume, arms=[arm] if arm else [])
    _sft(cfg, arm, out, resume=resume)


def ppo(cfg: Config, arm: ArmConfig, out: Path, *, resume: bool) -> None:
    """Stage 3: multi-turn PPO of one arm, from the base model or from stage 2's."""
    start = start_model(cfg, arm, out)
    _begin(cfg, out, f"ppo {arm.name}", resume, start, arms=[arm])
    _ppo(cfg, arm, out, resume=resume)


def evaluate(cfg: Config, arm: ArmConfig, out: Path, *, model: str | None, resume: bool) -> None:
    """Pass@k and world-model accuracy on the test worlds: of ``model``, else of a chat server's or the arm's trained model."""
    served = model is None and arm_config(cfg, arm).engine.kind == "openai"
    model = None if served else model or trained_model(cfg, arm, out)
    _begin(cfg, out, f"eval {arm.name}", resume, model, arms=[arm])
    _evaluate(cfg, arm, out, model=model, resume=resume, served=served)


def report(out: Path) -> Path:
    """Writes ``report.html`` and prints the comparison; returns the path.

    Raises:
        ValueError: ``out`` is no run folder.
    """
    from spa.evaluate.summary import comparison_table, render_text
    from spa.report.collect import collect
    from spa.report.html import write_report

    data = collect(out)
    path = write_report(data, out / "report.html")
    results = {name: arm.result for name, arm in data.arms.items() if arm.result is not None}
    if results:
        print(f"\n{data.name}: held-out worlds, temperature {data.config['sampling']['temperature']}\n")
        print(render_text(comparison_table(results)))
    if data.overlaps:
        print(f"Worlds that two splits have in common: {sum(data.overlaps.values())} ({', '.join(data.overlaps)}).")
    return path


def plan(cfg: Config, stages: list[str], arms: list[ArmConfig]) -> list[str]:
    """What a command would do, one line a stage; also checks what can be checked without a model.

    Raises:
        ValueError: a world, setting or prompt that does not exist.
    """
    from spa.agent.player import make_task

    _check_tasks(cfg, arms)
    task = make_task(cfg)
    limits = f"{cfg.env.max_turns} turns of {cfg.env.max_actions_per_turn} actions, {cfg.env.max_actions} in all"
    lines = [f"world: {task.tag} ({cfg.env.id}), {limits}; model: {cfg.model.path}"]
    wanted = set(stages) if "run" not in stages else {"generate", "sft", "ppo", "eval", "report"}
    tuned: list[ArmConfig | None] = [arm for arm in arms if arm.sft] if "run" in stages or arms else [None]
    if "generate" in wanted:
        lines += _unique(_plan_selfplay(source_config(cfg, arm), selfplay_name(arm)) for arm in tuned)
    if "sft" in wanted:
        for line in _unique(_plan_sft(source_config(cfg, arm), sft_folder(Path(), arm).name) for arm in tuned):
            lines.append(line)
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


def _begin(
    cfg: Config, out: Path, command: str, resume: bool, model: str | None = None, arms: Sequence[ArmConfig] = ()
) -> None:
    """Opens the run folder, after everything that can be checked quickly was: nothing is written for a mistake."""
    from spa.agent.player import make_task

    make_task(cfg)
    _check_tasks(cfg, arms)
    stage = command.partition(" ")[0]
    served = _check_players(cfg, stage, model, arms)
    chat = None if served else _check_model(cfg, model)
    if stage == "generate" or (stage == "run" and any(arm.sft for arm in arms)):
        from spa.worldmodel.selfplay import row_window

        row_window(cfg)
    if stage == "sft":
        from spa.worldmodel.dataset import read_rows
        from spa.worldmodel.encode import check_rows
        from spa.worldmodel.stage2 import data_files

        arm_or_none = arms[0] if arms else None
        rows, skipped = read_rows(data_files(_data(cfg, arm_or_none, out))[0])
        assert chat is not None
        check_rows(rows, chat, source_config(cfg, arm_or_none).sft, skipped)
    RunFolder(out).open(cfg, command, resume)


def _check_model(cfg: Config, model: str | None) -> Chat:
    """Whether a local model is there and has a usable template; its chat."""
    from spa.agent.chat import Chat
    from spa.models.load import check_model, load_tokenizer

    check_model(cfg.model, model)
    return Chat(load_tokenizer(model or cfg.model.path))


def _check_players(cfg: Config, stage: str, model: str | None, arms: Sequence[ArmConfig]) -> bool:
    """Whether those that are to play in stage 1 and in evaluation can; True if nothing but a chat server plays."""
    from spa.engines.base import check_engine
    from spa.worldmodel.selfplay import check_source, is_served

    if stage == "eval" or (stage == "run" and cfg.engine.kind == "vllm"):
        local = cfg.engine.kind == "openai" and model is not None
        if not local:
            check_engine(cfg.engine)
    sources: list[Config] = []
    if stage == "generate":
        sources = [source_config(cfg, arms[0] if arms else None)]
    elif stage == "run":
        sources = [source_config(cfg, arm) for arm in arms if arm.sft and not _given_data(cfg, arm)]
    for source in sources:
        check_source(source)
        if source.selfplay.model:
            _check_model(source, source.selfplay.model)
    if stage == "eval":
        return cfg.engine.kind == "openai" and model is None
    return stage == "generate" and is_served(sources[0])


def _check_tasks(cfg: Config, arms: Sequence[ArmConfig]) -> None:
    """Whether the arms fit each other and their worlds can be made.

    Raises:
        ValueError: they do not, or cannot; the message names the arm.
    """
    from spa.agent.player import make_task

    check_arms(cfg, arms)
    for arm in arms:
        try:
            make_task(arm_config(cfg, arm), state_format=arm.state_format)
            source = source_config(cfg, arm)
            make_task(source, state_format=source.selfplay.state_format)
        except ValueError as error:
            raise ValueError(f"arm {arm.name}: {error}") from error


def _given_data(cfg: Config, arm: ArmConfig | None) -> bool:
    """Whether stage 2 reads ``sft.data`` and so needs no stage 1."""
    return bool(cfg.sft.data) and not selfplay_name(arm)


def _data(cfg: Config, arm: ArmConfig | None, out: Path) -> Path:
    return Path(str(cfg.sft.data)) if _given_data(cfg, arm) else selfplay_folder(out, arm)


def _generate(cfg: Config, arm: ArmConfig | None, out: Path, *, resume: bool) -> None:
    folder = selfplay_folder(out, arm)
    stage = Stage(folder, folder.name, resume, keep=True)
    if stage.finished:
        return
    from spa.worldmodel.selfplay import selfplay

    stage.finish(selfplay(source_config(cfg, arm), stage.folder))


def _sft(cfg: Config, arm: ArmConfig | None, out: Path, *, resume: bool) -> None:
    folder = sft_folder(out, arm)
    stage = Stage(folder, "SFT" if folder.name == "sft" else f"SFT, arm {folder.name.removeprefix('sft-')}", resume)
    if stage.finished:
        return
    from spa.worldmodel.stage2 import run_sft

    own = source_config(cfg, arm)
    with stage.metrics(own) as log:
        model = run_sft(own, stage.folder, data=_data(cfg, arm, out), resume=stage.resume, log=log)
    stage.finish({"model": str(model.relative_to(stage.folder))})


def _ppo(cfg: Config, arm: ArmConfig, out: Path, *, resume: bool) -> None:
    stage = Stage(out / "arms" / arm.name / "ppo", f"PPO, arm {arm.name}", resume)
    if stage.finished:
        return
    from spa.rl.trainer import train_ppo

    own = arm_config(cfg, arm)
    with stage.metrics(own) as log:
        result = train_ppo(own, arm, start_model(cfg, arm, out), stage.folder, resume=stage.resume, log=log)
    stage.finish(result)


def _evaluate(cfg: Config, arm: ArmConfig, out: Path, *, model: str | None, resume: bool, served: bool = False) -> None:
    stage = Stage(out / "arms" / arm.name / "eval", f"evaluation, arm {arm.name}", resume)
    if stage.finished:
        return
    from spa.evaluate.play import evaluate_model

    who = None if served else model or trained_model(cfg, arm, out)
    stage.finish(evaluate_model(arm_config(cfg, arm), arm, who, stage.folder))


def start_model(cfg: Config, arm: ArmConfig, out: Path) -> str:
    """Where an arm's RL starts.

    Raises:
        ValueError: the arm needs stage 2's model, and there is none in ``out``.
    """
    return (
        _product(
            sft_folder(out, arm), f"arm {arm.name} starts from its SFT model: run `spa sft{_option(out, arm)}` first"
        )
        if arm.sft
        else cfg.model.path
    )


def _option(out: Path, arm: ArmConfig) -> str:
    return "" if sft_folder(out, arm).name == "sft" else f" --arm {arm.name}"


def trained_model(cfg: Config, arm: ArmConfig, out: Path) -> str:
    """What an arm's evaluation plays: its last PPO checkpoint, or where it starts if it has no RL."""
    if not arm.rl:
        return start_model(cfg, arm, out)
    folder = out / "arms" / arm.name / "ppo"
    return _product(
        folder, f"arm {arm.name} was not trained in {out}: run `spa ppo --arm {arm.name}` first or give --model"
    )


def _product(folder: Path, otherwise: str) -> str:
    """The model that a finished stage names in its ``done.json``."""
    from spa.runs.stage import read_done

    done = read_done(folder)
    if done is None:
        raise ValueError(f"{otherwise} (no finished stage in {folder})")
    return str(folder / str(done["model"]))
