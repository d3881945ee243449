"""The instruction of prompt style ``paper``: the config's text or the world's own, and in world-model mode an example."""

from __future__ import annotations

from spa.config.schema import EnvConfig
from spa.envs import TextEnv

_WORLD_MODEL = (
    "\nFirst describe the current state inside <observation>, then think, then write the state that you expect after your "
    "actions inside <prediction>, then answer."
)


def instruction(config: EnvConfig, prompt: str, env: TextEnv) -> str:
    """The instruction of a world for a prompt mode.

    The config's own text comes first, then the world's ``instruction``, then its ``rules``. A config without a world-model text
    gets the base text, the general request (so never an empty text) and the world's example.
    """
    text = config.instruction_world_model if prompt == "world_model" else config.instruction
    if text is not None:
        return text
    text = config.instruction or env.instruction or env.rules or f"You are playing {config.tag}."
    if prompt == "base":
        return text
    text += _WORLD_MODEL
    if env.example is None:
        return text
    state, thoughts, next_state, actions, positions = env.example
    if env.state_format != "grid":  # in random_coordinates, too: the example shows how positions are written
        state, next_state = (
            f"{grid}\n{sentence}" for grid, sentence in zip((state, next_state), positions, strict=True)
        )
    return text + (
        f"\nExample:\n<think> <observation>\n{state}\n</observation> {thoughts} "
        f"<prediction>\n{next_state}\n</prediction> </think> <answer>{actions}</answer>"
    )
