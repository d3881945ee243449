"""Arguments that several commands share."""

from __future__ import annotations

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


def config_of(words: list[str] | None, example: str) -> Config:
    """The config that ``NAME KEY=VALUE`` names; ``example`` is shown where the name is missing."""
    from spa.config.load import load_config

    name, settings = split_words(words)
    if name is None:
        raise ValueError(f"give a config name or YAML file first, as in `{example}`")
    return load_config(name, settings)
