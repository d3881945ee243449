"""What is checked before a command writes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spa.common.lock import check_free, locked
from spa.config.schema import SIMULATOR, ArmConfig, Config
from spa.config.validate import check_ppo_sampling
from spa.config.variants import arm_config, check_arms, data_folder, given_data, needs_sft, source_config
from spa.models.folders import check_folder
from spa.run.folder import RunFolder
from spa.run.stage import model_of
from spa.run.trackers import check_trackers

if TYPE_CHECKING:
    from spa.agent.chat import Chat
    from spa.envs import TextEnv


@contextmanager
def begin(
    cfg: Config, out: Path, command: str, resume: bool, model: str | None = None, arms: Sequence[ArmConfig] = ()
) -> Iterator[None]:
    """Opens the run folder, after everything that can be checked quickly was: nothing is written for a mistake.

    In the block no other process can open it.
    """
    check_free(out)
    stage = command.partition(" ")[0]
    check_settings(cfg, stage, arms, model if stage == "eval" else None)
    served = _check_players(cfg, stage, model, arms)
    if stage == "eval" and served and any(arm_config(cfg, arm).agent.planner != "none" for arm in arms):
        raise ValueError(
            "agent.planner needs a model that can be asked: use engine=transformers or vllm, not a chat server"
        )
    chat = None if served else _check_model(cfg, model)
    if stage == "generate" or (stage == "run" and any(needs_sft(cfg, arm) for arm in arms)):
        from spa.sft.selfplay import row_window

        row_window(cfg)
    if stage == "sft":
        from spa.data.dataset import read_rows
        from spa.data.encode import check_rows
        from spa.sft.stage2 import data_files

        arm_or_none = arms[0] if arms else None
        rows, skipped = read_rows(data_files(data_folder(cfg, arm_or_none, out))[0])
        assert chat is not None
        check_rows(rows, chat, source_config(cfg, arm_or_none).sft, skipped)
    folder = RunFolder(out)
    folder.check(cfg, command, resume)
    with locked(out):
        folder.open(cfg, command, resume)
        yield


def check_settings(cfg: Config, stage: str, arms: Sequence[ArmConfig], model: str | None = None) -> None:
    """What ``--dry-run`` checks as well: worlds and arms, what stage 3 and the trackers need, the local models.

    Args:
        stage: a command.
        model: what is evaluated instead of the arm's own.

    Raises:
        ValueError: something is wrong; the message names the setting, and the arm if it is an arm's.
    """
    check_tasks(cfg, arms)
    if stage in ("run", "sft", "ppo"):
        check_trackers(cfg.report.trackers)
    for arm in arms:
        if stage == "ppo" or (stage == "run" and arm.rl):
            with _named(f"arm {arm.name}"):
                own = arm_config(cfg, arm)
                check_ppo_sampling(own.sampling)
                check_trackers(own.report.trackers)
    for setting, path, tokenizer in _models(cfg, stage, arms, model):
        with _named(setting):
            check_folder(path, tokenizer=tokenizer)


def _models(cfg: Config, stage: str, arms: Sequence[ArmConfig], model: str | None) -> Iterator[tuple[str, str, bool]]:
    """The models that a stage loads, but for those of earlier stages: the setting, its value, whether a tokenizer is needed."""
    from spa.sft.selfplay import is_served

    if stage in ("generate", "sft", "run"):
        tuned: Sequence[ArmConfig | None] = [a for a in arms if needs_sft(cfg, a)] if stage == "run" else arms or [None]
        for arm in tuned:
            source = source_config(cfg, arm)
            plays = stage == "generate" or (stage == "run" and not given_data(cfg, arm))
            policy = source.selfplay.model if plays and not is_served(source) else None
            if policy:
                yield "selfplay.model", policy, True
            if stage != "generate" or not (policy or is_served(source)):
                yield "model.path", source.model.path, True
    if stage in ("ppo", "run"):
        for arm in arms:
            ppo = arm_config(cfg, arm).ppo
            if arm.rl and ppo.start:
                yield "ppo.start", model_of(ppo.start), True
            elif not arm.sft:
                yield "model.path", cfg.model.path, True
            if ppo.reference and (ppo.kl_reward_coef or ppo.kl_loss_coef):
                yield "ppo.reference", ppo.reference, False
    if stage == "eval":
        untrained = any(not (arm.sft or arm.rl) and arm_config(cfg, arm).engine.kind != "openai" for arm in arms)
        if model is not None or untrained:
            yield "model", model or cfg.model.path, True


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Puts ``what`` before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _check_model(cfg: Config, model: str | None) -> Chat:
    """Whether a local model is there and has a usable template; its chat."""
    from spa.agent.chat import Chat
    from spa.models.load import check_model, load_tokenizer

    check_model(cfg.model, model)
    return Chat(load_tokenizer(model or cfg.model.path))


def _check_players(cfg: Config, stage: str, model: str | None, arms: Sequence[ArmConfig]) -> bool:
    """Whether those that are to play in stage 1 and in evaluation can; True if nothing but a chat server plays."""
    from spa.engines.base import check_engine
    from spa.sft.selfplay import check_source, is_served

    if stage == "eval" or (stage == "run" and cfg.engine.kind == "vllm"):
        local = cfg.engine.kind == "openai" and model is not None
        if not local:
            check_engine(cfg.engine)
    if stage == "run":
        for start in {arm_config(cfg, arm).ppo.start for arm in arms if arm.rl} - {None}:
            _check_model(cfg, model_of(str(start)))
    sources: list[Config] = []
    if stage == "generate":
        sources = [source_config(cfg, arms[0] if arms else None)]
    elif stage == "run":
        sources = [source_config(cfg, arm) for arm in arms if needs_sft(cfg, arm) and not given_data(cfg, arm)]
    for source in sources:
        check_source(source)
        if source.selfplay.model:
            _check_model(source, source.selfplay.model)
    if stage == "eval":
        return cfg.engine.kind == "openai" and model is None
    return stage == "generate" and is_served(sources[0])


def check_planner(cfg: Config, env: TextEnv) -> None:
    """Raises ValueError where ``agent.planner`` could not play, which would be noticed after hours."""
    if cfg.agent.planner == "none":
        return
    if cfg.agent.planner == "beam" and not cfg.planner.width:
        raise ValueError("agent.planner=beam follows planner.width states of a layer: set planner.width=16")
    if not env.actions and not cfg.planner.proposals:
        raise ValueError(
            "in a world without listed actions a planner searches what the policy proposes: set planner.proposals=8"
        )
    if (cfg.planner.values or cfg.agent.planner == "best_of_n") and not cfg.practice.values:
        raise ValueError(
            "what moves are worth is learnt in practice: set practice.values=0.25, in an arm that practises (plan, spa_plan)"
        )
    if cfg.planner.model == SIMULATOR:
        from spa.planning.simulator import check_settable

        check_settable(env)


def check_tasks(cfg: Config, arms: Sequence[ArmConfig]) -> None:
    """Whether the arms fit each other and their worlds can be made.

    Raises:
        ValueError: they do not, or cannot; the message names the arm.
    """
    from spa.agent.policy import make_task
    from spa.rl.curriculum import training_tasks

    make_task(cfg)
    check_arms(cfg, arms)
    for arm in arms:
        with _named(f"arm {arm.name}"):
            own = arm_config(cfg, arm)
            check_planner(own, make_task(own, state_format=arm.state_format).make_env())
            if arm.rl:
                training_tasks(own, state_format=arm.state_format)
            source = source_config(cfg, arm)
            make_task(source, state_format=source.selfplay.state_format)
