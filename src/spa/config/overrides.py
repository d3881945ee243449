"""``key=value`` settings and YAML mappings into typed dataclasses, with messages for people. Imports no torch.

Values are written in Hydra's grammar (``[1,2]``, ``{a: 1}``, ``null``, ``'quoted text'``). Which keys there are and
which types their values have is said by the dataclass alone.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from spa.common.names import nearest
from spa.common.progress import note
from spa.common.secrets import from_environment

T = TypeVar("T")

RENAMED = {"arms": "variants", "own_arms": "own_variants", "--arm": "--variant", "--arms": "--variants"}
"""Earlier names of settings and options. They are still read."""


@functools.cache
def current_name(name: str) -> str:
    """What a setting or option is called now; an earlier name is read, and said once to be one."""
    if name not in RENAMED:
        return name
    note(f"{name} is now called {RENAMED[name]}")
    return RENAMED[name]


def apply_overrides(config: T, overrides: Sequence[str]) -> T:
    """A copy of a dataclass instance with ``key=value`` settings applied in order.

    Keys are dotted (``ppo.steps=5``). Below a field that is a dictionary any key is allowed (``env.settings.size=6``).
    A leading ``+`` is accepted and means nothing. ``${oc.env:NAME}`` in a text is an environment variable.

    Raises:
        ValueError: not of the form key=value, an unknown key, a value of another type than the field's, or an environment
            variable that is not set.
    """
    result = copy.deepcopy(config)
    for override in overrides:
        key, text = split_override(override)
        _set(result, key, key.split("."), text, parsed=False)
    return result


def from_mapping(cls: type[T], data: Mapping[str, Any], base: T | None = None) -> T:
    """An instance of the dataclass ``cls`` from nested dictionaries; the rest is as in ``base`` (or by default).

    A dictionary field that is given replaces the old one as a whole.

    Raises:
        ValueError: an unknown key or a value of a wrong type.
    """
    result = copy.deepcopy(base) if base is not None else cls()
    for key, value in _leaves(result, data, ""):
        _set(result, key, key.split("."), value, parsed=True)
    return result


def split_override(override: str) -> tuple[str, str]:
    """``"a.b=text"`` -> ``("a.b", "text")``.

    Raises:
        ValueError: there is no ``=``, no key, or a deletion (``~key``).
    """
    key, equals, text = override.partition("=")
    key = key.strip().removeprefix("+").removeprefix("+")
    if key.startswith("~"):
        raise ValueError(f"settings cannot be deleted ({override!r}); give the whole value, as in env.settings={{}}")
    if not equals or not key:
        raise ValueError(f"settings are written key=value, not {override!r}")
    return current_name(key), text


def setting_names(config: Any, prefix: str = "") -> list[str]:
    """The dotted names of all settings of a dataclass instance; dictionaries count as one setting."""
    names: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = prefix + field.name
        names += setting_names(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return names


def _leaves(config: Any, data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        name = current_name(str(name)) if not prefix else str(name)
        current = getattr(config, name, None)
        if dataclasses.is_dataclass(current) and isinstance(value, Mapping):
            yield from _leaves(current, value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _set(config: Any, key: str, path: list[str], value: Any, *, parsed: bool) -> None:
    """Sets one field or dictionary entry; ``value`` is text in Hydra's grammar unless ``parsed``."""
    target = config
    for depth, name in enumerate(path):
        hints = get_type_hints(type(target))
        if name not in hints:
            raise ValueError(_unknown_key(config, key))
        hint, current = hints[name], getattr(target, name)
        rest = path[depth + 1 :]
        if dataclasses.is_dataclass(current):
            if not rest:
                example = f"{key}.{dataclasses.fields(current)[0].name}"
                raise ValueError(f"{key!r} is a group of settings; set one of them, as in {example}=...")
            target = current
            continue
        if rest:
            if get_origin(hint) is not dict:
                raise ValueError(_unknown_key(config, key))
            item_hint = get_args(hint)[1]
            _set_entry(current, rest, _convert(key, value, item_hint, parsed))
        else:
            setattr(target, name, _convert(key, value, hint, parsed))
        return


def _set_entry(entries: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = entries.get(name)
        if not isinstance(inner, dict):
            inner = entries[name] = {}
        entries = inner
    entries[path[-1]] = value


def _unknown_key(config: Any, key: str) -> str:
    names = setting_names(config)
    near = nearest(key, names)
    if near is None:  # the right name in the wrong block, or without its block
        last = key.rpartition(".")[2]
        near = next((name for name in names if name.rpartition(".")[2] == last), None)
    if near is None:
        near = nearest(key.rpartition(".")[2], [name.rpartition(".")[2] for name in names])
        near = next((name for name in names if name.rpartition(".")[2] == near), None)
    return f"unknown setting {key!r}." + (
        f" Did you mean {near!r}?" if near else " `spa config NAME` shows all of them."
    )


def _convert(key: str, value: Any, hint: Any, parsed: bool) -> Any:
    if not parsed:
        value = from_environment(_parse(key, value, hint))
    return _typed(key, value, hint)


def _parse(key: str, text: str, hint: Any) -> Any:
    """The value that ``text`` writes in Hydra's grammar. For text fields what is no quoted text stands as written."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString, Sweep
    from hydra.errors import HydraException

    kinds = _kinds(hint)
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except HydraException:
        if str in kinds:
            return text
        raise ValueError(
            f"{key}: cannot read the value {text!r}; lists are written [1,2], text with signs 'quoted'"
        ) from None
    raw = override._value
    value = override.value()
    if str in kinds and not isinstance(raw, QuotedString) and not (value is None and type(None) in kinds):
        return text
    if isinstance(raw, Sweep):
        raise ValueError(f"{key}: write a list in brackets, as in {key}=[{text}]")
    return value


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The alternatives of an annotation: ``int | None`` -> ``(int, NoneType)``."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _typed(key: str, value: Any, hint: Any) -> Any:
    """``value`` as the type that ``hint`` asks for.

    Raises:
        ValueError: it is not of that type.
    """
    kinds = _kinds(hint)
    if value is None and type(None) in kinds:
        return None
    kind = next(k for k in kinds if k is not type(None))
    origin = get_origin(kind) or kind
    if origin in (Any, object):
        return value
    if origin is bool and isinstance(value, bool):
        return value
    if origin is str and isinstance(value, str):
        return value
    if origin is float and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if origin is int and isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1:
        return int(value)
    if origin is list and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_typed(f"{key}[{i}]", item, get_args(kind)[0]) for i, item in enumerate(value)]
    if origin is dict and isinstance(value, Mapping):
        return {str(name): _typed(f"{key}.{name}", item, get_args(kind)[1]) for name, item in value.items()}
    shown = "null" if value is None else f"'{value}'" if isinstance(value, str) else str(value)
    null = " or null" if type(None) in kinds else ""
    raise ValueError(f"{key} must be {_describe(origin)}{null}, not {shown}")


def _describe(kind: Any) -> str:
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a finite number",
        str: "text",
        list: "a list like [a,b]",
        dict: "a mapping like {a: 1}",
    }
    if kind not in names:
        return "a group of settings"
    return names[kind]
