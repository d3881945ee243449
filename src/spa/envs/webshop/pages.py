"""The shop's pages: how they are written, which buttons they have, and reading a written page back."""

from __future__ import annotations

import re
from collections import Counter
from itertools import zip_longest
from typing import NamedTuple

from spa.envs.webshop.catalogue import Product
from spa.envs.webshop.goals import Goal
from spa.envs.webshop.reward import Reward, reward
from spa.envs.webshop.shop import Shop

PER_PAGE = 10
MAX_TITLE = 200  # characters that are shown
MAX_TEXT = 2000  # of a description, features, reviews or attributes
MAX_QUERY = 300

SUB_PAGES = ("description", "features", "reviews", "attributes")
BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
RESERVED = (BACK, PREVIOUS, NEXT, BUY, *SUB_PAGES)
SEARCH = "search[<words>]"

_RESULTS = re.compile(r'Page: results ([0-9]{1,2}) of [0-9]{1,2} for "(.*)" \([0-9]{1,2} products\)')
_ITEM = re.compile(r'Page: ([a-z]+) of (\S{1,10}), from results ([0-9]{1,2}) for "(.*)"')
_BOUGHT = re.compile(r"Page: bought (\S{1,10})")
_CHOSEN = "Chosen: "


class Place(NamedTuple):
    """Where a shopper is: everything that a session changes."""

    kind: str = "search"  # search | results | item | one of SUB_PAGES | bought
    query: str = ""
    number: int = 1  # of the page of results
    product: Product | None = None
    chosen: tuple[tuple[str, str], ...] = ()  # values of options, in the order of the product's options

    @property
    def item(self) -> Product:
        assert self.product is not None, self.kind
        return self.product


def labels(product: Product) -> dict[str, tuple[str, str]]:
    """The buttons of a product's options: the value, or ``name: value`` where that alone would be ambiguous."""
    taken = Counter([*RESERVED, *(value for _, values in product.options for value in values)])
    return {
        (value if taken[value] == 1 else f"{name}: {value}"): (name, value)
        for name, values in product.options
        for value in values
    }


def buttons(place: Place, shop: Shop, attributes: bool = False) -> dict[str, Place]:
    """What can be clicked, in lower case, and where it leads."""
    if place.kind in ("search", "bought"):
        return {}
    back = {BACK: Place()}
    results = place._replace(kind="results", product=None, chosen=())
    if place.kind == "results":
        products = shop.find(place.query)
        if place.number > 1:
            back[PREVIOUS] = place._replace(number=place.number - 1)
        if place.number < _pages(len(products)):
            back[NEXT] = place._replace(number=place.number + 1)
        on_page = products[PER_PAGE * (place.number - 1) : PER_PAGE * place.number]
        return back | {product.id.lower(): place._replace(kind="item", product=product) for product in on_page}
    if place.kind != "item":
        return back | {PREVIOUS: place._replace(kind="item")}
    subs = SUB_PAGES if attributes else SUB_PAGES[:-1]
    options = {label: place._replace(chosen=_choose(place, *pair)) for label, pair in labels(place.item).items()}
    pages = {sub: place._replace(kind=sub) for sub in subs}
    return back | {PREVIOUS: results} | pages | {BUY: place._replace(kind="bought")} | options


def _choose(place: Place, name: str, value: str) -> tuple[tuple[str, str], ...]:
    chosen = {**dict(place.chosen), name: value}
    return tuple((known, chosen[known]) for known, _ in place.item.options if known in chosen)


def _pages(count: int) -> int:
    return max(1, -(-count // PER_PAGE))


def render(goal: Goal, place: Place, shop: Shop, attributes: bool = False) -> str:
    """The page as text: the instruction, which page it is, what it shows, and the actions that it allows."""
    lines = [f"Instruction: {goal.text}"]
    if place.kind == "search":
        return "\n".join([*lines, "Page: search", f"Actions: {SEARCH}"])
    origin = f'from results {place.number} for "{place.query}"'
    if place.kind == "results":
        products = shop.find(place.query)
        lines.append(
            f'Page: results {place.number} of {_pages(len(products))} for "{place.query}" ({len(products)} products)'
        )
        on_page = products[PER_PAGE * (place.number - 1) : PER_PAGE * place.number]
        lines += [f"[{product.id}] {_clip(product.title, MAX_TITLE)}, {product.price_tag}" for product in on_page]
        more = "click[<id>]" if on_page else None
    elif place.kind == "bought":
        earned = score(goal, place)
        lines += [f"Page: bought {place.item.id}", *_product_lines(place.item), _chosen(place)]
        return "\n".join([*lines, f"Score: {earned.total:.2f}"])
    elif place.kind == "item":
        product = place.item
        lines += [f"Page: item of {product.id}, {origin}", *_product_lines(product)]
        lines += _option_lines(product)
        lines.append(_chosen(place))
        more = "click[<option>]" if product.options else None
    else:
        lines += [f"Page: {place.kind} of {place.item.id}, {origin}", _chosen(place), _sub_page(place)]
        more = None
    listed = [f"click[{label}]" for label in buttons(place, shop, attributes) if label in RESERVED]
    return "\n".join([*lines, "Actions: " + ", ".join(listed + ([more] if more else []))])


def score(goal: Goal, place: Place) -> Reward:
    """What buying the product of this place, with the options chosen, earns."""
    return reward(goal, place.item, (value for _, value in place.chosen))


def _product_lines(product: Product) -> list[str]:
    return [_clip(product.title, MAX_TITLE), f"Price: {product.price_tag}, rating: {_clip(product.rating, 20)}"]


def _option_lines(product: Product) -> list[str]:
    shown: dict[str, list[str]] = {name: [] for name, _ in product.options}
    for label, (name, _) in labels(product).items():
        shown[name].append(f"[{label}]")
    return [f"{name}: {' '.join(values)}" for name, values in shown.items()]


def _chosen(place: Place) -> str:
    return _CHOSEN + ("; ".join(f"{name}: {value}" for name, value in place.chosen) or "nothing")


def _sub_page(place: Place) -> str:
    product = place.item
    texts = {
        "description": product.description,
        "features": "\n".join(f"- {feature}" for feature in product.features),
        "reviews": "\n- ".join([f"Rating: {_clip(product.rating, 20)}", *product.reviews]),
        "attributes": ", ".join(product.attributes),
    }
    return _clip(texts[place.kind], MAX_TEXT) or "(nothing)"


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parse(text: str, shop: Shop, number: int, attributes: bool = False) -> tuple[int, Place]:
    """The number of the goal and the place of a written page; where several goals share the instruction, ``number`` or else the
    first.

    Raises:
        ValueError: it is no page of this shop, to the last character.
    """
    lines = text.split("\n")
    written = lines[0].removeprefix("Instruction: ")
    goal_number = number if shop.goals[number].text == written else shop.number_of(written)
    if goal_number is None:
        raise ValueError("the first line of a page must be 'Instruction: ' and the text of one of the goals")
    place = _place(lines[1] if len(lines) > 1 else "", lines, shop)
    if place is None:
        raise ValueError("the second line must name the page and its product, such as 'Page: search'")
    shown = render(shop.goals[goal_number], place, shop, attributes)
    if shown != text:
        pairs = enumerate(zip_longest(shown.split("\n"), lines), start=1)
        at, line = next((at, must) for at, (must, actual) in pairs if must != actual)
        raise ValueError(f"line {at} must be {line!r}" if line is not None else f"line {at} must be removed")
    return goal_number, place


def _place(heading: str, lines: list[str], shop: Shop) -> Place | None:
    if heading == "Page: search":
        return Place()
    if match := _RESULTS.fullmatch(heading):
        place = Place("results", match[2], int(match[1]))
        return place if 1 <= place.number <= _pages(len(shop.find(place.query))) else None
    if match := _ITEM.fullmatch(heading):
        kind, identity, number, query = match.groups()
    elif match := _BOUGHT.fullmatch(heading):
        kind, identity, number, query = "bought", match[1], "1", ""
    else:
        return None
    product = shop.product(identity)
    if product is None or kind not in ("item", "bought", *SUB_PAGES):
        return None
    chosen = next((line.removeprefix(_CHOSEN) for line in lines if line.startswith(_CHOSEN)), "")
    return Place(kind, query, int(number), product, _read_chosen(chosen, product))


def _read_chosen(text: str, product: Product) -> tuple[tuple[str, str], ...]:
    chosen = []
    for name, values in product.options:
        for value in sorted(values, key=len, reverse=True):
            start = f"{name}: {value}"
            if text == start or text.startswith(start + "; "):
                chosen.append((name, value))
                text = text[len(start) + 2 :]
                break
    return tuple(chosen)
