"""How large a reproduction is: which worlds, variants and seeds, with which settings. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from spa.common.names import choose
from spa.config.load import conf_folder, load_config, names_of, read_yaml
from spa.config.overrides import current_name, from_mapping
from spa.config.schema import Config
from spa.config.variants import variants_of
from spa.reproduce.paper import MODELS, WORLDS

BASELINE = "vanilla"


@dataclass
class Scale:
    """``worlds`` are configs with further settings of their own, under the name that tables show.

    ``variants`` are names of packaged variants, of ``own_variants`` and of ``bases``. A world may have
    ``variants``, ``own_variants`` and ``seeds`` of its own.
    """

    name: str = ""
    about: str = ""
    worlds: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # name -> {config: NAME, settings: [key=value, ...]}
    variants: list[str] = field(default_factory=lambda: ["vanilla", "spa"])
    versus: list[str] = field(default_factory=list)  # variants, besides vanilla, that the table gives differences to
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    settings: list[str] = field(default_factory=list)  # of every run
    own_variants: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> what its variant file would hold
    bases: dict[str, list[str]] = field(
        default_factory=dict
    )  # variant -> settings of a `spa pretrain` whose model it starts from
    threads: int = 1  # of a run; as many runs at once as the cores allow

    def override(self, key: str, values: list[Any]) -> None:
        """Sets ``variants`` or ``seeds`` for every world, whatever it has of its own."""
        setattr(self, key, values)
        for world in self.worlds.values():
            world.pop(key, None)

    @property
    def compared(self) -> list[str]:
        """The variants that differences are taken to: plain RL, the untrained base, and ``versus``."""
        return list(dict.fromkeys([BASELINE, "base", *self.versus]))

    def variants_of(self, world: str) -> list[str]:
        """Names of the world's variants."""
        return [str(name) for name in self.worlds[world].get("variants", self.variants)]

    def seeds_of(self, world: str) -> list[int]:
        """Seeds of the world's runs."""
        return list(self.worlds[world].get("seeds", self.seeds))

    def own_variants_of(self, world: str) -> dict[str, dict[str, Any]]:
        """The variants that the world has of the scale's own and its own."""
        return {**self.own_variants, **self.worlds[world].get("own_variants", {})}

    def paper(self, world: str) -> tuple[str, str] | None:
        """The paper's world and model whose numbers stand beside this one's."""
        given = self.worlds[world].get("paper")
        return (str(given[0]), str(given[1])) if given else None


def scale_names() -> list[str]:
    """Names that ``load_scale`` takes."""
    return names_of("scale")


def load_scale(name: str) -> Scale:
    """A packaged scale, or one's own by the path of its YAML file.

    Raises:
        ValueError: there is none, or it holds an unknown key.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise ValueError(f"no scale file {path}")
    else:
        path = conf_folder() / "scale" / f"{choose('scale', name, scale_names())}.yaml"
    try:
        scale = from_mapping(Scale, {"name": path.stem, **read_yaml(path)})
        _check(scale)
    except ValueError as error:
        raise ValueError(f"scale {path.stem}: {error}") from error
    return scale


def _check(scale: Scale) -> None:
    if not (scale.worlds and scale.variants and scale.seeds):
        raise ValueError("worlds, variants and seeds must each name at least one")
    _check_seeds("seeds", scale.seeds)
    scale.worlds = {
        name: {current_name(key): value for key, value in world.items()} if isinstance(world, dict) else world
        for name, world in scale.worlds.items()
    }
    if scale.threads < 1:
        raise ValueError(f"threads must be at least 1, not {scale.threads}")
    for name, world in scale.worlds.items():
        if (
            not isinstance(world, dict)
            or set(world) - {"config", "settings", "paper", "variants", "own_variants", "seeds"}
            or "config" not in world
        ):
            raise ValueError(
                f"worlds.{name} must hold config: NAME and, if wanted, settings: [key=value, ...], variants: [...], "
                "own_variants: {...}, seeds: [...] and paper: [world, model]"
            )
        _check_seeds(f"worlds.{name}.seeds", world.get("seeds", scale.seeds))
        if not isinstance(world.get("own_variants", {}), dict):
            raise ValueError(f"worlds.{name}.own_variants must be name: what its variant file would hold")
        if not isinstance(variants := world.get("variants", scale.variants), list) or not variants:
            raise ValueError(f"worlds.{name}.variants must be a list of variants, not {variants!r}")
        if not isinstance(world.get("settings", []), list):
            raise ValueError(f"worlds.{name}.settings must be a list of key=value")
        if not isinstance(paper := world.get("paper", []), list) or len(paper) not in (0, 2):
            raise ValueError(f"worlds.{name}.paper must be [world, model], not {paper!r}")
        for value, known in zip(paper, (WORLDS, MODELS), strict=False):
            choose("world or model of the paper", value, known)
        if "/" in name or name.startswith("."):
            raise ValueError(f"worlds.{name}: the name is used for a folder")


def _check_seeds(key: str, seeds: Any) -> None:
    whole = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not whole or not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{key} must be different whole numbers from 0 on, not {seeds}")


@dataclass(frozen=True)
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
            ValueError: a setting or a variant that cannot be; the message names the world.
        """
        try:
            cfg = load_config(self.config, self.settings)
            variants_of(cfg)
            return cfg
        except ValueError as error:
            raise ValueError(f"{self.world}: {error}") from error


def variant_file(scale: Scale, world: str, name: str, out: Path) -> Path | None:
    """Where the file of a variant that only this scale has is or will be; None for a packaged variant or one's own file."""
    if name in scale.own_variants_of(world):
        return (out / "variants" / world / f"{name}.yaml").resolve()
    if name in scale.bases:
        return (out / "bases" / f"{name}.yaml").resolve()
    return None


def cells(scale: Scale, out: Path, more: Sequence[str] = (), *, existing: bool = False) -> list[Cell]:
    """The runs of a scale, seed by seed, so that an early look shows all worlds.

    Args:
        out: each run has the folder ``out/WORLD/seed-N``.
        more: settings over all others.
        existing: leave out variants of the scale alone whose files were not written yet.
    """
    found = []
    for seeds in zip_longest(*(scale.seeds_of(name) for name in scale.worlds)):
        for seed, (name, world) in zip(seeds, scale.worlds.items(), strict=True):
            if seed is None:
                continue
            files = {variant: variant_file(scale, name, variant, out) for variant in scale.variants_of(name)}
            variants = tuple(
                str(file or variant)
                for variant, file in files.items()
                if not (existing and file and not file.is_file())
            ) or ("base",)
            settings = (
                *scale.settings,
                *map(str, world.get("settings", [])),
                f"variants=[{','.join(variants)}]",
                f"model.threads={scale.threads}",
                *more,
                f"seeds.run={seed}",
            )
            found.append(Cell(name, seed, str(world["config"]), settings, out / name / f"seed-{seed}", variants))
    return found
