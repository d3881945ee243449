"""What an arm changes of a run: its settings, and which self-play data and SFT model are its own. Imports no torch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spa.config.load import arm_names, differences, env_block, load_arm
from spa.config.overrides import from_mapping
from spa.config.schema import ArmConfig, Config
from spa.config.validate import validate

# Blocks that stages 1 and 2 do not read.
_LATER = ("ppo", "curriculum", "planner", "practice", "eval", "report", "arms", "name")
_EVALUATED = (
    "agent.planner",
    "planner.model",
    "planner.values",
)  # read by evaluation, and by stage 1 if a planner plays there
_STAGE_1 = ("env", "agent", "model", "engine", "sampling", "selfplay", "seeds")


def arms_of(cfg: Config) -> list[ArmConfig]:
    """The arms that a run compares, the untrained base first.

    Raises:
        ValueError: an arm that does not exist or does not fit the config, two of one name, or two that share the name of a stage 1
            but not its settings.
    """
    arms = [load_arm(name) for name in dict.fromkeys(["base", *cfg.arms])]
    check_arms(cfg, arms)
    for i, arm in enumerate(arms):
        if arm.continues and arm.continues not in [other.name for other in arms[:i]]:
            raise ValueError(f"arm {arm.name} continues {arm.continues}: it needs that arms=[...] names it before")
    return arms


def check_arms(cfg: Config, arms: Iterable[ArmConfig]) -> None:
    """Raises ValueError as ``arms_of``."""
    earlier: dict[str, ArmConfig] = {}
    sources: dict[str, tuple[str, Config]] = {}
    shared: dict[str, tuple[ArmConfig, Config]] = {}
    for arm in arms:
        if arm.name in earlier:
            raise ValueError(f"two arms are named {arm.name!r}")
        stage_3, source = arm_config(cfg, arm), source_config(cfg, arm)
        if arm.continues in earlier:
            _check_continues(cfg, arm, stage_3, earlier[arm.continues])
        earlier[arm.name] = arm
        if not arm.sft:
            continue
        if stage_3.curriculum.imagined and not (arm.sft and source.selfplay.rows == "transitions"):
            raise ValueError(
                f"arm {arm.name} trains in worlds that stage 2 imagines: it needs sft and selfplay.rows=transitions"
            )
        if arm.practice and source.selfplay.rows != "transitions":
            raise ValueError(f"arm {arm.name} practises, which asks about single moves: set selfplay.rows=transitions")
        if arm.shares:
            _check_shares(arm, source, *shared.setdefault(arm.shares, (arm, source)))
        key = selfplay_name(arm)
        other, known = sources.setdefault(key, (arm.name, source))
        changed = [name for name in _differences(known, source) if name.partition(".")[0] in _STAGE_1]
        if changed:
            raise ValueError(
                f"arms {other} and {arm.name} share the self-play data {key or 'of the run'!r} but not its settings "
                f"({', '.join(changed)}); give one of them another `selfplay` name"
            )


def _differences(known: Config, source: Config) -> list[str]:
    """As ``differences``, without what only evaluation reads."""
    plays = "planner" in (known.selfplay.policy, source.selfplay.policy)
    return [name for name in differences(known, source) if plays or name not in _EVALUATED]


def _check_shares(arm: ArmConfig, source: Config, other: ArmConfig, known: Config) -> None:
    """Raises ValueError where two arms of one ``shares`` would not make the same stages 1 and 2 and the same practice."""
    own = set(_LATER) - {"planner", "practice"}
    changed = [name for name in _differences(known, source) if name.partition(".")[0] not in own]
    if changed:
        raise ValueError(
            f"arms {other.name} and {arm.name} share stages 1 and 2 ({arm.shares!r}) but not their settings "
            f"({', '.join(changed)}); give one of them another `shares` name"
        )


def _check_continues(cfg: Config, arm: ArmConfig, own: Config, other: ArmConfig) -> None:
    before = arm_config(cfg, other)
    changed = [name for name in differences(before, own) if name != "ppo.steps"]
    changed += [
        name
        for name in ("state_format", "sft", "practice", "rl", "source", "selfplay", "shares")
        if getattr(arm, name) != getattr(other, name)
    ]
    if changed:
        raise ValueError(
            f"arm {arm.name} continues {other.name} and can differ from it in ppo.steps alone, not in {', '.join(changed)}"
        )
    if own.ppo.steps <= before.ppo.steps:
        raise ValueError(f"arm {arm.name} continues {other.name} and needs more than its {before.ppo.steps} ppo.steps")


def arm_config(cfg: Config, arm: ArmConfig) -> Config:
    """The run's config with the arm's settings: what its stage 3 and its evaluation go by.

    Raises:
        ValueError: a setting that does not exist or cannot have this value (the message names the arm).
    """
    own = _apply(cfg, arm, arm.settings)
    if arm.sft and own.agent.prompt_after_sft != "same":
        own.agent.prompt = own.agent.prompt_after_sft
    return own


def source_config(cfg: Config, arm: ArmConfig | None) -> Config:
    """What the arm's stages 1 and 2 go by: its settings and those of its source; without an arm the run's own config.

    Raises:
        ValueError: as ``arm_config``.
    """
    return copy.deepcopy(cfg) if arm is None else _apply(cfg, arm, {**arm.settings, **arm.source})


def _apply(cfg: Config, arm: ArmConfig, settings: Mapping[str, Any]) -> Config:
    result = copy.deepcopy(cfg)
    rest = dict(settings)
    try:
        if isinstance(rest.get("env"), str):
            result.env = env_block(rest.pop("env"))
        result = from_mapping(Config, rest, result)
        validate(result, [*arm_names(), *result.arms])
    except ValueError as error:
        raise ValueError(f"arm {arm.name}: {error}") from error
    return result


def selfplay_name(arm: ArmConfig | None) -> str:
    """Name of the arm's own self-play data; empty where it uses the run's."""
    if arm is None:
        return ""
    touched = any(key.partition(".")[0] in _STAGE_1 for key in [*arm.settings, *arm.source])
    return arm.selfplay or arm.shares or (arm.name if touched else "")


def selfplay_folder(out: Path, arm: ArmConfig | None) -> Path:
    """Where the arm's stage 1 writes: ``selfplay`` or ``selfplay-NAME``."""
    name = selfplay_name(arm)
    return out / (f"selfplay-{name}" if name else "selfplay")


def given_data(cfg: Config, arm: ArmConfig | None) -> bool:
    """Whether the arm's stage 2 reads ``sft.data`` and so needs no stage 1."""
    return bool(cfg.sft.data) and not selfplay_name(arm)


def needs_sft(cfg: Config, arm: ArmConfig) -> bool:
    """Whether the arm starts from its stage 2: not where ``ppo.start`` names another model."""
    return arm.sft and not (arm.rl and arm_config(cfg, arm).ppo.start)


def data_folder(cfg: Config, arm: ArmConfig | None, out: Path) -> Path:
    """What the arm's stage 2 reads."""
    return Path(str(cfg.sft.data)) if given_data(cfg, arm) else selfplay_folder(out, arm)


def sft_folder(out: Path, arm: ArmConfig | None) -> Path:
    """Where the arm's stage 2 writes: ``sft``, or ``sft-ARM`` where it differs from the run's in any setting of stages 1 and 2."""
    own = arm is not None and any(key.partition(".")[0] not in _LATER for key in [*arm.settings, *arm.source])
    return out / (f"sft-{arm.shares or arm.name}" if arm is not None and own else "sft")


def practice_folder(out: Path, arm: ArmConfig) -> Path:
    """Where an arm's practice in imagination writes."""
    return out / f"practice-{arm.shares or arm.name}"


def dream_folder(out: Path, arm: ArmConfig) -> Path:
    """Where the worlds that an arm's stage 2 imagines are."""
    return out / f"imagined-{arm.shares or arm.name}"


def changes_nothing(cfg: Config, arm: ArmConfig) -> bool:
    """Whether the arm's settings are already the run's, so that it repeats another arm."""
    return bool(arm.settings or arm.source) and not differences(cfg, source_config(cfg, arm))
