"""Imports point one way: a folder of ``src/spa`` imports from folders named before it, never from one named after."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import spa

ROOT = Path(spa.__file__).parent
# Lowest first. A single entry is a folder, or a module beside the folders.
LAYERS = [
    "common",
    "config",
    "scale",
    "runs",
    "envs",
    "models",
    "engines",
    "agent",
    "data",
    "planning",
    "evaluate",
    "sft",
    "rl",
    "pretrain",
    "report",
    "reproduce",
    "cautions",
    "preflight",
    "dry_run",
    "pipeline",
    "api",
    "diagnose",
    "verify",
    "view",
    "cli",
]


def imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "spa":
            yield from [node.module] if "." in node.module else [f"spa.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("spa."))


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_no_import_points_upwards() -> None:
    upwards = []
    for path in sorted(ROOT.rglob("*.py")):
        if path.parent == ROOT and path.name.startswith("__"):
            continue
        for module in imports(path):
            target = module.split(".")[1]
            if target != "__version__" and LAYERS.index(target) > LAYERS.index(layer(path)):
                upwards.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not upwards, "\n".join(upwards)


def test_every_folder_has_a_layer() -> None:
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    modules = {path.stem for path in ROOT.glob("*.py") if not path.name.startswith("__")}
    assert folders | modules == set(LAYERS)
