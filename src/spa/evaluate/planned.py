"""A planner on the test worlds, and how far its imagination can be trusted."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spa.agent.episode import Episode, write_episodes
from spa.agent.kept import KeptEpisodes
from spa.agent.player import Player
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.evaluate.play import in_chunks
from spa.evaluate.summary import EvalResult
from spa.evaluate.verdict import PLANNED
from spa.planning.play import play_with_planner
from spa.planning.search import Move
from spa.planning.world_model import WorldModel
from spa.runs.schema import Config
from spa.runs.seeds import PLANNER, stream_seed
from spa.runs.stage import model_of
from spa.worldmodel.transitions import Transition

PREFIX = "imagination/"
CHUNK = 64  # worlds played at once


def evaluate_planner(
    cfg: Config, name: str, player: Player, task: Task, worlds: Sequence[World], out: Path
) -> EvalResult:
    """Plays each world once with ``agent.planner``; writes ``planner.json`` and ``planner_episodes.jsonl`` to ``out``.

    Its metrics hold what it cost: ``planner/questions``, ``planner/tokens_read`` and ``planner/tokens_written`` an episode, those
    that a cache answered left out. Its ``world_model`` is ``imagination_metrics`` on the first ``eval.world_model_worlds``.
    """
    planner, title = cfg.planner, f"planning with {name}"
    imagines = Player.load(cfg, model_of(planner.model, "planner.model")) if planner.model else player
    world_model = planning_model(cfg, imagines, task)
    episodes = plan_chunks(cfg, world_model, task, worlds, 1, PLANNER, title)
    result = EvalResult.from_episodes(
        f"{name}{PLANNED}{cfg.agent.planner}", episodes, [1], cfg.eval.bootstrap, cfg.seeds.run
    )
    usage = world_model.usage
    cost = {
        f"planner/{key}": getattr(usage, key) / len(episodes) for key in ("questions", "tokens_read", "tokens_written")
    }
    asked = worlds[: cfg.eval.world_model_worlds]
    depth = min(planner.depth, task.env.max_actions)
    honesty = imagination_metrics(world_model, task, asked, depth=depth, seed=cfg.seeds.run) if asked else {}
    result = dataclasses.replace(result, metrics={**result.metrics, **cost}, world_model=honesty)
    result.write(out / "planner.json")
    write_episodes(out / "planner_episodes.jsonl", episodes)
    if imagines is not player:
        imagines.close()
    return result


def planning_model(cfg: Config, player: Player, task: Task) -> WorldModel:
    """What ``agent.planner`` asks in evaluation."""
    seed = stream_seed(cfg.seeds.run, PLANNER, 0)
    return WorldModel(player, task, samples=cfg.planner.samples, proposals=cfg.planner.proposals, seed=seed)


def plan_chunks(
    cfg: Config,
    who: Player | WorldModel,
    task: Task,
    worlds: Sequence[World],
    samples: int,
    purpose: int,
    title: str,
    kept: KeptEpisodes | None = None,
) -> list[Episode]:
    """As ``play_chunks``, with ``agent.planner``."""
    world_model = who if isinstance(who, WorldModel) else planning_model(cfg, who, task)

    def play(chunk: Sequence[World], seed: int) -> list[Episode]:
        kind = cfg.agent.planner
        played = play_with_planner(world_model, task, chunk, kind, cfg.planner, seed=seed, group_size=samples)
        world_model.forget()
        return played

    return in_chunks(play, worlds, samples, cfg.seeds.run, purpose, title, kept, size=CHUNK)


def imagination_metrics(
    world_model: WorldModel, task: Task, worlds: Sequence[World], *, depth: int, seed: int, walks: int = 4
) -> dict[str, float]:
    """How often a model is right that goes on from its own predictions, by how many actions ahead.

    In each world ``walks`` sequences of ``depth`` random actions are played, and imagined from the first state alone. Names begin
    with ``imagination/depth_{d}/``; shares of the walks that were still going on before their action d:

    * ``exact``: the state imagined is the true one. ``legal``: the world does not rule it out (``TextEnv.legal``).
    * ``reward``, ``ended``: the reward (to six decimals) and the end are those of the true move.
    * ``ended_auc``: area under the ROC curve of the model's probability for the end; absent where no walk or every walk ended here.
    * ``believed``: mean probability that the model gave to its answer. ``walks``: how many.
    """
    walked = [(world, walk) for world in worlds for walk in range(walks)]
    truths = [_walk(task, world, walk, depth, seed) for world, walk in walked]
    env = task.make_env()
    imagined = [moves[0].state if moves else "" for moves in truths]
    found: dict[str, list[float]] = defaultdict(list)
    for step in range(depth):
        name = f"{PREFIX}depth_{step + 1}/"
        alive = [number for number, moves in enumerate(truths) if len(moves) > step]
        if not alive:
            break
        going = [number for number in alive if imagined[number]]
        for measured in ("exact", "reward", "ended"):  # a walk that broke off in imagination is wrong from there on
            found[f"{name}{measured}"] += [0.0] * (len(alive) - len(going))
        answers = world_model.ask([Move(imagined[number], truths[number][step].action) for number in going])
        scores: list[tuple[float, bool]] = []
        for number, answer in zip(going, answers, strict=True):
            guess, truth = answer[0], truths[number][step]
            found[f"{name}exact"].append(guess.state == truth.next_state)
            legal = env.legal(guess.state, truth.state)
            if legal is not None:
                found[f"{name}legal"].append(legal)
            found[f"{name}reward"].append(abs(guess.reward - truth.reward) < 1e-6)
            found[f"{name}ended"].append(guess.ended == truth.ended)
            found[f"{name}believed"].append(guess.probability)
            scores.append((guess.probability if guess.ended else -guess.probability, truth.ended))
            imagined[number] = guess.state if guess.probability else ""
        found[f"{name}walks"] = [float(len(alive))]
        area = area_under_curve(scores)
        if area is not None:
            found[f"{name}ended_auc"] = [area]
    return {name: float(np.mean(values)) for name, values in found.items()}


def _walk(task: Task, world: World, number: int, depth: int, seed: int) -> list[Transition]:
    """What random actions do in a world, until it ends."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, world.seed, number]))
    env = task.make_env()
    state, _ = env.reset(seed=world.seed, options={"noise_seed": world.noise_seed(number)})
    moves = []
    for _ in range(depth):
        action = env.sample_action(rng)
        after, reward, terminated, truncated, _ = env.step(action)
        moves.append(Transition(state, action, after, float(reward), bool(terminated)))
        state = after
        if terminated or truncated:
            break
    env.close()
    return moves


def area_under_curve(scores: Sequence[tuple[float, bool]]) -> float | None:
    """The probability that a case of the first kind scores above one of the second, ties counting half."""
    from scipy.stats import mannwhitneyu

    ended, going = [s for s, e in scores if e], [s for s, e in scores if not e]
    if not ended or not going:
        return None
    return float(mannwhitneyu(ended, going).statistic / (len(ended) * len(going)))
