"""What a command ran with, for ``run.json``: versions, git commits, machine, device, hub revisions. Imports no torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from spa import __version__
from spa.common.limits import installed_memory
from spa.common.secrets import redact
from spa.config.schema import Config

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "gymnasium", "peft", "vllm")
# What a difference of may change results; the rest of an entry (start time, arguments, memory, kernel) does not.
_COMPARED = ("spa", "python", *PACKAGES, "package_git", "directory_git", "cpu", "device", "revisions")


def environment() -> dict[str, Any]:
    """Versions and machine, for ``run.json``. Imports none of the packages."""
    versions: dict[str, str] = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "spa": __version__,
        "python": platform.python_version(),
        **versions,
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_count": usable_cores(),
        "memory_gib": _memory_gib(),
    }


def provenance(cfg: Config, device: str) -> dict[str, Any]:
    """``environment``, the arguments, the git commits of package and working directory, the device and the hub revisions.

    Args:
        device: that the model runs on; empty if unknown.
    """
    facts = {
        "argv": [redact(word) for word in sys.argv],
        **environment(),
        "device": device,
        "package_git": git_state(str(Path(__file__).parents[1])),
        "directory_git": git_state(os.getcwd()),
        "revisions": revisions(cfg),
    }
    return {name: value for name, value in facts.items() if value not in (None, "", {})}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two commands of a run and may change results: ``torch 2.6.0 -> 2.7.1``."""
    pairs = [(name, before.get(name), now.get(name)) for name in _COMPARED if name in before or name in now]
    return [f"{name} {described(old)} -> {described(new)}" for name, old, new in pairs if old != new]


def described(value: Any) -> str:
    """A fact of an entry, to print."""
    if isinstance(value, Mapping) and "commit" in value:
        return str(value["commit"])[:12] + (" with changes" if value.get("dirty") else "")
    if isinstance(value, Mapping):
        return ", ".join(f"{name}@{str(text)[:12]}" for name, text in value.items())
    return "none" if value is None else str(value)


@cache
def git_state(folder: str) -> dict[str, Any] | None:
    """``commit`` and ``dirty`` (tracked files differ from it) of the repository that tracks ``folder``; None without one."""
    git = shutil.which("git")
    if git is None or not any((parent / ".git").exists() for parent in (Path(folder), *Path(folder).parents)):
        return None

    def ask(*words: str) -> str | None:
        # A repository's own hooks and monitors are programs: none is run, and nothing is written to it.
        command = [git, "-C", folder, "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *words]
        environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, env=environ)
        except (OSError, subprocess.SubprocessError, UnicodeError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if not ask("ls-files", "."):  # inside somebody's repository, but ignored there, like a virtual environment
        return None
    commit, changed = ask("rev-parse", "HEAD"), ask("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changed)} if commit else None


def revisions(cfg: Config) -> dict[str, str]:
    """Hub name -> commit of the models that the config names, as far as they are in the cache of Hugging Face."""
    names = (cfg.model.path, cfg.selfplay.model, cfg.ppo.start, cfg.ppo.reference, cfg.planner.model)
    hub = [name for name in dict.fromkeys(names) if name and name.count("/") == 1 and not Path(name).exists()]
    if not hub:
        return {}
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    revisions = {}
    for name in hub:
        revision = cfg.model.revision if name == cfg.model.path else None
        for file in ("config.json", "tokenizer_config.json"):
            try:
                path = try_to_load_from_cache(name, file, revision=revision)
            except HFValidationError:
                break
            if isinstance(path, str):
                revisions[redact(name)] = Path(path).parent.name  # .../snapshots/COMMIT/config.json
                break
    return revisions


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has if a scheduler or container restricts it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_gib() -> float | None:
    memory = installed_memory()
    return None if memory is None else round(memory / 2**30, 1)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
