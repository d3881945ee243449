"""The auxiliary world-model loss of stage 3: trains on the true states of the turns just played, as stage 2 does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spa.agent.chat import Chat
from spa.agent.episode import Episode, Turn
from spa.agent.host import LocalHost
from spa.agent.play import Play
from spa.agent.response import STATE_TAG, closing, opening, parse_response, tagged
from spa.agent.task import Task
from spa.data.encode import Example, encode_row, merge_turns
from spa.data.ground_truth import Row, ground_truth, rejection
from spa.data.transitions import transition_rows
from spa.engines.base import Message
from spa.envs.checked import WorldError


def true_response(turn: Turn, style: str = "terse") -> str | None:
    """The turn's response with the true state as observation and the true next state as prediction.

    A response that has both is otherwise unchanged. One in the plain format gets them around its thoughts. None where stage 1's
    filter drops the result, because a wrong state or broken tags would be trained as if they were true.
    """
    corrected = ground_truth(turn) if rejection(turn.response) is None else _with_states(turn, style)
    return corrected if corrected and rejection(corrected) is None else None


def _with_states(turn: Turn, style: str) -> str | None:
    """A response in the plain format with both states around its thoughts; None for one in another format."""
    parsed = parse_response(turn.response)
    if not parsed.format_ok or parsed.observation is not None or parsed.prediction is not None:
        return None
    start, end = parsed.spans["think"]
    thoughts = turn.response[start + len(opening("think")) : end - len(closing("think"))].strip()
    answer = turn.response[slice(*parsed.spans["answer"])]
    if STATE_TAG.search(thoughts) or STATE_TAG.search(answer):
        return None
    gap = " " if style == "paper" else ""
    written = [tagged("observation", turn.state), thoughts, tagged("prediction", turn.next_state)]
    return tagged("think", gap.join(written), gap) + answer


def world_model_rows(episode: Episode, task: Task) -> list[Row]:
    """A row for each usable turn, with the prompt of ``task`` (prompt mode ``world_model``) and earlier turns corrected."""
    host, header = LocalHost(task), ""
    if task.agent.style == "paper":  # the header lists this world's symbols and actions
        try:
            header = host.start(episode.seed, episode.noise_seed).header
        except WorldError:
            return []
        host.close()
    play = Play(task, episode, host, header=header)
    system: list[Message] = [] if task.system is None else [{"role": "system", "content": task.system}]
    responses = [true_response(turn, task.agent.style) for turn in episode.turns]
    rows = []
    for index, response in enumerate(responses):
        if response is None:
            continue
        first = play.first_shown(index)
        prompt = list(system)
        for earlier in range(first, index):
            prompt.append({"role": "user", "content": play.user_text(earlier, first)})
            prompt.append({"role": "assistant", "content": responses[earlier] or episode.turns[earlier].response})
        prompt.append({"role": "user", "content": play.user_text(index, first)})
        rows.append(Row(episode.task, prompt, response))
    return rows


def world_model_examples(
    episodes: Sequence[Episode],
    tasks: Sequence[Task],
    chat: Chat,
    *,
    fraction: float,
    rng: np.random.Generator,
    transitions: bool = False,
    context: int | None = None,
) -> list[Example]:
    """Examples with the loss on the states alone, of ``fraction`` of the episodes (drawn at random, at least one).

    Args:
        tasks: the world-model task of each episode.
        transitions: one row per move, as in stage 1 with ``selfplay.rows=transitions``, with the loss on the whole response.
        context: tokens that the model can attend to, if known; longer rows are left out, as in stage 2.
    """
    usable = [i for i, episode in enumerate(episodes) if not episode.failed and episode.turns]
    if not usable:
        return []
    count = max(1, round(fraction * len(usable)))
    chosen = sorted(rng.choice(usable, size=count, replace=False).tolist())
    if transitions:
        rows = [row for i in chosen for row in transition_rows([episodes[i]], tasks[i])]
        examples = [encode_row(row, chat, train_end=False) for row in rows]
    else:
        rows = [row for i in chosen for row in world_model_rows(episodes[i], tasks[i])]
        examples = [encode_row(row, chat, loss="state", train_end=False) for row in rows]
    limit = math.inf if context is None else context
    examples = [example for example in examples if example.positions and len(example.ids) <= limit]
    return examples if transitions else merge_turns(examples)
