"""What to buy: synthetic goals from the products, human ones from the public file, and their split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from spa.envs.seeded import pick
from spa.envs.webshop.catalogue import Product, load_by_id, plain, text_list

GOALS_PER_PRODUCT = 8  # synthetic ones, of as many combinations of options
MAX_ATTRIBUTES = 3  # of a synthetic goal
SPLIT_SEED = 42
TEST, VAL = 500, 1000  # goals of the test and validation splits of a catalogue with 6,000 goals or more
PRICE_LIMITS = range(10, 1000, 10)  # dollars

_OPENINGS = ("i am looking for", "i need", "find me", "i want to buy", "please get me", "show me")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a shopper is asked for.

    Attributes:
        target: the product that it was made from; others may do as well.
        text: the instruction.
        attributes: what the product must have.
        options: (name, value) of what must be chosen; the name is empty where the public file gives none.
        price_upper: the most it may cost, in dollars; None for any price.
    """

    target: Product
    text: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_upper: float | None


def split_sizes(count: int) -> tuple[int, int]:
    """How many of ``count`` goals are for test and for validation: WebShop's 500 and 1,000, fewer of a small catalogue."""
    if count < 3:
        return 0, 0
    return min(TEST, max(1, count // 12)), min(VAL, max(1, count // 6))


def split_of(number: int, count: int) -> str:
    """The split of goal ``number``, counted in the order of ``permuted``."""
    test, val = split_sizes(count)
    return "test" if number < test else "val" if number < test + val else "train"


def permuted(goals: Sequence[Goal]) -> tuple[Goal, ...]:
    """The goals in the order in which they are numbered: Fisher-Yates from the end, with PCG64 seeded by ``SPLIT_SEED``.

    Of goals with the same instruction and target one is kept, so that no two splits share a goal.
    """
    first: dict[tuple[str, str], Goal] = {}
    for goal in goals:
        first.setdefault((goal.text, goal.target.id), goal)
    order = list(first.values())
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(SPLIT_SEED)))
    for last in range(len(order) - 1, 0, -1):
        other = pick(rng.random(), last + 1)
        order[last], order[other] = order[other], order[last]
    return tuple(order)


def human_goals(path: Path, products: Sequence[Product]) -> list[Goal]:
    """The goals of the public file ``items_human_ins.json``; as in WebShop, those without attributes are left out.

    Raises:
        ValueError: names file, product and what is wrong.
    """
    goals_by_id = load_by_id(path)
    goals = []
    for product in products:
        entries = goals_by_id.get(product.id, [])
        if not isinstance(entries, list):
            raise ValueError(f"{path}, product {product.id}: must be a list of goals")
        for number, entry in enumerate(entries, start=1):
            goal = _human_goal(entry, product, f"{path}, product {product.id}, goal {number}")
            if goal.attributes:
                goals.append(goal)
    if not goals:
        raise ValueError(f"{path}: holds no goal for any of the {len(products)} products")
    return goals


def _human_goal(entry: Any, product: Product, where: str) -> Goal:
    if not isinstance(entry, dict) or not isinstance(entry.get("instruction"), str):
        raise ValueError(f"{where}: must be a JSON object with a text 'instruction'")
    wanted = entry.get("instruction_options")
    if isinstance(wanted, dict):
        pairs = [(plain(name).lower(), text_list({name: [wanted[name]]}, name, where)) for name in wanted]
        options = tuple((name, values[0]) for name, values in pairs if values)
    else:
        options = tuple(("", value) for value in text_list(entry, "instruction_options", where))
    text = plain(entry["instruction"]).strip(".")
    upper, price = _price_limit(product, text)
    return Goal(product, text + price, text_list(entry, "instruction_attributes", where), options, upper)


def synthetic_goals(products: Sequence[Product], instructions: Path | None = None) -> list[Goal]:
    """Goals made from products that have attributes: some of these, a value of every option and a limit of the price.

    Args:
        instructions: the public attribute file; what it holds as ``instruction`` and ``instruction_attributes`` of a
            product is used instead of a sentence of our own.
    """
    instructions_by_id: Mapping[str, Any] = load_by_id(instructions) if instructions else {}
    goals = []
    for product in products:
        entry = instructions_by_id.get(product.id) or {}
        instruction_attributes = text_list(entry, "instruction_attributes", f"{instructions}, product {product.id}")
        written = entry.get("instruction")
        for number, chosen in enumerate(_combinations(product)):
            key = f"{product.id} {number}"
            if isinstance(written, str) and instruction_attributes:
                text, attributes = plain(written), instruction_attributes
            elif product.attributes and product.query:
                attributes = _some(product.attributes, key)
                text = f"{_OPENINGS[_draw(key, len(_OPENINGS))]} {_listed(attributes)} {product.query}"
            else:
                break
            if chosen:
                text += " with " + ", and ".join(f"{name}: {value}" for name, value in chosen)
            upper, price = _price_limit(product, key)
            goals.append(Goal(product, text + price, attributes, chosen, upper))
    if not goals:
        raise ValueError("no product has attributes to make a goal from; set attributes or human_goals")
    return goals


def _combinations(product: Product) -> Iterator[tuple[tuple[str, str], ...]]:
    """Combinations of the product's options: all, or some that are spread evenly over them."""
    total = prod(len(values) for _, values in product.options)
    count = min(total, GOALS_PER_PRODUCT)
    start = _draw(product.id, total)
    for step in range(count):
        place = (start + step * total // count) % total
        chosen = []
        for name, values in product.options:
            place, index = divmod(place, len(values))
            chosen.append((name, values[index]))
        yield tuple(chosen)


def _some(attributes: tuple[str, ...], key: str) -> tuple[str, ...]:
    """One to three of the attributes."""
    count = 1 + _draw(f"{key} count", min(MAX_ATTRIBUTES, len(attributes)))
    chosen = sorted(attributes, key=lambda attribute: _digest(f"{key} {attribute}"))[:count]
    return tuple(attribute for attribute in attributes if attribute in chosen)


def _price_limit(product: Product, key: str) -> tuple[float | None, str]:
    """As in WebShop: of the next four multiples of ten dollars above the price, the higher of two; none above 990 dollars."""
    limits = [limit for limit in PRICE_LIMITS if limit > product.price][:4]
    pairs = list(combinations(limits, 2))
    if not pairs:
        return None, ""
    upper = float(pairs[_draw(f"{product.id} {key} price", len(pairs))][1])
    return upper, f", and price lower than {upper:.2f} dollars"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _digest(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def _draw(key: str, count: int) -> int:
    """A number below ``count`` that depends on the key alone: a goal stays the same whatever else the catalogue holds."""
    return _digest(key) % count
