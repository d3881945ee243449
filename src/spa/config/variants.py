"""How a variant differs from the run: its settings, and its own self-play data and SFT model, if any. Imports no torch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from spa.common.files import expanded
from spa.config.load import differences, env_block, joining, load_variant
from spa.config.overrides import from_mapping, split_override
from spa.config.schema import Config, VariantConfig

# Blocks that stages 1 and 2 do not read.
_LATER = ("ppo", "curriculum", "planner", "practice", "eval", "report", "variants", "name")
# Read by evaluation, and by stage 1 if a planner plays there.
_EVALUATED = ("agent.planner", "planner.model", "planner.values")
_STAGE_1 = ("env", "agent", "model", "engine", "sampling", "selfplay", "seeds", "sft.window")


def variants_of(cfg: Config) -> list[VariantConfig]:
    """The variants that a run compares, the untrained base first.

    Raises:
        ValueError: a variant that does not exist or does not fit the config, two with the same name, or two that share the name
            of a stage 1 but not its settings.
    """
    variants = [load_variant(name) for name in dict.fromkeys(["base", *cfg.variants])]
    check_variants(cfg, variants)
    for i, variant in enumerate(variants):
        if variant.continues and variant.continues not in [other.name for other in variants[:i]]:
            raise ValueError(
                f"variant {variant.name} continues {variant.continues}: it needs that variants=[...] names it before"
            )
    return variants


def variant_named(cfg: Config, name: str) -> VariantConfig:
    """A run's variant by its name, which may be that of a file among ``variants``; else a packaged one, or a file.

    Raises:
        ValueError: there is none.
    """
    for reference in sorted(["base", *cfg.variants], key=lambda reference: Path(reference).stem != name):
        if (variant := load_variant(reference)).name == name:
            return variant
    return load_variant(name)


def check_variants(cfg: Config, variants: Iterable[VariantConfig]) -> None:
    """Raises ValueError as ``variants_of``."""
    earlier: dict[str, VariantConfig] = {}
    sources: dict[str, tuple[str, Config]] = {}
    shared: dict[str, tuple[VariantConfig, Config]] = {}
    dreamt: dict[str, tuple[VariantConfig, Config]] = {}
    for variant in variants:
        if same := next((name for name in earlier if name.casefold() == variant.name.casefold()), None):
            where = "" if same == variant.name else f": {same!r} is the same folder on some disks"
            raise ValueError(f"two variants are named {variant.name!r}{where}")
        stage_3, source = variant_config(cfg, variant), source_config(cfg, variant)
        if shorter := earlier.get(variant.continues) or _known(cfg, variant.continues):
            _check_continues(cfg, variant, stage_3, shorter)
        earlier[variant.name] = variant
        dreams = imagines(cfg, variant)
        if dreams and not (needs_sft(cfg, variant) and source.selfplay.rows == "transitions"):
            raise ValueError(
                f"variant {variant.name} trains in worlds that its stage 2 imagines (curriculum.imagined): it needs sft: true, "
                "selfplay.rows=transitions and no ppo.start, or curriculum.imagined_file"
            )
        if not variant.sft:
            continue
        if variant.practice and source.selfplay.rows != "transitions":
            raise ValueError(
                f"variant {variant.name} practises, which asks about single moves: set selfplay.rows=transitions"
            )
        if variant.practice and source.practice.rounds > 1 and source.selfplay.states == "belief":
            raise ValueError(
                f"variant {variant.name} plays between rounds with the plain prompt, in which no states are written: set "
                "practice.rounds=1, or selfplay.states=truth or shuffled"
            )
        if variant.shares:
            _check_shares(variant, source, *shared.setdefault(variant.shares, (variant, source)))
            if dreams:
                first = dreamt.setdefault(variant.shares, (variant, source))
                _check_shares(variant, source, *first, also=("curriculum.imagined_worlds",))
        key = selfplay_name(variant)
        other, known = sources.setdefault(key, (variant.name, source))
        planned = _plans(known, source)
        changed = [
            name
            for name in _differences(known, source)
            if _in_stage_1(name) or (planned and name.startswith("planner."))
        ]
        if changed:
            raise ValueError(
                f"variants {other} and {variant.name} share the self-play data {key or 'of the run'!r} but not its settings "
                f"({', '.join(changed)}); give one of them another `selfplay` name"
            )


def _known(cfg: Config, name: str) -> VariantConfig | None:
    """A run's or packaged variant; None for a name that neither has."""
    try:
        return variant_named(cfg, name) if name else None
    except ValueError:
        return None


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of settings, which a variant may write as nested blocks."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _in_stage_1(name: str) -> bool:
    """Whether stage 1 reads a setting, whoever plays."""
    return name in _STAGE_1 or name.partition(".")[0] in _STAGE_1


def _differences(known: Config, source: Config) -> list[str]:
    """Like ``differences``, without settings that only evaluation reads."""
    planned = _plans(known, source)
    return [name for name in differences(known, source) if planned or name not in _EVALUATED]


def _plans(*sources: Config) -> bool:
    """Whether a planner plays in the stage 1 of one of them."""
    return any(source.selfplay.policy == "planner" for source in sources)


def _check_shares(
    variant: VariantConfig, source: Config, other: VariantConfig, known: Config, also: Sequence[str] = ()
) -> None:
    """Raises ValueError if two variants with the same ``shares`` differ in stages 1 and 2, practice or ``also``."""
    later = set(_LATER) - {"planner", "practice"}
    changed = [name for name in _differences(known, source) if name.partition(".")[0] not in later or name in also]
    if changed:
        raise ValueError(
            f"variants {other.name} and {variant.name} share stages 1 and 2 ({variant.shares!r}) but not their settings "
            f"({', '.join(changed)}); give one of them another `shares` name"
        )


def _check_continues(cfg: Config, variant: VariantConfig, after: Config, other: VariantConfig) -> None:
    before = variant_config(cfg, other)
    changed = [name for name in differences(before, after) if name != "ppo.steps"]
    changed += [name for name in differences(other, variant) if name not in ("name", "settings", "continues")]
    if changed:
        raise ValueError(
            f"variant {variant.name} continues {other.name} and can differ from it in ppo.steps alone, not in {', '.join(changed)}"
        )
    if after.ppo.steps <= before.ppo.steps:
        raise ValueError(
            f"variant {variant.name} continues {other.name} and needs more than its {before.ppo.steps} ppo.steps"
        )


def variant_config(cfg: Config, variant: VariantConfig) -> Config:
    """The run's config with the variant's settings, for its stage 3 and its evaluation.

    Raises:
        ValueError: an unknown setting or an invalid value (the message names the variant).
    """
    result = _apply(cfg, variant, variant.settings)
    if variant.sft and result.agent.prompt_after_sft != "same":
        result.agent.prompt = result.agent.prompt_after_sft
    return result


def played_config(cfg: Config, variant: VariantConfig) -> Config:
    """``variant_config`` whose ``env.state_format`` is the variant's, as in its stage 3 and its evaluation.

    Raises:
        ValueError: as ``variant_config``.
    """
    result = variant_config(cfg, variant)
    result.env.state_format = variant.state_format
    return result


def overruled(cfg: Config, settings: Sequence[str], variants: Iterable[VariantConfig]) -> list[str]:
    """A line for each ``key=value`` setting of a command that a variant replaces by its own, in all stages or in 1 and 2."""
    lines = []
    for variant in variants:
        played, source = played_config(cfg, variant), source_config(cfg, variant)
        for setting in settings:
            key = split_override(setting)[0]
            if key == "sft.data" and cfg.sft.data and needs_sft(cfg, variant) and not given_data(cfg, variant):
                lines.append(f"{setting} has no effect in variant {variant.name}, which has a stage 1 of its own")
            elif own := _replaced(key, cfg, played):
                lines.append(f"{setting} has no effect in variant {variant.name}, which sets {own}")
            elif needs_sft(cfg, variant) and (own := _replaced(key, cfg, source)):
                lines.append(f"{setting} has no effect in stages 1 and 2 of variant {variant.name}, which set {own}")
    return lines


def _replaced(key: str, cfg: Config, changed: Config) -> str:
    """``KEY=VALUE`` as ``changed`` has it where it is not that of ``cfg``, else empty; of an entry of a dictionary that entry."""
    name = next((name for name in differences(cfg, changed) if f"{key}.".startswith(f"{name}.")), None)
    if name is None:
        return ""
    before: Any = reduce(getattr, name.split("."), cfg)
    after: Any = reduce(getattr, name.split("."), changed)
    if isinstance(after, dict) and (entry := key.removeprefix(f"{name}.")) in after:
        return "" if before.get(entry) == after[entry] else f"{key}={after[entry]}"  # it may change other entries
    return f"{name}={after}"


def own_steps(cfg: Config, variant: VariantConfig) -> int:
    """The PPO steps that a variant makes itself: those of the variant that it ``continues`` are made before."""
    before = variant_config(cfg, variant_named(cfg, variant.continues)).ppo.steps if variant.continues else 0
    return variant_config(cfg, variant).ppo.steps - before


def source_config(cfg: Config, variant: VariantConfig | None) -> Config:
    """The config of a variant's stages 1 and 2: its settings and those of its source; without a variant, the run's config.

    Raises:
        ValueError: as ``variant_config``.
    """
    return copy.deepcopy(cfg) if variant is None else _apply(cfg, variant, {**variant.settings, **variant.source})


def _apply(cfg: Config, variant: VariantConfig, settings: Mapping[str, Any]) -> Config:
    rest = dict(settings)
    try:
        if isinstance(rest.get("env"), str):
            cfg = replace(cfg, env=joining(env_block(rest.pop("env")), cfg.env))
        return from_mapping(Config, rest, cfg)
    except ValueError as error:
        raise ValueError(f"variant {variant.name}: {error}") from error


def selfplay_name(variant: VariantConfig | None) -> str:
    """Name of the variant's own self-play data; empty if it uses the run's."""
    if variant is None:
        return ""
    touched = any(_in_stage_1(key) for key in [*_dotted(variant.settings), *_dotted(variant.source)])
    return variant.selfplay or variant.shares or (variant.name if touched else "")


def selfplay_folder(out: Path, variant: VariantConfig | None) -> Path:
    """Where the variant's stage 1 writes: ``selfplay`` or ``selfplay-NAME``."""
    name = selfplay_name(variant)
    return out / (f"selfplay-{name}" if name else "selfplay")


def given_data(cfg: Config, variant: VariantConfig | None) -> str | None:
    """The ``sft.data`` that the variant's stage 2 reads, so that it needs no stage 1; None without."""
    if selfplay_name(variant):  # the run's takes the place of the run's stage 1 alone
        cfg = replace(cfg, sft=replace(cfg.sft, data=None))
    data = source_config(cfg, variant).sft.data
    return data and str(expanded(data))


def needs_sft(cfg: Config, variant: VariantConfig) -> bool:
    """Whether the variant starts from its stage 2: not where ``ppo.start`` names another model."""
    return variant.sft and not (variant.rl and variant_config(cfg, variant).ppo.start)


def imagines(cfg: Config, variant: VariantConfig) -> bool:
    """Whether the variant's stage 3 trains in worlds that its stage 2 imagines."""
    curriculum = variant_config(cfg, variant).curriculum
    return variant.rl and curriculum.imagined > 0 and not curriculum.imagined_file


def selfplay_variants(cfg: Config, command: str, variants: Sequence[VariantConfig]) -> list[VariantConfig | None]:
    """Those of ``variants`` whose stage 1 a command runs; None is the run's."""
    if command == "generate":
        return [*variants] or [None]
    return [v for v in variants if command == "run" and needs_sft(cfg, v) and not given_data(cfg, v)]


def sft_variants(cfg: Config, command: str, variants: Sequence[VariantConfig]) -> list[VariantConfig | None]:
    """Those of ``variants`` whose stage 2 a command runs; None is the run's."""
    if command == "sft":
        return [*variants] or [None]
    return [v for v in variants if command == "run" and needs_sft(cfg, v)]


def practice_variants(cfg: Config, command: str, variants: Sequence[VariantConfig]) -> list[VariantConfig]:
    """Those of ``variants`` whose practice a command runs, the first of those that share it."""
    chosen: dict[Path, VariantConfig] = {}
    for variant in variants:
        if variant.practice and (command == "practice" or (command == "run" and needs_sft(cfg, variant))):
            chosen.setdefault(practice_folder(Path(), variant), variant)
    return list(chosen.values())


def shared_stages(
    cfg: Config, out: Path, variants: Sequence[VariantConfig]
) -> tuple[dict[Path, VariantConfig | None], dict[Path, VariantConfig | None], dict[Path, VariantConfig]]:
    """The folders of a ``spa run``'s stages 1 and 2 and of its practice, each with the first variant that uses it."""
    return (
        {selfplay_folder(out, each): each for each in reversed(selfplay_variants(cfg, "run", variants))},
        {sft_folder(out, each): each for each in reversed(sft_variants(cfg, "run", variants))},
        {practice_folder(out, each): each for each in practice_variants(cfg, "run", variants)},
    )


def data_folder(cfg: Config, variant: VariantConfig | None, out: Path) -> Path:
    """The input data of the variant's stage 2."""
    return Path(data) if (data := given_data(cfg, variant)) else selfplay_folder(out, variant)


def sft_name(variant: VariantConfig | None) -> str:
    """Name of the variant's own stage 2; empty if no setting of stages 1 and 2 differs from the run's."""
    if variant and any(key.partition(".")[0] not in _LATER for key in [*variant.settings, *variant.source]):
        return variant.shares or variant.name
    return ""


def sft_folder(out: Path, variant: VariantConfig | None) -> Path:
    """Where the variant's stage 2 writes: ``sft`` or ``sft-NAME``."""
    name = sft_name(variant)
    return out / (f"sft-{name}" if name else "sft")


def command_of(stage: str, variant: VariantConfig | None) -> str:
    """What a run folder records as a command: ``"ppo spa"``; ``"generate"`` where stage 1 is the run's."""
    names = {"run": "", "generate": selfplay_name(variant), "sft": sft_name(variant)}
    if variant and variant.shares:
        names["practice"] = variant.shares
    return f"{stage} {names.get(stage, variant.name if variant else '')}".rstrip()


def practice_folder(out: Path, variant: VariantConfig) -> Path:
    """Where a variant's practice in imagination writes."""
    return out / f"practice-{variant.shares or variant.name}"


def dream_folder(out: Path, variant: VariantConfig) -> Path:
    """The folder of the worlds imagined by a variant's stage 2."""
    return out / f"imagined-{variant.shares or variant.name}"


def changes_nothing(cfg: Config, variant: VariantConfig) -> bool:
    """Whether the variant's settings equal the run's, so that it repeats another variant."""
    return bool(variant.settings or variant.source) and not differences(cfg, source_config(cfg, variant))
