"""Practice in imagination: plan in a model's own predictions and distil the plans into its plain policy. Beyond the paper.

A round imagines what is reachable from the start states of self-play and training worlds. Each imagined state from which a gain
is reachable becomes a row: its plain prompt, answered by as many actions of the shortest way to the gain as a turn may have (of
equally short ways, of the one that the model believes most). Fine-tuning on these rows (and on some transitions, so that the world
model is not forgotten) gives a policy that needs no search. The next round plays with this policy, retrains the world model on all
transitions so far, and plans again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spa.agent.failures import Failures
from spa.agent.policy import Policy, local_engine, make_task
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource, world_keys
from spa.common.clock import Elapsed
from spa.common.progress import note, progress
from spa.config.schema import Config, PlannerConfig, SelfPlayConfig
from spa.config.seeds import PRACTICE, first_seed
from spa.data.ground_truth import Row, deduplicate, is_move
from spa.data.layouts import data_files, read_rows, write_rows
from spa.data.select import select_rows
from spa.data.transitions import (
    RESPONSE_FORMATS,
    each_move_once,
    read_outcome,
    repeat_rare,
    shuffle_moves,
    state_prompt,
    transition_rows,
)
from spa.evaluate.play import play_chunks
from spa.models.folders import identity
from spa.planning.journal import journaled
from spa.planning.play import actions_a_turn, search_all
from spa.planning.search import Answer, ImaginedGraph, Question, best_actions, expand
from spa.planning.world_model import Headers, WorldModel
from spa.runs.record import read_done
from spa.runs.stage import Stage, model_of
from spa.sft.stage2 import run_sft

CHUNK = 256  # worlds imagined at once


@dataclasses.dataclass(frozen=True)
class Lesson:
    """An imagined state from which a gain is reachable, its depth (``met``, in actions), the values of its actions, and the ways
    that begin with the best ones, up to the length of a turn."""

    state: str
    met: int
    values: dict[str, float]
    ways: list[list[str]]


@dataclasses.dataclass
class Lessons:
    """Rows of the plain prompt (``plans``), rows of action values in world-model mode (``values``), and solved starts."""

    plans: list[Row] = dataclasses.field(default_factory=list)
    values: list[Row] = dataclasses.field(default_factory=list)
    solved: int = 0


def imagine(
    root: str,
    actions: Sequence[str],
    config: PlannerConfig,
    depth: int,
    actions_left: int,
    *,
    whole: bool,
    actions_a_turn: int = 1,
) -> Generator[list[Question], list[Answer], list[Lesson]]:
    """The lessons of one start: imagined states from which a gain is reachable within ``depth`` actions.

    Args:
        whole: imagine everything within ``depth`` instead of stopping at the first way to a gain.
    """
    graph = ImaginedGraph(root, config)
    yield from expand(graph, actions, depth, actions_left, stop_at_goal=not (whole or config.whole))
    values, gains = graph.solve(depth)
    lessons = []
    for here, of_actions in sorted(gains.items()):
        # Above a negative optimism is also what only goes round: there the best way must end.
        if values[here] > max(config.optimism, 0.0) or (
            values[here] > config.optimism and graph.path(gains, best_actions(of_actions)[0], depth, here)[-1][1].ended
        ):
            paths = [graph.path(gains, action, actions_a_turn, here) for action in best_actions(of_actions)]
            ways = [[action for action, _ in path] for path in paths]
            lessons.append(Lesson(graph.states[here], graph.depth[here], of_actions, ways))
    return lessons


def lesson_rows(
    world_model: WorldModel,
    task: Task,
    worlds: Sequence[World],
    config: PlannerConfig,
    *,
    whole: bool,
    values: bool = False,
    title: str = "planning",
) -> Lessons:
    """The lessons of ``worlds``; only their start states are used, and a world that fails is left out.

    Each of several best actions in a state gets its own row; by a model's own probabilities two are hardly ever equally good. With
    ``values``, each action's value gets a row. Rows that several worlds share are kept once.

    Raises:
        ValueError: a larger share than ``env.max_failed`` of the worlds fails.
    """
    form, agent = RESPONSE_FORMATS[task.agent.style], task.agent
    env = task.make_env()
    left = task.env.max_actions
    depth = min(config.depth, left)
    several = actions_a_turn(task, config)
    world_model_task = dataclasses.replace(task, agent=dataclasses.replace(agent, prompt="world_model"))
    result, failures = Lessons(), Failures(title, task.env.max_failed, len(worlds), unit="worlds")
    with progress(len(worlds), title) as bar:
        for start in range(0, len(worlds), CHUNK):
            chunk = worlds[start : start + CHUNK]
            starts = []
            for world in chunk:
                with failures.alone(world.seed):
                    state, _ = env.reset(seed=world.seed, options={"noise_seed": world.noise_seed(0)})
                    actions = world_model.headers(env).actions
                    starts.append((world, state, Headers(task.header(env), world_model_task.header(env), actions)))
            searches = [
                imagine(state, shown.actions, config, depth, left, whole=whole, actions_a_turn=several)
                for _, state, shown in starts
            ]
            headers = [shown for *_, shown in starts]
            found = search_all(world_model, searches, headers, max_tokens=config.max_tokens)
            for (world, _, shown), lessons in zip(starts, found, strict=True):
                result.solved += any(lesson.met == 0 for lesson in lessons)
                for lesson in lessons:
                    state, met = lesson.state, lesson.met
                    extra = {"seed": world.seed, "content": world.content, "turn": met}
                    prompt = state_prompt(task, shown.base, state, left - met)
                    for way in lesson.ways:
                        answer = f" {agent.action_sep} ".join(way)
                        response = form.choice(answer) if agent.think else form.answer.format(answer)
                        result.plans.append(Row(task.tag, prompt, response, {**extra, "executed": way}))
                    prompt = state_prompt(world_model_task, shown.world_model, state, left - met)
                    for action, value in lesson.values.items() if values else ():
                        if np.isfinite(value):
                            response = form.valued(state, action, value)
                            result.values.append(Row(task.tag, prompt, response, {**extra, "executed": [action]}))
            world_model.forget()
            bar.advance(len(chunk), rows=len(result.plans), solved=result.solved)
    failures.say()
    return Lessons(deduplicate(result.plans), deduplicate(result.values), result.solved)


def practice(cfg: Config, out: Path, *, model: str, data: Path) -> dict[str, Any]:
    """Runs all rounds of ``practice``; each step is a stage of its own in ``out``, and finished stages are skipped.

    Args:
        cfg: the config of the variant's stage 2.
        model: the world model that stage 2 trained.
        data: its transitions (a folder with train.parquet, or a parquet file).

    Returns:
        the model of the last round (``model`` if there was nothing to learn), the time of all steps, and each round's counts.

    Raises:
        ValueError: a split with too few worlds, or what ``run_sft`` raises.
    """
    settings = cfg.practice
    # There are no validation rows here to select a checkpoint or stop early by.
    cfg = dataclasses.replace(cfg, sft=dataclasses.replace(cfg.sft, use="last", patience=0))
    transition_files = [data_files(data)[0]]
    rounds, weights = [], model
    for number in range(1, settings.rounds + 1):
        folder = out / f"round_{number}"
        record: dict[str, Any] = {"actions": 0}
        if number > 1:
            played = _step(folder / "play", f"practice {number}, play", partial(_play, cfg, weights, number))
            transition_files.append(folder / "play" / "train.parquet")
            record["actions"] = played["actions"]
            join = partial(_join, transition_files, cfg.selfplay)
            _step(folder / "transitions", f"practice {number}, transitions", join)
            model = _train(cfg, folder / "transitions", folder / "world", f"practice {number}, world model")
        record |= _step(folder / "plans", f"practice {number}, plans", partial(_plan, cfg, model, transition_files))
        tuned = dataclasses.replace(
            cfg,
            model=dataclasses.replace(cfg.model, path=model),
            sft=dataclasses.replace(cfg.sft, epochs=settings.epochs, eval_worlds=0),
        )
        if record["lessons"]:  # or the last round's policy stays
            weights = _train(tuned, folder / "plans", folder / "policy", f"practice {number}, policy")
        counts = ("actions", "worlds_planned", "solved", "lessons", "questions", "tokens")
        rounds.append({key: record[key] for key in counts})
    records = [read_done(path.parent) or {} for path in sorted(out.glob("round_*/*/done.json"))]
    spent = sum(map(Elapsed.from_record, records), Elapsed())
    worlds: dict[str, dict[str, str]] = {}
    for split, keys in (each for record in records for each in record.get("worlds", {}).items()):
        worlds.setdefault(split, {}).update(keys)
    return {
        **spent.record(),
        "model": os.path.relpath(weights, out),
        "actions": sum(int(each["actions"]) for each in rounds),
        "rounds": rounds,
        "worlds": worlds,
    }


def _step(folder: Path, title: str, work: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The result of ``work``, from this run or an earlier one."""
    stage = Stage(folder, title, True, keep=True)
    if not stage.finished:
        stage.complete(lambda: work(folder))
    return read_done(folder) or {}


def _train(cfg: Config, data: Path, folder: Path, title: str) -> str:
    stage = Stage(folder, title, True)
    if not stage.finished:
        with stage.metrics(cfg) as log:
            model = run_sft(cfg, folder, data=data, resume=stage.resume, log=log)
        stage.finish({"model": str(model.relative_to(folder))})
    return model_of(str(folder))


def _play(cfg: Config, model: str, number: int, out: Path) -> dict[str, Any]:
    """Plays real episodes with the policy in self-play worlds and writes their transitions."""
    settings, seeds = cfg.practice, cfg.seeds
    windowed = dataclasses.replace(cfg, agent=dataclasses.replace(cfg.agent, window=1))
    task = make_task(windowed, state_format=cfg.selfplay.state_format, prompt="base")
    source = WorldSource(task, "selfplay", first_seed(seeds, "selfplay"))
    worlds = source.take(cfg.selfplay.groups + (number - 1) * settings.groups)[-settings.groups :]
    with closing(Policy.load(windowed, model, engine=local_engine(cfg))) as policy:
        episodes = play_chunks(
            policy, task, worlds, settings.group_size, seeds.run, PRACTICE + number, f"practice {number}"
        )
    world_model_task = make_task(windowed, state_format=cfg.selfplay.state_format, prompt="world_model")
    play = cfg.selfplay
    rows = transition_rows((e for e in episodes if not e.failed), world_model_task, play.states)
    rows = select_rows(rows, play, seeds.run)[0]
    if play.states == "shuffled":  # afterwards no move is recognised
        rows = shuffle_moves(rows, cfg.agent.style, seeds.run)
    write_rows(out / "train.parquet", rows)
    actions = sum(len(turn.executed) for episode in episodes for turn in episode.turns)
    success = sum(episode.success for episode in episodes) / len(episodes)
    return {"actions": actions, "success": success, "worlds": {"selfplay": world_keys(worlds)}}


def _join(parts: Sequence[Path], play: SelfPlayConfig, out: Path) -> dict[str, Any]:
    """Writes all transitions, and the rows of the plain prompt between them, to one file."""
    rows = [row for part in parts for row in read_rows(part)[0]]
    if play.deduplicate:
        rows = each_move_once(rows)
    rows = repeat_rare(rows, play.outcome_share)
    write_rows(out / "train.parquet", rows)
    return {"rows": len(rows)}


def _plan(cfg: Config, model: str, transition_files: Sequence[Path], out: Path) -> dict[str, Any]:
    """Writes the lessons planned with ``model``, mixed with some transitions."""
    settings, seeds = cfg.practice, cfg.seeds
    planner = dataclasses.replace(cfg.planner, values=False)  # values are only taught here, not used
    policy = Policy.load(cfg, model, engine=local_engine(cfg))
    task = make_task(cfg, state_format=cfg.selfplay.state_format, prompt="base")
    # Splits contribute in proportion to their sizes, so that neither runs out first.
    selfplay_worlds = max(1, settings.worlds // 3)
    counts = {"selfplay": selfplay_worlds, "train": settings.worlds - selfplay_worlds}
    sources = {split: WorldSource(task, split, first_seed(seeds, split), unique=True) for split in counts}
    with progress(settings.worlds, "finding start states") as bar:  # slow where distinct worlds are few
        starts = {split: sources[split].take(count, bar) for split, count in counts.items()}
    worlds = [world for chosen in starts.values() for world in chosen]
    world_model = WorldModel(policy, task, samples=planner.samples, proposals=planner.proposals, seed=seeds.run)
    with closing(policy), journaled(world_model, out / "answers.jsonl", identity(model)):
        lessons = lesson_rows(world_model, task, worlds, planner, whole=settings.whole, values=settings.values > 0)
    rows = lessons.plans
    if not rows:
        advice = "" if cfg.selfplay.outcome_share else "; where self-play seldom wins, set selfplay.outcome_share=0.1"
        note(
            f"practice: no path to a reward was imagined from any of {len(worlds)} start states within {planner.depth} actions, so "
            "there is nothing to learn and the policy stays that of stage 2; check the world model (imagination/ in the "
            "evaluation), planner.depth, planner.min_probability and, where gains are small or steps cost, planner.optimism "
            f"(a state counts if it is worth more than this, which may be negative){advice}"
        )
    # Transitions alone: the other rows answer the plain prompt as the base does, and would contradict the plans.
    past = [row for part in transition_files for row in read_rows(part)[0] if is_move(row)]
    gains = {outcome for row in past if _is_gain(outcome := str(row.extra["outcome"]))}
    if len(gains) > 1 and not (settings.whole or planner.whole):
        note(
            f"note: ends of this world pay {len(gains)} different rewards, and planning stopped at the first that pays: "
            "planner.whole=true looks on (practice and agent.planner)"
        )
    rng = np.random.default_rng(np.random.SeedSequence([seeds.run, PRACTICE]))
    rehearsed = _some(past, round(settings.rehearsal * len(rows)), rng)
    valued = _some(lessons.values, round(settings.values * len(rows)), rng)
    write_rows(out / "train.parquet", [*rows, *rehearsed, *valued])
    usage = world_model.usage
    return {
        "worlds_planned": len(worlds),
        "solved": lessons.solved,
        "lessons": len(rows),
        "rehearsed": len(rehearsed),
        "valued": len(valued),
        "questions": usage.questions,
        "tokens": usage.tokens,
        "worlds": {split: world_keys(chosen) for split, chosen in starts.items()},
    }


def _is_gain(outcome: str) -> bool:
    """Whether the outcome of a row is an end with a reward."""
    reward, ended = read_outcome(outcome) or (0.0, False)
    return ended and reward > 0


def _some(rows: Sequence[Row], count: int, rng: np.random.Generator) -> list[Row]:
    """A random sample of at most ``count`` rows, in their original order."""
    return [rows[i] for i in sorted(rng.permutation(len(rows))[:count])]
