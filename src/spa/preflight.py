"""Checks that run before a command writes anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from spa.agent.response import forced_tag
from spa.cautions import cautions, changed_world, split_by_symmetry
from spa.common.files import sweep
from spa.common.lock import check_free, locked
from spa.common.progress import note
from spa.config.schema import SIMULATOR, Config, PPOConfig, SFTConfig, VariantConfig, check_ppo_sampling
from spa.config.variants import (
    check_variants,
    command_of,
    given_data,
    imagines,
    needs_sft,
    practice_variants,
    selfplay_folder,
    selfplay_variants,
    sft_folder,
    sft_variants,
    source_config,
    variant_config,
)
from spa.envs.actions import check_names
from spa.envs.check_texts import CLOSE
from spa.envs.checked import WorldError
from spa.models.folders import check_folder, resolve_path
from spa.models.requirements import check_disk, check_lora
from spa.runs.folder import RunFolder
from spa.runs.products import check_evaluated, check_inputs, trained_model
from spa.runs.record import DONE
from spa.runs.stage import model_of
from spa.runs.trackers import check_trackers
from spa.scale import launch, ranks

if TYPE_CHECKING:
    from spa.agent.chat import Chat
    from spa.envs import TextEnv


@contextmanager
def begin(
    cfg: Config, out: Path, stage: str, resume: bool, model: str | None = None, variants: Sequence[VariantConfig] = ()
) -> Iterator[None]:
    """Opens the run folder after all quick checks, so that nothing is written on a mistake.

    Inside the ``with`` block no other process can open it. Of several ranks the main one does all this.
    """
    with ExitStack() as stack:
        ranks.on_main(lambda: stack.enter_context(_begin(cfg, out, stage, resume, model, variants)))
        yield


@contextmanager
def _begin(
    cfg: Config, out: Path, stage: str, resume: bool, model: str | None, variants: Sequence[VariantConfig]
) -> Iterator[None]:
    if launch.needed(cfg):
        raise ValueError(f"launcher={cfg.launcher} is for commands such as `spa run`; from Python use launcher=local")
    check_free(out)
    check_command(cfg, stage, variants, out, model)
    folder, command = RunFolder(out), command_of(stage, variants[0] if variants else None)
    folder.check(cfg, command, resume, variants)
    check_disk(cfg, out, stage, variants)
    with locked(out):
        sweep(out)
        folder.open(cfg, command, resume, _device(cfg), variants)
        try:
            yield
        except BaseException as error:
            with suppress(OSError):  # a full disk hides no error
                folder.close(error)
            raise
        folder.close(None)


def _device(cfg: Config) -> str:
    """The device that models run on, with a GPU's name; empty where the checks needed no torch (a chat server plays)."""
    if "torch" not in sys.modules:
        return ""
    import torch

    from spa.models.load import pick_device

    device = pick_device(cfg.model.device)
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def check_command(
    cfg: Config,
    stage: str,
    variants: Sequence[VariantConfig],
    out: Path,
    model: str | None = None,
    *,
    local_only: bool = False,
) -> None:
    """All checks before a command opens its run folder ``out``; ``--dry-run`` makes the same.

    Args:
        stage: a command.
        model: to evaluate instead of the variant's own.
        local_only: leave out models that would have to be downloaded.

    Raises:
        ValueError: a check failed, or ``out`` lacks what an earlier stage makes.
    """
    from spa.agent.policy import make_task
    from spa.agent.text_checks import check_tokenizer
    from spa.rl.curriculum import training_tasks

    launch.check(cfg, variants)
    check_settings(cfg, stage, variants, model)
    variant = variants[0] if variants else None
    model, _ = check_inputs(cfg, stage, variant, out, model)
    _check_evaluations(cfg, stage, variants, out, model)
    served = _check_players(cfg, stage, model, variants, local_only)
    if stage == "eval" and served and any(variant_config(cfg, variant).agent.planner != "none" for variant in variants):
        raise ValueError("agent.planner needs a local model: use engine=transformers or vllm, not a chat server")
    chat = None if served else _check_model(cfg, model, local_only)
    _check_training(cfg, stage, variants, local_only)
    _check_targets(cfg, stage, variants, local_only)
    _check_references(cfg, stage, variants, local_only)
    for folder, each in {sft_folder(out, each): each for each in sft_variants(cfg, stage, variants)}.items():
        if stage == "sft" or (given_data(cfg, each) and not (folder / DONE).is_file()):
            _, data = check_inputs(cfg, "sft", each, out)
            assert data is not None
            _check_data(source_config(cfg, each), data, chat, local_only)
    players: Sequence[VariantConfig | None] = variants or [None]
    played = {selfplay_folder(out, each): each for each in players}
    changed = (changed_world(source_config(cfg, each), folder) for folder, each in played.items())
    tasks = [make_task(cfg), *(training_tasks(cfg) if cfg.curriculum.mixture else [])] if chat is not None else []
    unwritten = [check_tokenizer(chat, task) for task in tasks if chat is not None]
    notes = [*cautions(cfg, stage, variants), *filter(None, [*unwritten, split_by_symmetry(cfg), *changed])]
    for text in dict.fromkeys(notes):
        note(f"note: {text}")


def _check_evaluations(
    cfg: Config, stage: str, variants: Sequence[VariantConfig], out: Path, model: str | None
) -> None:
    """Refuses finished evaluations of other models than those that the command would evaluate, as far as these are trained."""
    for variant in variants if stage in ("run", "eval") else ():
        if stage == "run":
            try:
                model = trained_model(cfg, variant, out)
            except ValueError:
                continue
        check_evaluated(variant, out, model)


def _check_data(source: Config, data: Path, chat: Chat | None, local_only: bool) -> None:
    """Refuses data that stage 2 could not train on; ``chat`` is None where the model is still to be downloaded."""
    from spa.data.encode import check_rows
    from spa.data.layouts import data_files, read_rows
    from spa.models.load import context_length, load_config
    from spa.sft.train import check_validation

    train, val = data_files(data)
    check_validation(source.sft, val is not None, data)
    if chat is not None:
        rows, skipped, _ = read_rows(train)
        context = None
        with suppress(ValueError):  # its config is not at hand
            context = context_length(load_config(source.model.path, source.model, local_only=local_only))
        check_rows(rows, chat, source.sft, skipped, context)


def _check_training(cfg: Config, stage: str, variants: Sequence[VariantConfig], local_only: bool) -> None:
    """Refuses stages 2 and 3 that do not fit, or of a model that cannot be scored, trained or packed, if its config is at hand."""
    from spa.models.families import check_packing, logit_scale
    from spa.models.load import check_trainable, load_config
    from spa.rl import memory as ppo
    from spa.sft import memory as sft

    played = [source_config(cfg, each) for each in selfplay_variants(cfg, stage, variants)]
    tuned = [source_config(cfg, each) for each in sft_variants(cfg, stage, variants)]
    tuned += filter(lambda source: source.selfplay.warms_up, played)
    checks: list[tuple[Config, str, Callable[..., None]]] = [(each, "sft", sft.check_memory) for each in tuned]
    if stage in ("run", "ppo"):
        checks += [(variant_config(cfg, each), "ppo", ppo.check_memory) for each in variants if each.rl]
    for stage_cfg, name, check in checks:
        try:
            model = load_config(stage_cfg.model.path, stage_cfg.model, local_only=local_only)
        except ValueError:
            continue
        with _named(f"model.path={stage_cfg.model.path}"):
            logit_scale(model)
            check_trainable(model)
            if getattr(stage_cfg, name).packing:
                check_packing(model, f"{name}.packing")
        check(stage_cfg, local_only=local_only)


def _check_targets(cfg: Config, stage: str, variants: Sequence[VariantConfig], local_only: bool) -> None:
    """Refuses ``lora_targets`` that name no layer; a model whose config is not at hand is left out."""
    from spa.models.load import load_config
    from spa.models.lora import add_lora
    from spa.models.memory import empty_model

    adapted: list[tuple[Config, SFTConfig | PPOConfig, str]] = []
    for source in [source_config(cfg, each) for each in sft_variants(cfg, stage, variants)]:
        if source.sft.lora_rank:
            adapted.append((source, source.sft, source.model.path))
    for variant in variants if stage in ("run", "ppo") else ():
        each = variant_config(cfg, variant)
        if variant.rl and (each.ppo.lora_rank or each.ppo.critic_lora_rank):
            adapted.append((each, each.ppo, model_of(each.ppo.start or source_config(cfg, variant).model.path)))
    for each, settings, path in adapted:
        if settings.lora_targets == ["all-linear"]:
            continue
        try:
            model = empty_model(load_config(path, each.model, local_only=local_only))
        except ValueError:
            continue
        add_lora(model, settings, rank=1)  # names matter alone


def _check_references(cfg: Config, stage: str, variants: Sequence[VariantConfig], local_only: bool) -> None:
    """Refuses a ``ppo.reference`` that reads other ids than the policy; ``local_only`` leaves out hub names."""
    from spa.models.load import check_quantization, check_same_vocabulary, load_config, load_tokenizer

    for variant in variants if stage in ("run", "ppo") else ():
        each = variant_config(cfg, variant)
        path, ppo = each.ppo.reference, each.ppo
        base = source_config(cfg, variant) if variant.sft else each
        policy = model_of(ppo.start or base.model.path)
        if not (variant.rl and path and ppo.needs_reference):
            continue
        if local_only and not all(Path(resolve_path(name)).is_dir() for name in (path, policy)):
            continue
        with _named(f"ppo.reference={path}"):
            check_same_vocabulary(load_tokenizer(policy, each.model), path, each.model)
            check_quantization(load_config(path, each.model))


def check_out(cfg: Config, out: Path, stage: str, resume: bool, variants: Sequence[VariantConfig]) -> None:
    """Raises ValueError if a command could not use the run folder ``out``; writes nothing."""
    check_free(out)
    RunFolder(out).check(cfg, command_of(stage, variants[0] if variants else None), resume, variants)


def check_settings(cfg: Config, stage: str, variants: Sequence[VariantConfig], model: str | None = None) -> None:
    """Checks shared with ``--dry-run``: worlds and variants, requirements of stage 3 and the trackers, the local models.

    Args:
        stage: a command.
        model: the model to evaluate instead of the variant's own.

    Raises:
        ValueError: a check failed; the message names the setting and, if it belongs to one, the variant.
    """
    from spa.sft.train import check_validation

    check_tasks(cfg, variants)
    _check_worlds(cfg, stage, variants)
    if stage in ("run", "sft", "ppo", "eval"):
        check_trackers(cfg.report.trackers)
    for tuned in sft_variants(cfg, stage, variants):
        source = source_config(cfg, tuned)
        check_lora(source.sft.lora_rank, "sft.lora_rank")
        if not given_data(cfg, tuned):
            check_validation(source.sft, source.selfplay.val_fraction > 0)
    for variant in variants:
        if stage == "ppo" or (stage == "run" and variant.rl):
            with _named(f"variant {variant.name}"):
                variant_cfg = variant_config(cfg, variant)
                check_ppo_sampling(variant_cfg.sampling)
                check_trackers(variant_cfg.report.trackers)
                check_lora(variant_cfg.ppo.lora_rank, "ppo.lora_rank")
                check_lora(variant_cfg.ppo.critic_lora_rank, "ppo.critic_lora_rank")
    for setting, path, tokenizer in _models(cfg, stage, variants, model):
        with _named(setting):
            check_folder(path, tokenizer=tokenizer)


def _models(
    cfg: Config, stage: str, variants: Sequence[VariantConfig], model: str | None
) -> Iterator[tuple[str, str, bool]]:
    """The models that a stage loads, except those of earlier stages: the setting, its value, whether a tokenizer is needed."""
    from spa.sft.selfplay import is_served

    sources = [source_config(cfg, each) for each in selfplay_variants(cfg, stage, variants)]
    for source in sources:
        if source.selfplay.model and not is_served(source):
            yield "selfplay.model", source.selfplay.model, True
        elif stage == "generate" and not is_served(source):
            yield "model.path", source.model.path, True
    for tuned in sft_variants(cfg, stage, variants):
        yield "model.path", source_config(cfg, tuned).model.path, True
    if stage in ("ppo", "run"):
        for variant in variants:
            each = variant_config(cfg, variant)
            ppo = each.ppo
            if variant.rl and ppo.start:
                yield "ppo.start", model_of(ppo.start), True
            elif not variant.sft:
                yield "model.path", each.model.path, True
            if ppo.reference and ppo.needs_reference:
                yield "ppo.reference", ppo.reference, False
    for variant in variants if stage == "eval" else ():
        each = variant_config(cfg, variant)
        if model is not None or not (variant.sft or variant.rl or each.engine.kind == "openai"):
            yield "model", model or each.model.path, True
    planned = [source for source in sources if source.selfplay.policy == "planner"]
    if stage in ("run", "eval"):
        configs = [variant_config(cfg, variant) for variant in variants]
        planned += [each for each in configs if each.agent.planner != "none"]
    for each in planned:
        if each.planner.model not in (None, SIMULATOR):
            yield "planner.model", model_of(each.planner.model, "planner.model"), True


def _check_worlds(cfg: Config, stage: str, variants: Sequence[VariantConfig]) -> None:
    """Refuses worlds that a later stage would find to be too few; a variant with other worlds is left out."""
    from spa.agent.policy import make_task
    from spa.agent.worlds import check_enough
    from spa.rl.curriculum import check_training_worlds

    asked: dict[str, tuple[int, str]] = {}

    def ask(config: Config, split: str, count: int, setting: str = "") -> None:
        if config.env == cfg.env:
            asked[split] = max(asked.get(split, (0, "")), (count, setting))

    if selfplay_variants(cfg, stage, variants):
        ask(cfg, "selfplay", 1)
    for tuned in sft_variants(cfg, stage, variants):
        source = source_config(cfg, tuned)
        ask(source, "val", source.sft.eval_worlds, "sft.eval_worlds")
    for variant in practice_variants(cfg, stage, variants):
        source = source_config(cfg, variant)
        third = max(1, source.practice.worlds // 3)  # as practice divides them
        ask(source, "selfplay", third, "practice.worlds")
        ask(source, "train", source.practice.worlds - third, "practice.worlds")
    for variant in variants:
        each = variant_config(cfg, variant)
        if stage in ("run", "eval"):
            ask(each, "test", each.eval.worlds, "eval.worlds")
        if stage == "ppo" or (stage == "run" and variant.rl):
            ask(each, "val", each.ppo.val_worlds if each.ppo.val_every else 0, "ppo.val_worlds")
            ask(each, "train", 0 if each.curriculum.levels or each.curriculum.mixture else 1)
            if imagines(cfg, variant):
                source = source_config(cfg, variant)
                ask(source, "train", source.curriculum.imagined_worlds, "curriculum.imagined_worlds")
    counts = {split: count for split, (count, _) in asked.items()}
    check_enough(make_task(cfg), counts, cfg.seeds.val, {split: setting for split, (_, setting) in asked.items()})
    check_training_worlds(
        variant_config(cfg, each) for each in variants if stage == "ppo" or (stage == "run" and each.rl)
    )


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Prefixes the message of a ValueError with ``what``."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _check_model(cfg: Config, model: str | None, local_only: bool = False) -> Chat | None:
    """Checks that a local model exists, has a usable template and reads its tokenizer's ids; returns its chat. ``local_only``: None
    for a hub name."""
    from spa.agent.chat import Chat
    from spa.models.families import check_attention
    from spa.models.load import check_model, check_quantization, check_vocabulary, load_config, load_tokenizer

    check_model(cfg.model, model)
    path = model or cfg.model.path
    if local_only and not Path(resolve_path(path)).is_dir():
        return None
    tokenizer = load_tokenizer(path, cfg.model)
    with _named(path):
        check_vocabulary(tokenizer, config := load_config(path, cfg.model))
        check_attention(config)
        if cfg.engine.kind != "vllm":  # it reads quantized weights itself
            check_quantization(config)
    return Chat(tokenizer, forced=forced_tag(cfg.agent.think))


def _check_players(
    cfg: Config, stage: str, model: str | None, variants: Sequence[VariantConfig], local_only: bool
) -> bool:
    """Checks the players of stage 1 and evaluation; True if only a chat server plays."""
    from spa.agent.grammar import response_grammar
    from spa.agent.policy import make_task, sampling_for
    from spa.engines.base import check_engine
    from spa.sft.selfplay import check_source, is_served

    trained = stage in ("run", "ppo") or (stage == "sft" and cfg.sft.eval_worlds > 0)
    if cfg.engine.kind == "vllm" and (trained or stage == "eval"):
        check_engine(cfg.engine, trained=trained)
    elif stage == "eval" and model is None:
        check_engine(cfg.engine)
    if cfg.model.revision and cfg.engine.kind == "vllm":
        raise ValueError("engine=vllm loads no model.revision: download that commit and give its folder as model.path")
    if stage == "run":
        for start in {variant_config(cfg, variant).ppo.start for variant in variants if variant.rl} - {None}:
            _check_model(cfg, model_of(str(start)), local_only)
        bases = [source_config(cfg, each) if each.sft else variant_config(cfg, each) for each in variants]
        for own in {each.model.path: each for each in bases if each.model.path != cfg.model.path}.values():
            _check_model(own, None, local_only)
    for path in {path for setting, path, _ in _models(cfg, stage, variants, model) if setting == "planner.model"}:
        _check_model(cfg, path, local_only)
    sources = [source_config(cfg, each) for each in selfplay_variants(cfg, stage, variants)]
    for source in sources:
        check_source(source)
        play = source.selfplay
        constrained = play.constrained and play.policy == "model"
        chat = _check_model(source, play.model, local_only) if play.model or constrained else None
        if chat is not None and constrained:  # it may leave responses too little room
            task = make_task(source)
            response_grammar(task, chat, sampling_for(task, source.sampling).max_tokens)
    if stage == "eval":
        return cfg.engine.kind == "openai" and model is None
    return stage == "generate" and is_served(sources[0])


def check_planner(cfg: Config, env: TextEnv) -> None:
    """Raises ValueError if ``agent.planner`` could not play, which would otherwise show only after hours."""
    if cfg.agent.planner == "none":
        return
    if cfg.agent.planner == "beam" and not cfg.planner.width:
        raise ValueError("agent.planner=beam needs planner.width above 0: set planner.width=16")
    if (cfg.planner.values or cfg.agent.planner == "best_of_n") and not cfg.practice.values:
        raise ValueError(
            "this planner needs a model that practised with practice.values above 0: set the value with which it did, such as 0.25"
        )
    if cfg.planner.model == SIMULATOR:
        from spa.planning.simulator import check_settable

        check_settable(env)
    check_imaginable(cfg, env)


def check_imaginable(cfg: Config, env: TextEnv) -> None:
    """Raises ValueError if nothing could be imagined of a world: no action to ask about, or states that could not be read from a
    world model's answers."""
    if not env.actions and not cfg.planner.proposals:
        raise ValueError(
            "in a world without listed actions a planner, practice and imagined worlds search what the policy proposes: set "
            "planner.proposals=8"
        )
    with suppress(WorldError):  # which ends an episode of its own
        if CLOSE in env.reset(seed=0)[0]:
            raise ValueError(
                f"this world's states contain {CLOSE!r}, at which a planner stops reading an answer of its model: write them "
                "without it, or use no planner and no practice"
            )


def check_tasks(cfg: Config, variants: Sequence[VariantConfig]) -> None:
    """Checks that the variants are compatible and their worlds can be made.

    Raises:
        ValueError: they are not, or cannot; the message names the variant.
    """
    from spa.agent.policy import make_task
    from spa.agent.text_checks import check_states
    from spa.rl.curriculum import is_real, training_tasks

    check_names(make_task(cfg).started_env().actions, cfg.agent.action_sep)
    check_variants(cfg, variants)
    for variant in variants:
        with _named(f"variant {variant.name}"):
            variant_cfg = variant_config(cfg, variant)
            task = make_task(variant_cfg, state_format=variant.state_format)
            env = task.started_env()
            check_names(env.actions, variant_cfg.agent.action_sep)
            check_planner(variant_cfg, env)
            if variant.practice or imagines(cfg, variant):
                check_imaginable(variant_cfg, env)
            if variant.rl:
                for other in training_tasks(variant_cfg, state_format=variant.state_format):
                    if is_real(other) and other.env != task.env:
                        check_names(other.started_env().actions, variant_cfg.agent.action_sep)
            source = source_config(cfg, variant)
            learnt = make_task(source, state_format=source.selfplay.state_format)
            plans = variant_cfg.agent.planner != "none" and variant_cfg.planner.model is None
            if needs_sft(cfg, variant) and (plans or imagines(cfg, variant)):
                _check_format(learnt.make_env().state_format, env.state_format)
            if needs_sft(cfg, variant) and not given_data(cfg, variant) and source.selfplay.rows == "written":
                check_states(learnt.make_env())


def _check_format(learnt: str, shown: str) -> None:
    """Raises ValueError if a planner or imagined worlds would show states in another format than stage 2 learns."""
    if learnt != shown:
        raise ValueError(
            f"stage 2 learns states written as {learnt} (selfplay.state_format), a planner or imagined worlds show them as "
            f"{shown} (the variant's state_format): set both to the same"
        )
