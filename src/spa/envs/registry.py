"""Worlds by name: the built-in ones, Gymnasium ids, ``module:Class`` and the entry points of other packages."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import gymnasium as gym

from spa.common.errors import error_message
from spa.envs.adapter import AdaptedEnv, Playable
from spa.envs.adapters import ADAPTERS
from spa.envs.base import TextEnv
from spa.envs.seeded import did_you_mean, parameters_of

ENTRY_POINT_GROUP = "spa.envs"

# Short name -> (Gymnasium id, where the class is). Classes are imported when first made.
BUILT_IN: dict[str, tuple[str, str]] = {
    "sokoban": ("spa/Sokoban-v0", "spa.envs.sokoban.world:Sokoban"),
    "frozen_lake": ("spa/FrozenLake-v0", "spa.envs.frozen_lake.world:FrozenLake"),
    "sudoku": ("spa/Sudoku-v0", "spa.envs.sudoku.world:Sudoku"),
    "countdown": ("spa/Countdown-v0", "spa.envs.countdown.world:Countdown"),
    "metamathqa": ("spa/MetamathQA-v0", "spa.envs.metamathqa.world:MetamathQA"),
    "bandit": ("spa/Bandit-v0", "spa.envs.bandit.world:Bandit"),
    "webshop": ("spa/WebShop-v0", "spa.envs.webshop:WebShop"),
}
EXTRAS = {"webshop": "webshop"}  # what `pip install 'spa-agent[...]'` must name for a built-in world


def register_worlds() -> None:
    """Registers the built-in worlds with Gymnasium. Importing ``spa.envs`` does it; doing it again changes nothing."""
    for gym_id, entry_point in BUILT_IN.values():
        if gym_id not in gym.registry:
            gym.register(id=gym_id, entry_point=entry_point)


def env_names() -> list[str]:
    """The short names that ``make_env`` knows: the built-in ones, then those of installed packages."""
    return list(BUILT_IN) + sorted(set(_plugins()) - set(BUILT_IN))


def describe_envs() -> list[tuple[str, str, str]]:
    """Name, description in a line and extra to install (or ``""``) of everything that ``env_names`` lists, then of the adapters."""
    plugins = _plugins()
    rows = []
    for name in env_names():
        if name in BUILT_IN:
            doc = inspect.getdoc(_import(BUILT_IN[name][1], name)) or ""
            rows.append((name, doc.partition("\n")[0].rstrip("."), EXTRAS.get(name, "")))
        else:  # not imported: it is someone else's code
            rows.append((name, f"entry point {plugins[name].value}", ""))
    return rows + [(f"{adapter.example}", adapter.description, adapter.extra) for adapter in ADAPTERS.values()]


def make_env(name: str, **settings: Any) -> TextEnv:
    """Makes a world.

    Args:
        name: a short name (``"sokoban"``; see ``env_names``), a Gymnasium id (``"spa/Sokoban-v0"``), a class with ``reset``
            and ``step`` (``"my_package.my_module:MyWorld"``; anything else is refused before it is called), the name of an
            entry point in the group ``spa.envs``, or a world of another library behind one of the prefixes of
            ``spa.envs.adapters`` (``"gym:Taxi-v4"``).
        settings: keyword arguments of its constructor.

    Returns:
        The world, without Gymnasium's checking wrappers. One that is no ``TextEnv``, or that its Gymnasium
        registration wraps, comes as an ``AdaptedEnv``.

    Raises:
        ValueError: for an unknown world, an unknown setting (both name the nearest known one) or a bad value.
    """
    if not isinstance(name, str):
        raise ValueError(f"a world's name must be text, got {name!r}")
    if name in BUILT_IN:
        make: Callable[..., Any] = _import(BUILT_IN[name][1], name)
    elif name in (plugins := _plugins()):
        make = plugins[name].load()
    elif (adapter := ADAPTERS.get(name.partition(":")[0])) and ":" in name:
        foreign: TextEnv = _import(adapter.factory, name)(name.partition(":")[2], **settings)
        return foreign
    elif "/" in name or name in gym.registry:
        return _make_registered(name, settings)
    elif ":" in name:
        make = _world_class(name)
    else:
        own = " A class of your own is written module:Class." if "." in name else ""
        raise ValueError(f"unknown world {name!r}.{did_you_mean(name, env_names())}{own}")
    return _build(make, name, settings)


def imported_for(name: str) -> str | None:
    """The module that ``make_env(name)`` imports, and so runs; None for our worlds and Gymnasium's. Imports nothing itself."""
    prefix, colon, _ = name.partition(":")
    if name in BUILT_IN:
        return None
    if (point := _plugins().get(name)) is not None:
        module = point.module
    elif colon:
        module = prefix
    else:
        spec = gym.registry.get(name)
        module = spec.entry_point.partition(":")[0] if spec is not None and isinstance(spec.entry_point, str) else ""
    top = module.partition(".")[0]
    # The prefix ``gym`` is ours, for Gymnasium's worlds.
    return module if top not in ("", "spa", "gymnasium", "gym") else None


def _world_class(name: str) -> Callable[..., Any]:
    """The class that ``module:Class`` names. A config must not call what is no world: ``os:system`` would be a program."""
    world = _import(name, name)
    if inspect.isclass(world) and all(callable(getattr(world, method, None)) for method in ("reset", "step")):
        return world
    what = "a class without them" if inspect.isclass(world) else f"an object of type {type(world).__name__}"
    raise ValueError(
        f"{name!r} is not a world: give a class with reset() and step(), not {what} (a function that makes worlds can be "
        f"registered as an entry point in the group {ENTRY_POINT_GROUP} or with Gymnasium)"
    )


def _build(make: Callable[..., Any], name: str, settings: dict[str, Any]) -> TextEnv:
    _check_settings(make, name, settings)
    return _adapt(make, name, settings)


def _adapt(make: Callable[..., Any], name: str, settings: dict[str, Any]) -> TextEnv:
    env = make(**settings)
    if isinstance(env, TextEnv):
        return env
    if not isinstance(env, Playable):
        raise ValueError(f"{name!r} is not a world: it makes a {type(env).__name__}, which has no reset() and step()")
    plain = {setting: value for setting, value in settings.items() if setting != "state_format"}
    return AdaptedEnv(env, partial(make, **plain) if len(plain) < len(settings) else None)


def _make_registered(name: str, settings: dict[str, Any]) -> TextEnv:
    module, _, gym_id = name.rpartition(":")
    if module:  # Gymnasium's "module:namespace/Name-v0": the module registers the id
        _import_module(module, name)
    spec = gym.registry.get(gym_id)
    if spec is None:
        ids = [known for known in gym.registry if known.startswith("spa/")]
        raise ValueError(f"unknown world {name!r}.{did_you_mean(gym_id, ids)}")
    make = _import(spec.entry_point, name) if isinstance(spec.entry_point, str) else spec.entry_point
    if make is None:
        raise ValueError(f"Gymnasium's entry for {name!r} has no entry point")
    if spec.max_episode_steps is None and not spec.additional_wrappers:
        return _build(make, name, {**spec.kwargs, **settings})
    _check_settings(make, name, settings)
    return _adapt(partial(gym.make, gym_id, disable_env_checker=True), name, settings)


def _check_settings(make: Callable[..., Any], name: str, settings: dict[str, Any]) -> None:
    """Raises ValueError for a setting that the constructor does not have."""
    if not settings:
        return
    try:
        parameters = parameters_of(make)
    except (TypeError, ValueError):  # a callable without a signature
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for setting in settings:
        if setting not in parameters:
            hint = did_you_mean(setting, parameters) or f" {name!r} has no settings."
            raise ValueError(f"unknown setting {setting!r} of world {name!r}.{hint}")


@cache  # tens of milliseconds, and each episode makes a world
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _import(path: str, name: str) -> Any:
    module_name, _, attribute = path.partition(":")
    value = module = _import_module(module_name, name)
    try:
        for part in attribute.split("."):
            value = getattr(value, part)
    except AttributeError:
        public = [known for known in vars(module) if not known.startswith("_")]
        near = did_you_mean(attribute, public) if attribute else ""
        hint = (
            near if "Did you mean" in near else f" It was imported from {getattr(module, '__file__', 'Python itself')}."
        )
        raise ValueError(f"unknown world {name!r}: {module_name} has no {attribute!r}.{hint}") from None
    return value


def _import_module(module: str, name: str) -> Any:
    if not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"unknown world {name!r}: {module!r} is not a module name")
    if (here := os.getcwd()) not in sys.path:  # files of the working directory are found, last of all
        sys.path.append(here)
    try:
        return importlib.import_module(module)
    except Exception as error:  # of the module's own code, too
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (module == missing or module.startswith(missing + ".")):
            hint = f"; write {module.removesuffix('.py')}:CLASS" if module.endswith(".py") else ""
            raise ValueError(
                f"unknown world {name!r}: there is no module {missing!r} to import, here or in Python's path{hint}"
            ) from None
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"world {name!r}: module {module!r} cannot be imported: {type(error).__name__}: {error_message(error)} "
            f"({Path(place.filename).name}, line {place.lineno})"
        ) from error
