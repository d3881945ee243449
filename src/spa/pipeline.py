"""The recipe, top to bottom: self-play -> SFT -> PPO -> evaluation -> report. Each function is one command.

    out/config.yaml, run.json         what was asked for, with what versions
    out/selfplay/                     stage 1: train.parquet, val.parquet, episodes.jsonl
    out/sft/                          stage 2: metrics.jsonl, checkpoints/
    out/selfplay-<name>/, sft-<arm>/  the same for arms that change stages 1 and 2
    out/practice-<arm>/               between 2 and 3, for arms that practise in imagination: round_N/plans, round_N/policy
    out/arms/<arm>/ppo/               stage 3: metrics.jsonl, checkpoints/, episodes/
    out/arms/<arm>/eval/              result.json, episodes.jsonl
    out/report.html

A finished stage leaves ``done.json`` in its folder; with ``resume`` it is not run again.
"""

from __future__ import annotations

from pathlib import Path

from spa.common.checkpoints import latest_checkpoint
from spa.common.progress import note
from spa.config.schema import ArmConfig, Config
from spa.config.variants import (
    arm_config,
    arms_of,
    data_folder,
    dream_folder,
    given_data,
    needs_sft,
    practice_folder,
    selfplay_folder,
    selfplay_name,
    sft_folder,
    source_config,
)
from spa.dry_run import plan
from spa.preflight import begin
from spa.run.stage import Stage, model_of, read_done, reopen_as

__all__ = ["evaluate", "generate", "plan", "ppo", "practice", "report", "run", "sft"]


def run(cfg: Config, out: Path, *, resume: bool) -> None:
    """All stages for all arms, then the table and the report.

    Raises:
        ValueError: the training of an arm collapsed or diverged. It comes last: the other arms are finished by then.
    """
    arms = arms_of(cfg)
    with begin(cfg, out, "run", resume, arms=arms):
        failed = _run(cfg, arms, out)
    if failed:
        raise ValueError("without " + "; ".join(f"arm {name}: {why}" for name, why in failed.items()))


def _run(cfg: Config, arms: list[ArmConfig], out: Path) -> dict[str, str]:
    """All stages; returns the arms whose training failed, and why."""
    from spa.rl.health import TrainingFailed

    with_sft = [arm for arm in arms if needs_sft(cfg, arm)]
    for arm in {selfplay_folder(out, arm): arm for arm in reversed(with_sft) if not given_data(cfg, arm)}.values():
        _generate(cfg, arm, out, resume=True)
    for arm in {sft_folder(out, arm): arm for arm in reversed(with_sft)}.values():
        _sft(cfg, arm, out, resume=True)
    for arm in {practice_folder(out, arm): arm for arm in reversed(with_sft) if arm.practice}.values():
        _practice(cfg, arm, out, resume=True)
    failed: dict[str, str] = {}
    for arm in arms:
        if arm.continues in failed:
            failed[arm.name] = f"it continues {arm.continues}"
            continue
        try:
            if arm.rl:
                _ppo(cfg, arm, out, resume=True)
        except TrainingFailed as error:
            note(f"arm {arm.name}: {error}")
            failed[arm.name] = str(error)
        else:
            _evaluate(cfg, arm, out, model=None, resume=True)
    print(f"Report: {report(out)}")
    return failed


def generate(cfg: Config, out: Path, *, resume: bool, arm: ArmConfig | None = None) -> None:
    """Stage 1, the run's or that of an arm: the base model plays itself; what it wrote of states is replaced by the truth."""
    name = selfplay_name(arm)
    with begin(cfg, out, f"generate {name}".rstrip(), resume, arms=[arm] if arm else []):
        _generate(cfg, arm, out, resume=resume)


def sft(cfg: Config, out: Path, *, resume: bool, arm: ArmConfig | None = None) -> None:
    """Stage 2, the run's or that of an arm: fine-tuning on the self-play data gives the model a world model."""
    own = sft_folder(out, arm).name.removeprefix("sft").removeprefix("-")
    with begin(cfg, out, f"sft {own}".rstrip(), resume, arms=[arm] if arm else []):
        _sft(cfg, arm, out, resume=resume)


def practice(cfg: Config, arm: ArmConfig, out: Path, *, resume: bool) -> None:
    """Between stages 2 and 3: plans made in the model's own predictions are taught to its plain policy (beyond the paper).

    Raises:
        ValueError: the arm does not practise, or stage 2 is missing.
    """
    if not arm.practice:
        raise ValueError(f"arm {arm.name} does not practise; arms that do have `practice: true`, as spa_plan")
    start = world_model_of(arm, out)
    with begin(cfg, out, f"practice {arm.name}", resume, start, arms=[arm]):
        _practice(cfg, arm, out, resume=resume)


def ppo(cfg: Config, arm: ArmConfig, out: Path, *, resume: bool) -> None:
    """Stage 3: multi-turn PPO of one arm, from the base model or from stage 2's."""
    start = start_model(cfg, arm, out)
    with begin(cfg, out, f"ppo {arm.name}", resume, start, arms=[arm]):
        _ppo(cfg, arm, out, resume=resume)


def evaluate(cfg: Config, arm: ArmConfig, out: Path, *, model: str | None, resume: bool) -> None:
    """Pass@k and world-model accuracy on the test worlds: of ``model``, else of a chat server's or the arm's trained model."""
    served = model is None and arm_config(cfg, arm).engine.kind == "openai"
    model = None if served else model or trained_model(cfg, arm, out)
    with begin(cfg, out, f"eval {arm.name}", resume, model, arms=[arm]):
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
        images = f", {sum(data.symmetric_overlaps.values())} up to rotation and mirror image"
        print(
            f"Worlds that two splits have in common: {sum(data.overlaps.values())} by content"
            f"{images if data.symmetric_overlaps else ''} ({', '.join(data.overlaps)})."
        )
    return path


def _generate(cfg: Config, arm: ArmConfig | None, out: Path, *, resume: bool) -> None:
    folder = selfplay_folder(out, arm)
    stage = Stage(folder, folder.name, resume, keep=True)
    if stage.finished:
        return
    from spa.sft.selfplay import selfplay

    stage.finish(selfplay(source_config(cfg, arm), stage.folder))


def _sft(cfg: Config, arm: ArmConfig | None, out: Path, *, resume: bool) -> None:
    folder = sft_folder(out, arm)
    stage = Stage(folder, "SFT" if folder.name == "sft" else f"SFT, arm {folder.name.removeprefix('sft-')}", resume)
    if stage.finished:
        return
    from spa.sft.stage2 import run_sft

    own = source_config(cfg, arm)
    with stage.metrics(own) as log:
        model = run_sft(own, stage.folder, data=data_folder(cfg, arm, out), resume=stage.resume, log=log)
    stage.finish({"model": str(model.relative_to(stage.folder))})


def _practice(cfg: Config, arm: ArmConfig, out: Path, *, resume: bool) -> None:
    folder = practice_folder(out, arm)
    stage = Stage(folder, folder.name, resume, keep=True)
    if stage.finished:
        return
    from spa.sft.practice import practice as practise

    own = source_config(cfg, arm)
    stage.finish(practise(own, stage.folder, model=world_model_of(arm, out), data=data_folder(cfg, arm, out)))


def _ppo(cfg: Config, arm: ArmConfig, out: Path, *, resume: bool) -> None:
    if arm.continues:
        _take_over(arm, out, resume=resume)
        resume = True
    stage = Stage(out / "arms" / arm.name / "ppo", f"PPO, arm {arm.name}", resume)
    if stage.finished:
        return
    from spa.rl.trainer import train_ppo

    own = arm_config(cfg, arm)
    if own.curriculum.imagined and not own.curriculum.imagined_file:
        own.curriculum.imagined_file = str(_dream(cfg, arm, out, resume=True))
    with stage.metrics(own) as log:
        result = train_ppo(own, arm, start_model(cfg, arm, out), stage.folder, resume=stage.resume, log=log)
    stage.finish(result)


def _dream(cfg: Config, arm: ArmConfig, out: Path, *, resume: bool) -> Path:
    """The file of the worlds that the arm's stage 2 imagines."""
    from spa.planning.dream import FILE, imagine_worlds

    stage = Stage(dream_folder(out, arm), dream_folder(out, arm).name, resume)
    if not stage.finished:
        own = source_config(cfg, arm)
        stage.finish(imagine_worlds(own, stage.folder, model=world_model_of(arm, out)))
    return stage.folder / FILE


def _take_over(arm: ArmConfig, out: Path, *, resume: bool) -> None:
    """Puts the finished stage 3 of the arm that this one continues where its own is to be, unless it is there to be resumed.

    Raises:
        ValueError: that arm was not trained in ``out``.
    """
    source, folder = out / "arms" / arm.continues / "ppo", out / "arms" / arm.name / "ppo"
    if read_done(source) is None:
        raise ValueError(
            f"arm {arm.name} continues {arm.continues}, which was not trained in {out}: put it before, or run "
            f"`spa ppo --arm {arm.continues}` first"
        )
    if not (resume and (read_done(folder) or latest_checkpoint(folder))):
        reopen_as(source, folder)


def _evaluate(cfg: Config, arm: ArmConfig, out: Path, *, model: str | None, resume: bool, served: bool = False) -> None:
    stage = Stage(out / "arms" / arm.name / "eval", f"evaluation, arm {arm.name}", resume)
    if stage.finished:
        return
    from spa.evaluate.play import evaluate_model

    who = None if served else model or trained_model(cfg, arm, out)
    stage.finish(evaluate_model(arm_config(cfg, arm), arm, who, stage.folder))


def start_model(cfg: Config, arm: ArmConfig, out: Path) -> str:
    """Where an arm's RL starts: as ``ppo.start`` says, else at stage 2's model or the base.

    Raises:
        ValueError: the arm needs stage 2's model, and there is none in ``out``; or ``ppo.start`` is a folder without a model.
    """
    given = arm_config(cfg, arm).ppo.start
    if given and arm.rl:
        return model_of(given)
    if not arm.sft:
        return cfg.model.path
    if arm.practice:
        return _product(practice_folder(out, arm), f"arm {arm.name}: run `spa practice --arm {arm.name}` first")
    return world_model_of(arm, out)


def world_model_of(arm: ArmConfig, out: Path) -> str:
    """The model that stage 2 made for an arm.

    Raises:
        ValueError: there is none in ``out``.
    """
    return _product(
        sft_folder(out, arm), f"arm {arm.name} starts from its SFT model: run `spa sft{_option(out, arm)}` first"
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
    done = read_done(folder)
    if done is None:
        raise ValueError(f"{otherwise} (no finished stage in {folder})")
    return str(folder / str(done["model"]))
