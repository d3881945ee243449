"""Our tasks in verl's multi-turn rollout (``verl.experimental.agent_loop``, verl 0.9): each sample is one episode.

Only verl imports this module; ``data.verl_tasks`` writes the files that name it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from spa.agent.chat import Chat
from spa.agent.episode import Episode, TokenSequence
from spa.agent.policy import make_task, sampling_for
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.load import load_config
from spa.config.schema import SamplingConfig
from spa.engines.base import Completion, Engine

_THREADS = ThreadPoolExecutor(1024, "spa-episode")  # one an episode, most of them waiting for the server


@lru_cache(8)
def _task(path: str) -> tuple[Task, SamplingConfig]:
    config = load_config(path)
    if config.agent.window:
        raise ValueError("verl trains one token sequence an episode: export the tasks with agent.window=0")
    task = make_task(config)
    return task, sampling_for(task, config.sampling)


_chat = lru_cache(8)(Chat)


@dataclass
class _Server(Engine):
    """An engine that asks verl's server from a thread of its own."""

    ask: Callable[[list[int], dict[str, Any]], Any]
    room: int  # tokens that a context and its response may take

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        return [self._one(list(context), sampling, stop_ids) for context in contexts]

    def _one(self, context: list[int], sampling: SamplingConfig, stop_ids: frozenset[int]) -> Completion:
        limits: dict[str, Any] = {"max_tokens": min(sampling.max_tokens, self.room - len(context))}
        if limits["max_tokens"] < 1:
            return Completion([], [], "length")
        limits["stop_token_ids"] = sorted(stop_ids)
        if sampling.stop:
            limits |= {"stop": sampling.stop, "include_stop_str_in_output": True}
        output = self.ask(context, limits)
        ids = list(output.token_ids)
        return Completion(
            ids, list(output.log_probs or [0.0] * len(ids)), "stop" if {*ids[-1:]} & stop_ids else "length"
        )


class SpaAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays the world that a row of the exported data names.

    Args:
        task_config: the exported config file.

    Raises:
        ValueError: ``agent.window`` is not 0, or the first prompt is longer than ``data.max_prompt_length``.
    """

    def __init__(self, *args: Any, task_config: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task, self.sampling = _task(task_config)
        self.chat = _chat(self.tokenizer, self.task.forced)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """One episode; ``kwargs`` are the fields of a row. Members of a group differ in their noise by verl's ``priority``."""
        row, member, request = kwargs["extra_info"], int(kwargs.get("priority", 0)), uuid4().hex
        world = World(int(row["seed"]), str(row["content"]), from_reset=True)
        limits = self.rollout_config.prompt_length, self.rollout_config.response_length
        loop = asyncio.get_running_loop()

        def ask(context: list[int], more: dict[str, Any]) -> Any:
            params = {**sampling_params, **more}
            answer = self.server_manager.generate(request_id=request, prompt_ids=context, sampling_params=params)
            return asyncio.run_coroutine_threadsafe(answer, loop).result()

        def play() -> Episode:
            others = {(0, other) for other in range(member)}
            engine = _Server(ask, sum(limits))
            arguments = (engine, self.chat, self.task, [world], self.sampling)
            return rollout(*arguments, seed=0, group_size=member + 1, skip=others)[0]

        episode = await loop.run_in_executor(_THREADS, play)
        return AgentLoopOutput(**output_fields(episode, *limits, logprobs=bool(sampling_params.get("logprobs"))))


def output_fields(episode: Episode, prompt_length: int, response_length: int, *, logprobs: bool) -> dict[str, Any]:
    """An episode as the fields of ``AgentLoopOutput``: the prompt ends before the first sampled token, the reward is the return
    with its penalties. An episode whose world failed has reward 0 and no trained token.

    Raises:
        ValueError: the prompt does not fit.
    """
    sequence = episode.sequences[0] if episode.sequences else TokenSequence([0], [0], [0.0], [-1])
    start = sequence.mask.index(1) if 1 in sequence.mask else len(sequence)
    if start > prompt_length:
        raise ValueError(f"a first prompt has {start} tokens: set data.max_prompt_length to at least that many")
    failed, response = episode.failed, slice(start, start + response_length)
    return {
        "prompt_ids": sequence.ids[:start],
        "response_ids": sequence.ids[response],
        "response_mask": [0 if failed else kept for kept in sequence.mask[response]],
        "response_logprobs": sequence.logprobs[response] if logprobs else None,
        "reward_score": 0.0 if failed else episode.score,
        "num_turns": 2 * len(episode.turns),
        "metrics": {},
        "extra_fields": {
            "turn_scores": [turn.reward + turn.penalty for turn in episode.turns],
            "tool_rewards": [],
            "reward_extra_info": {"acc": float(episode.success), "world_failed": float(failed)},
        },
    }
