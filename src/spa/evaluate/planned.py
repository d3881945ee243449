"""A planner on the test worlds, and the accuracy of its imagined states by depth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from spa.agent.episode import Episode, write_episodes
from spa.agent.episode_store import EpisodeStore, Key
from spa.agent.failures import Failures
from spa.agent.policy import Policy
from spa.agent.rollout import OnTurn
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.common.progress import note, progress
from spa.config.schema import SIMULATOR, Config
from spa.config.seeds import PLANNER, stream_seed
from spa.data.transitions import Transition, transitions_of
from spa.envs import TextEnv
from spa.envs.checked import CheckedEnv
from spa.evaluate.calibration import corruptions
from spa.evaluate.play import in_chunks
from spa.evaluate.roles import PLANNED
from spa.evaluate.search_accuracy import Searched
from spa.evaluate.summary import EvalResult
from spa.models.folders import identity
from spa.planning.journal import journaled
from spa.planning.play import play_with_planner
from spa.planning.search import Move
from spa.planning.simulator import Simulator
from spa.planning.world_model import Headers, WorldModel
from spa.runs.stage import model_of

PREFIX = "imagination/"
CHUNK = 64  # worlds played at once
BELIEVABLE = 0.9  # share of expected wins below which something is said
EXACT = 0.95  # share of exact answers to a search below which something is said


def evaluate_planner(
    cfg: Config,
    name: str,
    policy: Policy,
    task: Task,
    worlds: Sequence[World],
    out: Path,
    model: str | None = None,
) -> EvalResult:
    """Plays each world once with ``agent.planner``; writes ``planner.json`` and ``planner_episodes.jsonl`` to ``out``.

    Its metrics include the cost per episode, cached answers excluded: ``planner/questions``, ``planner/tokens_read`` and
    ``planner/tokens_written``; and ``planner/wins_expected`` per episode with the share ``planner/wins_true`` of them
    (``expected_wins``), ``planner/oscillating`` (a share of the lost episodes), and where possible what ``Searched`` measures. Its
    ``world_model`` is ``imagination_metrics`` on the first ``eval.world_model_worlds``.
    """
    seed = cfg.seeds.run
    asked_model = f"{identity(cfg.planner.model or model)} {identity(model)}"  # the second proposes
    answers = out / "planner_answers.jsonl"
    with planning_model(cfg, policy, task) as world_model, journaled(world_model, answers, asked_model):
        searched = Searched(world_model, seed)
        episodes = plan_chunks(
            cfg, world_model, task, worlds, 1, PLANNER, f"planning with {name}", on_chunk=searched.add
        )
        usage = world_model.usage
        asked = worlds[: cfg.eval.world_model_worlds]
        depth = min(cfg.planner.depth, task.env.max_actions)
        accuracy = imagination_metrics(world_model, task, asked, depth=depth, seed=seed) if asked else {}
    title = f"{name}{PLANNED}{cfg.agent.planner}"
    result = EvalResult.from_episodes(title, episodes, [1], cfg.eval.bootstrap, seed, accuracy)
    for key in ("questions", "tokens_read", "tokens_written"):
        result.metrics[f"planner/{key}"] = getattr(usage, key) / len(episodes)
    deterministic = cfg.planner.samples == 1
    if deterministic and cfg.planner.model != SIMULATOR:
        result.metrics |= searched.metrics(policy, task, episodes, cfg.planner)
    exact = result.metrics.get("planner/questions_exact", 1.0)
    true = 1.0
    if wins := expected_wins(episodes):
        true = sum(wins) / len(wins)
        result.metrics |= {"planner/wins_expected": len(wins) / len(episodes), "planner/wins_true": true}
    if lost := [episode for episode in episodes if not episode.success]:
        result.metrics["planner/oscillating"] = sum(map(oscillates, lost)) / len(lost)
    if deterministic and (true < BELIEVABLE or exact < EXACT):
        found = [f"of {len(wins)} moves that it expected to win, {true:.0%} did"] if wins else []
        found += [f"of the answers to its search {exact:.0%} are the world's"] if exact < 1 else []
        by_chance = chance_decides(episodes) or cfg.planner.model == SIMULATOR
        chance = "Moves have several results: set planner.samples=8"
        remedy = chance if by_chance else "Another training of stage 2 (seeds.run) may do better"
        note(f"{title}: {', and '.join(found)}. {remedy}")
    if world_model.gives_values is False:
        note(f"{title}: the model gave no value of any move: it has to be trained with practice.values")
    result.write(out / "planner.json")
    write_episodes(out / "planner_episodes.jsonl", episodes)
    return result


def expected_wins(episodes: Iterable[Episode]) -> list[bool]:
    """For each move played that a planner expected to end the episode with a reward above 0: whether it did."""
    return [
        number == len(turn.rewards) - 1 and turn.ended and turn.rewards[number] > 0
        for episode in episodes
        for turn in episode.turns
        for number, step in enumerate(turn.imagined.get("path", [])[: len(turn.rewards)])
        if step["ended"] and step["reward"] > 0
    ]


def chance_decides(episodes: Iterable[Episode]) -> bool:
    """Whether the same action in the same state led to different ones."""
    results: dict[Move, set[str]] = defaultdict(set)
    for episode in episodes:
        for turn in episode.turns:
            for move in transitions_of(turn):
                results[Move(move.state, move.action)].add(move.next_state)
    return any(len(states) > 1 for states in results.values())


def oscillates(episode: Episode) -> bool:
    """Whether an episode of four turns or more ended between two states, or in one: the last five have no third."""
    return len(episode.turns) >= 4 and len(set(episode.states[-5:])) <= 2


@contextmanager
def planning_model(cfg: Config, policy: Policy, task: Task) -> Iterator[WorldModel]:
    """The model that ``agent.planner`` queries: ``planner.model``, or the policy's, which proposes actions in any case."""
    planner, seed = cfg.planner, stream_seed(cfg.seeds.run, PLANNER, 0)
    other = None
    if planner.model not in (None, SIMULATOR):
        other = Policy.load(cfg, model_of(planner.model, "planner.model"))
    kind = Simulator if planner.model == SIMULATOR else WorldModel
    try:
        yield kind(
            other or policy, task, samples=planner.samples, proposals=planner.proposals, seed=seed, player=policy
        )
    finally:
        if other:
            other.close()


def plan_chunks(
    cfg: Config,
    world_model: WorldModel,
    task: Task,
    worlds: Sequence[World],
    samples: int,
    purpose: int,
    title: str,
    store: EpisodeStore | None = None,
    on_chunk: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Like ``play_chunks``, with ``agent.planner``; ``on_chunk`` is called before the model forgets a chunk's answers."""

    def play(chunk: Sequence[World], seed: int, on_turn: OnTurn, skip: Container[Key]) -> list[Episode]:
        kind = cfg.agent.planner  # which plays its chunk as a whole
        played = play_with_planner(
            world_model, task, chunk, kind, cfg.planner, seed=seed, group_size=samples, on_turn=on_turn
        )
        on_chunk()
        world_model.forget()
        return played

    return in_chunks(
        play, worlds, samples, cfg.seeds.run, purpose, title, store, size=CHUNK, max_failed=task.env.max_failed
    )


def imagination_metrics(
    world_model: WorldModel, task: Task, worlds: Sequence[World], *, depth: int, seed: int, walks: int = 4
) -> dict[str, float]:
    """Accuracy of a model that continues from its own predictions, by depth (actions ahead).

    In each world ``walks`` sequences of ``depth`` random actions are played, and imagined from the first state alone. Names begin
    with ``imagination/depth_{d}/``; shares are of the walks not yet ended before their action d:

    * ``exact``: the imagined state is the true one. ``legal``: the world does not rule it out (``TextEnv.legal``).
    * ``reward``, ``ended``: the reward (to six decimals) and the end match the true move.
    * ``ended_auc``: area under the ROC curve of the model's probability of the end; absent if no walk or every walk ended here.
    * ``top1``: over the state-changing moves in the first walk of each world, the share for which the model, given its imagined
      state, finds the true next state likelier than each corruption of it; ``chance``: the score of guessing. Absent if the
      engine has no weights.
    * ``believed``: mean probability of the model's answer. ``walks``: count.
    """
    walked = [(world, walk) for world in worlds for walk in range(walks)]
    env, failures = task.make_env(), Failures("random play", task.env.max_failed, len(walked), unit="walks")
    truths: list[list[Transition]] = []
    headers: list[Headers] = []
    for world, walk in walked:
        moves, shown = _walk(world_model, env, failures, world, walk, depth, seed)
        truths.append(moves)
        headers.append(shown)
    failures.say()
    imagined = [moves[0].state if moves else "" for moves in truths]
    values: dict[str, list[float]] = defaultdict(list)
    for step in progress(range(depth), "imagination"):
        name = f"{PREFIX}depth_{step + 1}/"
        alive = [number for number, moves in enumerate(truths) if len(moves) > step]
        if not alive:
            break
        going = [number for number in alive if imagined[number]]
        for measured in ("exact", "reward", "ended"):  # a walk that ended early in imagination is wrong from there on
            values[f"{name}{measured}"] += [0.0] * (len(alive) - len(going))
        asked = [Move(imagined[number], truths[number][step].action) for number in going]
        answers = world_model.ask(asked, [headers[number] for number in going])
        for top, chance in _likeliest(
            world_model, env, headers, [n for n in going if walked[n][1] == 0], truths, step, imagined, seed
        ):
            values[f"{name}top1"].append(top)
            values[f"{name}chance"].append(chance)
        scores: list[tuple[float, bool]] = []
        for number, answer in zip(going, answers, strict=True):
            guess, truth = answer[0], truths[number][step]
            read = guess.probability > 0  # else nothing was predicted: the state is the old one
            values[f"{name}exact"].append(read and guess.state == truth.next_state)
            legal = env.legal(guess.state, truth.state) if read else None
            if legal is not None:
                values[f"{name}legal"].append(legal)
            values[f"{name}reward"].append(read and abs(guess.reward - truth.reward) < 1e-6)
            values[f"{name}ended"].append(read and guess.ended == truth.ended)
            values[f"{name}believed"].append(guess.probability)
            scores.append((guess.probability if guess.ended else -guess.probability, truth.ended))
            imagined[number] = guess.state if guess.probability and not guess.ended else ""
        values[f"{name}walks"] = [float(len(alive))]
        area = area_under_curve(scores)
        if area is not None:
            values[f"{name}ended_auc"] = [area]
    return {name: float(np.mean(entries)) for name, entries in values.items()}


def _likeliest(
    world_model: WorldModel,
    env: TextEnv,
    headers: Sequence[Headers],
    walks: Sequence[int],
    truths: Sequence[list[Transition]],
    step: int,
    imagined: Sequence[str],
    seed: int,
) -> list[tuple[bool, float]]:
    """For each walk whose state changes in ``step``: whether the truth is the likeliest candidate, and the score of guessing."""
    if not world_model.has_weights:
        return []
    candidates: list[tuple[int, str]] = []  # grouped by walk, the truth first
    failures = Failures("corrupted states", 1.0, unit="walks")
    for number in walks:
        move = truths[number][step]
        if move.next_state != move.state:
            rng = np.random.default_rng(np.random.SeedSequence([seed, number, step]))
            others: list[tuple[str, str]] = []
            with failures.alone(number):
                others = corruptions(env, move.state, [move.action], move.next_state, rng)
            candidates += [(number, state) for state in (move.next_state, *(state for _, state in others)) if others]
    failures.say()
    scores = world_model.log_probs(
        [(Move(imagined[number], truths[number][step].action), state) for number, state in candidates],
        [headers[number] for number, _ in candidates],
    )
    by_walk: dict[int, list[float]] = defaultdict(list)
    for (number, _), score in zip(candidates, scores, strict=True):
        by_walk[number].append(score)
    return [(truth > max(others), 1 / (1 + len(others))) for truth, *others in by_walk.values()]


def _walk(
    world_model: WorldModel, env: CheckedEnv, failures: Failures, world: World, number: int, depth: int, seed: int
) -> tuple[list[Transition], Headers]:
    """The transitions of random actions in a world, until it ends or fails, and the world's headers."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, world.seed, number]))
    moves: list[Transition] = []
    headers = Headers()
    with failures.alone(world.seed):
        state, _ = env.reset(seed=world.seed, options={"noise_seed": world.noise_seed(number)})
        headers = world_model.headers(env)
        while len(moves) < depth and (action := env.random_action(rng)) is not None:
            after, reward, terminated, truncated, _ = env.step(action)
            moves.append(Transition(state, action, after, float(reward), terminated))
            state = after
            if terminated or truncated:
                break
    return moves, headers


def area_under_curve(scores: Sequence[tuple[float, bool]]) -> float | None:
    """The probability that a positive case scores above a negative one; ties count half."""
    from scipy.stats import mannwhitneyu

    ended, going = [s for s, e in scores if e], [s for s, e in scores if not e]
    if not ended or not going:
        return None
    return float(mannwhitneyu(ended, going).statistic / (len(ended) * len(going)))
