"""SHA-256 digests of files, which show damage: a flipped bit, a cut or missing file. Imports no torch.

A checkpoint holds ``manifest.json`` with the size and digest of each of its files, written last. The record of a finished stage
(``done.json``) holds the digests of its other files.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from spa.common.files import atomic_write
from spa.common.secrets import redact
from spa.common.text import clean

MANIFEST = "manifest.json"
Digests = dict[str, dict[str, Any]]
"""Path relative to a folder -> ``bytes`` and ``sha256``."""

_said: set[str] = set()


def digests(folder: Path, *, leave_out: Iterable[str] = ()) -> Digests:
    """Size and digest of every file below a folder, except temporary ones and those below a name of ``leave_out``."""
    by_name: Digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not path.name.startswith(".") and not {*name.parts} & {*leave_out}:
            by_name[name.as_posix()] = {"bytes": path.stat().st_size, "sha256": digest(path)}
    return by_name


def digest(path: Path) -> str:
    """The SHA-256 of a file, computed once while its size and time stay the same."""
    status = path.stat()
    return _digest(str(path), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digest(path: str, size: int, changed: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_damage(folder: Path, recorded: Any, patterns: Iterable[str] = ("*",), *, content: bool = True) -> list[str]:
    """A line for each recorded file that is missing or not as recorded.

    Args:
        recorded: ``Digests``, as read from a file: anything else is damage too.
        patterns: which files are looked at; only ``*`` matches those in folders.
        content: False compares sizes only.
    """
    if not isinstance(recorded, Mapping):
        return [f"{folder} has a damaged record of its files"]
    lines = []
    for name, facts in recorded.items():
        if not any(pattern == "*" or ("/" not in name and fnmatch(name, pattern)) for pattern in patterns):
            continue
        path, facts = folder / str(name), facts if isinstance(facts, Mapping) else {}
        if Path(str(name)).is_absolute() or ".." in Path(str(name)).parts:
            return [f"{folder} has a damaged record of its files: {name} is none of them"]
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            lines.append(f"{path} is missing")
        elif size != facts.get("bytes"):
            lines.append(f"{path} is damaged: it has {size} bytes, not {facts.get('bytes')}")
        elif content and digest(path) != facts.get("sha256"):
            lines.append(f"{path} is damaged: its content is not what was written")
    return lines


def write_manifest(folder: Path) -> None:
    """Writes the manifest of what a folder holds now: the last file of a checkpoint."""
    content = {"files": digests(folder, leave_out=[MANIFEST])}
    atomic_write(folder / MANIFEST, json.dumps({**content, "sha256": own_digest(content)}, indent=1) + "\n")


def own_digest(record: Mapping[str, Any]) -> str:
    """The SHA-256 of a record without its entry ``sha256``."""
    content = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def has_manifest(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def damage(folder: Path, *patterns: str, content: bool = True) -> list[str]:
    """``find_damage`` of a folder by its manifest; nothing is known of one without (another program's, or an earlier version's).

    Args:
        patterns: of the files that are looked at; none means all.
    """
    if not has_manifest(folder):
        return []
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        recorded = manifest["files"]
        if manifest["sha256"] != own_digest(manifest):
            raise ValueError
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return [f"{folder / MANIFEST} is damaged"]
    return find_damage(folder, recorded, patterns or ("*",), content=content)


def check(folder: str | Path, *patterns: str) -> None:
    """Raises ValueError if a file of a folder with a manifest is missing or not as recorded; arguments as of ``damage``."""
    if lines := damage(Path(folder), *patterns):
        raise ValueError(lines[0])


def say(text: str) -> None:
    """Prints a line about damage on stderr, also when quiet, and only once."""
    if text not in _said:
        _said.add(text)
        print(clean(redact(text)), file=sys.stderr, flush=True)
