"""The scale of a reproduction: its worlds, variants, seeds and settings. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from spa.common.files import expanded
from spa.common.names import choose
from spa.config.fields import DISTINCT, STRICT, Count, Key, Mapping, Positive, setting
from spa.config.load import conf_folder, load_config, names_of, read_yaml
from spa.config.overrides import from_mapping
from spa.config.schema import Config, Planner, VariantConfig
from spa.config.variants import variants_of
from spa.evaluate.roles import PLANNED
from spa.reproduce.paper import MODELS, WORLDS

BASELINE = "vanilla"


Seeds = Annotated[list[Count], Field(min_length=1), DISTINCT]
Names = Annotated[list[str], Field(min_length=1)]


@dataclass(config=STRICT)
class World:
    """A world of a scale. Null fields default to the scale's."""

    config: str = Field(description="A config.")
    settings: list[str] = setting([], "key=value settings, over the scale's.")
    variants: Names | None = setting(None, "Its variants.")
    own_variants: dict[Key, Mapping] = setting({}, "Variants besides the scale's own.")
    seeds: Seeds | None = setting(None, "Seeds of its runs.")
    paper: Annotated[list[str], Field(min_length=2, max_length=2)] | None = setting(
        None, "The paper's world and model whose numbers are shown beside this one's."
    )


@dataclass(config=STRICT)
class Scale:
    """Worlds by display name, and what is run in all of them."""

    name: str = setting("", "Its name.")
    about: str = setting("", "One line about it.")
    worlds: Annotated[dict[Key, World], Field(min_length=1)] = setting({}, "Its worlds by name.")
    variants: Names = setting(["vanilla", "spa"], "Packaged variants, own_variants and bases.")
    versus: list[str] = setting([], "Variants, besides vanilla, to show differences to.")
    seeds: Seeds = setting([0, 1, 2], "Seeds of the runs.")
    settings: list[str] = setting([], "key=value settings of every run.")
    own_variants: dict[Key, Mapping] = setting({}, "Name and contents of variant files that only this scale has.")
    bases: dict[Key, list[str]] = setting({}, "Variants and the `spa pretrain` settings of their start model.")
    threads: Positive = setting(1, "Threads of a run; the cores decide how many run at once.")

    @model_validator(mode="after")
    def _names_are_known(self) -> Scale:
        for name, world in self.worlds.items():
            if "/" in name or name.startswith("."):
                raise ValueError(f"worlds.{name}: the name is used for a folder")
            for value, known in zip(world.paper or (), (WORLDS, MODELS), strict=False):
                choose("world or model of the paper", value, known)
            for variant, contents in self.own_variants_of(name).items():
                from_mapping(VariantConfig, {"name": variant, **contents})
        return self

    def override(self, key: str, values: list[Any]) -> None:
        """Sets ``variants`` or ``seeds`` for every world, overriding its own."""
        setattr(self, key, values)
        for world in self.worlds.values():
            setattr(world, key, None)

    @property
    def compared(self) -> list[str]:
        """The variants to compare with: plain RL, the untrained base, and ``versus``."""
        return list(dict.fromkeys([BASELINE, "base", *self.versus]))

    def variants_of(self, world: str) -> list[str]:
        """Names of the world's variants."""
        return self.worlds[world].variants or self.variants

    def seeds_of(self, world: str) -> list[int]:
        """Seeds of the world's runs."""
        return self.worlds[world].seeds or self.seeds

    def own_variants_of(self, world: str) -> dict[str, dict[str, Any]]:
        """The world's variants that are defined by the scale or by the world itself."""
        return {**self.own_variants, **self.worlds[world].own_variants}

    def paper(self, world: str) -> tuple[str, str] | None:
        """The paper's world and model to compare this world with."""
        row = self.worlds[world].paper
        return (row[0], row[1]) if row else None


def load_scale(name: str) -> Scale:
    """A packaged scale, or a custom one by the path of its YAML file.

    Raises:
        ValueError: there is none, or it holds an unknown key.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = expanded(name)
        if not path.is_file():
            raise ValueError(f"no scale file {path}")
    else:
        path = conf_folder() / "scale" / f"{choose('scale', name, names_of('scale'))}.yaml"
    try:
        return from_mapping(Scale, {"name": path.stem, "worlds": {}, **read_yaml(path)})
    except ValueError as error:
        raise ValueError(f"scale {path.stem}: {error}") from error


def check_versus(scale: Scale) -> None:
    """Raises ValueError if one of ``versus`` is no variant of the scale's worlds, alone or with a planner."""
    known = dict.fromkeys(["base", *(Path(name).stem for world in scale.worlds for name in scale.variants_of(world))])
    for name in scale.versus:
        variant, planned, planner = name.partition(PLANNED)
        choose("variant of the chosen worlds", variant, known)
        if planned:
            choose("planner", planner, get_args(Planner)[1:])  # all but none


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run: a world and a seed, all variants."""

    world: str
    seed: int
    config: str
    settings: tuple[str, ...]
    folder: Path
    variants: tuple[str, ...] = ()

    def load(self) -> Config:
        """Its config, checked with all its variants.

        Raises:
            ValueError: an invalid setting or variant; the message names the world.
        """
        try:
            cfg = load_config(self.config, self.settings)
            variants_of(cfg)
            return cfg
        except ValueError as error:
            raise ValueError(f"{self.world}: {error}") from error


def variant_file(scale: Scale, world: str, name: str, out: Path) -> Path | None:
    """The (future) file of a variant specific to this scale; None for a packaged variant or a custom file."""
    if name in scale.own_variants_of(world):
        return (out / "variants" / world / f"{name}.yaml").resolve()
    if name in scale.bases:
        return (out / "bases" / f"{name}.yaml").resolve()
    return None


def _quoted(path: str) -> str:
    """A path in a list of settings, whatever its letters."""
    from hydra.core.override_parser.types import Quote, QuotedString

    plain = path.isascii() and path.isidentifier()  # the name of a variant
    return path if plain else QuotedString(path, Quote.single).with_quotes()


def cells(
    scale: Scale, out: Path, more: Sequence[str] = (), *, own: Callable[[Path], bool] = lambda file: True
) -> list[Cell]:
    """The runs of a scale, seed by seed, so that an early look shows all worlds.

    Args:
        out: each run has the folder ``out/WORLD/seed-N``.
        more: settings that override all others.
        own: of the file of a scale-specific variant, whether it is one of the variants.
    """
    runs = []
    for seeds in zip_longest(*(scale.seeds_of(name) for name in scale.worlds)):
        for seed, (name, world) in zip(seeds, scale.worlds.items(), strict=True):
            if seed is None:
                continue
            files = {variant: variant_file(scale, name, variant, out) for variant in scale.variants_of(name)}
            variants = tuple(str(file or variant) for variant, file in files.items() if not file or own(file)) or (
                "base",
            )
            settings = (
                *scale.settings,
                *world.settings,
                f"variants=[{','.join(map(_quoted, variants))}]",
                f"model.threads={scale.threads}",
                *more,
                f"seeds.run={seed}",
            )
            runs.append(Cell(name, seed, world.config, settings, out / name / f"seed-{seed}", variants))
    return runs
