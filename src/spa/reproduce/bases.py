"""Bases trained longer, for the control that matches the compute of self-play and SFT without telling anything of the world."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from spa.reproduce.scale import Scale
from spa.runs.config import load_arm
from spa.runs.files import atomic_write
from spa.runs.progress import note


def write_arms(scale: Scale, out: Path) -> list[str]:
    """Writes the arms that only this scale has to ``out/arms``; returns their files.

    Raises:
        ValueError: an arm with an unknown key, or one that cannot be.
    """
    files = []
    for name, arm in scale.own_arms.items():
        path = (out / "arms" / f"{name}.yaml").resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, yaml.safe_dump({"name": name, **arm}))
        load_arm(str(path))
        files.append(str(path))
    return files


def make_bases(scale: Scale, out: Path) -> list[str]:
    """Pretrains what is not there yet in ``out/bases``; returns the files of the arms that start from it.

    Raises:
        ValueError: a pretraining failed; the message is its last line.
    """
    arms = []
    for name, settings in scale.bases.items():
        folder = (out / "bases" / name).resolve()
        if not (folder / "config.json").is_file():
            note(f"pretraining {name} ({folder})")
            half = folder.with_name(f"{name}.partial")
            shutil.rmtree(half, ignore_errors=True)
            command = [
                sys.executable,
                "-m",
                "spa",
                "pretrain",
                "--out",
                str(half),
                "--quiet",
                "measure=false",
                *settings,
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ValueError(f"base {name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
            half.rename(folder)
        arm = {
            "name": name,
            "state_format": "coordinates",
            "sft": False,
            "rl": True,
            "settings": {"ppo.start": str(folder)},
        }
        atomic_write(folder.with_suffix(".yaml"), yaml.safe_dump(arm))
        arms.append(str(folder.with_suffix(".yaml")))
    return arms
