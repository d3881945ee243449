"""The recipe, top to bottom: self-play -> SFT -> PPO -> evaluation -> report. Each function is one command.

    out/config.yaml, run.json         what was asked for, with what versions
    out/selfplay/                     stage 1: train.parquet, val.parquet, episodes.jsonl
    out/sft/                          stage 2: metrics.jsonl, checkpoints/
    out/arms/<arm>/ppo/               stage 3: metrics.jsonl, checkpoints/, episodes/
    out/arms/<arm>/eval/              result.json, episodes.jsonl
    out/report.html

A finished stage leaves ``done.json`` in its folder; with ``resume`` it is not run again.
"""

from __future__ import annotations

from pathlib import Path

from spa.runs.config import load_arm
from spa.runs.folder import RunFolder
from spa.runs.schema import ArmConfig, Config
from spa.runs.stage import Stage


def run(cfg: Config, out: Path, *, resume: bool) -> None:
    """All stages for all arms, then the table and the report."""
    arms = [load_arm(name) for name in dict.fromkeys(["base", *cfg.arms])]
    _begin(cfg, out, "run", resume)
    if any(arm.sft for arm in arms):
        _generate(cfg, out, resume=True)
        _sft(cfg, out, resume=True)
    for arm in arms:
        if arm.rl:
            _ppo(cfg, arm, out, resume=True)
        _evaluate(cfg, arm, out, model=None, resume=True)
    print(f"Report: {report(out)}")


def generate(cfg: Config, out: Path, *, resume: bool) -> None:
    """Stage 1: the base model plays itself; what it wrote of states is replaced by the truth."""
    _begin(cfg, out, "generate", resume)
    _generate(cfg, out, resume=resume)


def sft(cfg: Config, out: Path, *, resume: bool) -> None:
    """Stage 2: fine-tuning on the self-play data gives the model a world model."""
    _begin(cfg, out, "sft", resume)
    _sft(cfg, out, resume=resume)


def ppo(cfg: Config, arm: ArmConfig, out: Path, *, resume: bool) -> None:
    """Stage 3: multi-turn PPO of one arm, from the base model or from stage 2's."""
    start = start_model(cfg, arm, out)
    _begin(cfg, out, f"ppo {arm.name}", resume, start)
    _ppo(cfg, arm, out, resume=resume)


def evaluate(cfg: Config, arm: ArmConfig, out: Path, *, model: str | None, resume: bool) -> None:
    """Pass@k and world-model accuracy on the test worlds, of ``model`` or of the arm's trained model."""
    model = model or trained_model(cfg, arm, out)
    _begin(cfg, out, f"eval {arm.name}", resume, model)
    _evaluate(cfg, arm, out, model=model, resume=resume)


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

    task = make_task(cfg)
    limits = f"{cfg.env.max_turns} turns of {cfg.env.max_actions_per_turn} actions, {cfg.env.max_actions} in all"
    lines = [f"world: {task.tag} ({cfg.env.id}), {limits}; model: {cfg.model.path}"]
    wanted = set(stages) if "run" not in stages else {"generate", "sft", "ppo", "eval", "report"}
    play, tune, rl, test = cfg.selfplay, cfg.sft, cfg.ppo, cfg.eval
    needs_sft = any(arm.sft for arm in arms) or "run" not in stages
    if "generate" in wanted and needs_sft:
        lines.append(
            f"generate: {play.groups} worlds x {play.group_size} = {play.groups * play.group_size} episodes of self-play "
            f"({play.policy} policy, states: {play.states}, {play.state_format})"
        )
    if "sft" in wanted and needs_sft:
        lines.append(f"sft: {tune.epochs} epochs, {tune.batch_size} rows a step, loss on {tune.loss}, lr {tune.lr:g}")
    for arm in arms:
        if "ppo" in wanted and arm.rl:
            lines.append(
                f"ppo {arm.name}: {rl.steps} steps x {rl.groups} worlds x {rl.group_size} = "
                f"{rl.steps * rl.groups * rl.group_size} episodes, from {'the SFT model' if arm.sft else 'the base model'}, "
                f"states: {arm.state_format}, prompt: {cfg.agent.prompt}"
            )
        if "eval" in wanted:
            lines.append(
                f"eval {arm.name}: {test.worlds} test worlds x {test.samples} samples, Pass@k for k in {test.ks}"
            )
    if "report" in wanted:
        lines.append("report: report.html")
    return lines


def _begin(cfg: Config, out: Path, command: str, resume: bool, model: str | None = None) -> None:
    """Opens the run folder, after everything that can be checked quickly was: nothing is written for a mistake."""
    from spa.agent.chat import Chat
    from spa.agent.player import make_task
    from spa.models.load import check_model, load_tokenizer

    make_task(cfg)
    check_model(cfg.model, model)
    chat = Chat(load_tokenizer(model or cfg.model.path))
    if command == "generate" or (command == "run" and any(load_arm(name).sft for name in cfg.arms)):
        from spa.worldmodel.selfplay import row_window

        row_window(cfg)
    if command == "sft":
        from spa.worldmodel.dataset import read_rows
        from spa.worldmodel.encode import check_rows
        from spa.worldmodel.sft import data_files

        rows, skipped = read_rows(data_files(_data(cfg, out))[0])
        check_rows(rows, chat, cfg.sft, skipped)
    RunFolder(out).open(cfg, command, resume)


def _data(cfg: Config, out: Path) -> Path:
    return Path(cfg.sft.data) if cfg.sft.data else out / "selfplay"


def _generate(cfg: Config, out: Path, *, resume: bool) -> None:
    stage = Stage(out / "selfplay", "self-play", resume)
    if stage.finished:
        return
    from spa.worldmodel.selfplay import selfplay

    stage.finish(selfplay(cfg, stage.folder))


def _sft(cfg: Config, out: Path, *, resume: bool) -> None:
    stage = Stage(out / "sft", "SFT", resume)
    if stage.finished:
        return
    from spa.worldmodel.sft import run_sft

    with stage.metrics(cfg) as log:
        model = run_sft(cfg, stage.folder, data=_data(cfg, out), resume=stage.resume, log=log)
    stage.finish({"model": str(model.relative_to(stage.folder))})


def _ppo(cfg: Config, arm: ArmConfig, out: Path, *, resume: bool) -> None:
    stage = Stage(out / "arms" / arm.name / "ppo", f"PPO, arm {arm.name}", resume)
    if stage.finished:
        return
    from spa.rl.trainer import train_ppo

    with stage.metrics(cfg) as log:
        result = train_ppo(cfg, arm, start_model(cfg, arm, out), stage.folder, resume=stage.resume, log=log)
    stage.finish(result)


def _evaluate(cfg: Config, arm: ArmConfig, out: Path, *, model: str | None, resume: bool) -> None:
    stage = Stage(out / "arms" / arm.name / "eval", f"evaluation, arm {arm.name}", resume)
    if stage.finished:
        return
    from spa.evaluate.play import evaluate_model

    stage.finish(evaluate_model(cfg, arm, model or trained_model(cfg, arm, out), stage.folder))


def start_model(cfg: Config, arm: ArmConfig, out: Path) -> str:
    """Where an arm's RL starts.

    Raises:
        ValueError: the arm needs stage 2's model, and there is none in ``out``.
    """
    return (
        _product(out / "sft", f"arm {arm.name} starts from the SFT model: run `spa sft` first")
        if arm.sft
        else cfg.model.path
    )


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
