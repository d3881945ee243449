"""Finds runs in folders and sums each up from its small files; episodes and checkpoints are never read. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spa.common.lock import is_locked
from spa.common.typed import Object, parse
from spa.evaluate.roles import BASE, MAIN_VARIANTS, PLANNED
from spa.runs.folder import interrupted

RUNNING, FINISHED, FAILED, STOPPED = "running", "finished", "failed", "stopped"
_DEPTH = 4  # folders below a given one, deep enough for WORLD/seed-N of a reproduction
_BIG = ("checkpoints", "episodes")  # folders of a run that only its size counts
_POINTS = 50  # of a curve, 120 pixels wide
_FRESH = 1.0  # seconds for which the index is not looked at again


@dataclass(frozen=True)
class RunEntry:
    """A run as listed.

    Attributes:
        key: stands for the run in addresses; no path comes from one.
        title: the path below the folder given.
        name: of its config.
        error: what the last command failed with; empty otherwise.
        latest: the stage written last, with its step.
        score: best Pass@1 and what reached it; None before the first evaluation or validation.
        curve: (step, share) of validation Pass@1, else of training success.
        size: bytes.
        changed: time of the last write, in seconds since 1970.
        tag: changes when a file of the run does.
    """

    key: str
    path: Path
    title: str
    name: str
    state: str
    error: str
    latest: str
    score: tuple[float, str] | None
    curve: Sequence[tuple[float, float]]
    curve_name: str
    size: int
    changed: float
    tag: str


class Index:
    """The runs under the given folders; ``entries`` looks again when a second has passed.

    Raises:
        ValueError: a folder does not exist.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise ValueError(f"no folder {folder}: give the folder that holds your runs, e.g. spa view runs")
        self.folders = list(folders)
        self._entries: dict[str, RunEntry] = {}
        self._looked = 0.0
        self._lock = threading.Lock()

    def entries(self) -> list[RunEntry]:
        """All runs, those written last first."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH:
                entries_by_key = {}
                for root in self.folders:
                    for path in find_runs(root):
                        key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
                        entries_by_key[key] = self._entry(key, path, root)
                self._entries, self._looked = entries_by_key, time.monotonic()
            return sorted(self._entries.values(), key=lambda entry: -entry.changed)

    def get(self, key: str) -> RunEntry | None:
        return next((entry for entry in self.entries() if entry.key == key), None)

    def _entry(self, key: str, path: Path, root: Path) -> RunEntry:
        files = {os.path.relpath(name, path): stat for name, stat in _files(path, _BIG)}
        running = is_locked(path)
        facts = [running, *((name, stat.st_size, stat.st_mtime_ns) for name, stat in sorted(files.items()))]
        tag = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        before = self._entries.get(key)
        if before is not None and before.tag == tag:
            return before
        info = _read(path / "run.json")
        commands = info.get("commands")
        last = commands[-1] if isinstance(commands, list) and commands and isinstance(commands[-1], dict) else {}
        error = "" if running else str(last.get("error", ""))
        curve_name, curve = _curve(path / "variants")
        return RunEntry(
            key=key,
            path=path,
            title=str(path.relative_to(root)) if path != root else path.name or str(path),
            name=str(info.get("name", "")),
            state=RUNNING if running else _ended(last),
            error=error,
            latest=_latest(path, files),
            score=_best(path / "variants", curve if curve_name == "val/pass@1" else ()),
            curve=curve,
            curve_name=curve_name,
            size=sum(stat.st_size for _, stat in _files(path)),
            changed=max((stat.st_mtime for stat in files.values()), default=0.0),
            tag=tag,
        )


def find_runs(root: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Run folders in ``root`` and below, ``root`` itself included; links are not followed."""
    try:
        is_run = (root / "run.json").is_file() or _looks_like_a_run(root)
        deeper = depth > 0 and not is_run
        folders = [entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)] if deeper else []
    except OSError:
        return
    if is_run:
        yield root
    for name in sorted(folders):
        if not name.startswith("."):
            yield from find_runs(root / name, depth - 1)


def _looks_like_a_run(folder: Path) -> bool:
    """Whether it is one whose run.json is lost: a config.yaml alone may be any project's."""
    return (folder / "config.yaml").is_file() and (folder / "variants").is_dir()


def _files(folder: str | Path, without: Sequence[str] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files below ``folder``, links left out, and those that disappear meanwhile."""
    folders: list[str | Path] = [folder]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders += [entry.path] if entry.name not in without else []
                elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(".tmp"):
                    with suppress(OSError):
                        yield entry.path, entry.stat(follow_symlinks=False)


def _ended(last: dict[str, Any]) -> str:
    """How the last command ended; one that was killed recorded no end."""
    if "ended" not in last or interrupted(last):
        return STOPPED
    return FAILED if "error" in last else FINISHED


def _latest(path: Path, files: dict[str, os.stat_result]) -> str:
    logs = {name: stat.st_mtime_ns for name, stat in files.items() if Path(name).name == "metrics.jsonl"}
    if not logs:
        return ""
    name = max(logs, key=lambda name: logs[name])
    try:
        with open(path / name, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
            lines = file.read().splitlines()
    except OSError:
        return ""
    steps = [row["step"] for row in _rows(lines[-2:]) if "step" in row]
    stage = str(Path(name).parent).removeprefix("variants/").replace("/", " ")
    return f"{stage}, step {steps[-1]}" if steps else stage


def _curve(variants: Path) -> tuple[str, list[tuple[float, float]]]:
    """Of the variant that the run is about, else of another that was trained."""
    files = sorted(file for file in variants.glob("*/ppo/metrics.jsonl") if _is_own(file))
    logs = {file.parent.parent.name: file for file in files}
    names = [name for name in (*MAIN_VARIANTS, *reversed(logs)) if name in logs]
    if names:
        try:
            lines = logs[names[0]].read_bytes().splitlines()
        except OSError:
            return "", []
        for metric in ("val/pass@1", "train/success"):
            measured = [line for line in lines if f'"{metric}"'.encode() in line]
            thin = measured[:: max(1, len(measured) // _POINTS)] + measured[-1:]
            curve = {row["step"]: value for row in _rows(thin) if (value := _number(row.get(metric))) is not None}
            if len(curve) > 1:
                return metric, sorted(curve.items())
    return "", []


def _best(variants: Path, curve: Iterable[tuple[float, float]]) -> tuple[float, str] | None:
    """The best evaluated variant, base and planners left out where there are others; else the best validation."""
    scores = {}
    for file in variants.glob("*/eval/result.json"):
        metrics = _read(file).get("metrics")
        value = _number(metrics.get("pass@1")) if isinstance(metrics, dict) else None
        if value is not None:
            scores[file.parent.parent.name] = value
    trained = {name: value for name, value in scores.items() if name != BASE and PLANNED not in name} or scores
    if trained:
        name = max(trained, key=lambda name: trained[name])
        return trained[name], name
    return max(((value, f"validation, step {step}") for step, value in curve), default=None)


def _is_own(path: Path) -> bool:
    """Whether it is a regular file: a link may lead anywhere, a named pipe never ends."""
    return path.is_file() and not path.is_symlink()


def _read(path: Path) -> dict[str, Any]:
    """A small JSON file; empty if it is missing, damaged or no file of the run."""
    try:
        return parse(Object, path.read_bytes()) if _is_own(path) else {}
    except (OSError, ValueError):
        return {}


def _rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The lines that are objects: one being written, or cut at the start, is left out."""
    for line in lines:
        try:
            row = parse(Object, line)
        except ValueError:
            continue
        if _number(row.get("step")) is not None:
            yield row


def _number(value: object) -> float | int | None:
    """``value`` if it is a number that can be drawn."""
    return value if isinstance(value, (int, float)) and abs(value) < 1e15 else None
