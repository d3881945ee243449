"""A shop: its products, goals and search, loaded once and shared by all worlds of a process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from spa.common.files import expanded
from spa.envs.tables import version
from spa.envs.webshop.catalogue import SHIPPED, Product, load_products
from spa.envs.webshop.goals import Goal, human_goals, permuted, synthetic_goals
from spa.envs.webshop.search import Search

GOALS = ("synthetic", "human")


class Shop:
    """Products and numbered goals. The search index is built when something is first searched."""

    def __init__(self, products: Sequence[Product], goals: Sequence[Goal]) -> None:
        self.products = tuple(products)
        self.goals = permuted(goals)
        self._by_id = {product.id: product for product in self.products}

    @cached_property
    def _search(self) -> Search:
        return Search(self.products)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {self.goals[number].text: number for number in reversed(range(len(self.goals)))}

    def find(self, query: str) -> tuple[Product, ...]:
        return tuple(self.products[index] for index in self._search.find(query))

    def product(self, identity: str) -> Product | None:
        return self._by_id.get(identity)

    def number_of(self, text: str) -> int | None:
        """The first goal with this instruction."""
        return self._numbers.get(text)


def open_shop(
    products: str | None, attributes: str | None, human: str | None, goals: str, num_products: int | None
) -> Shop:
    """The shop of these files; one that is open already, unless a file changed since."""
    paths = [_path(path) for path in (products, attributes, human)]
    versions = tuple(
        version(path) if path and path.is_file() else None for path in paths
    )  # reading names a missing one
    return _open(*paths, goals, num_products, versions)


def _path(path: str | None) -> Path | None:
    if path is not None and not isinstance(path, (str, Path)):
        raise ValueError(f"a file of the shop must be given by its path, not {path!r}")
    return expanded(path) if path else None


@lru_cache(4)
def _open(
    products: Path | None,
    attributes: Path | None,
    human: Path | None,
    goals: str,
    num_products: int | None,
    versions: tuple[object, ...],
) -> Shop:
    stock = load_products(products or SHIPPED, attributes, num_products)
    if goals == "human":
        assert human is not None, "checked by the world"
        return Shop(stock, human_goals(human, stock))
    return Shop(stock, synthetic_goals(stock, attributes))
