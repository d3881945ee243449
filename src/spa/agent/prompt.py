"""The instruction of prompt style ``paper``: the config's or the world's text, plus an example in world-model mode."""

from __future__ import annotations

from spa.config.schema import EnvConfig
from spa.envs import TextEnv

_WORLD_MODEL = (
    "\nFirst describe the current state inside <observation>, then think, then write the state that you expect after your "
    "actions inside <prediction>, then answer."
)


def instruction(config: EnvConfig, prompt: str, env: TextEnv, separator: str = "||") -> str:
    """The instruction of a world for a prompt mode.

    The config's text takes precedence over the world's ``instruction``, which takes precedence over its ``rules``. Without a
    world-model text in the config: the base text, the general request (so never empty) and the world's example. Its own texts
    separate actions by `` || ``, for which ``separator`` is put.
    """
    text = config.instruction_world_model if prompt == "world_model" else config.instruction
    if text is not None:
        return text
    theirs = (env.instruction or env.rules or f"You are playing {config.tag}.").replace(" || ", f" {separator} ")
    text = config.instruction or theirs
    if prompt == "base":
        return text
    text += _WORLD_MODEL
    if env.example is None:
        return text
    state, thoughts, next_state, actions, positions = env.example
    actions = actions.replace(" || ", f" {separator} ")
    if env.state_format != "grid":  # also for random_coordinates: the example shows how positions are written
        state, next_state = (
            f"{grid}\n{sentence}" for grid, sentence in zip((state, next_state), positions, strict=True)
        )
    return text + (
        f"\nExample:\n<think> <observation>\n{state}\n</observation> {thoughts} "
        f"<prediction>\n{next_state}\n</prediction> </think> <answer>{actions}</answer>"
    )
