"""How large a reproduction is: which worlds, arms and seeds, with which settings. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from spa.common.names import choose
from spa.config.load import conf_folder, load_config, names_of, read_yaml
from spa.config.overrides import from_mapping
from spa.config.schema import Config
from spa.config.variants import arms_of
from spa.reproduce.paper import MODELS, WORLDS

BASELINE = "vanilla"


@dataclass
class Scale:
    """``worlds`` are configs with further settings of their own, under the name that tables show.

    ``arms`` are names of packaged arms, of ``own_arms`` and of ``bases``. A world may have ``arms``, ``own_arms`` and ``seeds`` of
    its own.
    """

    name: str = ""
    about: str = ""
    worlds: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # name -> {config: NAME, settings: [key=value, ...]}
    arms: list[str] = field(default_factory=lambda: ["vanilla", "spa"])
    versus: list[str] = field(default_factory=list)  # arms, besides vanilla, that the table gives differences to
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    settings: list[str] = field(default_factory=list)  # of every run
    own_arms: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> what its arm file would hold
    bases: dict[str, list[str]] = field(
        default_factory=dict
    )  # arm -> settings of a `spa pretrain` whose model it starts from
    threads: int = 1  # of a run; as many runs at once as the cores allow

    def override(self, key: str, values: list[Any]) -> None:
        """Sets ``arms`` or ``seeds`` for every world, whatever it has of its own."""
        setattr(self, key, values)
        for world in self.worlds.values():
            world.pop(key, None)

    @property
    def compared(self) -> list[str]:
        """The arms that differences are taken to: plain RL, the untrained base, and ``versus``."""
        return list(dict.fromkeys([BASELINE, "base", *self.versus]))

    def arms_of(self, world: str) -> list[str]:
        """Names of the world's arms."""
        return [str(name) for name in self.worlds[world].get("arms", self.arms)]

    def seeds_of(self, world: str) -> list[int]:
        """Seeds of the world's runs."""
        return list(self.worlds[world].get("seeds", self.seeds))

    def own_arms_of(self, world: str) -> dict[str, dict[str, Any]]:
        """The arms that the world has of the scale's own and its own."""
        return {**self.own_arms, **self.worlds[world].get("own_arms", {})}

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
    if not (scale.worlds and scale.arms and scale.seeds):
        raise ValueError("worlds, arms and seeds must each name at least one")
    _check_seeds("seeds", scale.seeds)
    if scale.threads < 1:
        raise ValueError(f"threads must be at least 1, not {scale.threads}")
    for name, world in scale.worlds.items():
        if (
            not isinstance(world, dict)
            or set(world) - {"config", "settings", "paper", "arms", "own_arms", "seeds"}
            or "config" not in world
        ):
            raise ValueError(
                f"worlds.{name} must hold config: NAME and, if wanted, settings: [key=value, ...], arms: [...], "
                "own_arms: {...}, seeds: [...] and paper: [world, model]"
            )
        _check_seeds(f"worlds.{name}.seeds", world.get("seeds", scale.seeds))
        if not isinstance(world.get("own_arms", {}), dict):
            raise ValueError(f"worlds.{name}.own_arms must be name: what its arm file would hold")
        if not isinstance(arms := world.get("arms", scale.arms), list) or not arms:
            raise ValueError(f"worlds.{name}.arms must be a list of arms, not {arms!r}")
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
    """One run: a world and a seed, all arms."""

    world: str
    seed: int
    config: str
    settings: tuple[str, ...]
    folder: Path
    arms: tuple[str, ...] = ()

    def load(self) -> Config:
        """Its config, checked with all its arms.

        Raises:
            ValueError: a setting or an arm that cannot be; the message names the world.
        """
        try:
            cfg = load_config(self.config, self.settings)
            arms_of(cfg)
            return cfg
        except ValueError as error:
            raise ValueError(f"{self.world}: {error}") from error


def arm_file(scale: Scale, world: str, name: str, out: Path) -> Path | None:
    """Where the file of an arm that only this scale has is or will be; None for a packaged arm or one's own file."""
    if name in scale.own_arms_of(world):
        return (out / "arms" / world / f"{name}.yaml").resolve()
    if name in scale.bases:
        return (out / "bases" / f"{name}.yaml").resolve()
    return None


def cells(scale: Scale, out: Path, more: Sequence[str] = (), *, existing: bool = False) -> list[Cell]:
    """The runs of a scale, seed by seed, so that an early look shows all worlds.

    Args:
        out: each run has the folder ``out/WORLD/seed-N``.
        more: settings over all others.
        existing: leave out arms of the scale alone whose files were not written yet.
    """
    found = []
    for seeds in zip_longest(*(scale.seeds_of(name) for name in scale.worlds)):
        for seed, (name, world) in zip(seeds, scale.worlds.items(), strict=True):
            if seed is None:
                continue
            files = {arm: arm_file(scale, name, arm, out) for arm in scale.arms_of(name)}
            arms = tuple(
                str(file or arm) for arm, file in files.items() if not (existing and file and not file.is_file())
            ) or ("base",)
            settings = (
                *scale.settings,
                *map(str, world.get("settings", [])),
                f"arms=[{','.join(arms)}]",
                f"model.threads={scale.threads}",
                *more,
                f"seeds.run={seed}",
            )
            found.append(Cell(name, seed, str(world["config"]), settings, out / name / f"seed-{seed}", arms))
    return found
