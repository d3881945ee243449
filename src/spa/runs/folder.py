"""The run folder: its config (config.yaml) and the commands that wrote it (run.json). Imports no torch."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from spa import __version__
from spa.common.files import atomic_write
from spa.common.secrets import redact
from spa.config.load import differences, load_config, load_variant, to_yaml
from spa.config.schema import Config

TASK = "spa.yaml"  # in an exported model's folder: the task that it was trained for, a config file
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "gymnasium", "peft", "vllm")
# A run may be resumed with other values of these. They do not change the results, except in the last digits (model.device and
# model.threads change the order of sums).
_FREE = (
    "variants",  # more may be added; each is independent
    "report.",
    "model.device",
    "model.threads",
    "launcher",
    "nproc",
    "scale.",
    "sampling.processes",
    "engine.base_url",
    "engine.api_key_env",
    "engine.concurrency",
    "engine.timeout",
    "engine.retries",
    "engine.requests_per_minute",
    "selfplay.early_turns",
    "selfplay.min_kept",
    "sft.memory_check",
    "ppo.on_collapse",
    "ppo.collapse_patience",
    "ppo.keep_checkpoints",
)
# Settings that only select the rows of stage 1: `generate` and `run` may be resumed with others, and play nothing again.
SELECTION = (
    "selfplay.states",
    "selfplay.filter",
    "selfplay.success_only",
    "selfplay.deduplicate",
    "selfplay.balance",
    "selfplay.val_fraction",
    "selfplay.outcome_share",
    "selfplay.plain_rows",
)
_STAGES = ("generate", "sft", "practice", "ppo")  # also part of `run`


def variants_folder(out: Path) -> Path:
    """The folder for stage 3 and the evaluation of variants: ``variants``, or ``arms`` in runs of earlier versions."""
    earlier = out / "arms"
    return earlier if earlier.is_dir() else out / "variants"


def selection(cfg: Config) -> dict[str, Any]:
    """The settings that select rows from the episodes of stage 1, for its record."""
    return {key: getattr(cfg.selfplay, key.partition(".")[2]) for key in SELECTION}


def variant_names(out: Path, cfg: Config) -> list[str]:
    """The variants with a folder in ``out``: base first, then in the config's order."""
    names = [path.name for path in variants_folder(out).glob("*") if path.is_dir()]
    return sorted(names, key=lambda name: (["base", *cfg.variants, name].index(name), name))


def default_folder(cfg: Config) -> Path:
    """``runs/NAME-TIME``."""
    return Path("runs") / f"{redact(cfg.name)}-{datetime.now():%Y%m%d-%H%M%S}"


class RunFolder:
    """The folder of one run; several commands (``generate``, ``sft``, ...) may share it if their config is the same.

    ``config.yaml`` is the resolved config. ``run.json`` lists every command with its start time, the versions, the
    machine and the seed. Nothing is written before ``open``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def info_path(self) -> Path:
        return self.path / "run.json"

    @property
    def holds_run(self) -> bool:
        return self.config_path.is_file() or self.info_path.is_file()

    def config(self) -> Config:
        """The saved config.

        Raises:
            ValueError: it is missing or damaged.
        """
        if not self.config_path.is_file():
            raise ValueError(f"{self.path} holds no run (no config.yaml)")
        return load_config(self.config_path, missing_ok=True)

    def info(self) -> dict[str, Any]:
        """The content of ``run.json``; empty if missing or damaged."""
        try:
            data = json.loads(self.info_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def commands(self) -> list[str]:
        """The distinct commands that were run here, in order."""
        entries = self.info().get("commands", [])
        return list(dict.fromkeys(str(entry.get("command", "")) for entry in entries if isinstance(entry, dict)))

    def open(self, cfg: Config, command: str, resume: bool) -> RunFolder:
        """Creates the folder and records config and command; returns itself.

        ``command`` is the command, with the variant if there is one (``"ppo spa"``). A command not yet run here may join
        a run of the same config; ``run`` and its stages exclude each other.

        Raises:
            ValueError: the path is a file, the command was run here before and ``resume`` is False, or the saved config
                differs (the message lists the keys). ``SELECTION`` may change while nothing was trained on the rows.
        """
        self.check(cfg, command, resume)
        self.path.mkdir(parents=True, exist_ok=True)
        atomic_write(self.config_path, to_yaml(cfg))
        started = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"command": command, "resume": resume, "started": started, **environment(), "seed": cfg.seeds.run}
        entries = self.info().get("commands", [])
        data = {"name": redact(cfg.name), "commands": [*(entries if isinstance(entries, list) else []), entry]}
        atomic_write(self.info_path, json.dumps(data, indent=2) + "\n")
        return self

    def check(self, cfg: Config, command: str, resume: bool) -> None:
        """Raises what ``open`` would raise, but writes nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give another --out")
        if not self.holds_run:
            return
        done = self.commands()
        clash = next((other for other in done if _clash(other, command)), None)
        if not resume and (clash is not None or not done):
            what = f"a run of `spa {clash}`" if clash else "a run"
            raise ValueError(f"{self.path} already holds {what}; add --resume to continue it or give another --out")
        changed = [key for key in differences(self.config(), cfg) if not key.startswith(_FREE)]
        if resume and command.partition(" ")[0] in ("generate", "run") and set(changed) <= set(SELECTION):
            if changed and (trained := self._trained_on_rows(cfg)):
                raise ValueError(
                    f"{', '.join(changed)} select the rows of stage 1, on which {', '.join(trained)} in {self.path} were "
                    "trained: delete these to train them again, or give another --out"
                )
            return
        if changed:
            raise ValueError(
                f"{self.path} holds a run with another config; these settings differ: {', '.join(changed)}; "
                "leave them as they are or give another --out"
            )

    def _trained_on_rows(self, cfg: Config) -> list[str]:
        """The folders of stages that depend on the rows of stage 1; variants that are not the config's count as such."""
        tuned = {variant.name: variant.sft for variant in map(load_variant, ["base", *cfg.variants])}
        stages = [each for name in ("sft*", "practice-*", "imagined-*") for each in self.path.glob(name)]
        variants = [each for each in variants_folder(self.path).glob("*") if tuned.get(each.name, True)]
        return [str(each.relative_to(self.path)) for each in sorted([*stages, *variants]) if any(each.iterdir())]


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
    }


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has if a scheduler or container restricts it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _clash(done: str, command: str) -> bool:
    """Whether two commands would write the same files."""
    if done == command:
        return True
    words = (done.partition(" ")[0], command.partition(" ")[0])
    return "run" in words and all(word in (*_STAGES, "run") for word in words)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
