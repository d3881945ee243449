"""What a stage needs of earlier ones: their models and data, looked up in the run folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spa.common.files import expanded
from spa.config.schema import Config, VariantConfig
from spa.config.variants import (
    data_folder,
    given_data,
    practice_folder,
    sft_folder,
    source_config,
    variant_config,
)
from spa.runs.folder import RunFolder, selection, variants_folder
from spa.runs.record import check_recorded, model_in, read_done
from spa.runs.stage import model_of


def check_inputs(
    cfg: Config, stage: str, variant: VariantConfig | None, out: Path, model: str | None = None
) -> tuple[str | None, Path | None]:
    """The model that a command starts from or evaluates (None: ``model.path``, or a chat server) and its data, for stage 2.

    Args:
        model: to evaluate instead of the variant's own.

    Raises:
        ValueError: ``out`` lacks what an earlier stage makes; the message names the command to run first.
    """
    if stage == "sft":
        data = data_folder(cfg, variant, out)
        if variant and cfg.sft.data and not given_data(cfg, variant) and not any(data.glob("*train.parquet")):
            raise ValueError(
                f"variant {variant.name} has a stage 1 of its own and does not read the run's sft.data: run "
                f"`spa generate --variant {variant.name}` first, or set sft.data in the variant's own settings"
            )
        check_recorded(data, "train.parquet", "val.parquet")
        if not given_data(cfg, variant) and selected_otherwise(data, source_config(cfg, variant)):
            raise ValueError(f"the rows in {data} were selected with other settings: run `spa generate --resume` first")
        return None, data
    if variant is None:
        return model, None
    if stage == "practice":
        return practised_model(variant, out), None
    if stage == "ppo":
        if not variant.rl:
            raise ValueError(f"variant {variant.name} has no stage 3; use one with `rl: true`, such as vanilla or spa")
        if variant.continues and read_done(variants_folder(out) / variant.continues / "ppo") is None:
            raise ValueError(
                f"variant {variant.name} continues {variant.continues}, which was not trained in {out}: list it first, or "
                f"run {_command(out, 'ppo', variant.continues)} first"
            )
        return start_model(cfg, variant, out), None
    if stage == "eval" and model is None:
        return evaluated_model(cfg, variant, out), None
    return model, None


def selected_otherwise(folder: Path, source: Config) -> bool:
    """Whether a finished stage 1 has rows that were selected with other settings."""
    try:
        done = read_done(folder)
    except ValueError:  # said by the stage, which makes the record again
        return False
    return done is not None and done.get("selection", selection(source)) != selection(source)


def practised_model(variant: VariantConfig, out: Path) -> str:
    """The model that a variant's practice starts from.

    Raises:
        ValueError: the variant does not practise, or stage 2 is missing.
    """
    if not variant.practice:
        raise ValueError(
            f"variant {variant.name} has no practice stage; use one with `practice: true`, such as spa_plan"
        )
    return world_model_of(variant, out)


def start_model(cfg: Config, variant: VariantConfig, out: Path) -> str:
    """The model that a variant's RL starts from: ``ppo.start`` if set, else stage 2's model or the variant's ``model.path``.

    Raises:
        ValueError: ``out`` lacks stage 2's model, which the variant needs; or ``ppo.start`` is a folder without a model.
    """
    variant_cfg = variant_config(cfg, variant)
    if variant_cfg.ppo.start and variant.rl:
        return model_of(variant_cfg.ppo.start)
    if not variant.sft:
        return variant_cfg.model.path
    if variant.practice:
        first = _command(out, "practice", variant.name)
        return _product(practice_folder(out, variant), f"variant {variant.name} has not practised: run {first} first")
    return world_model_of(variant, out)


def world_model_of(variant: VariantConfig, out: Path) -> str:
    """The model that stage 2 trained for a variant.

    Raises:
        ValueError: there is none in ``out``.
    """
    folder = sft_folder(out, variant)
    first = _command(out, "sft", "" if folder.name == "sft" else variant.name)
    return _product(folder, f"variant {variant.name} starts from its SFT model: run {first} first")


def trained_model(cfg: Config, variant: VariantConfig, out: Path) -> str:
    """The model that a variant's evaluation plays: its PPO result, or its start model if it has no RL.

    Raises:
        ValueError: ``out`` lacks it.
    """
    if not variant.rl:
        return start_model(cfg, variant, out)
    folder = variants_folder(out) / variant.name / "ppo"
    begun = "to its end " if folder.is_dir() else ""
    first = _command(out, "ppo", variant.name)
    return _product(
        folder, f"variant {variant.name} was not trained {begun}in {out}: run {first} first or give --model"
    )


def _command(out: Path, stage: str, variant: str = "") -> str:
    """The command that makes in ``out`` what is missing: the one that was to make it, if there was one."""
    run, folder = RunFolder(out), f"--out {shlex.quote(str(out))}"
    if "run" in run.commands():
        return f"`spa run {folder} --resume`"
    name, option = "" if run.holds_run else "NAME ", f"--variant {variant} " if variant else ""
    again = " --resume" if f"{stage} {variant}".strip() in run.commands() else ""
    return f"`spa {stage} {name}{option}{folder}{again}`"


def evaluated_model(cfg: Config, variant: VariantConfig, out: Path) -> str | None:
    """The model that ``spa eval`` plays as a variant; None: a chat server's, which stands only for variants without training.

    Raises:
        ValueError: as ``trained_model``.
    """
    if variant_config(cfg, variant).engine.kind == "openai" and not (variant.sft or variant.rl):
        return None
    return trained_model(cfg, variant, out)


def model_path(model: str | None, out: Path) -> str:
    """How the record of an evaluation in ``out`` identifies its model: in the run, which may be moved, by the path below ``out``;
    elsewhere by the absolute path; a hub name by itself; a chat server's (None) by an empty text."""
    folder, run = expanded(model or "").resolve(), out.resolve()
    is_own = folder.is_relative_to(run)
    if not model or not (folder.is_dir() or (is_own and folder.parent.name == "checkpoints")):  # one may have been lost
        return model or ""
    return str(folder.relative_to(run) if is_own else folder)


def is_of_model(done: Mapping[str, Any], model: str | None, out: Path) -> bool:
    """Whether the record of an evaluation in ``out`` is of this model."""
    return bool(done.get("model") == model or done.get("model_path") == model_path(model, out))


def check_evaluated(variant: VariantConfig, out: Path, model: str | None) -> None:
    """Raises ValueError if ``out`` holds a finished evaluation of another model under the variant's name."""
    folder = variants_folder(out) / variant.name / "eval"
    try:
        done = read_done(folder)
    except ValueError:  # said by the stage, which makes the record again
        return
    if done is not None and not is_of_model(done, model, out):
        raise ValueError(
            f"{folder} holds the evaluation of {done['model']}, not of {model or 'a chat server'}: give another --out, leave "
            "out NAME to go on with the run's own settings, or delete that folder"
        )


def _product(folder: Path, otherwise: str) -> str:
    """The model that a finished stage names in its ``done.json``."""
    done = read_done(folder)
    if done is None:
        raise ValueError(f"{otherwise} (no finished stage in {folder})")
    return str(model_in(folder, done))
