"""How many tokens a true answer takes: for the length that prompts state, and to check ``sampling.max_tokens``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from spa.agent.chat import Chat
from spa.agent.random_engine import fixed_thought
from spa.agent.response import closing, tagged
from spa.agent.task import Task
from spa.config.schema import Config, ModelConfig

WORLDS = 8  # played for an estimate
ROOM = 1.5  # of the longest true answer: the rest is for thoughts
_known: dict[tuple[str, str | None, bool, str], int] = {}


def true_answers(task: Task, *, moves: bool = False, random: bool = False) -> Iterator[str]:
    """Answers without thoughts, or with that of ``random`` play, each with the true states before and after as many random actions
    as a turn may have; with ``moves`` only the state after them, as a planner's model writes it."""
    env = task.make_env()
    for seed in range(WORLDS):
        rng = np.random.default_rng(seed)
        actions: list[str] = []
        state, _ = env.reset(seed=seed)
        after, ended = state, False
        while not ended and len(actions) < task.env.max_actions_per_turn:
            if (action := env.random_action(rng)) is None:  # free text: the answer's length is not known
                break
            actions.append(action)
            after, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
        if moves:
            yield after + closing("prediction")
            continue
        thought = fixed_thought(env) if random else ""
        thoughts = tagged("observation", state, "\n") + thought + tagged("prediction", after, "\n")
        yield tagged("think", thoughts) + tagged("answer", f" {task.agent.action_sep} ".join(actions))
    env.close()


def longest_answer(
    task: Task, model: str, settings: ModelConfig | None = None, *, moves: bool = False, random: bool = False
) -> int | None:
    """Tokens of the longest of some ``true_answers``; None without a tokenizer or if the world fails."""
    settings = settings or ModelConfig()
    # The revision is that of model.path alone.
    source = (model, settings.revision if settings.path == model else None, settings.trust_remote_code)
    key = *source, repr((task.env, task.agent.action_sep, moves, random))
    if key not in _known:
        try:
            chat = _chat(*source)
            answers = true_answers(task, moves=moves, random=random)
            _known[key] = max(len(chat.encode(answer)) + 1 for answer in answers)
        except Exception:  # of the tokenizer or of a world: reported where they are used
            return None
    return _known[key]


@lru_cache(maxsize=2)
def _chat(path: str, revision: str | None, trusted: bool) -> Chat:
    from spa.models.load import load_config, load_tokenizer

    model = ModelConfig(path=path, revision=revision, trust_remote_code=trusted)
    load_config(path, model, local_only=True)
    return Chat(load_tokenizer(path, model))


def world_model_length(task: Task, config: Config) -> int:
    """The length that world-model prompts state where ``env.response_hint`` is null: room for the true states and for thoughts, at
    most ``sampling.max_tokens``; this alone if the tokenizer is not at hand."""
    limit = config.sampling.max_tokens
    if config.engine.kind == "openai":
        return limit
    longest = longest_answer(task, config.selfplay.model or config.model.path, config.model)
    return limit if longest is None else min(limit, -(-int(ROOM * longest) // 10) * 10)


def length_notes(task: Task, config: Config) -> list[str]:
    """What is wrong with the lengths of stage 1: a limit or a stated length that a true answer exceeds.

    Random play has no limit; the model that stage 2 teaches to write true states has one.
    """
    play, limit = config.selfplay, config.sampling.max_tokens
    random = play.without_model
    if play.rows == "transitions":
        state = longest_answer(task, config.model.path, config.model, moves=True) or 0
        if state > limit:
            return [
                f"note: a state in {task.tag} takes up to {state} tokens, and sampling.max_tokens={limit} cuts off what a planner, "
                "practice and imagined worlds ask of the model"
            ]
    if task.agent.prompt != "world_model" or (config.engine.kind == "openai" and not random):
        return []
    if random and (not task.agent.think or play.states == "belief" or config.sft.loss == "masked"):
        return []  # no states are taught
    writer = config.model.path if random else play.model or config.model.path
    longest = longest_answer(task, writer, config.model, random=random) or 0
    hint = task.env.response_hint
    what = f"note: a true answer in {task.tag} takes up to {longest} tokens"
    notes = []
    if longest > limit:
        notes.append(f"{what}, and sampling.max_tokens={limit} cuts it off{' once the model plays' if random else ''}")
    if hint is not None and longest > hint and not random and task.agent.style == "paper":
        notes.append(f"{what}, and prompts ask for {hint} words at most; env.response_hint=null leaves room")
    return notes
