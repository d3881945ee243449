"""Whether a model could write what a world needs: its actions and its states. Checked before anything is played."""

from __future__ import annotations

from contextlib import suppress

from spa.agent.chat import Chat
from spa.agent.response import TAG, TAGS, tagged
from spa.agent.task import Task
from spa.envs.actions import match_action
from spa.envs.checked import CheckedEnv, WorldError

SEEDS = 4  # first states looked at


def _first_states(env: CheckedEnv) -> list[str]:
    """The first states of some worlds; none where one fails, which is reported where it is played."""
    with suppress(WorldError):
        return [env.reset(seed=seed)[0] for seed in range(SEEDS)]
    return []


def check_tokenizer(chat: Chat, task: Task) -> str:
    """A note on a tokenizer that changes the world's states, such as one without their characters; "" if it keeps them.

    Raises:
        ValueError: it changes the tags of responses or the name of an action, so that no response could be read.
    """
    name = chat.tokenizer.name_or_path

    def read(text: str) -> str:
        return chat.decode(chat.encode(text))

    for tag in TAGS if task.agent.think else ("answer",):
        if read(text := tagged(tag, "")) != text:
            raise ValueError(f"the tokenizer of {name} turns {text!r} into {read(text)!r}: it cannot write responses")
    env = task.make_env()
    states = _first_states(env)  # some worlds name their actions only then
    for action in env.actions:
        if match_action(read(action).strip(), env.actions) != action:
            raise ValueError(f"the tokenizer of {name} turns the action {action!r} into {read(action)!r}: rename it")
    for state in states:
        if (found := read(state)) != state:
            at = next((i for i, (one, two) in enumerate(zip(state, found, strict=False)) if one != two), 0)
            changed = f"{state[at : at + 20]!r} in a state of {task.tag} into {found[at : at + 20]!r}"
            return f"the tokenizer of {name} turns {changed}: no prediction of it can be exact; write states without it"
    return ""


def check_states(env: CheckedEnv) -> None:
    """Raises ValueError if the world's states contain tags of the responses, so that stage 1 would keep none that writes states."""
    states = _first_states(env)
    found = [match.group() for match in map(TAG.search, states) if match]
    if states and len(found) == len(states):
        raise ValueError(
            f"this world's states contain {found[0]!r}, a tag of the responses, so that stage 1 would drop every row: write them "
            "without it"
        )
