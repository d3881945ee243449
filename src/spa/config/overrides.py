"""Reads ``key=value`` settings and YAML mappings into the classes of ``schema``, with readable errors. Imports no torch.

Values are written in Hydra's grammar (``[1,2]``, ``{a: 1}``, ``null``, ``'quoted text'``). Keys, types and ranges are those of
the class; messages and the documentation read them from its JSON schema.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from spa.common.errors import first_line
from spa.common.names import nearest
from spa.common.secrets import from_environment
from spa.common.typed import adapter_of

T = TypeVar("T")
Node = dict[str, Any]  # of a JSON schema


def apply_overrides(config: T, overrides: Sequence[str]) -> T:
    """A copy of a config with ``key=value`` settings applied in order.

    Keys are dotted (``ppo.steps=5``). Any key is allowed in a dictionary field (``env.settings.size=6``).
    A leading ``+`` is accepted and ignored. ``${oc.env:NAME}`` in a text is an environment variable.

    Raises:
        ValueError: not of the form key=value, an unknown key, a value that the setting cannot have, or an environment
            variable that is not set.
    """
    return resolved(type(config), dataclasses.asdict(config), overrides)  # type: ignore[call-overload]


def from_mapping(cls: type[T], data: Mapping[str, Any], base: T | None = None) -> T:
    """An instance of ``cls`` from nested dictionaries (keys may be dotted); other fields are from ``base`` (or default).

    A given dictionary field replaces the old one entirely.

    Raises:
        ValueError: an unknown key or a value that the setting cannot have.
    """
    result = dataclasses.asdict(base) if base is not None else {}  # type: ignore[call-overload]
    merge(cls, result, data)
    return _validated(cls, result)


def merge(cls: type, result: dict[str, Any], data: Mapping[str, Any]) -> None:
    """Lays nested dictionaries (keys may be dotted) over those of ``result``; validates no values.

    Raises:
        ValueError: an unknown key.
    """
    _merge(cls, result, {str(key): value for key, value in data.items()}, "")


def resolved(cls: type[T], data: dict[str, Any], overrides: Sequence[str]) -> T:
    """An instance of ``cls`` from nested dictionaries (without dotted keys), to which ``key=value`` settings are added first.

    Raises:
        ValueError: as ``apply_overrides``.
    """
    for override in overrides:
        key, text = split_override(override)
        *blocks, name = key.split(".")
        value = from_environment(_parse(key, text, node_of(cls, key)), key)
        entries = data
        for block in blocks:
            if not isinstance(entries.get(block), dict):
                entries[block] = {}
            entries = entries[block]
        entries[name] = value
    return _validated(cls, data)


def _merge(cls: type, result: dict[str, Any], data: Mapping[str, Any], prefix: str) -> None:
    for key, value in data.items():
        *blocks, name = str(key).split(".")
        node = node_of(cls, f"{prefix}{key}")
        entries = result
        for block in blocks:
            if entries.get(block) is None:  # a block without entries, too
                entries[block] = {}
            entries = entries[block]
        if "properties" in node and isinstance(value, Mapping):
            if entries.get(name) is None:
                entries[name] = {}
            _merge(cls, entries[name], value, f"{prefix}{key}.")
        else:
            entries[name] = value


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
    return key, text


@functools.cache
def json_schema(cls: type) -> Node:
    """The JSON schema of a class of settings."""
    schema: Node = adapter_of(cls).json_schema()
    return schema


def node_of(cls: type, key: str) -> Node:
    """The JSON schema node of a dotted setting or block; empty if anything is allowed.

    Raises:
        ValueError: there is none; the message names the closest match.
    """
    node = _find(cls, key.split("."))
    if node is None:
        raise ValueError(_unknown_key(cls, key.split(".")))
    return node


def _find(cls: type, path: Sequence[str]) -> Node | None:
    schema = node = json_schema(cls)
    for name in path:
        inner = node.get("properties", {}).get(name, node.get("additionalProperties", "type" not in node))
        if inner is False or "anyOf" in node:
            return None
        node = inner if isinstance(inner, dict) else {}
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def setting_names(cls: type) -> Iterator[str]:
    """The dotted names of all settings of a class; a dictionary counts as one setting."""
    for name in json_schema(cls)["properties"]:
        inner = node_of(cls, name).get("properties")
        yield from [f"{name}.{setting}" for setting in inner] if inner else [name]


def choices(cls: type, key: str) -> tuple[str, ...]:
    """The allowed names of a setting or of a list's items."""
    node = node_of(cls, key)
    return tuple(node.get("items", node)["enum"])


def _unknown_key(cls: type, path: Sequence[str]) -> str:
    key, (*block, last) = ".".join(path), path
    siblings = [".".join([*block, name]) for name in (_find(cls, block) or {}).get("properties", ())]
    names = list(setting_names(cls))
    lasts = {name.rpartition(".")[2]: name for name in reversed(names)}
    near = next((name for name in siblings if name.endswith(f"_{last}")), None)  # ppo.lr: ppo.actor_lr
    near = (
        near or nearest(key, [*siblings, *names]) or lasts.get(last) or lasts.get(nearest(last, lasts) or "")
    )  # in another block, or without its block
    hint = f" Did you mean {near!r}?" if near else " `spa config NAME` shows all of them."
    return f"unknown setting {key!r}.{hint}" + (
        f" One of the world's own is env.settings.{key}." if "env.settings" in names and not block else ""
    )


def _validated(cls: type[T], data: dict[str, Any]) -> T:
    """Translates pydantic's first error into one line: the dotted key, what is allowed, the value."""
    from pydantic import ValidationError

    try:
        result: T = adapter_of(cls).validate_python(data)  # type: ignore[arg-type]
        return result
    except ValidationError as errors:
        # A misspelt key also explains a missing one.
        error = min(errors.errors(), key=lambda error: error["type"] != "unexpected_keyword_argument")
    path = [str(part) for part in error["loc"] if not isinstance(part, int)]
    key = ".".join(path) + "".join(f"[{part}]" for part in error["loc"] if isinstance(part, int))
    if error["type"] == "unexpected_keyword_argument":
        raise ValueError(_unknown_key(cls, path))
    if error["type"] == "missing":
        raise ValueError(f"{key} is missing")
    node = _find(cls, path) or {}
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
        raise ValueError(message if "properties" in node else f"{key} {message}")
    if "properties" in node:
        example = f"{key}.{next(iter(node['properties']))}"
        raise ValueError(f"{key!r} is a group of settings; set one of them, as in {example}=...")
    value = error["input"]
    shown = "null" if value is None else f"'{value}'" if isinstance(value, str) else str(value)
    if key.endswith("]"):
        node = next((option["items"] for option in node.get("anyOf", [node]) if "items" in option), node)
    near = nearest(str(value), node.get("enum", ()))
    hint = f" Did you mean {near!r}?" if near else ""
    raise ValueError(f"{key} must be {describe(node)}, not {shown}.{hint}".removesuffix("."))


def describe(node: Node) -> str:
    """What a JSON schema node allows, in words: ``a whole number, 1 or more, or null``."""
    if "anyOf" in node:
        return ", or ".join(describe(option) for option in node["anyOf"])
    if "enum" in node:
        return f"one of {', '.join(node['enum'])}"
    text = {
        "boolean": "true or false",
        "integer": "a whole number",
        "number": "a number",
        "string": "text that is not empty" if "minLength" in node else "text",
        "array": "a list like [a,b]",
        "object": "a mapping like {a: 1}",
        "null": "null",
    }[node["type"]]
    if node["type"] == "array":
        size = f" of {node['minItems']} values" if node.get("minItems") == node.get("maxItems", 0) else ""
        text += size or " that is not empty" * bool(node.get("minItems"))
        return f"{text}, each {describe(node['items'])}" if node["items"].keys() - {"type"} else text
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    least = None if low is None and above is None else f"{low}" if above is None else f"more than {above}"
    most = None if high is None and below is None else f"{high}" if below is None else f"below {below}"
    if least and most:
        return f"{text}, {least} and at most {most}" if above is not None else f"{text} from {least} to {most}"
    return text + (f", {least}" + " or more" * (above is None) if least else f", {most} or less" if most else "")


def _parse(key: str, text: str, node: Node) -> Any:
    """Parses ``text`` in Hydra's grammar. Text fields take unquoted text literally."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString, Sweep
    from hydra.errors import HydraException

    kinds = {option.get("type") for option in node.get("anyOf", [node])}
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except HydraException:
        if "string" in kinds:
            return text
        raise ValueError(
            f"{key}: cannot read the value {text!r}; lists are written [1,2], text with signs 'quoted'"
        ) from None
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{key}: cannot read the value {text[:40]}...: {first_line(error)}") from None
    raw, value = override._value, override.value()
    if "string" in kinds and not isinstance(raw, QuotedString) and not (value is None and "null" in kinds):
        if text == "None" and "null" in kinds:
            raise ValueError(f"{key}: write null for no value, or 'None' in quotes")
        return text
    if isinstance(raw, Sweep):
        raise ValueError(f"{key}: write a list in brackets, as in {key}=[{text}]")
    return value
