"""The instruction texts of prompt style ``paper``, by world. A world of one's own supplies ``rules`` or a config text."""

from __future__ import annotations

from spa.config.schema import EnvConfig
from spa.envs import TextEnv

_SLIPPERY = "You may move to the unintended direction due to the slippery ice. "
_BASE = {  # {3} stands for the fourth action of the world
    "sokoban": (
        "You are solving the Sokoban puzzle. You are the player and you need to push all boxes to targets. "
        "When you are right next to a box, you can push it by moving in the same direction. "
        "You cannot push a box through a wall, and you cannot pull a box. "
        "The answer must be one of action in a turn, format is <answer>{3} || {0}</answer>."
    ),
    "frozen_lake": (
        "You are solving the FrozenLake puzzle. Forbid the hole and go to the target. "
        f"{_SLIPPERY}Example answer format: "
        "<think>To forbid the hole and go to the target, I should go {0:lower} then go {3:lower}.</think>"
        "<answer>{0} || {3}</answer>"
    ),
    "sudoku": (
        "You are solving a Sudoku puzzle. Fill in the empty cells so that every row, column and box holds each digit "
        "once. An action places one digit: row, column, value, counted from 1. "
        "Example answer format: <answer>1,1,4 || 2,3,1</answer>"
    ),
    "countdown": (
        "You are solving the Countdown puzzle. Write an arithmetic expression that equals the target. Use every number of nums "
        "exactly once, with +, -, *, / and parentheses. Example answer format: <think>For the target 8 with nums [6, 3, 4], I try "
        "6 / 3 = 2 and 2 * 4 = 8.</think><answer>6 / 3 * 4</answer>"
    ),
    "webshop": (
        "You are shopping online. Buy a product that fits the instruction: the kind of product, its attributes, the options and "
        "the price. On the search page, search[words] finds products. On other pages, click[...] presses a button: the id of a "
        "product or the value of an option that stands in square brackets, or one of the page's list of actions. Click every "
        "option that the instruction names, one a turn, then click[buy now], which ends the shopping. One action in a turn. "
        "Example answer format: <answer>search[red running shoes]</answer>"
    ),
    "metamathqa": (
        "You are solving math problems. Think step by step, then answer with the final result alone. "
        "Example answer format: <answer>42</answer>"
    ),
}

# A page of the shop that comes with the package; the goal is one for training.
_LAMP = """
Instruction: find me dimmable and heavy duty desk lamps with color: brown, and finish: matte, and price lower than 40.00 dollars
Page: item of S1286E462E, from results 1 for "heavy duty dimmable desk lamp"
Wilarra Desk Lamp, Heavy Duty, for Late Reading
Price: $28.49, rating: 4.9
color: [white] [red] [pink] [brown] [gray]
finish: [matte] [glossy]
Chosen: nothing
Actions: click[back to search], click[< prev], click[description], click[features], click[reviews], click[buy now], \
click[<option>]
""".strip()

# Worked examples of the world-model mode: (state, thoughts, next state, actions) per state format. The Sokoban one is the
# paper's second state with the true outcome of its actions.
_EXAMPLES: dict[str, dict[str, tuple[str, str, str, str]]] = {
    "sokoban": {
        "grid": (
            "######\n#_####\n#_P###\n#_X#_#\n#__O_#\n######",
            "I push the box down, go around it and push it on.",
            "######\n#_####\n#__###\n#__#_#\n#PXO_#\n######",
            "Down || Left || Down",
        ),
        "coordinates": (
            "######\n#_####\n#_P###\n#_X#_#\n#__O_#\n######\n"
            "Player (P) is at (2,2); box (X) is at (3,2); target (O) is at (4,3).",
            "I push the box down, go around it and push it on.",
            "######\n#_####\n#__###\n#__#_#\n#PXO_#\n######\n"
            "Player (P) is at (4,1); box (X) is at (4,2); target (O) is at (4,3).",
            "Down || Left || Down",
        ),
    },
    "frozen_lake": {
        "grid": (
            "_O__\nO___\nG___\n__P_",
            "The goal is one row up and two columns to the left.",
            "_O__\nO___\nG_P_\n____",
            "Up",
        ),
        "coordinates": (
            "_O__\nO___\nG___\n__P_\nPlayer (P) is at (3,2); holes (O) are at (0,1), (1,0); goal (G) is at (2,0).",
            "The goal is one row up and two columns to the left.",
            "_O__\nO___\nG_P_\n____\nPlayer (P) is at (2,2); holes (O) are at (0,1), (1,0); goal (G) is at (2,0).",
            "Up",
        ),
    },
    "sudoku": {
        "grid": (
            "| 1 2 | 3 4 | 3 4 | 1 2 | 2 1 | 4 . | 4 3 | 2 1 ",
            "Row 3 holds 2, 1 and 4, so the empty cell is 3.",
            "| 1 2 | 3 4 | 3 4 | 1 2 | 2 1 | 4 3 | 4 3 | 2 1 ",
            "3,4,3",
        ),
        "coordinates": (
            "| 1 2 3 4 | 3 4 1 2 | 2 1 4 . | 4 3 2 1 \nEmpty position to be filled is at (3,4).",
            "Row 3 holds 2, 1 and 4, so the empty cell is 3.",
            "| 1 2 3 4 | 3 4 1 2 | 2 1 4 3 | 4 3 2 1 \nNo empty positions found (board might be complete).",
            "3,4,3",
        ),
    },
    "countdown": {
        "grid": (
            "Target: 8, nums: [6, 3, 4]",
            "6 / 3 = 2, and 2 * 4 = 8.",
            "Target: 8, nums: [6, 3, 4]\nTry 1: 6 / 3 * 4 = 8 (right)",
            "6 / 3 * 4",
        ),
    },
    "webshop": {
        "grid": (
            _LAMP,
            "It is a heavy duty, dimmable desk lamp for less than 40 dollars. The color must be brown, so I choose it first.",
            _LAMP.replace("Chosen: nothing", "Chosen: color: brown"),
            "click[brown]",
        ),
    },
    "metamathqa": {
        "grid": (
            "A box holds 6 pens. How many pens are in 7 boxes?",
            "7 boxes of 6 pens hold 7 * 6 = 42 pens.",
            "A box holds 6 pens. How many pens are in 7 boxes?\nTry 1: 42 (right)",
            "42",
        ),
    },
}
_EXAMPLES["sudoku"]["grid"] = tuple(  # type: ignore[assignment]
    part.split("\n")[0] for part in _EXAMPLES["sudoku"]["coordinates"]
)

_WORLD_MODEL = (
    "\nFirst describe the current state inside <observation>, then think, then write the state that you expect after your "
    "actions inside <prediction>, then answer."
)


def _built_in(world: str, env: TextEnv) -> str:
    """The text of a world in the names that its actions have; empty where there is none."""
    text = _BASE.get(world, "")
    if not getattr(env, "is_slippery", True):
        text = text.replace(_SLIPPERY, "")
    for number, action in enumerate(env.actions):
        text = text.replace(f"{{{number}}}", action).replace(f"{{{number}:lower}}", action.lower())
    return text


def instruction(config: EnvConfig, prompt: str, env: TextEnv) -> str:
    """The instruction of a world for a prompt mode.

    The config's own text comes first, then the built-in one of the world, then the world's ``rules``. A world without a
    world-model text gets its base text and the general request (never an empty one).
    """
    own = config.instruction_world_model if prompt == "world_model" else config.instruction
    if own is not None:
        return own
    base = config.instruction or _built_in(config.id, env) or env.rules or f"You are playing {config.tag}."
    if prompt == "base":
        return base
    text = base + _WORLD_MODEL
    # The example shows how positions are written, wherever the world's own are.
    example = _EXAMPLES.get(config.id, {}).get(env.state_format.removeprefix("random_"))
    # The examples are written with the default symbols and action names.
    if example and not ({"grid_vocab", "action_names"} & set(config.settings)):
        state, thoughts, after, actions = example
        text += (
            f"\nExample:\n<think> <observation>\n{state}\n</observation> {thoughts} "
            f"<prediction>\n{after}\n</prediction> </think> <answer>{actions}</answer>"
        )
    return text
