"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from spa.config.schema import Config

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME KEY=VALUE", help="A config name or YAML file, and settings.", show_default=False),
]


def split_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """``[NAME] key=value...`` as the name and the settings, which are checked where they are read."""
    settings = list(words or [])
    name = settings.pop(0) if settings and "=" not in settings[0] else None
    return name, settings


def check_output(file: Path | None, kind: str = "json") -> None:
    """Raises ValueError if the option ``--json`` or ``--html`` names no file that can be written, one of another kind that is there
    already, or a run's own."""
    if file is None:
        return
    if file.is_dir() or not file.parent.is_dir():
        raise ValueError(f"cannot write {file}: give --{kind} a file in a folder that exists")
    if file.exists() and (file.suffix != f".{kind}" or (file.parent / "config.yaml").is_file()):
        raise ValueError(
            f"{file} exists already: give --{kind} a new file, or one that ends in .{kind} and is not a run's"
        )


def check_new_folder(out: Path) -> None:
    """Raises ValueError if ``out`` is a file, or a folder with something in it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not empty; give another --out")


def model_setting(model: str | None) -> list[str]:
    """The option ``--model`` as a setting: like ``model=PATH`` it brings the model's preset.

    Raises:
        ValueError: a folder without a model.
    """
    from spa.runs.stage import model_of

    return [f"model.path={model_of(model, '--model')}"] if model else []


def config_of(words: list[str] | None, example: str, model: str | None = None) -> Config:
    """The config that ``NAME KEY=VALUE`` names; ``example`` is shown where the name is missing.

    Raises:
        ValueError: as ``load_config`` and ``model_setting``.
    """
    from spa.config.load import load_config

    name, settings = split_words(words)
    if name is None:
        raise ValueError(f"give a config name or YAML file first, as in `{example}`")
    return load_config(name, [*settings, *model_setting(model)])
