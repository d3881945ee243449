"""The contract of a world: text in, text out, seeded. It supplies words for a prompt, and knows no tokens or models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Space

from spa.config.fields import StateFormat
from spa.envs.spaces import AnyText

STATE_FORMATS: tuple[str, ...] = get_args(StateFormat)


class Example(NamedTuple):
    """A worked example for prompts in world-model mode, in the world's default symbols and action names."""

    state: str  # in the format ``grid``
    thoughts: str
    next_state: str  # what the world really shows after ``actions``
    actions: str  # separated by `` || ``
    positions: tuple[str, str] = ("", "")  # the lines that the formats with coordinates add to the two states


class TextEnv(gym.Env[str, str]):
    """A world played through strings.

    ``reset(seed=, options=) -> (state, info)`` and
    ``step(action) -> (state, reward, terminated, truncated, info)`` as in Gymnasium, with these additions:

    * One call of ``step`` is **one primitive move** (``"Up"``, ``"1,3,2"``, ``"search[red shoe]"``).
    * The returned state is the **true state** as text; ``render()`` returns the same string (in a world with pictures and
      ``render_mode="rgb_array"`` a picture, for people; the state stays text).
    * ``info`` always holds ``success`` (bool: the goal is reached now), ``valid`` (bool: the action was
      understood and allowed) and ``effective`` (bool: the action changed the state). At reset ``valid`` is
      True and ``effective`` False. ``info["content"]`` is a string that is equal for two worlds
      exactly if they pose the same problem (whatever seed made them); it is what keeps training, self-play and
      evaluation worlds apart.
    * An action that makes no sense is data, not an exception: ``valid`` False, reward 0, state unchanged.
    * ``terminated`` means that the task ended (won or lost), ``truncated`` only "cut off" (step limit).
    * Stepping a finished or never reset world raises ``gymnasium.error.ResetNeeded``.
    * All randomness comes from ``self.np_random``, seeded at ``reset``: the same seed gives the same world on every
      machine and in every process. ``options={"noise_seed": int}`` reseeds the randomness *after* the
      initial state was made (slipping, for instance), so that the members of a group share a world, not its luck.

    Attributes:
        rules: what the player should know, in a sentence or two, without symbols and action names.
        instruction: the text that begins a prompt of style ``paper``; empty: ``rules`` takes its place.
        example: a worked example for the world-model mode, or None.
        actions: the names of all actions in listing order, or ``()`` where actions are free text.
        symbols: cell symbol -> meaning, in listing order; ``{}`` where there are none.
        state_format: ``"grid"`` (the bare state), ``"coordinates"`` (followed by a sentence with positions) or
            ``"random_coordinates"`` (followed by a sentence with wrong ones: the paper's ablation, Fig. 5).
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}
    rules: str = ""
    instruction: str = ""
    example: Example | None = None
    actions: Sequence[str] = ()
    symbols: Mapping[str, str] = {}
    state_format: str = "grid"
    render_mode: str | None = "ansi"
    observation_space: Space[str] = AnyText(1_000_000)
    action_space: Space[str] = AnyText(1_000)

    @abstractmethod
    def render(self) -> str:
        """The true state as text, in ``state_format``."""

    def legal(self, state: str, before: str | None = None) -> bool | None:
        """Whether this world could be in ``state``, and, where ``before`` is given, could come there from it by some moves.

        A quick check of invariants (one player, all boxes present, walls unchanged), not a search for moves that lead there. None
        where the world cannot say, which is the default. Never raises, and changes nothing.
        """
        return None

    @property
    def num_cell_values(self) -> int | None:
        """How many symbols a cell of the state can show (a random guess's perplexity), or None for free text."""
        return len(self.symbols) or None

    def sample_action(self, rng: np.random.Generator) -> str:
        """A random action, blind to the state. Worlds with free-text actions override this.

        Raises:
            ValueError: the world lists no actions and does not override this method.
        """
        if not self.actions:
            raise ValueError(f"{type(self).__name__} lists no actions; give it a sample_action(rng) method")
        return str(self.actions[int(rng.integers(len(self.actions)))])
