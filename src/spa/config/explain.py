"""What a setting does, where its value comes from and which modules read it; tables of docs/configuration.md. Imports no torch."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import spa
from spa.common.files import expanded
from spa.config.load import (
    GROUPS,
    base_choices,
    compose_files,
    conf_folder,
    file_layers,
    is_file_name,
    load_config,
    load_variant,
    preset_of,
    read_yaml,
    split_choices,
)
from spa.config.overrides import Node, describe, json_schema, node_of, setting_names, split_override
from spa.config.presets import NAME, Preset
from spa.config.schema import Config, VariantConfig
from spa.config.variants import played_config


def explain(key: str, name: str | None, overrides: Sequence[str], variant: str | None = None) -> str:
    """A few lines about one setting of a config, optionally with a variant applied.

    Raises:
        ValueError: as ``load_config`` and ``load_variant``, or there is no such setting.
    """
    node = node_of(Config, key)
    if "properties" in node:
        raise ValueError(f"{key!r} is a group of settings: {', '.join(f'{key}.{name}' for name in node['properties'])}")
    config = load_config(name, overrides)
    chosen = load_variant(variant) if variant else None
    if chosen:
        config = played_config(config, chosen)
    preset = preset_of(name, overrides)
    sources = [layer for layer, data in _layers(name, overrides, chosen, preset) if _sets(data, key.split("."))]
    if chosen and chosen.sft and key == "agent.prompt" and config.agent.prompt_after_sft != "same":
        sources.append("agent.prompt_after_sft")
    lines = [
        f"{key} = {_written(value_of(config, key))}",
        node.get("description", ""),
        f"Allowed: {describe(node)}" if "type" in node or "anyOf" in node else "",
        f"Default: {_written(value_of(Config(), key))}",
        f"Set by: {' < '.join(['default', *sources])}",
        f"Preset: {preset}" if preset and f"model/{NAME}" in sources else "",
        f"Read by: {', '.join(readers(key)) or 'nothing'}",
    ]
    return "\n".join(line for line in lines if line)


def value_of(config: Any, key: str) -> Any:
    """The value of a dotted setting; None for an entry that a dictionary lacks."""
    for name in key.split("."):
        config = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
    return config


def _written(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _layers(
    name: str | None, overrides: Sequence[str], variant: VariantConfig | None, preset: Preset | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The files and settings that a config is composed of, and what each sets; later ones win."""
    choices, settings = split_choices(overrides)
    own: list[tuple[str, Mapping[str, Any]]] = []
    if name is None or not is_file_name(name):
        files = compose_files("base", conf_folder(), base_choices(name, choices), preset)[1]
        if name and "env" not in files:
            own.append((name, {"name": None, "env.id": None, "env.tag": None}))
    else:
        path = expanded(name)
        data = read_yaml(path)
        if "defaults" in data:
            files = compose_files(path.stem, path.parent, choices, preset)[1]
            own = [(name, data)]
        else:
            files = compose_files("base", conf_folder(), base_choices(path, choices), preset)[1]
            own = file_layers(path, data, choices)
    for file in ["base", *(f"{group}/{files[group]}" for group in GROUPS if group in files)]:
        yield file, preset.settings if preset and file == f"model/{NAME}" else _packaged(file)
    yield from own
    yield from (("command line", {split_override(setting)[0]: None}) for setting in settings)
    if variant:
        yield f"variant {variant.name}", {"env.state_format": None, **variant.settings}


def _packaged(file: str) -> dict[str, Any]:
    return read_yaml(conf_folder() / f"{file}.yaml")


def _sets(data: Any, path: Sequence[str]) -> bool:
    """Whether nested dictionaries (keys may be dotted) set a setting or part of it."""
    if not path or not isinstance(data, dict):
        return True
    for key, value in data.items():
        names = str(key).split(".")
        if all(a == b for a, b in zip(names, path, strict=False)) and _sets(value, path[len(names) :]):
            return True
    return False


def readers(key: str) -> list[str]:
    """Modules whose source uses an attribute of the setting's name and its block or the block's class; may include modules that
    use another attribute of that name."""
    *blocks, name = key.split(".")[:2]
    wanted = set(blocks) | {
        str(json_schema(Config)["properties"][block]["$ref"]).rpartition("/")[2] for block in blocks
    }
    return [
        module
        for module, (attributes, names) in _names_used().items()
        if name in attributes and (not blocks or wanted & (attributes | names))
    ]


@functools.cache
def _names_used() -> dict[str, tuple[set[str], set[str]]]:
    """The attributes and the other names that each module uses."""
    root = Path(spa.__file__).parent
    used = {}
    for path in sorted(root.rglob("*.py")):
        if path.parent.name != "config" or path.name not in ("schema.py", "training.py", "explain.py"):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            module = ".".join(["spa", *path.relative_to(root).with_suffix("").parts])
            attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            used[module] = attributes, {node.id for node in nodes if isinstance(node, ast.Name)}
    return used


def markdown() -> str:
    """The tables of docs/configuration.md: settings without a block, then one table for each block."""
    default = Config()
    blocks: dict[str, list[str]] = {"": []}
    for key in setting_names(Config):
        block, _, name = key.rpartition(".")
        node = node_of(Config, key)
        cells = (f"`{name}`", _default_and_range(value_of(default, key), node), node["description"])
        row = f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        blocks.setdefault(block, []).append(row)
    lines: list[str] = []
    for block, rows in blocks.items():
        if block:
            lines += ["", f"### {block}", "", " ".join(str(node_of(Config, block)["description"]).split()), ""]
        lines += ["| setting | default | meaning |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _default_and_range(value: Any, node: Node) -> str:
    """A default and what is allowed, unless the default shows it."""
    allowed = describe(node)
    shown = allowed in ("text", "true or false", "a list like [a,b]", "a mapping like {a: 1}")
    return f"`{_written(value)}`" + ("" if shown else f" ({allowed})")
