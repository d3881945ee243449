"""The parts that variants play in a comparison. Imports nothing heavy: the list of ``spa view`` starts with it."""

from __future__ import annotations

BASE, PLAIN_RL = "base", "vanilla"
EQUAL_TIME = "vanilla_longer"  # plain RL for as long as the recipe takes with its stages 1 and 2
COORDINATES = "se"  # RL with the coordinates of the recipe's states, without SFT
# The full recipe; its version for states without coordinates; then extensions beyond the paper.
MAIN_VARIANTS = ("spa", "no_coordinates", "spa_plan", "plan", "spa_dream", "search")
UPPER_BOUND = "simulator"  # no agent: its planner queries the true world
# The recipe without what it is said to work by, true states; or with other training of the same length.
CONTROLS = (
    "shuffled",
    "shuffled_grid",
    "plan_shuffled",
    "spa_plan_shuffled",
    "imitation",
    "imitation_grid",
    "self_belief",
    "base_longer",
)
# Controls without RL -> what they control, and the same control with RL.
WITHOUT_RL = {"plan_shuffled": ("plan", "spa_plan_shuffled")}
PLANNED = "+"  # in the name of a variant played with a planner: VARIANT+PLANNER
