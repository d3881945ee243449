"""Exports a checkpoint of a run without the trainer state, in a chosen dtype."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from spa.common import manifest
from spa.common.checkpoints import list_checkpoints
from spa.common.files import atomic_folder
from spa.common.names import choose
from spa.config.schema import VariantConfig
from spa.config.variants import practice_folder, sft_folder
from spa.models.folders import check_weights
from spa.runs.folder import TASK, RunFolder, variant_names, variants_folder
from spa.runs.record import read_done
from spa.runs.stage import model_of

_EXPORTED = (  # what an export, also of other models with their tokenizers, may consist of
    "*.json",
    "*.safetensors",
    "*.bin",
    "*.model",
    "*.jinja",
    "*.tiktoken",
    "merges.txt",
    "vocab.txt",
    "additional_chat_templates",
    "README.md",
    "LICEN[SC]E*",
    TASK,
)
_NOT_A_MODEL = ("trainer_state.pt", "trainer_state", "adapter", manifest.MANIFEST)


def find_checkpoint(
    source: Path, *, variant: str | None = None, sft: bool = False, which: str = "used", step: int | None = None
) -> Path:
    """A checkpoint of a run folder or stage folder, or the checkpoint itself.

    Args:
        variant: of a run: whose stage 3 or, without RL, whose practice or stage 2; None: the only one that was trained.
        sft: of a run: stage 2 instead.
        which: ``used`` (by the rest of the run), ``last`` or ``best`` (by validation).
        step: of this step instead; not with ``which``.

    Raises:
        ValueError: there is none; the message lists the existing ones.
    """
    source = Path(source)
    choose("--which", which, ("used", "last", "best"))
    if step is not None and which != "used":
        raise ValueError(f"a checkpoint is chosen by its step, {step}, or as the {which} one, not both")
    if not source.is_dir():
        raise ValueError(f"no folder {source}")
    if (source / "config.json").is_file():
        if variant or sft or which != "used" or step is not None:
            raise ValueError(f"{source} is a single model: it has no variants, stages or steps to choose from")
        return source
    is_run = (source / "config.yaml").is_file()
    own = source.resolve()
    other = (sft and not own.name.startswith("sft")) or (variant and own.name == "ppo" and own.parent.name != variant)
    if other and not is_run:
        raise ValueError(
            f"{source} is a single stage, of another model: --variant and --sft choose among those of a run folder"
        )
    stage = _stage(source, variant, sft) if is_run else source
    if stage.name.startswith("practice-"):  # the policy of its last round, unless nothing was taught
        used = Path(model_of(str(stage)))
        if which == "used" and step is None:
            return used
        stage = used.parent.parent
    checkpoints = dict(list_checkpoints(stage))
    if not checkpoints:
        raise ValueError(f"{stage} holds no checkpoint")
    if step is not None:
        if step not in checkpoints:
            steps = ", ".join(map(str, checkpoints))
            raise ValueError(f"{stage} has no checkpoint of step {step}; it has {steps}")
        return checkpoints[step]
    if which == "best":
        done = read_done(stage) or {}
        best = stage / str(done.get("best", ""))
        if "best" not in done or not best.is_dir():
            raise ValueError(
                f"{stage} has not kept its best checkpoint: train with ppo.use=best, or choose --which last"
            )
        return best
    return Path(model_of(str(stage))) if which == "used" else list(checkpoints.values())[-1]


def _stage(run: Path, variant: str | None, sft: bool) -> Path:
    record = RunFolder(run)
    names = variant_names(run, record.config())
    if sft and variant and not record.variant(variant).sft:
        raise ValueError(f"variant {variant} of {run} has no stage 2")
    if sft:
        folder = sft_folder(run, record.variant(variant)) if variant else run / "sft"
        sft_folders = sorted(path.name for path in run.glob("sft-*"))
        if not folder.is_dir() and (variant or len(sft_folders) != 1):
            has = f"; it has {', '.join(sft_folders)}: choose one with --variant" if sft_folders else ""
            raise ValueError(f"{run} has no SFT model" + (f" of variant {variant}" if variant else "") + has)
        return folder if folder.is_dir() else run / sft_folders[0]
    if variant and variant in names and not (chosen := record.variant(variant)).rl:
        found = _without_rl(run, chosen)
        if found is None:
            raise ValueError(f"variant {variant} of {run} has no trained model")
        return found
    variants = sorted(path.parent.name for path in variants_folder(run).glob("*/ppo"))
    if variant is None:
        known = dict.fromkeys([*(each.name for each in record.variants()), *names])
        others = {name: stage for name in known if (stage := _without_rl(run, record.variant(name)))}
        models = {name: variants_folder(run) / name / "ppo" for name in variants} | others
        if len(models) != 1:
            has = f"{', '.join(models)}: choose one with --variant" if models else "none (--sft takes stage 2's)"
            raise ValueError(f"which model of {run}? It has {has}")
        return next(iter(models.values()))
    if not variants:
        raise ValueError(f"{run} has no PPO model")
    return variants_folder(run) / choose(f"variant of {run}", variant, dict.fromkeys([*variants, *names])) / "ppo"


def _without_rl(run: Path, variant: VariantConfig) -> Path | None:
    """The stage that trained the model of a variant without RL: its practice, else its stage 2."""
    stages = (practice_folder, sft_folder) if variant.practice else (sft_folder,) if variant.sft else ()
    return None if variant.rl else next((folder for of in stages if (folder := of(run, variant)).is_dir()), None)


def export(
    checkpoint: Path,
    target: Path,
    *,
    files: Mapping[str, str],
    dtype: str | None = None,
    adapter: bool = False,
    force: bool = False,
) -> None:
    """Copies a checkpoint's model and tokenizer to ``target``, without the trainer state.

    Args:
        files: name -> text of what is written beside them, such as the model card.
        dtype: of the copied weights; None keeps theirs.
        adapter: export only the LoRA adapters, in peft's format, instead of the merged model.
        force: replace a model in ``target`` that was exported from a run; anything else is kept.

    Raises:
        ValueError: ``target`` exists; unknown dtype; no adapters; files that are damaged or links out of
            the stage; weights that cannot be cast.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        if not (target / TASK).is_file():  # any model has a config.json, and so have other projects
            raise ValueError(f"{target} exists and is no exported model; give another --to")
        if not force:
            raise ValueError(f"{target} exists; add --force to replace it")
        if foreign := [path.name for path in target.iterdir() if not any(map(path.match, _EXPORTED))]:
            raise ValueError(
                f"{target} holds more than an exported model ({', '.join(sorted(foreign))}); give another --to"
            )
    if checkpoint.resolve() in target.resolve().parents:
        raise ValueError(f"{target} is in the model that is exported; give another --to")
    if target.exists() and (target.resolve() in checkpoint.resolve().parents or target.samefile(checkpoint)):
        raise ValueError(f"{target} holds the model that is exported; give another --to")
    if adapter and not (checkpoint / "adapter").is_dir():
        raise ValueError(f"{checkpoint} has no adapters: it was trained with all weights (lora_rank=0)")
    if dtype:
        choose("--dtype", dtype, ("float32", "bfloat16", "float16"))
    if adapter and dtype:
        raise ValueError("--dtype is of the merged model; leave it out with --adapter")
    manifest.check(checkpoint)
    inside = checkpoint.resolve().parent.parent  # the stage's folder, or that of the hub's cache
    if links := [path for path in checkpoint.rglob("*") if not path.resolve().is_relative_to(inside)]:
        raise ValueError(f"{links[0]} is a link that leads out of {inside}: replace it by what it names")
    with atomic_folder(target) as folder:
        if adapter:
            shutil.copytree(checkpoint / "adapter", folder, dirs_exist_ok=True)
            _copy_tokenizer(checkpoint, folder)
        else:
            for path in checkpoint.iterdir():
                if path.name not in _NOT_A_MODEL:
                    (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)
            if dtype:
                _convert(checkpoint, folder, dtype)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        _drop_sampling(folder / "generation_config.json")


def _drop_sampling(path: Path) -> None:
    """Removes the base's sampling settings (top_k, repetition_penalty, ...): the model was trained and measured without them."""
    if path.is_file():
        settings = json.loads(path.read_text(encoding="utf-8"))
        kept = {key: value for key, value in settings.items() if key.endswith("_token_id") or "version" in key}
        path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def _convert(checkpoint: Path, folder: Path, dtype: str) -> None:
    """Writes the checkpoint's weights in another dtype to ``folder``, a copy of it; code that it brings along is not run."""
    import torch
    from safetensors.torch import load_file, save_file

    check_weights(str(checkpoint), str(checkpoint))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files or config.get("quantization_config"):
        raise ValueError(f"{checkpoint} has no *.safetensors or quantized ones: export it without --dtype")
    size = 0
    for path in files:
        weights = load_file(path)
        cast = {name: w.to(getattr(torch, dtype)) if w.is_floating_point() else w for name, w in weights.items()}
        save_file(cast, folder / path.name, metadata={"format": "pt"})
        size += sum(weight.nbytes for weight in cast.values())
    if (index := folder / "model.safetensors.index.json").is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        content["metadata"] = {**content.get("metadata", {}), "total_size": size}
        index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    # Models of text and images have a config of each; earlier versions of transformers wrote torch_dtype.
    for part in (config, *(each for each in config.values() if isinstance(each, dict))):
        if part is config or {"dtype", "torch_dtype"} & part.keys():
            part.pop("torch_dtype", None)
            part["dtype"] = dtype
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _copy_tokenizer(checkpoint: Path, folder: Path) -> None:
    from spa.models.load import load_tokenizer

    load_tokenizer(str(checkpoint)).save_pretrained(folder)
