"""The recipe, top to bottom: self-play -> SFT -> PPO -> evaluation -> report. Each function is one command.

    out/config.yaml, run.json         what was asked for, with what versions
    out/selfplay/                     stage 1: train.parquet, val.parquet, episodes.jsonl
    out/sft/                          stage 2: metrics.jsonl, checkpoints/
    out/selfplay-<name>/, sft-<variant>/  the same for variants that change stages 1 and 2
    out/practice-<variant>/               between 2 and 3, for variants that practise in imagination: round_N/plans, round_N/policy
    out/variants/<variant>/ppo/               stage 3: metrics.jsonl, checkpoints/, episodes/
    out/variants/<variant>/eval/              result.json, episodes.jsonl
    out/report.html

A finished stage leaves ``done.json`` in its folder; with ``resume`` it is not run again.
"""

from __future__ import annotations

from pathlib import Path

from spa.common.checkpoints import latest_checkpoint
from spa.common.progress import note
from spa.config.schema import Config, VariantConfig
from spa.config.variants import (
    data_folder,
    dream_folder,
    given_data,
    needs_sft,
    practice_folder,
    selfplay_folder,
    selfplay_name,
    sft_folder,
    source_config,
    variant_config,
    variants_of,
)
from spa.dry_run import plan
from spa.preflight import begin
from spa.run.folder import variants_folder
from spa.run.stage import Stage, model_of, read_done, reopen_as

__all__ = ["evaluate", "generate", "plan", "ppo", "practice", "report", "run", "sft"]


def run(cfg: Config, out: Path, *, resume: bool) -> None:
    """All stages for all variants, then the table and the report.

    Raises:
        ValueError: the training of a variant collapsed or diverged. It comes last: the other variants are finished by then.
    """
    variants = variants_of(cfg)
    with begin(cfg, out, "run", resume, variants=variants):
        failed = _run(cfg, variants, out)
    if failed:
        raise ValueError("without " + "; ".join(f"variant {name}: {why}" for name, why in failed.items()))


def _run(cfg: Config, variants: list[VariantConfig], out: Path) -> dict[str, str]:
    """All stages; returns the variants whose training failed, and why."""
    from spa.rl.health import TrainingFailed

    with_sft = [variant for variant in variants if needs_sft(cfg, variant)]
    for variant in {
        selfplay_folder(out, variant): variant for variant in reversed(with_sft) if not given_data(cfg, variant)
    }.values():
        _generate(cfg, variant, out, resume=True)
    for variant in {sft_folder(out, variant): variant for variant in reversed(with_sft)}.values():
        _sft(cfg, variant, out, resume=True)
    for variant in {
        practice_folder(out, variant): variant for variant in reversed(with_sft) if variant.practice
    }.values():
        _practice(cfg, variant, out, resume=True)
    failed: dict[str, str] = {}
    for variant in variants:
        if variant.continues in failed:
            failed[variant.name] = f"it continues {variant.continues}"
            continue
        try:
            if variant.rl:
                _ppo(cfg, variant, out, resume=True)
        except TrainingFailed as error:
            note(f"variant {variant.name}: {error}")
            failed[variant.name] = str(error)
        else:
            _evaluate(cfg, variant, out, model=None, resume=True)
    print(f"Report: {report(out)}")
    return failed


def generate(cfg: Config, out: Path, *, resume: bool, variant: VariantConfig | None = None) -> None:
    """Stage 1, the run's or that of a variant: the base model plays itself; what it wrote of states is replaced by the truth."""
    name = selfplay_name(variant)
    with begin(cfg, out, f"generate {name}".rstrip(), resume, variants=[variant] if variant else []):
        _generate(cfg, variant, out, resume=resume)


def sft(cfg: Config, out: Path, *, resume: bool, variant: VariantConfig | None = None) -> None:
    """Stage 2, the run's or that of a variant: fine-tuning on the self-play data gives the model a world model."""
    own = sft_folder(out, variant).name.removeprefix("sft").removeprefix("-")
    with begin(cfg, out, f"sft {own}".rstrip(), resume, variants=[variant] if variant else []):
        _sft(cfg, variant, out, resume=resume)


def practice(cfg: Config, variant: VariantConfig, out: Path, *, resume: bool) -> None:
    """Between stages 2 and 3: plans made in the model's own predictions are taught to its plain policy (beyond the paper).

    Raises:
        ValueError: the variant does not practise, or stage 2 is missing.
    """
    if not variant.practice:
        raise ValueError(
            f"variant {variant.name} does not practise; variants that do have `practice: true`, as spa_plan"
        )
    start = world_model_of(variant, out)
    with begin(cfg, out, f"practice {variant.name}", resume, start, variants=[variant]):
        _practice(cfg, variant, out, resume=resume)


def ppo(cfg: Config, variant: VariantConfig, out: Path, *, resume: bool) -> None:
    """Stage 3: multi-turn PPO of one variant, from the base model or from stage 2's."""
    start = start_model(cfg, variant, out)
    with begin(cfg, out, f"ppo {variant.name}", resume, start, variants=[variant]):
        _ppo(cfg, variant, out, resume=resume)


def evaluate(cfg: Config, variant: VariantConfig, out: Path, *, model: str | None, resume: bool) -> None:
    """Pass@k and world-model accuracy on the test worlds: of ``model``, else of a chat server's or the variant's trained model."""
    served = model is None and variant_config(cfg, variant).engine.kind == "openai"
    model = None if served else model or trained_model(cfg, variant, out)
    with begin(cfg, out, f"eval {variant.name}", resume, model, variants=[variant]):
        _evaluate(cfg, variant, out, model=model, resume=resume, served=served)


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
    results = {name: variant.result for name, variant in data.variants.items() if variant.result is not None}
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


def _generate(cfg: Config, variant: VariantConfig | None, out: Path, *, resume: bool) -> None:
    folder = selfplay_folder(out, variant)
    stage = Stage(folder, folder.name, resume, keep=True)
    if stage.finished:
        return
    from spa.sft.selfplay import selfplay

    stage.finish(selfplay(source_config(cfg, variant), stage.folder))


def _sft(cfg: Config, variant: VariantConfig | None, out: Path, *, resume: bool) -> None:
    folder = sft_folder(out, variant)
    stage = Stage(folder, "SFT" if folder.name == "sft" else f"SFT, variant {folder.name.removeprefix('sft-')}", resume)
    if stage.finished:
        return
    from spa.sft.stage2 import run_sft

    own = source_config(cfg, variant)
    with stage.metrics(own) as log:
        model = run_sft(own, stage.folder, data=data_folder(cfg, variant, out), resume=stage.resume, log=log)
    stage.finish({"model": str(model.relative_to(stage.folder))})


def _practice(cfg: Config, variant: VariantConfig, out: Path, *, resume: bool) -> None:
    folder = practice_folder(out, variant)
    stage = Stage(folder, folder.name, resume, keep=True)
    if stage.finished:
        return
    from spa.sft.practice import practice as practise

    own = source_config(cfg, variant)
    stage.finish(practise(own, stage.folder, model=world_model_of(variant, out), data=data_folder(cfg, variant, out)))


def _ppo(cfg: Config, variant: VariantConfig, out: Path, *, resume: bool) -> None:
    if variant.continues:
        _take_over(variant, out, resume=resume)
        resume = True
    stage = Stage(variants_folder(out) / variant.name / "ppo", f"PPO, variant {variant.name}", resume)
    if stage.finished:
        return
    from spa.rl.trainer import train_ppo

    own = variant_config(cfg, variant)
    if own.curriculum.imagined and not own.curriculum.imagined_file:
        own.curriculum.imagined_file = str(_dream(cfg, variant, out, resume=True))
    with stage.metrics(own) as log:
        result = train_ppo(own, variant, start_model(cfg, variant, out), stage.folder, resume=stage.resume, log=log)
    stage.finish(result)


def _dream(cfg: Config, variant: VariantConfig, out: Path, *, resume: bool) -> Path:
    """The file of the worlds that the variant's stage 2 imagines."""
    from spa.planning.dream import FILE, imagine_worlds

    stage = Stage(dream_folder(out, variant), dream_folder(out, variant).name, resume)
    if not stage.finished:
        own = source_config(cfg, variant)
        stage.finish(imagine_worlds(own, stage.folder, model=world_model_of(variant, out)))
    return stage.folder / FILE


def _take_over(variant: VariantConfig, out: Path, *, resume: bool) -> None:
    """Puts the finished stage 3 of the variant that this one continues where its own is to be, unless it is there to be resumed.

    Raises:
        ValueError: that variant was not trained in ``out``.
    """
    source, folder = variants_folder(out) / variant.continues / "ppo", variants_folder(out) / variant.name / "ppo"
    if read_done(source) is None:
        raise ValueError(
            f"variant {variant.name} continues {variant.continues}, which was not trained in {out}: put it before, or run "
            f"`spa ppo --variant {variant.continues}` first"
        )
    if not (resume and (read_done(folder) or latest_checkpoint(folder))):
        reopen_as(source, folder)


def _evaluate(
    cfg: Config, variant: VariantConfig, out: Path, *, model: str | None, resume: bool, served: bool = False
) -> None:
    stage = Stage(variants_folder(out) / variant.name / "eval", f"evaluation, variant {variant.name}", resume)
    if stage.finished:
        return
    from spa.evaluate.play import evaluate_model

    who = None if served else model or trained_model(cfg, variant, out)
    stage.finish(evaluate_model(variant_config(cfg, variant), variant, who, stage.folder))


def start_model(cfg: Config, variant: VariantConfig, out: Path) -> str:
    """Where a variant's RL starts: as ``ppo.start`` says, else at stage 2's model or the base.

    Raises:
        ValueError: the variant needs stage 2's model, and there is none in ``out``; or ``ppo.start`` is a folder without a model.
    """
    given = variant_config(cfg, variant).ppo.start
    if given and variant.rl:
        return model_of(given)
    if not variant.sft:
        return cfg.model.path
    if variant.practice:
        return _product(
            practice_folder(out, variant), f"variant {variant.name}: run `spa practice --variant {variant.name}` first"
        )
    return world_model_of(variant, out)


def world_model_of(variant: VariantConfig, out: Path) -> str:
    """The model that stage 2 made for a variant.

    Raises:
        ValueError: there is none in ``out``.
    """
    return _product(
        sft_folder(out, variant),
        f"variant {variant.name} starts from its SFT model: run `spa sft{_option(out, variant)}` first",
    )


def _option(out: Path, variant: VariantConfig) -> str:
    return "" if sft_folder(out, variant).name == "sft" else f" --variant {variant.name}"


def trained_model(cfg: Config, variant: VariantConfig, out: Path) -> str:
    """What a variant's evaluation plays: its last PPO checkpoint, or where it starts if it has no RL."""
    if not variant.rl:
        return start_model(cfg, variant, out)
    folder = variants_folder(out) / variant.name / "ppo"
    return _product(
        folder,
        f"variant {variant.name} was not trained in {out}: run `spa ppo --variant {variant.name}` first or give --model",
    )


def _product(folder: Path, otherwise: str) -> str:
    """The model that a finished stage names in its ``done.json``."""
    done = read_done(folder)
    if done is None:
        raise ValueError(f"{otherwise} (no finished stage in {folder})")
    return str(folder / str(done["model"]))
