"""Configs by name: the packaged YAML files composed by Hydra into the classes of ``schema``. Imports no torch.

A config is composed in order: ``conf/base.yaml``; one file per group: ``env``, ``model`` (which may set any block, since a model
needs more than its path), ``engine``, ``algorithm`` (of stage 3); a file of one's own; ``key=value`` settings. For a model without
a file, ``presets`` takes the place of the model file.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import re
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from spa.common.cache import CACHED
from spa.common.errors import error_message
from spa.common.files import expanded
from spa.common.names import choose, nearest
from spa.common.secrets import from_environment, learn, learn_references, shown
from spa.config import presets
from spa.config.overrides import apply_overrides, from_mapping, merge, resolved, split_override
from spa.config.presets import Preset
from spa.config.schema import Config, EnvConfig, VariantConfig

ALIASES = {"_2_sokoban": "sokoban", "_3_frozen_lake": "frozen_lake_slippery", "_10_sudoku": "sudoku"}
GROUPS = {  # and the setting that says which of a group's files a config needs
    "env": "env.id",
    "model": "model.path",
    "engine": "engine.kind",
    "algorithm": "ppo.estimator",
}
NO_FILE = ""  # the choice of a group's file where a world of one's own takes its place
_SUFFIXES = (".yaml", ".yml")
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+|\.[0-9][0-9_]*[eE][-+]?[0-9]+")
_IN_MODULE = re.compile(r"[A-Za-z_][\w.]+:(?!/)")  # no Windows drive, no address
_composing = threading.Lock()  # Hydra's state is the process's


def load_config(name: str | Path | None = None, overrides: Sequence[str] = (), *, missing_ok: bool = False) -> Config:
    """The resolved, checked config ``name`` with ``overrides`` applied in order.

    Args:
        name: a packaged config (``names_of("env")``), an alias of the original code (``_2_sokoban``, ...), or the path
            of a YAML file; None for the default; or a world's id with a colon (``gym:Taxi-v4``, ``module:Class``), played with
            the default limits. A YAML file holds blocks of the schema. With a ``defaults`` list it is
            composed by Hydra (``defaults: [base, override model: qwen2.5-0.5b]``); without one it is merged over
            the default config, except that an ``env`` block with an ``id`` replaces the default one.
        overrides: ``key=value`` settings; ``env=NAME`` and ``model=NAME`` choose a file of that group, ``model=PATH``
            with a checkpoint folder, hub name, ``builtin:`` or ``cache:`` name sets ``model.path``. Unless a model's file is
            chosen, a path that is not built in brings the settings of ``presets.preset_for``.
        missing_ok: keep ``${oc.env:NAME}`` in the file unresolved if NAME is not set, instead of raising an error.

    Raises:
        ValueError: one line: an unknown config, group choice, key or variant, a wrong type, a value out of range, a bad
            YAML file.
    """
    choices, settings = split_choices(overrides)
    preset = preset_of(name, overrides)
    if name is None or not is_file_name(str(name)):
        files = base_choices(name, choices)
        data = compose_files("base", conf_folder(), files, preset)[0]
        if files.get("env") == NO_FILE:
            tag = str(name).rpartition(":")[2]
            data |= {"name": re.sub(r"[^\w.-]", "-", tag), "env": {"id": str(name), "tag": tag}}
        config = resolved(Config, data, settings)
    else:
        config = _load_file(expanded(name), choices, settings, missing_ok, preset)
    for variant in config.variants:
        if not variant.endswith(_SUFFIXES):  # a file is checked when it is loaded
            check_variant(variant)
    learn(config.engine.api_key_env)
    return config


def preset_of(name: str | Path | None, overrides: Sequence[str]) -> Preset | None:
    """The preset that ``load_config`` uses; None if a model file is chosen, the model is built in or the file leaves nothing open
    (as a run's ``config.yaml``).

    Raises:
        ValueError: as ``load_config``.
    """
    choices, settings = split_choices(overrides)
    if "model" in choices:
        return None
    path: Any = "builtin:"
    file = expanded(name) if name is not None and is_file_name(str(name)) else None
    paths = [setting for setting in settings if split_override(setting)[0] == "model.path"]
    if file is not None and file.is_file():
        data = read_yaml(file)
        if data.keys() >= {field.name for field in dataclasses.fields(Config)}:
            return None
        if any(
            "model" in str(key).split() for entry in _list(data, "defaults") if isinstance(entry, dict) for key in entry
        ):
            return None
        if "defaults" in data:
            data = compose_files(file.stem, file.parent, choices)[0]
        path = _setting(data, "model.path") or path
    if paths:
        path = apply_overrides(Config(), paths[-1:]).model.path
    else:
        path = str(from_environment({"path": path}, missing_ok=True)["path"])
    return None if path.startswith("builtin:") else presets.preset_for(path)


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    entries = data.get(key)
    return entries if isinstance(entries, list) else []


def check_variant(name: str) -> None:
    """Raises ValueError if there is no packaged variant ``name``."""
    if name == "vanilla_longer":
        raise ValueError(
            "how long vanilla_longer trains depends on the variant that it is compared with: write vanilla_longer.yaml "
            "(sft: false, rl: true, continues: vanilla, settings: {ppo.steps: N}) and list it after vanilla: "
            "'variants=[vanilla,spa,vanilla_longer.yaml]'"
        )
    choose("variant", name, names_of("variant"))


def load_variant(name: str) -> VariantConfig:
    """One row of the comparison: a packaged one by name, or a custom one by the path of its YAML file.

    Raises:
        ValueError: there is no such variant or file, or it holds an unknown key.
    """
    if not is_file_name(name):
        check_variant(name)
        path = conf_folder() / "variant" / f"{name}.yaml"
    else:
        path = expanded(name)
        if not path.is_file():
            raise ValueError(f"no variant file {path}")
    try:
        return from_mapping(VariantConfig, {"name": path.stem, **from_environment(read_yaml(path))})
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if is_file_name(name) else str(error)) from error


OPERATION = ("step_timeout", "max_state_chars", "max_failed", "processes")  # of env: how worlds are run, not which


def env_block(name: str) -> EnvConfig:
    """The world of a config, given as for ``load_config``: by its packaged name, as a file, or a world's id with a colon.

    Raises:
        ValueError: as ``load_config``.
    """
    if is_file_name(name) or ":" in name:
        return load_config(name, missing_ok=True).env
    return from_mapping(Config, compose_files("base", conf_folder(), {"env": choice_of("env", name)})[0]).env


def joining(block: EnvConfig, run: EnvConfig) -> EnvConfig:
    """Another world in a run: run in the same way. Of the same kind (``id``) it is split as the run's (``disjoint``), unless it
    asks for ``seed``: else test worlds of one would be training worlds of the other."""
    kept = {key: getattr(run, key) for key in OPERATION}
    if block.id == run.id and block.disjoint != "seed":
        kept["disjoint"] = run.disjoint
    return dataclasses.replace(block, **kept)


def to_yaml(config: Any) -> str:
    """A config (or any dataclass) as YAML that ``load_config`` reads back as equal; a secret is a reference (``shown``)."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Quotes texts that OmegaConf would read as numbers, such as ``12e4``."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "'" if _EXPONENT.fullmatch(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return str(yaml.dump(shown(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120))


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The dotted names under which two instances of one dataclass differ."""
    names: list[str] = []
    for field in dataclasses.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        name = prefix + field.name
        if dataclasses.is_dataclass(before):
            names += differences(before, after, f"{name}.")
        elif before != after:
            names.append(name)
    return names


def conf_folder() -> Path:
    return Path(str(resources.files("spa").joinpath("conf")))


def names_of(group: str) -> list[str]:
    """Names of the packaged files of ``conf/GROUP``: env, model, engine, algorithm, variant, scale."""
    return sorted(path.stem for path in (conf_folder() / group).glob("*.yaml"))


def is_file_name(name: str) -> bool:
    in_module = _IN_MODULE.match(name)  # a world's id may have a namespace: gym:ALE/Pong-v5
    return name.endswith(_SUFFIXES) or (("/" in name or "\\" in name) and not in_module)


def choice_of(group: str, name: str) -> str:
    """The file name of a group choice.

    Raises:
        ValueError: there is none of that name.
    """
    name = ALIASES.get(name, name) if group == "env" else name
    names = names_of(group)
    if name in names:
        return name
    file = _config_file(Path(name)) if group == "env" else None
    near = file or nearest(name, [*names, *(ALIASES if group == "env" else ())])
    hint = f" Did you mean {near!r}?" if near else ""
    what = "config" if group == "env" else group
    more = "; a checkpoint is given as a folder or as a hub name with a slash" if group == "model" else ""
    if group == "env" and name in entry_points(group="spa.envs").names:
        hint = f" {name!r} is a world: name it in a config of yours, as env.id"
    raise ValueError(f"unknown {what} {name!r}; choose one of {', '.join(names)}{more}.{hint}")


def _config_file(path: Path) -> str | None:
    """A config file of that name with the suffix that was left out or is another."""
    files = [path.with_suffix(suffix) for suffix in (".yaml", ".yml") if path.name]
    return next((str(file) for file in files if file.is_file()), None)


def split_choices(overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Group choices and settings; ``model=some/path`` becomes the setting ``model.path``."""
    choices: dict[str, str] = {}
    settings: list[str] = []
    for override in overrides:
        key, value = split_override(override)
        if key not in GROUPS:
            settings.append(override)
        elif key == "model" and value not in names_of("model") and _is_checkpoint(value):
            settings.append(f"model.path={value}")
        else:
            choices[key] = choice_of(key, value)
    return choices, settings


def _is_checkpoint(value: str) -> bool:
    named = value.startswith(("builtin:", CACHED)) or value.endswith(".gguf")
    return named or "/" in value or "\\" in value or Path(value).is_dir()


def base_choices(name: str | Path | None, choices: Mapping[str, str]) -> dict[str, str]:
    """The packaged files below ``name``: none in the group env if it is, or its file holds, a world of one's own."""
    if name is None:
        return dict(choices)
    if not is_file_name(str(name)):
        return {"env": NO_FILE if ":" in str(name) else choice_of("env", str(name)), **choices}
    names_world = _setting(read_yaml(expanded(name)), "env.id") is not None
    return ({"env": NO_FILE} if names_world else {}) | dict(choices)


def _setting(data: Mapping[str, Any], key: str) -> Any:
    """A setting in a config file, in its block or under its dotted name; None if it is not there."""
    block, _, name = key.partition(".")
    value = data[block].get(name) if isinstance(data.get(block), dict) else None
    return data.get(key) if value is None else value


def file_layers(path: Path, data: Mapping[str, Any], choices: Mapping[str, str]) -> list[tuple[str, Mapping[str, Any]]]:
    """What lies over the packaged files, by name, for a config file without a ``defaults`` list: that file and, if it makes the
    choice of a group itself (as a run's config does), the file that is chosen instead."""
    over = [group for group in choices if _setting(data, GROUPS[group]) is not None]
    if "env" in over:  # nothing of the world that is replaced
        over.remove("env")
        data = {key: value for key, value in data.items() if key.partition(".")[0] not in ("name", "env")}
    files = [f"{group}/{choices[group]}" for group in over]
    return [(str(path), data), *((file, read_yaml(conf_folder() / f"{file}.yaml")) for file in files)]


def _load_file(
    path: Path, choices: Mapping[str, str], settings: Sequence[str], missing_ok: bool, preset: Preset | None
) -> Config:
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, not a config: a run is given with --out {path}, an exported model's task as {path}/spa.yaml"
        )
    if not path.is_file():
        near = _config_file(path) or nearest(path.stem, names_of("env"))
        raise ValueError(f"no config file {path}." + (f" Did you mean the config {near!r}?" if near else ""))
    data = read_yaml(path)
    try:
        if "defaults" in data:
            if path.suffix != ".yaml":
                raise ValueError("a config file with a defaults list must be named *.yaml")
            result: dict[str, Any] = {}
            merge(Config, result, compose_files(path.stem, path.parent, choices, preset)[0])
        else:
            data = from_environment(data, missing_ok=missing_ok)
            files = base_choices(path, choices)
            result = compose_files("base", conf_folder(), files, preset)[0]
            if files.get("env") == NO_FILE:
                result |= {"name": path.stem, "env": {"tag": str(_setting(data, "env.id")).rpartition(":")[2]}}
            for _, layer in file_layers(path, data, choices):
                merge(Config, result, layer)
        if not settings:
            return resolved(Config, result, [])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return resolved(Config, result, settings)  # which may be at fault, not the file


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        ValueError: one line: it cannot be read or holds no mapping.
    """
    import yaml
    from omegaconf.errors import OmegaConfBaseException

    try:
        data = _parse(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read {path}: save it as UTF-8 ({error_message(error)})") from error
    except (yaml.YAMLError, OSError, OmegaConfBaseException, RecursionError) as error:
        raise ValueError(f"cannot read {path}: {error_message(error)}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} is not a config: it must contain a mapping")
    return {str(key): copy.deepcopy(value) for key, value in data.items()}


@lru_cache(maxsize=64)  # a tenth of a second a file, and a run's config is asked for often
def _parse(text: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))


def compose_files(
    name: str, folder: Path, choices: Mapping[str, str], preset: Preset | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Composes ``folder/name.yaml`` with the packaged files; ``preset`` takes the place of the model file.

    Returns:
        the config, and the chosen file of every group.
    """
    if folder == conf_folder() and preset is None:
        return copy.deepcopy(_compose_packaged(name, tuple(choices.items())))
    with _composing:
        return _compose(name, folder, choices, preset)


@lru_cache(maxsize=64)
def _compose_packaged(name: str, choices: tuple[tuple[str, str], ...]) -> tuple[dict[str, Any], dict[str, str]]:
    with _composing:
        return _compose(name, conf_folder(), dict(choices), None)


def _compose(
    name: str, folder: Path, choices: Mapping[str, str], preset: Preset | None
) -> tuple[dict[str, Any], dict[str, str]]:
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    if preset is not None:
        ConfigStore.instance().store(presets.NAME, preset.settings, group="model", package="_global_")
        choices = {**choices, "model": presets.NAME}
    overrides = [f"~{group}" if choice == NO_FILE else f"{group}={choice}" for group, choice in choices.items()]
    if folder != conf_folder():
        packaged = str(conf_folder()).replace("\\", "/").replace("'", "\\'")
        overrides = [f"hydra.searchpath=['file://{packaged}']", *overrides]
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(folder.resolve()), version_base="1.3", job_name="spa"):
            composed = compose(name, overrides, return_hydra_config=True)
            with open_dict(composed):
                chosen = composed.pop("hydra").runtime.choices
            learn_references(OmegaConf.to_container(composed), partial(OmegaConf.select, composed))
            data = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(error_message(error)) from error
    except RecursionError:
        raise ValueError(f"{name}: its defaults lists name each other") from None
    finally:
        GlobalHydra.instance().hydra = before
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}, {
        group: str(chosen[group]) for group in GROUPS if group in chosen
    }
