"""``spa diagnose``: small measurements of the recipe's prospects with a world and a model, before hours of training."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import numpy as np
import torch

from spa.agent.episode import Episode
from spa.agent.policy import Policy, make_task
from spa.agent.random_engine import RandomEngine, random_responder
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource, check_enough
from spa.common.errors import error_message
from spa.common.progress import note, progress
from spa.config.load import load_variant
from spa.config.schema import Config, EngineConfig, VariantConfig
from spa.config.seeds import EVAL, PROBE, ROLLOUT, first_seed, stream_seed
from spa.config.variants import (
    given_data,
    needs_sft,
    own_steps,
    selfplay_folder,
    selfplay_variants,
    sft_folder,
    source_config,
    variant_config,
    variants_of,
)
from spa.data.encode import encode_rows
from spa.data.layouts import read_rows, write_rows
from spa.diagnose.advice import FEW, Base, Diagnosis, Learned, Planned, States, VariantTime
from spa.envs.check_markov import Outcomes, outcomes
from spa.envs.checked import WorldError
from spa.evaluate.bootstrap import Interval, bootstrap_mean
from spa.evaluate.perplexity import FORMATS, perplexity_by_format, random_guess
from spa.evaluate.planned import PREFIX, expected_wins, imagination_metrics, planning_model
from spa.evaluate.play import play_chunks
from spa.evaluate.probe import measure_episodes
from spa.evaluate.summary import WorldResult, group_worlds, pass_interval
from spa.models.load import check_model
from spa.planning.play import play_with_planner
from spa.preflight import check_imaginable, check_settings
from spa.rl.filters import group_indices, informative
from spa.rl.trainer import PPOTrainer
from spa.rl.update import update
from spa.sft.selfplay import check_source, selfplay, selfplay_task, training_rows
from spa.sft.stage2 import run_sft
from spa.sft.warmup import cold_start, unplayed_worlds

SAMPLES = 2  # of the base in each world
GROUP_SIZE = 2  # episodes a world of the small stage 1
# For the small stage 2, which must learn much from few rows. One seed, FrozenLake and sokoban_easy, one action a turn: 240 steps of
# 16 rows at the config's rate made 37% and 28% of the predictions right, at twice the rate 69% and 37%.
BATCH = 16
FASTER = 2.0
SAMPLES = 4  # answers to a planner's question where chance decides, unless the settings ask for more
RANDOM_EPISODES = 200  # for detecting hidden information
MOST_ACTIONS = 12  # listed actions with which lookahead is affordable
MOST_QUESTIONS = 400  # of the planner, per decision
IMAGINED_WORLDS = 16
PROBED = 32  # episodes for timing a variant's stage 1
PPO_GROUPS = 8  # worlds for timing a variant's PPO step
_NEVER = 10**9


def check(cfg: Config) -> list[VariantConfig]:
    """The variants of a config that can be diagnosed.

    Raises:
        ValueError: a chat server; a world, model or variant that does not exist; as ``check_source``.
    """
    if cfg.engine.kind == "openai":
        raise ValueError("spa diagnose trains the model, which a chat server does not allow: use engine=transformers")
    cfg = dataclasses.replace(cfg, report=dataclasses.replace(cfg.report, trackers=[]))
    variants = variants_of(cfg)
    check_model(cfg.model)
    check_settings(cfg, "run", variants)
    for variant in selfplay_variants(cfg, "run", variants):
        check_source(source_config(cfg, variant))
    return variants[1:]  # without the base


def diagnose(cfg: Config, out: Path, *, worlds: int, groups: int, steps: int) -> Diagnosis:
    """Measures everything; writes only the output of the small stages, into ``out``.

    Args:
        worlds: validation worlds to play.
        groups: worlds of the small stage 1.
        steps: optimizer steps of the small stage 2 (it may take more, but fewer than twice as many).

    Raises:
        ValueError: as ``check``, or the world has too few validation worlds.
    """
    variants = check(cfg)
    begun = time.perf_counter()
    cfg = dataclasses.replace(cfg, engine=EngineConfig())  # here the trained model plays, whichever engine plays later
    task = make_task(cfg)
    check_enough(task, {"val": worlds}, cfg.seeds.val, {"val": "--worlds"})
    chosen = WorldSource(task, "val", cfg.seeds.val, unique=True).take(worlds)
    hidden = _hidden(task)
    policy = Policy.load(cfg)
    base, played = _base(cfg, policy, task, chosen)
    states = _states(cfg, policy, task, chosen)
    learned: Learned | str
    planned: Planned | str
    speed = None
    try:
        small = _small(cfg, base, hidden, groups)
        folder, learned, speed = _stage_2(small, steps, out)
        tuned = Policy.load(small, str(folder))
        learned = _world_model(small, tuned, chosen, learned)
        planned = _planned(small, tuned, chosen, played)
        tuned.close()
    except (ValueError, torch.OutOfMemoryError) as error:  # a finding: no rows, or a model that does not fit
        learned = planned = error_message(error)
    times = [_time(cfg, variant, policy, speed) for variant in progress(variants, "times of the variants")]
    policy.close()
    return Diagnosis(
        selfplay=cfg.selfplay.policy,
        name=cfg.name,
        model=cfg.model.path,
        worlds=worlds,
        base=base,
        states=states,
        hidden=hidden,
        learned=learned,
        planned=planned,
        times=times,
        total=_total(variants, times),
        seconds=time.perf_counter() - begun,
    )


def _hidden(task: Task) -> Outcomes:
    try:
        return outcomes(task.make_env, RANDOM_EPISODES)
    except WorldError as error:
        if error.refused:
            return Outcomes("unknown", "skipped: the world lists no actions and has no sample_action")
        return Outcomes("unknown", f"skipped: {error}")


def _base(cfg: Config, policy: Policy, task: Task, worlds: list[World]) -> tuple[Base, dict[str, list[WorldResult]]]:
    """The untrained model compared with random play, and the successes of both (``base``, ``random``) in each world."""
    run = cfg.seeds.run
    episodes = play_chunks(policy, task, worlds, SAMPLES, run, EVAL, "base")
    if all(episode.failed for episode in episodes):
        raise ValueError(f"every episode failed; the first error: {episodes[0].error}")
    try:
        blind = dataclasses.replace(policy, engine=RandomEngine(policy.chat, random_responder(task)))
        guesses = play_chunks(blind, task, worlds, SAMPLES, run, EVAL, "random policy")
    except ValueError:
        guesses = []
    sound = [episode for episode in episodes if not episode.failed]
    turns = [turn for episode in sound for turn in episode.turns]
    results = {"base": group_worlds(episodes)} | ({"random": group_worlds(guesses)} if guesses else {})
    base = Base(
        format_rate=float(np.mean([turn.format_ok for turn in turns])),
        valid_turns=float(np.mean([turn.valid for turn in turns])),
        pass_1=pass_interval(results["base"], 1, cfg.eval.bootstrap, run),
        random=float(np.mean([episode.success for episode in guesses])) if guesses else None,
        failed=1 - len(sound) / len(episodes),
        over_random=_difference(cfg, results["base"], results["random"]) if guesses else None,
        limited=float(
            np.mean([episode.status == "truncated" and _at_limit(episode, task) for episode in [*sound, *guesses]])
        ),
        scores_differ=bool(informative(group_indices(sound), [episode.total_reward for episode in sound])),
    )
    return base, results


def _at_limit(episode: Episode, task: Task) -> bool:
    """Whether a limit of the run, not one of the world, ended an episode."""
    actions = sum(len(turn.executed) for turn in episode.turns)
    return actions >= task.env.max_actions or len(episode.turns) >= task.env.max_turns


def _difference(cfg: Config, ours: list[WorldResult], theirs: list[WorldResult]) -> Interval:
    """Pass@1 of one minus that of the other, on the same worlds."""
    shares, other = (np.array([each.successes / each.samples for each in results]) for results in (ours, theirs))
    return bootstrap_mean(shares - other, cfg.eval.bootstrap, cfg.seeds.run, least=-1, most=1)


def _can_sample(task: Task) -> bool:
    try:
        env = task.make_env()
        env.reset(seed=0)
        return env.random_action(np.random.default_rng(0)) is not None
    except WorldError:
        return False


def _states(cfg: Config, policy: Policy, task: Task, worlds: Sequence[World]) -> States:
    scored = perplexity_by_format(cfg, policy, task, worlds, seed=cfg.seeds.run)
    raw, coordinates = (scored[name].perplexity if name in scored else None for name in FORMATS)
    guess = random_guess(task, len(policy.tokenizer))
    return States(raw, coordinates, guess, cells=bool(task.make_env().num_cell_values))


def _small(cfg: Config, base: Base, hidden: Outcomes, groups: int) -> Config:
    """Small stages 1 and 2 with the planning variants' settings; random play if the base cannot play."""
    small = source_config(cfg, load_variant("search"))
    play, tune = small.selfplay, small.sft
    # Values are learned in practice alone, and best_of_n chooses by them.
    kind = cfg.agent.planner if cfg.agent.planner not in ("none", "best_of_n") else "lookahead"
    small.agent = dataclasses.replace(small.agent, planner=kind)
    # Its own predictions, not the simulator's.
    small.planner = dataclasses.replace(small.planner, model=None, values=False)
    small.env.state_format = play.state_format  # what it plays is what it learned
    play.model, play.groups, play.group_size, play.val_fraction = None, groups, GROUP_SIZE, 0.0
    play.success_only, play.balance, play.states = False, "none", "truth"
    play.deduplicate = hidden.kind == "certain"
    if hidden.kind == "chance" and small.planner.samples == 1:
        small.planner.samples = SAMPLES
    if play.policy == "planner":  # which needs a trained model
        play.policy = "model"
    if base.valid_turns < FEW and base.random is not None:
        play.policy = "random"
    tune.data, tune.eval_worlds, tune.eval_every, tune.patience, tune.use = None, 0, 0, 0, "last"
    tune.batch_size, tune.lr = min(tune.batch_size, BATCH), FASTER * tune.lr
    tune.save_every, tune.keep_checkpoints, tune.log_every = _NEVER, 1, 1
    return small


def _stage_2(cfg: Config, steps: int, out: Path) -> tuple[Path, Learned, float]:
    """The model of a small stage 2, its training data, and tokens per second."""
    data = out / "selfplay"
    data.mkdir(parents=True, exist_ok=True)
    selfplay(cfg, data)
    file = data / "train.parquet"
    rows, *_ = read_rows(file)
    most = steps * cfg.sft.batch_size
    if len(rows) > most:
        chosen = np.random.default_rng(cfg.seeds.run).permutation(len(rows))[:most]
        rows = [rows[i] for i in sorted(chosen)]
        write_rows(file, rows)
    per_epoch = math.ceil(len(rows) / cfg.sft.batch_size)
    cfg.sft.epochs = math.ceil(steps / per_epoch)
    rates: list[float] = []

    def log(step: int, metrics: dict[str, float]) -> None:
        rates.extend(value for name, value in metrics.items() if name == "train/tokens_per_second")

    folder = run_sft(cfg, out / "sft", data=data, resume=False, log=log)
    learned = Learned(cfg.selfplay.policy, rows=len(rows), steps=per_epoch * cfg.sft.epochs)
    return folder, learned, median(rates)


def _world_model(cfg: Config, policy: Policy, worlds: list[World], learned: Learned) -> Learned:
    """``learned`` with the model's accuracy on validation worlds."""
    run = cfg.seeds.run
    task = make_task(cfg, prompt="world_model")
    episodes = play_chunks(policy, task, worlds, 1, run, PROBE, "predictions")
    measured = measure_episodes(cfg, policy, task, episodes, [], run)
    depth = min(cfg.planner.depth, cfg.env.max_actions)
    walks: dict[str, float] = {}
    if _can_sample(task):
        with planning_model(cfg, policy, make_task(cfg)) as world_model:
            walks = imagination_metrics(world_model, task, worlds[:IMAGINED_WORLDS], depth=depth, seed=run)
    exact = {d: walks.get(f"{PREFIX}depth_{d}/exact") for d in range(1, depth + 1)}
    areas = (walks.get(f"{PREFIX}depth_{d}/ended_auc") for d in exact)
    return dataclasses.replace(
        learned,
        prediction=measured.get("world_model/prediction_em"),
        turns=int(measured["world_model/predictions"]),
        top1=measured.get("calibration/top1"),
        chance=measured.get("calibration/chance"),
        imagined={d: share for d, share in exact.items() if share is not None},
        ended_auc=next((area for area in areas if area is not None), None),
    )


def _planned(cfg: Config, policy: Policy, worlds: list[World], rivals: dict[str, list[WorldResult]]) -> Planned | str:
    """The planner's result on the worlds of its ``rivals`` (``_base``), or why it was not tried."""
    task, kind = make_task(cfg), cfg.agent.planner
    env = task.started_env()
    try:
        check_imaginable(cfg, env)
    except ValueError as error:
        return str(error)
    actions = len(env.actions)
    if actions > MOST_ACTIONS and kind == "lookahead":
        return f"{actions} listed actions are too many for a lookahead; agent.planner=mcts can search them"
    most = min(cfg.planner.max_questions or MOST_QUESTIONS, MOST_QUESTIONS)
    with progress(1, f"planning ({kind})") as bar, planning_model(cfg, policy, make_task(cfg)) as world_model:
        episodes = play_with_planner(
            world_model, task, worlds, kind, dataclasses.replace(cfg.planner, max_questions=most), seed=cfg.seeds.run
        )
        bar.advance()
    results = group_worlds(episodes)
    wins = expected_wins(episodes)
    return Planned(
        kind=kind,
        pass_1=pass_interval(results, 1, cfg.eval.bootstrap, cfg.seeds.run),
        gain=_difference(cfg, results, rivals["base"]),
        questions=world_model.usage.questions / len(episodes),
        wins_expected=len(wins),
        wins_true=sum(wins) / len(wins) if wins else None,
        over_random=_difference(cfg, results, rivals["random"]) if "random" in rivals else None,
    )


def _time(cfg: Config, variant: VariantConfig, policy: Policy, speed: float | None) -> VariantTime:
    """Estimated time of a variant's stages from small measurements; ``speed`` is that of stage 2, in tokens per second."""
    episode: float | None = 0.0
    row_rate: float | None = None
    step: float | None = 0.0
    stage_1: float | None = 0.0
    stage_2: float | None = 0.0
    if needs_sft(cfg, variant):
        source = source_config(cfg, variant)
        episode, row_rate, tokens = (0.0, None, None) if given_data(cfg, variant) else _probe(source, policy)
        count = source.selfplay.groups * source.selfplay.group_size
        stage_1 = None if episode is None else count * episode
        step = stage_2 = None
        if tokens is not None and speed is not None:
            share, rows = 1 - source.selfplay.val_fraction, tokens[1]
            stage_2 = source.sft.epochs * count * share * tokens[0] / speed
            step = stage_2 / max(1.0, source.sft.epochs * count * share * rows / source.sft.batch_size)
    ppo = _ppo_step(variant_config(cfg, variant), variant) if variant.rl else 0.0
    stage_3 = None if ppo is None else ppo * own_steps(cfg, variant)
    return VariantTime(variant.name, episode, row_rate, step, ppo, stage_1, stage_2, stage_3)


def _probe(cfg: Config, policy: Policy) -> tuple[float | None, float | None, tuple[float, float] | None]:
    """Seconds per stage 1 episode, rows per turn, and tokens and rows per episode in stage 2; None: not measured."""
    play = cfg.selfplay
    if play.policy == "planner" or (play.policy == "model" and play.warmup_rows):
        return None, None, None
    cfg, task = selfplay_task(cfg)
    engine = policy.engine if play.policy == "model" else RandomEngine(policy.chat, random_responder(task))
    probed = dataclasses.replace(policy, engine=engine, sampling=cfg.sampling)
    worlds = WorldSource(task, "val", cfg.seeds.val).take(PROBED)
    if play.policy == "model":
        source = WorldSource(task, "selfplay", first_seed(cfg.seeds, "selfplay"))
        shown = unplayed_worlds(source, []) if play.shots else []
        task = dataclasses.replace(task, cold_start=cold_start(cfg, task, shown))
    with probed.constrained(task) if play.constrained and play.policy == "model" else nullcontext():
        started = time.perf_counter()
        episodes = probed.play(task, worlds, samples=1, seed=stream_seed(cfg.seeds.run, PROBE, 1))
        seconds = (time.perf_counter() - started) / PROBED
    rows, _ = training_rows(cfg, [episode for episode in episodes if not episode.failed])
    turns = sum(len(episode.turns) for episode in episodes)
    row_rate = len(rows) / max(1, turns)
    try:
        examples, _ = encode_rows(rows, policy.chat, cfg.sft)
    except ValueError:  # no row
        return seconds, row_rate, None
    return seconds, row_rate, (sum(len(example.ids) for example in examples) / PROBED, len(rows) / PROBED)


def _ppo_step(cfg: Config, variant: VariantConfig) -> float | None:
    """Seconds per step of a variant's stage 3, scaled up from a step on fewer worlds; None if it cannot run here."""
    small = dataclasses.replace(cfg, ppo=dataclasses.replace(cfg.ppo, val_every=0))
    groups = min(cfg.ppo.groups, PPO_GROUPS)
    task = make_task(cfg, state_format=variant.state_format)
    worlds = WorldSource(task, "train", first_seed(cfg.seeds, "train")).take(groups)
    learned = groups if cfg.ppo.filter == "off" else max(1, int(cfg.ppo.filter_ratio * groups))
    try:
        policy = Policy.load(cfg)
        trainer = PPOTrainer(small, policy, task, Path(), lambda step, metrics: None)
        started = time.perf_counter()
        seed = stream_seed(cfg.seeds.run, ROLLOUT, 0)
        episodes = policy.play(task, worlds, samples=cfg.ppo.group_size, seed=seed)
        trained = [episode for episode in episodes if not episode.failed and episode.group < learned]
        update(trainer.learner, trained, policy.chat, rng=np.random.default_rng(seed))
    except (ValueError, torch.OutOfMemoryError) as error:
        note(f"variant {variant.name}: no PPO step could be timed: {error_message(error)}")
        return None
    return (time.perf_counter() - started) * cfg.ppo.groups / groups


def _total(variants: Sequence[VariantConfig], times: Sequence[VariantTime]) -> float | None:
    """Seconds of all stages, each folder counted once; None if a stage was not measured."""
    seconds: dict[Path, float | None] = {}
    for variant, estimate in zip(variants, times, strict=True):
        seconds[selfplay_folder(Path(), variant) if estimate.stage_1 else Path(f"no/{variant.name}")] = estimate.stage_1
        seconds[sft_folder(Path(), variant) if estimate.stage_2 != 0 else Path(f"none/{variant.name}")] = (
            estimate.stage_2
        )
        seconds[Path("variants") / variant.name] = estimate.stage_3
    measured = [value for value in seconds.values() if value is not None]
    return sum(measured) if len(measured) == len(seconds) else None
