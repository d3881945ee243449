"""Base models pretrained longer: the control that matches the compute of self-play and SFT without information about the world."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from spa.common.files import atomic_folder, atomic_write
from spa.common.progress import note
from spa.config.overrides import apply_overrides, from_mapping
from spa.config.schema import Config, VariantConfig
from spa.config.variants import check_variants
from spa.reproduce.scale import Scale, variant_file

MADE_WITH = "pretrain_settings.json"


def check_own(scale: Scale, world: str, cfg: Config) -> None:
    """Checks the scale's own variants and bases of a world before anything is written or trained.

    Raises:
        ValueError: one of them has an unknown setting or an invalid value; the message names it.
    """
    for name in scale.variants_of(world):
        try:
            if contents := scale.own_variants_of(world).get(name):
                check_variants(cfg, [from_mapping(VariantConfig, {"name": name, **contents})])
            elif name in scale.bases:
                from spa.pretrain.train import PretrainConfig

                apply_overrides(PretrainConfig(), scale.bases[name])
        except ValueError as error:
            raise ValueError(f"{world}: {'base ' + name + ': ' if name in scale.bases else ''}{error}") from error


def write_variants(scale: Scale, out: Path) -> None:
    """Writes the variants specific to this scale to ``out/variants/WORLD``."""
    for world in scale.worlds:
        for name, variant in scale.own_variants_of(world).items():
            path = variant_file(scale, world, name, out)
            assert path
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, yaml.safe_dump({"name": name, **variant}))


def make_bases(scale: Scale, out: Path) -> None:
    """Pretrains the models missing in ``out/bases`` and writes the files of the variants that start from them.

    Raises:
        ValueError: pretraining failed (the message is its last line), or a model was pretrained with other settings.
    """
    for name, settings in scale.bases.items():
        if not any(name in scale.variants_of(world) for world in scale.worlds):
            continue
        folder = (out / "bases" / name).resolve()
        if not (folder / "config.json").is_file():
            note(f"pretraining {name} ({folder})")
            with atomic_folder(folder) as partial:
                command = [sys.executable, "-m", "spa", "pretrain", "--out", str(partial), "--quiet", "measure=false"]
                done = subprocess.run([*command, *settings], capture_output=True, text=True)
                if done.returncode:
                    raise ValueError(f"base {name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
                atomic_write(partial / MADE_WITH, json.dumps(settings))
        elif (folder / MADE_WITH).is_file() and json.loads((folder / MADE_WITH).read_text("utf-8")) != settings:
            raise ValueError(
                f"base {name} was pretrained with other settings: delete {folder}, or choose another --out"
            )
        variant = {
            "name": name,
            "state_format": "coordinates",
            "sft": False,
            "rl": True,
            "settings": {"ppo.start": str(folder)},
        }
        atomic_write(folder.parent / f"{name}.yaml", yaml.safe_dump(variant))
