"""The run folder: its config (config.yaml) and the commands that wrote it (run.json). Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from typing_extensions import TypedDict

from spa.common.files import atomic_write
from spa.common.lock import is_locked
from spa.common.manifest import own_digest, say
from spa.common.progress import note
from spa.common.secrets import from_environment, redact, shown
from spa.common.typed import Object, parse
from spa.config.load import OPERATION, differences, env_block, is_file_name, load_config, load_variant, to_yaml
from spa.config.overrides import from_mapping
from spa.config.schema import Config, PPOConfig, PracticeConfig, SFTConfig, VariantConfig
from spa.config.variants import check_variants, selfplay_name, sft_name, variant_config, variant_named
from spa.runs.provenance import changes, provenance
from spa.runs.record import DONE, SECONDS

TASK = "spa.yaml"  # in an exported model's folder: the task that it was trained for, a config file
# A run may be resumed with other values of these. They do not change the results, except in the last digits (model.device and
# model.threads change the order of sums).
_FREE = (
    "name",
    "variants",  # more may be added; each is independent
    "report.",
    "model.device",
    "model.threads",
    "launcher",
    "nproc",
    "scale.",
    "sampling.processes",
    "env.step_timeout",
    "env.max_failed",
    "env.processes",
    "engine.base_url",
    "engine.api_key_env",
    "engine.concurrency",
    "engine.timeout",
    "engine.episode_timeout",
    "engine.max_reply_bytes",
    "engine.retries",
    "engine.requests_per_minute",
    "engine.gpu_memory_utilization",
    "engine.max_logprob_diff",
    "selfplay.early_turns",
    "selfplay.min_kept",
    "sft.eval_every",
    "sft.save_every",
    "sft.keep_checkpoints",
    "sft.memory_check",
    "ppo.memory_check",
    "model.device_memory",
    "ppo.on_collapse",
    "ppo.collapse_patience",
    "ppo.keep_checkpoints",
    "ppo.keep_episodes",
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
# What may change with --resume as long as no file matches: nothing was made with it yet.
_OPEN = {
    **{f"sft.{each.name}": "sft*/*" for each in fields(SFTConfig)},
    **{f"practice.{each.name}": "practice-*/*" for each in fields(PracticeConfig)},
    **{f"ppo.{each.name}": "*/*/ppo/*" for each in fields(PPOConfig)},
    "sft.window": "s*/*",  # stage 1 plays with it
    "practice.worlds": "practice-*/round_*/plans/done.json",
    "curriculum.imagined_worlds": "imagined-*/done.json",
    "eval.worlds": "*/*/eval/*",  # its unfinished episodes count
}
_STAGES = ("generate", "sft", "practice", "ppo", "eval")  # also part of `run`
_FOLDERS = ("selfplay", "selfplay-*", "sft", "sft-*", "practice-*", "imagined-*", "variants/*/ppo", "variants/*/eval")


def variants_folder(out: Path) -> Path:
    """The folder for stage 3 and the evaluation of variants."""
    return out / "variants"


def selection(cfg: Config) -> dict[str, Any]:
    """The settings that select rows from the episodes of stage 1, for its record."""
    return {key: getattr(cfg.selfplay, key.partition(".")[2]) for key in SELECTION}


def variant_names(out: Path, cfg: Config) -> list[str]:
    """The variants with a folder in ``out``: base first, then in the config's order."""
    names = [path.name for path in variants_folder(out).glob("*") if path.is_dir()]
    order = ["base", *(Path(variant).stem for variant in cfg.variants)]
    return sorted(names, key=lambda name: ([*order, name].index(name), name))


def changed_settings(old: Config, new: Config) -> list[str]:
    """The settings that differ and may change results."""
    return [key for key in differences(old, new) if not key.startswith(_FREE)]


def flat_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A variant as ``run.json`` holds it, by dotted names (``settings.ppo.lam``), without settings that change no result."""
    flat: dict[str, Any] = {}
    for name, value in {**shown(VariantConfig()), **definition}.items():
        flat |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return {name: value for name, value in flat.items() if not name.partition(".")[2].startswith(_FREE)}


def default_folder(cfg: Config) -> Path:
    """``runs/NAME-TIME``."""
    name = re.sub(r"[^\w-]+", "-", redact(cfg.name))[:100]  # it may be another's, in an exported folder
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


class _Info(TypedDict, total=False):
    """``run.json``; ``variants`` holds the definition of each variant that a command was to run, ``mixed`` the worlds of the config
    files in their mixtures."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    commands: list[Object]
    variants: dict[str, Object]
    mixed: dict[str, Object]


def mixed_worlds(cfg: Config, variants: Sequence[VariantConfig] = ()) -> dict[str, Any]:
    """The worlds that mixtures take from config files, by their names, without how they are run.

    Raises:
        ValueError: as ``env_block`` and ``variant_config``.
    """
    mixtures = [each.curriculum.mixture for each in (cfg, *(variant_config(cfg, variant) for variant in variants))]
    names = dict.fromkeys(name for mixture in mixtures for name in mixture if is_file_name(name))
    return {name: shown(env_block(name)) | dict.fromkeys(OPERATION) for name in names}


def interrupted(command: Mapping[str, Any]) -> bool:
    """Whether a recorded command was ended by Ctrl-C or a signal, not by an error."""
    return str(command.get("error", "")).startswith(("KeyboardInterrupt", "Terminated"))


class RunFolder:
    """The folder of one run; several commands (``generate``, ``sft``, ...) may share it if their config is the same.

    ``config.yaml`` is the resolved config. ``run.json`` lists every command with its start time, seed,
    ``provenance`` and how it ended. Nothing is written before ``open``.
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

    @property
    def more_than_evaluated(self) -> bool:
        """Whether this is a run, not only evaluations of models from elsewhere; without a ``run.json`` it counts as one."""
        words = [command.partition(" ")[0] for command in self.commands()]
        return self.config_path.is_file() and set(words) != {"eval"}

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
            data = dict(parse(_Info, self.info_path.read_bytes()))
        except (OSError, ValueError):
            return {}
        return data if data.get("sha256", own_digest(data)) == own_digest(data) else {}

    def definitions(self) -> dict[str, Object]:
        """The definitions of the variants that commands were to run, by name; earlier versions recorded none."""
        return dict(self.info().get("variants", {}))

    def recorded(self, name: str) -> VariantConfig | None:
        """A variant as it was run; None where that is not known.

        Raises:
            ValueError: its definition is not one of this version's.
        """
        known = self.definitions().get(name)
        return from_mapping(VariantConfig, from_environment(known, missing_ok=True)) if known is not None else None

    def variant(self, name: str) -> VariantConfig:
        """A variant as it was run, whose file may be gone since; where that is not known, as ``variant_named`` finds it.

        Raises:
            ValueError: as ``recorded`` and ``variant_named``.
        """
        return self.recorded(name) or variant_named(self.config(), name)

    def variants(self) -> list[VariantConfig]:
        """What the run compares, the untrained base first. Raises: as ``variant``."""
        names = (self._name(each) for each in ["base", *self.config().variants])
        return [self.variant(name) for name in dict.fromkeys(names)]

    def _name(self, reference: str) -> str:
        """Of one of the config's variants; of a file that is gone since its stem, where a variant of that name was run."""
        try:
            return load_variant(reference).name
        except ValueError:
            if (stem := Path(reference).stem) in self.definitions():
                return stem
            raise

    def commands(self) -> list[str]:
        """The distinct commands that were run here, in order."""
        return list(dict.fromkeys(str(entry.get("command", "")) for entry in self.info().get("commands", [])))

    def open(
        self, cfg: Config, command: str, resume: bool, device: str = "", variants: Sequence[VariantConfig] = ()
    ) -> RunFolder:
        """Creates the folder and records config and command; returns itself. Notes what changed since the command before.

        ``command`` is the command, with the variant if there is one (``"ppo spa"``). A command not yet run here may join
        a run of the same config; ``run`` and its stages exclude each other.

        Raises:
            ValueError: the path is a file, the command was run here before and ``resume`` is False, or the saved config or
                one of ``variants`` differs (the message lists the keys). With ``resume`` ``SELECTION`` may change while nothing
                was trained on the rows, and what ``_OPEN`` lists while nothing was made with it.
        """
        self.check(cfg, command, resume, variants)
        self.path.mkdir(parents=True, exist_ok=True)
        started, config = datetime.now(UTC).isoformat(timespec="seconds"), to_yaml(cfg)
        facts = {**provenance(cfg, device), "seed": cfg.seeds.run, "config_sha256": _sha256(config)}
        self.say_damage()
        info = self.info()
        entries, known = info.get("commands", []), info.get("variants", {})
        self._compare(facts)
        if not self.config_path.is_file():
            atomic_write(self.config_path, config)
        entry = {"command": command, "resume": resume, "started": started, **facts}
        definitions = {**known, **{variant.name: shown(variant) for variant in variants}}
        mixed = {**info.get("mixed", {}), **mixed_worlds(cfg, variants)}
        data = {"name": redact(cfg.name), "commands": [*entries, entry], "variants": definitions}
        self._write(data | ({"mixed": mixed} if mixed else {}))
        atomic_write(self.config_path, config)  # killed before this, it is what the command before wrote
        return self

    def close(self, error: BaseException | None) -> None:
        """Records how the last command ended: ``ended``, and the first line of what it failed with."""
        data = self.info()
        if not (entries := data.get("commands")):
            return
        entries[-1]["ended"] = datetime.now(UTC).isoformat(timespec="seconds")
        if error is not None:
            entries[-1]["error"] = redact(f"{type(error).__name__}: {error}".splitlines()[0])
        self._write(data)

    def _write(self, data: dict[str, Any]) -> None:
        data.pop("sha256", None)
        atomic_write(self.info_path, json.dumps({**data, "sha256": own_digest(data)}, indent=2) + "\n")

    def last_command(self) -> dict[str, Any]:
        """The record of the last command; empty if there is none, or ``run.json`` is damaged."""
        entries: list[Object] = self.info().get("commands", [])
        return entries[-1] if entries else {}

    def _compare(self, facts: dict[str, Any]) -> None:
        """Notes how the machine, versions or commits differ from the last command's."""
        last = self.last_command()
        if last and (changed := changes(last, facts)):
            note(f"{self.path} was run with other versions or on another machine: {'; '.join(changed)}")

    def say_damage(self) -> None:
        """Says whether run.json is damaged, and whether config.yaml is not what the last command wrote."""
        begun = self.config_path.is_file() and any(
            path.is_dir() or path == self.info_path for path in self.path.iterdir()
        )
        if begun and not self.info():
            say(f"{self.info_path} is missing or damaged: the settings of earlier commands are unknown")
        if self.edited():
            say(f"{self.config_path} changed since the last command wrote it: it was edited or is damaged")

    def edited(self) -> bool:
        """Whether config.yaml differs from what the last command wrote, or the one before if that was killed at its begin."""
        written = self._written()
        if not written or not self.config_path.is_file():
            return False
        return _sha256(self.config_path.read_text(encoding="utf-8", errors="replace")) not in written

    def _written(self) -> list[str]:
        """The digests of config.yaml as the last two commands wrote it."""
        entries: list[Object] = self.info().get("commands", [])
        return [str(entry["config_sha256"]) for entry in entries[-2:] if "config_sha256" in entry]

    def check(self, cfg: Config, command: str, resume: bool, variants: Sequence[VariantConfig] = ()) -> None:
        """Raises what ``open`` would raise, but writes nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give another --out")
        if file := next((parent for parent in self.path.parents if parent.is_file()), None):
            raise ValueError(f"{self.path} cannot be made: {file} is a file; give another --out")
        try:
            str(self.path).encode()
        except UnicodeEncodeError:
            raise ValueError(f"{str(self.path)!a} is not UTF-8 text; give another --out") from None
        if not self.holds_run:
            if (self.path / DONE).is_file():
                raise ValueError(f"{self.path} is a stage of a run: give the run's folder, or another --out")
            if foreign := [path.name for name in _FOLDERS for path in self.path.glob(name) if _is_foreign(path)]:
                raise ValueError(
                    f"{self.path} is no run, and its {', '.join(foreign)} would be replaced by a run's: give another --out"
                )
            return
        done = self.commands()
        clash = next((other for other in done if _clash(other, command)), None)
        if not resume and (clash is not None or not done):
            what = f"a run of `spa {clash}`" if clash else "a run"
            raise ValueError(f"{self.path} already holds {what}; add --resume to continue it or give another --out")
        same = _sha256(to_yaml(cfg)) in self._written()
        if not same and not self.config_path.is_file():
            raise ValueError(
                f"{self.config_path} is missing: give the NAME and the settings of the last command, or another --out"
            )
        if not same and self.edited():
            raise ValueError(
                f"{self.config_path} changed since the last command wrote it: undo that (settings are changed on the command "
                "line), or give the NAME and the settings of that command, if it is damaged"
            )
        for variant in variants:
            if names := self._changed(variant):
                raise ValueError(
                    f"variant {variant.name} was another when {self.path} was run: {', '.join(names)} changed; restore it, "
                    "rename it or give another --out"
                )
        self.check_mixed(cfg, variants)
        check_variants(cfg, [*self._sharing(variants), *variants])
        try:
            before = self.config()
        except ValueError:
            if not same:
                raise
            before = cfg  # as the last command wrote it, before it was damaged
        changed = changed_settings(before, cfg)
        if resume:
            changed = [key for key in changed if key not in _OPEN or any(self.path.glob(_OPEN[key]))]
        if resume and command.partition(" ")[0] in ("generate", "run") and set(changed) <= set(SELECTION):
            if changed and (trained := self._trained_on_rows(cfg)):
                raise ValueError(
                    f"{', '.join(changed)} select the rows of stage 1, on which {', '.join(trained)} in {self.path} were "
                    "trained: delete these to train them again, or give another --out"
                )
            half_played = [path for path in self.path.glob("selfplay*") if not (path / DONE).is_file()]
            if (
                "selfplay.filter" in changed
                and half_played
                and cfg.selfplay.policy == "model"
                and cfg.selfplay.tries > 1
            ):
                raise ValueError(
                    f"selfplay.filter decides which responses are sampled again, and {half_played[0]} is not finished: let it "
                    "finish first, or give another --out"
                )
            return
        if changed:
            values = (f"{key} ({_value(before, key)} there, {_value(cfg, key)} here)" for key in changed)
            raise ValueError(
                f"{self.path} holds a run with another config; these settings differ: {', '.join(values)}; "
                "leave them as they are or give another --out"
            )

    def check_mixed(self, cfg: Config, variants: Sequence[VariantConfig] = ()) -> None:
        """Raises ValueError if a config file of a mixture is gone, or its world another than when the run trained in it."""
        before = self.info().get("mixed", {})
        for name, now in mixed_worlds(cfg, variants).items():
            if name in before and before[name] != json.loads(json.dumps(now)):
                raise ValueError(
                    f"curriculum.mixture: {name} was another world when {self.path} was run; undo its changes or give another --out"
                )

    def _sharing(self, variants: Sequence[VariantConfig]) -> list[VariantConfig]:
        """Other variants that were run here, whose stage 1 or 2 is, by its name, that of one of ``variants``."""
        given = {variant.name for variant in variants}
        stages = {name(variant) for variant in variants if variant.sft for name in (selfplay_name, sft_name)} - {""}
        others = []
        for name in self.definitions().keys() - given:
            with suppress(ValueError):  # not one of this version's
                if (other := self.recorded(name)) and other.sft and stages & {selfplay_name(other), sft_name(other)}:
                    others.append(other)
        return others

    def _changed(self, variant: VariantConfig) -> list[str]:
        """What differs in a variant since an earlier command; not a path that moved with the run (``_moved``)."""
        known = self.definitions().get(variant.name)
        if known is None:
            return []
        before, after = flat_definition(known), flat_definition(json.loads(json.dumps(shown(variant))))
        return [
            name
            for name in {**before, **after}
            if before.get(name) != after.get(name) and not _moved(before.get(name), after.get(name), self.path)
        ]

    def _trained_on_rows(self, cfg: Config) -> list[str]:
        """The folders of stages that depend on the rows of stage 1; variants that are not the config's count as such."""
        tuned = {variant.name: variant.sft for variant in map(load_variant, ["base", *cfg.variants])}
        stages = [each for name in ("sft*", "practice-*", "imagined-*") for each in self.path.glob(name)]
        variants = [each for each in variants_folder(self.path).glob("*") if tuned.get(each.name, True)]
        return [
            str(each.relative_to(self.path))
            for each in sorted([*stages, *variants])
            if each.is_dir() and any(each.iterdir())
        ]


def _is_foreign(folder: Path) -> bool:
    """Whether a folder holds something, but nothing by which a stage could be told."""
    marks = (DONE, SECONDS, "metrics.jsonl", "episodes.jsonl", "checkpoints")
    return folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in marks)


def _moved(before: object, after: object, run: Path) -> bool:
    """Whether an absolute path, such as that of a reproduction's base, was moved together with the run: the old one is gone, and
    what the new one has below the folder that it shares with the run is the end of the old one."""
    if not (isinstance(before, str) and isinstance(after, str) and os.path.isabs(before) and os.path.isabs(after)):
        return False
    end = [part for part in Path(os.path.relpath(after, run.resolve())).parts if part != ".."]
    return (
        bool(end)
        and Path(after).exists()
        and not Path(before).exists()
        and list(Path(before).parts[-len(end) :]) == end
    )


def _value(cfg: Config, key: str) -> str:
    """A setting, cut if it is long."""
    text = redact(str(reduce(getattr, key.split("."), cfg)))
    return text if len(text) <= 40 else f"{text[:39]}\u2026"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _clash(done: str, command: str) -> bool:
    """Whether two commands would write the same files."""
    if done == command:
        return True
    words = (done.partition(" ")[0], command.partition(" ")[0])
    return "run" in words and all(word in (*_STAGES, "run") for word in words)


def failure(folder: Path, variant: str) -> str:
    """Why a run that has ended has no result of a variant, without what it advises; empty where it was not to have one, was
    interrupted or has not ended. A killed one (out of memory, power loss) recorded no end and holds no lock."""
    run, going_on = RunFolder(folder), is_locked(folder)
    last = run.last_command()
    killed = bool(last) and "ended" not in last and not going_on
    error = "the run was killed" if killed else str(last.get("error", ""))
    if not error or interrupted(last):
        return ""
    # `spa run` ends so once all other variants are finished; the path of a checkpoint and advice follow a semicolon.
    parts = [part.partition(" was not evaluated: ") for part in error.split(";")]
    if named := {before.rpartition("variant ")[2]: why for before, found, why in parts if found}:
        why = named.get(variant, "")
        return named.get(why.removeprefix("as "), why)
    names = ["base", *(Path(each).stem for each in run.config().variants)]
    return error.partition(";")[0] if variant in names else ""
