"""Plays with a planner, which searches in the model's predictions and touches the real world only when it acts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from spa.agent.episode import Episode, Turn
from spa.agent.host import LocalHost
from spa.agent.play import Play
from spa.agent.rollout import OnTurn
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import PlannerConfig
from spa.data.transitions import RESPONSE_FORMATS, transitions_of
from spa.envs.checked import WorldError
from spa.planning.search import PLANNERS, Answer, Choice, Imagined, Move, OutOfTokens, Plan, Question
from spa.planning.world_model import Headers, WorldModel

T = TypeVar("T")
Memory = Mapping[Move, tuple[Imagined, ...]]


def search_all(
    world_model: WorldModel,
    searches: Sequence[Generator[list[Question], list[Answer], T]],
    headers: Sequence[Headers],
    memories: Sequence[Memory] = (),
    *,
    max_tokens: int = 0,
) -> list[T]:
    """Runs searches concurrently; their simultaneous questions go to the model as one batch.

    Args:
        headers: of each search's world.
        memories: for each search, known answers that replace the model's.
        max_tokens: a search decides before questions for which, at the mean of its answers so far, more tokens would be written;
            0 = no limit. Its first moves are always asked about.
    """
    results: dict[int, T] = {}
    pending: dict[int, list[Question]] = {}
    answered, written = ([0] * len(searches) for _ in range(2))
    begun: set[int] = set()  # searches that have asked about moves

    def advance(number: int, step: Callable[[], list[Question]]) -> None:
        try:
            pending[number] = step()
        except StopIteration as stop:
            results[number] = stop.value
            pending.pop(number, None)

    def is_spent(number: int) -> bool:
        """At the mean so far, the pending answers about moves would be too many tokens."""
        total = written[number] * (answered[number] + len(pending[number]))
        return number in begun and _of_moves(pending[number]) and total > max_tokens * answered[number] > 0

    for number in range(len(searches)):
        advance(number, partial(next, searches[number]))
    while pending:
        for number in [number for number in pending if is_spent(number)]:
            advance(number, partial(searches[number].throw, OutOfTokens()))
        order = list(pending)
        known_answers: list[Memory] = [memories[number] if memories else {} for number in order]
        unknown = [
            [question for question in pending[number] if question not in memory]
            for number, memory in zip(order, known_answers, strict=True)
        ]
        shown = [headers[number] for number, questions in zip(order, unknown, strict=True) for _ in questions]
        answers = iter(world_model.ask([question for questions in unknown for question in questions], shown))
        for number, memory, questions in zip(order, known_answers, unknown, strict=True):
            if max_tokens:
                answered[number] += len(questions)
                written[number] += world_model.tokens_written(questions, headers[number])
                begun |= {number} if _of_moves(pending[number]) else set()
            replies = [memory[q] if q in memory else next(answers) for q in pending[number]]  # type: ignore[index]
            advance(number, partial(searches[number].send, replies))
    return [results[number] for number in range(len(searches))]


def _of_moves(questions: Sequence[Question]) -> bool:
    return any(not isinstance(question, Choice) for question in questions)


def play_with_planner(
    world_model: WorldModel,
    task: Task,
    worlds: Sequence[World],
    kind: str,
    config: PlannerConfig,
    *,
    seed: int,
    group_size: int = 1,
    on_turn: OnTurn | None = None,
) -> list[Episode]:
    """Plays every world ``group_size`` times, replanning each turn; returns ``len(worlds) * group_size`` episodes, group by group.

    A turn plays as much of the plan as ``env.max_actions_per_turn`` allows, with several ``planner.samples`` one action. What an
    episode has shown is not imagined again. Episodes have texts but no token sequences; each turn's ``imagined`` records the
    expectation. A world that fails ends only its own episode, with ``status="error"``.

    Args:
        kind: lookahead, beam or mcts.
        seed: for tie-breaking between actions and for mcts.
        on_turn: as of ``rollout``.
    """
    search = PLANNERS[kind]
    members = [(group, member) for group in range(len(worlds)) for member in range(group_size)]
    started = [_start(world_model, task, worlds[group], group, member) for group, member in members]
    plays, headers = [play for play, _ in started], [shown for _, shown in started]
    memories: list[dict[Move, tuple[Imagined, ...]]] = [{} for _ in plays]
    for index in range(task.env.max_turns):
        live = [number for number, play in enumerate(plays) if play.live]
        turns_hold = (task.env.max_turns - index) * actions_a_turn(task, config)
        searches = [
            search(
                plays[number].state,
                headers[number].actions,
                min(plays[number].actions_left, turns_hold),
                plays[number].actions_left,
                config,
                np.random.default_rng(np.random.SeedSequence([seed, number, index])),
            )
            for number in live
        ]
        of_live = [headers[number] for number in live]
        known = [memories[number] for number in live]
        plans = search_all(world_model, searches, of_live, known, max_tokens=config.max_tokens)
        for number, plan in zip(live, plans, strict=True):
            play = plays[number]
            play.open_turn(index, play.user_text(index, play.first_shown(index)))
            turn = play.episode.turns[-1]
            turn.imagined = plan.record(play.state, memories[number])
            play.answer(_response(play, plan, config), "stop")
            if on_turn:
                on_turn(play.episode, not play.live)
            if not play.episode.failed:
                memories[number].update(_seen(turn, config))
    return [play.episode for play in plays]


def _start(world_model: WorldModel, task: Task, world: World, group: int, member: int) -> tuple[Play, Headers]:
    """An episode and its world's headers."""
    host = LocalHost(task)
    play = Play.start(task, world, group, member, host)
    try:
        return play, world_model.headers(host.env) if play.live else Headers()
    except WorldError as error:
        play.fail(str(error))
        return play, Headers()


def _seen(turn: Turn, config: PlannerConfig) -> dict[Move, tuple[Imagined, ...]]:
    """What a turn showed of the world. Where chance decides, one look says little, and only a refusal is remembered.

    What gained and changed nothing is remembered as not to be believed: a search would prefer it to what it knows nothing of.
    """
    moves = transitions_of(turn)
    vain = {move for move in moves if move.next_state == move.state and move.reward <= 0 and not move.ended}
    refused = vain if turn.invalid == len(moves) else set()
    return {
        Move(move.state, move.action): (Imagined(move.next_state, move.reward, move.ended, float(move not in vain)),)
        for move in (moves if config.samples == 1 else refused)
    }


def actions_a_turn(task: Task, config: PlannerConfig) -> int:
    """How much of a plan a turn plays. Where chance decides, one action is all that was planned."""
    return task.env.max_actions_per_turn if config.samples == 1 else 1


def _response(play: Play, plan: Plan, config: PlannerConfig) -> str:
    """What a model would write that had this plan."""
    task, form = play.task, RESPONSE_FORMATS[play.task.agent.style]
    path = plan.path[: min(actions_a_turn(task, config), play.actions_left)]
    actions = f" {task.agent.action_sep} ".join(action for action, _ in path)
    if not task.agent.think:
        return form.answer.format(actions)
    if task.agent.prompt == "base":
        return form.choice(actions)
    return form.guess(play.state, actions, path[-1][1].state)
