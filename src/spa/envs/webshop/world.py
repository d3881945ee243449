"""WebShop: find a product that fits an instruction, choose its options and buy it."""

from __future__ import annotations

from typing import Any

import numpy as np

from spa.envs.base import Example
from spa.envs.seeded import Outcome, SeededEnv, at_least, one_of
from spa.envs.webshop import pages, search
from spa.envs.webshop.catalogue import plain
from spa.envs.webshop.goals import Goal, split_of
from spa.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SUB_PAGES, Place
from spa.envs.webshop.shop import GOALS, open_shop

MAX_ACTION = 400  # characters; anything longer is no action
FAVOURITES = 6  # products that a blind shopper asks for most

# A page of the catalogue that comes with the package; the goal is one for training.
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


class WebShop(SeededEnv):
    """An online shop as text: search, look at products, choose options, buy.

    See ``docs/worlds/webshop.md``. Actions are ``search[words]`` on the search page and ``click[button]`` elsewhere, in any
    case. A state is the instruction, the page, its contents and the allowed actions; square brackets mark ids of products and
    values of options::

        Instruction: i need machine washable t-shirt with color: navy, and size: m, and price lower than 40.00 dollars
        Page: item of S00000012T, from results 1 for "washable t-shirt"
        Norvane Machine Washable T-Shirt
        Price: $23.50, rating: 4.2
        color: [black] [navy] [white]
        size: [s] [m] [l]
        Chosen: color: navy
        Actions: click[back to search], click[< prev], ..., click[buy now], click[<option>]

    ``buy now`` ends the episode with ``reward.reward`` (from 0 to 1; success is 1); every other action pays 0. Goals are numbered
    in a fixed random order: ``reset(options={"goal": 7})`` plays a particular one, and ``info["split"]`` is ``test``, ``val`` or
    ``train`` (``goals.split_of``).

    Args:
        products: a product file in WebShop's format (JSON array or one object a line, gzipped or not); None is the
            catalogue that comes with the package.
        attributes: the public attribute file (``items_ins_v2*.json``); None takes the products' own.
        human_goals: the public file of human goals (``items_human_ins.json``).
        goals: ``"synthetic"`` (made from products) or ``"human"``; None is human if there is a file of them.
        num_products: read only this many products.
        show_attributes: gives items a page ``attributes``.
        max_steps: valid actions after which an episode is cut off.
        render_mode: ``"ansi"`` or None; ``render()`` returns the text either way.

    Raises:
        ValueError: bm25s is not installed, a setting or a file is wrong.

    Source: Yao, Chen, Yang, Narasimhan: WebShop (arXiv 2207.01206).
    """

    name = "WebShop"
    instance_option = "goal"
    rules = (
        "Buy a product that fits the instruction: its kind, its attributes, the options and the price. "
        "search[red shoes] searches, on the search page only; click[back to search] clicks a button. Buttons are shown in square "
        "brackets: ids of products, values of options, and those in the last line. Choose every option that the instruction "
        "names before click[buy now], which ends the episode."
    )
    instruction = (
        "You are shopping online. Buy a product that fits the instruction: the kind of product, its attributes, the options and "
        "the price. On the search page, search[words] finds products. On other pages, click[...] presses a button: the id of a "
        "product or the value of an option that stands in square brackets, or one of the page's list of actions. Click every "
        "option that the instruction names, one a turn, then click[buy now], which ends the shopping. One action in a turn. "
        "Example answer format: <answer>search[red running shoes]</answer>"
    )
    example = Example(
        _LAMP,
        "It is a heavy duty, dimmable desk lamp for less than 40 dollars. The color must be brown, so I choose it first.",
        _LAMP.replace("Chosen: nothing", "Chosen: color: brown"),
        "click[brown]",
    )

    def __init__(
        self,
        products: str | None = None,
        attributes: str | None = None,
        human_goals: str | None = None,
        goals: str | None = None,
        num_products: int | None = None,
        show_attributes: bool = False,
        max_steps: int | None = 100,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(state_format="grid", max_steps=max_steps, render_mode=render_mode)
        search.bm25s()
        kind = one_of("goals", goals or ("human" if human_goals else "synthetic"), GOALS)
        if kind == "human" and not human_goals:
            raise ValueError("goals='human' needs human_goals, the path of items_human_ins.json")
        if num_products is not None:
            num_products = at_least("num_products", num_products, 1)
        self.show_attributes = show_attributes
        self._files = (products, attributes, human_goals, kind, num_products)
        self._shop = open_shop(*self._files)
        self._number = 0  # of the goal
        self.place = Place()

    @property
    def goal(self) -> Goal:
        """What is to be bought."""
        return self._shop.goals[self._number]

    @property
    def num_goals(self) -> int:
        return len(self._shop.goals)

    def render(self) -> str:
        """The true state: the page as text."""
        return pages.render(self.goal, self.place, self._shop, self.show_attributes)

    def sample_action(self, rng: np.random.Generator) -> str:
        """A random action of a shopper who does not see the page: it may well be a button that is not there.

        Every other time it is about one of a few favourite products, or else it would hardly ever meet one that it searched.
        """
        products = self._shop.products
        few = products[:: max(1, len(products) // FAVOURITES)] if rng.integers(2) else products
        product = few[int(rng.integers(len(few)))]
        kinds = ["search", "search", "id", "id", "option", "option", BUY, BACK, NEXT, PREVIOUS, *SUB_PAGES[:3]]
        kind = kinds[int(rng.integers(len(kinds)))]
        if kind == "search":
            return f"search[{(product.query or product.title)[: pages.MAX_QUERY]}]"
        if kind == "id":
            return f"click[{product.id}]"
        values = list(pages.labels(product)) or [BUY]
        return f"click[{values[int(rng.integers(len(values)))]}]" if kind == "option" else f"click[{kind}]"

    def _make(self, world_seed: int) -> None:
        self._take_instance(world_seed % self.num_goals)

    def _read_instance(self, text: Any) -> int:
        if (number := at_least("goal", text, 0)) >= self.num_goals:
            raise ValueError(f"goal must be below {self.num_goals}, the number of goals, got {number}")
        return number

    def _take_instance(self, instance: int) -> None:
        self._number, self.place = instance, Place()

    def _load(self, text: str) -> None:
        """Takes over a page as text, with the instruction that it shows."""
        self._number, self.place = pages.parse(text.strip(), self._shop, self._number, self.show_attributes)

    def _keeps(self, earlier: Any) -> bool:
        return bool(self.goal.text == earlier.goal.text)

    def _play(self, action: str) -> Outcome | None:
        if len(action) > MAX_ACTION:
            return None
        verb, _, argument = action.strip().partition("[")
        if not argument.endswith("]"):
            return None
        verb, argument = verb.strip().lower(), plain(argument[:-1]).lower()
        if verb == "search" and self.place.kind == "search" and argument and len(argument) <= pages.MAX_QUERY:
            place: Place | None = Place("results", argument)
        elif verb == "click":
            place = pages.buttons(self.place, self._shop, self.show_attributes).get(argument)
        else:
            place = None
        if place is None:
            return None
        effective, self.place = place != self.place, place
        return Outcome(self._score(), effective, self._finished())

    def _score(self) -> float:
        return pages.score(self.goal, self.place).total if self.place.kind == "bought" else 0.0

    def _finished(self) -> bool:
        return self.place.kind == "bought"

    def _success(self) -> bool:
        return self._score() >= 1

    def _problem(self) -> str:
        return f"{self.goal.target.id}\n{self.goal.text}"

    def _info(self, *, valid: bool, effective: bool) -> dict[str, Any]:
        split = split_of(self._number, self.num_goals)
        return {**super()._info(valid=valid, effective=effective), "split": split}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_shop"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._shop = open_shop(*self._files)
