"""The recipe, top to bottom: self-play -> SFT -> PPO -> evaluation -> report. Each function is one command.

    out/config.yaml, run.json               the config, commands and versions
    out/selfplay/                           stage 1: train.parquet, val.parquet, episodes.jsonl
    out/sft/                                stage 2: metrics.jsonl, checkpoints/
    out/selfplay-NAME/, sft-VARIANT/        the same for variants that change stages 1 and 2
    out/practice-VARIANT/                   between 2 and 3, for variants that practise in imagination: round_N/plans, policy
    out/variants/VARIANT/ppo/               stage 3: metrics.jsonl, checkpoints/, episodes/
    out/variants/VARIANT/eval/              result.json, episodes.jsonl
    out/report.html

A finished stage leaves ``done.json`` in its folder; with ``resume`` it is not run again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from spa.common.checkpoints import latest_checkpoint
from spa.common.manifest import say
from spa.common.progress import note
from spa.common.text import clean
from spa.config.schema import Config, VariantConfig
from spa.config.variants import (
    data_folder,
    dream_folder,
    imagines,
    practice_folder,
    selfplay_folder,
    sft_folder,
    sft_name,
    shared_stages,
    source_config,
    variant_config,
    variants_of,
)
from spa.dry_run import plan
from spa.preflight import begin
from spa.runs.folder import variants_folder
from spa.runs.products import (
    check_evaluated,
    check_inputs,
    evaluated_model,
    model_path,
    practised_model,
    selected_otherwise,
    trained_model,
    world_model_of,
)
from spa.runs.record import DONE, damaged_files, read_done
from spa.runs.schedule import Schedule, planned_stages
from spa.runs.stage import Stage, reopen_as, reopen_episodes
from spa.scale import ranks

__all__ = ["evaluate", "generate", "plan", "ppo", "practice", "report", "run", "sft"]


def run(cfg: Config, out: Path, *, resume: bool, table: bool = True) -> None:
    """Runs all stages for all variants, then writes the report and, with ``table``, prints the comparison.

    Raises:
        ValueError: the training of a variant collapsed or diverged; raised after the other variants have finished.
    """
    from spa.rl.health import TrainingFailed

    variants = variants_of(cfg)
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        stack.enter_context(begin(cfg, out, "run", resume, variants=variants))
        played, models, practised = shared_stages(cfg, out, variants)
        clock = stack.enter_context(Schedule(planned_stages(cfg, out, variants)))
        for folder, variant in played.items():
            clock.begin(folder)
            generate(cfg, out, resume=True, variant=variant, begun=True)
        for folder, variant in models.items():
            clock.begin(folder)
            sft(cfg, out, resume=True, variant=variant, begun=True)
        for folder, variant in practised.items():
            clock.begin(folder)
            practice(cfg, variant, out, resume=True, begun=True)
        for variant in variants:
            if variant.continues in failed:
                failed[variant.name] = f"it continues {variant.continues}"
                continue
            try:
                if variant.rl:
                    clock.begin(variants_folder(out) / variant.name / "ppo")
                    ppo(cfg, variant, out, resume=True, begun=True)
            except TrainingFailed as error:
                note(f"variant {variant.name}: {error}")
                failed[variant.name] = str(error)
            else:
                clock.begin(variants_folder(out) / variant.name / "eval")
                evaluate(cfg, variant, out, model=None, resume=True, begun=True)
        ranks.on_main(lambda: _conclude(cfg, out, table))
        if failed:
            first = {why: name for name, why in reversed(failed.items())}
            reasons = {name: why if name == first[why] else f"as {first[why]}" for name, why in failed.items()}
            raise ValueError("; ".join(f"variant {name} was not evaluated: {why}" for name, why in reasons.items()))


def _conclude(cfg: Config, out: Path, table: bool) -> None:
    """Writes the report and tells the trackers the comparison."""
    path = report(out, table=table)
    if table:
        print(f"Report: {path}")
    if cfg.report.trackers:
        from spa.report.track import track_comparison

        track_comparison(cfg, out)


def _begin(
    begun: bool, cfg: Config, out: Path, stage: str, resume: bool, model: str | None, variant: VariantConfig | None
) -> AbstractContextManager[None]:
    """Checks and opens the run folder for a stage run as its own command; ``run`` has already done so."""
    return nullcontext() if begun else begin(cfg, out, stage, resume, model, [variant] if variant else [])


def generate(
    cfg: Config, out: Path, *, resume: bool, variant: VariantConfig | None = None, begun: bool = False
) -> None:
    """Stage 1 of the run or of a variant: the base model plays; the states it wrote are replaced by the true ones."""
    with _begin(begun, cfg, out, "generate", resume, None, variant):
        folder, source = selfplay_folder(out, variant), source_config(cfg, variant)
        ranks.on_main(lambda: _select_anew(folder, source) if resume else None)
        stage = Stage(folder, folder.name, resume, keep=True, remake=True)
        if stage.finished:
            return
        from spa.sft.selfplay import selfplay

        stage.complete(lambda: selfplay(source, stage.folder))


def _select_anew(folder: Path, source: Config) -> None:
    """Reopens a finished stage 1 whose rows are damaged or were selected with other settings."""
    if _rows_damaged(folder) or selected_otherwise(folder, source):
        note(f"{folder.name}: the rows are selected again; nothing is played again")
        reopen_episodes(folder)


def _rows_damaged(folder: Path) -> bool:
    """Whether only the rows and counts of a finished stage 1 are damaged, not the episodes that they come from; says so."""
    try:
        damaged = damaged_files(folder, read_done(folder))
    except ValueError:  # said by the stage
        return False
    only = bool(damaged) and not any("episodes.jsonl" in line for line in damaged)
    for line in damaged if only else []:
        say(line)
    return only


def sft(cfg: Config, out: Path, *, resume: bool, variant: VariantConfig | None = None, begun: bool = False) -> None:
    """Stage 2 of the run or of a variant: fine-tuning on the self-play data gives the model a world model."""
    name = sft_name(variant)
    with _begin(begun, cfg, out, "sft", resume, None, variant):
        stage = Stage(sft_folder(out, variant), f"SFT, variant {name}" if name else "SFT", resume)
        if stage.finished:
            return
        from spa.sft.stage2 import run_sft

        source = source_config(cfg, variant)
        _, data = check_inputs(cfg, "sft", variant, out)
        assert data is not None
        with stage.metrics(source) as log:
            model = run_sft(source, stage.folder, data=data, resume=stage.resume, log=log)
        stage.finish({"model": str(model.relative_to(stage.folder))})


def practice(cfg: Config, variant: VariantConfig, out: Path, *, resume: bool, begun: bool = False) -> None:
    """Between stages 2 and 3: distils plans from the model's own predictions into its plain policy (beyond the paper).

    Raises:
        ValueError: the variant does not practise, or stage 2 is missing.
    """
    with _begin(begun, cfg, out, "practice", resume, None, variant):
        folder = practice_folder(out, variant)
        stage = Stage(folder, folder.name, resume, keep=True)
        if stage.finished:
            return
        from spa.sft.practice import practice as practise

        source = source_config(cfg, variant)
        start = practised_model(variant, out)
        stage.finish(practise(source, stage.folder, model=start, data=data_folder(cfg, variant, out)))


def ppo(cfg: Config, variant: VariantConfig, out: Path, *, resume: bool, begun: bool = False) -> None:
    """Stage 3: multi-turn PPO of one variant, from the base model or from stage 2's."""
    with _begin(begun, cfg, out, "ppo", resume, None, variant):
        start, _ = check_inputs(cfg, "ppo", variant, out)
        assert start is not None
        if variant.continues:
            ranks.on_main(lambda: _take_over(variant, out, resume=resume))
        folder = variants_folder(out) / variant.name / "ppo"
        stage = Stage(folder, f"PPO, variant {variant.name}", resume or bool(variant.continues))
        if stage.finished:
            return
        from spa.rl.trainer import train_ppo

        variant_cfg = variant_config(cfg, variant)
        if imagines(cfg, variant):
            variant_cfg.curriculum.imagined_file = str(_dream(cfg, variant, out))
        with stage.metrics(variant_cfg) as log:
            result = train_ppo(variant_cfg, variant, start, stage.folder, resume=stage.resume, log=log)
        stage.finish(result)


def evaluate(
    cfg: Config, variant: VariantConfig, out: Path, *, model: str | None, resume: bool, begun: bool = False
) -> None:
    """Pass@k and world-model accuracy on the test worlds: of ``model``, else of the variant's own (``evaluated_model``; in a
    ``spa run`` never a chat server's).

    Raises:
        ValueError: ``out`` lacks that model, or holds a finished evaluation of another one as this variant's.
    """
    variant_cfg = variant_config(cfg, variant)
    with _begin(begun, cfg, out, "eval", resume, model, variant):
        if model is None:
            model = trained_model(cfg, variant, out) if begun else evaluated_model(cfg, variant, out)
        check_evaluated(variant, out, model)
        folder = variants_folder(out) / variant.name / "eval"
        stage = Stage(folder, f"evaluation, variant {variant.name}", resume, keep=True, remake=True)
        if not stage.finished:
            from spa.evaluate.play import evaluate_model

            record = {"model_path": model_path(model, out)}
            stage.complete(lambda: evaluate_model(variant_cfg, variant, model, stage.folder) | record)
            if variant_cfg.report.trackers:
                from spa.report.track import track_evaluation

                ranks.on_main(lambda: track_evaluation(variant_cfg, variant.name, stage.folder))
        if not begun and ranks.is_main():
            _print_result(folder)


def _print_result(folder: Path) -> None:
    from spa.evaluate.summary import comparison_table, render_text
    from spa.report.collect import read_results

    if results := read_results(folder):
        print(f"{render_text(comparison_table(results))}\nResult: {folder / 'result.json'}")


def report(out: Path, episodes: int | None = None, *, table: bool = True) -> Path:
    """Writes ``report.html`` with ``episodes`` per variant (None: ``report.episodes``) and, with ``table``, prints the comparison.

    Returns:
        The path of the page.

    Raises:
        ValueError: ``out`` is not a run folder.
    """
    from spa.evaluate.summary import comparison_table, render_text
    from spa.report.collect import collect
    from spa.report.html import render_report, sealed, write_page
    from spa.report.terminal import learning_curves

    data = collect(out, episodes)
    path = write_page(sealed(render_report(data)), out / "report.html")
    if not table:
        return path
    results = {name: variant.result for name, variant in data.variants.items() if variant.result is not None}
    if results:
        if curves := learning_curves(data):
            print("\n".join(["", *curves]))
        print(f"\n{clean(data.name)}: held-out worlds, temperature {data.config['sampling']['temperature']}\n")
        print(render_text(comparison_table(results, trained=data.trained)))
    for name in data.untaught:
        print(f"Practice of {clean(name)} found nothing to teach: it left the policy of stage 2 as it was.")
    if data.overlaps:
        images = f", {sum(data.symmetric_overlaps.values())} up to rotation and mirror image"
        print(
            f"Worlds that two splits have in common: {sum(data.overlaps.values())} by content"
            f"{images if data.symmetric_overlaps else ''} ({', '.join(data.overlaps)})."
        )
    return path


def _dream(cfg: Config, variant: VariantConfig, out: Path) -> Path:
    """The file of the worlds imagined by the variant's stage 2."""
    from spa.planning.dream import FILE, imagine_worlds

    stage = Stage(dream_folder(out, variant), dream_folder(out, variant).name, resume=True, keep=True)
    if not stage.finished:
        source = source_config(cfg, variant)
        stage.complete(lambda: imagine_worlds(source, stage.folder, model=world_model_of(variant, out)))
    return stage.folder / FILE


def _take_over(variant: VariantConfig, out: Path, *, resume: bool) -> None:
    """Copies the finished stage 3 of the variant that this one continues, unless this one's own can be resumed."""
    source, folder = variants_folder(out) / variant.continues / "ppo", variants_folder(out) / variant.name / "ppo"
    if not (resume and ((folder / DONE).is_file() or latest_checkpoint(folder))):
        reopen_as(source, folder)
