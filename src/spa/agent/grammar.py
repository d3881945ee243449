"""The grammar of responses for constrained decoding (``selfplay.constrained``). Imports no torch."""

from __future__ import annotations

import json

from spa.agent.chat import Chat
from spa.agent.response import closing, opening
from spa.agent.task import Task

LEAST = 8  # tokens of each free text; fewer hold no state


def response_grammar(task: Task, chat: Chat, max_tokens: int) -> str:
    """The responses of a task's format, in llguidance's dialect of Lark.

    Tags and the names of listed actions are fixed, one to ``env.max_actions_per_turn`` of them; the text between is free,
    without ``<``. Actions of a world that lists none are free text. Each free text may have the same number of tokens, so that
    the response and its end take at most ``max_tokens``.

    Raises:
        ValueError: they leave no room for text.
    """
    env, agent = task.started_env(), task.agent  # one world stands for all
    separator, more = json.dumps(agent.action_sep), task.env.max_actions_per_turn - 1
    if env.actions:
        names = " | ".join(json.dumps(name) for name in env.actions)
        actions = f"action ({separator} action)~0..{more}"
        longest = (more + 1) * (max(_size(name) for name in env.actions) + _size(agent.action_sep) + 2)
    else:
        names, actions, longest = '""', "text", 0
    parts = [opening("answer"), actions, closing("answer")]
    if agent.think and agent.prompt == "base":
        parts = [opening("think"), "text", closing("think"), "gap", *parts]
    elif agent.think:
        inner = [opening("observation"), "free", closing("observation"), "free", opening("prediction"), "free"]
        parts = [opening("think"), "gap", *inner, closing("prediction"), "gap", closing("think"), "gap", *parts]
    # A tag may be written as its first character and the rest; the end of the turn follows.
    fixed = (
        longest + 1 + sum(1 if part == "gap" else 1 + len(chat.encode(part[1:])) for part in parts if part[0] in "<g")
    )
    texts = max(1, sum(part in ("free", "text") for part in parts))
    free = (max_tokens - fixed) // texts
    if free < LEAST:
        enough = max(400, fixed + texts * LEAST)
        raise ValueError(
            f"sampling.max_tokens={max_tokens} leaves no room for constrained responses: set it to {enough}"
        )
    start = " ".join(json.dumps(part) if part[0] == "<" else part for part in parts)
    return (
        f"start: {start}\n"
        f"action: gap ({names}) gap\n"
        "gap: /[ \\n]?/\n"
        f"free[max_tokens={free - 1}]: /[^<]*/\n"  # the token that ends the tag before it may begin it
        f"text[max_tokens={free - 1}]: /[ \\n]?[^<\\s][^<]*/\n"
    )


def _size(text: str) -> int:
    return len(text.encode())
