"""Episodes of WebShop a second, on the catalogue that comes with the package.

    python benchmarks/webshop.py

An episode: a reset, a search for the words of the instruction, a click on the product to buy, a click on every option that
is wanted, buying. A product that is not on the first page is looked for by its title first, on a page of its own.

    new          every search is a new one
    remembered   the same episodes again: the searches are remembered
    public       new searches in a catalogue of 10,000 products, of the size and form of WebShop's own

One thread, one process; medians of the repeats. The price of the first search (building the index) is given apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import finish
from spa.envs.webshop import WebShop
from spa.envs.webshop.catalogue import SHIPPED, load_products

EPISODES = 1000
COPIES = 26  # of the shipped catalogue, with other ids and brands: some 10,000 products


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "products.jsonl"
        large.write_text("".join(json.dumps(entry) + "\n" for entry in copies()))
        runs: dict[str, list[float]] = {"new": [], "remembered": [], "public": []}
        for repeat in range(options.repeats):
            env = fresh(repeat)
            runs["new"].append(play(env, repeat))
            runs["remembered"].append(play(env, repeat))
            runs["public"].append(play(fresh(repeat, products=str(large)), repeat))
    for kind, speeds in runs.items():
        results[kind] = {"per_second": statistics.median(speeds), "lowest": min(speeds), "highest": max(speeds)}
        print(f"{kind:12}{statistics.median(speeds):8.0f} episodes/s  ({min(speeds):.0f} - {max(speeds):.0f})")
    finish(results, 1, options.json)


def fresh(repeat: int, **settings: str) -> WebShop:
    """A world of a shop that has not searched anything yet."""
    from spa.envs.webshop import shop

    shop._open.cache_clear()
    started = time.perf_counter()
    env = WebShop(**settings)
    env.reset(seed=0)
    opened = time.perf_counter()
    env.step("search[shoes]")
    if repeat == 0:
        searched = time.perf_counter() - opened
        print(f"{env.num_goals} goals: opened in {opened - started:.2f} s, first search {searched:.2f} s")
    return env


def play(env: WebShop, repeat: int) -> float:
    started = time.perf_counter()
    for seed in range(repeat * EPISODES, (repeat + 1) * EPISODES):
        env.reset(seed=seed)
        goal = env.goal
        env.step(f"search[{goal.text.partition(' with ')[0]}]")
        click = f"click[{goal.target.id}]"
        if not env.step(click)[4]["valid"]:
            env.step("click[back to search]")
            env.step(f"search[{goal.target.title}]")
            env.step(click)
        for _, value in goal.options:
            env.step(f"click[{value}]")
        assert env.step("click[buy now]")[4]["success"]
    return EPISODES / (time.perf_counter() - started)


def copies() -> list[dict[str, Any]]:
    entries = []
    for number in range(COPIES):
        for product in load_products(SHIPPED):
            entries.append(
                {
                    "asin": f"{chr(65 + number)}{product.id[1:]}",
                    "name": f"{chr(65 + number) * 3}{product.title}",
                    "category": product.category,
                    "query": product.query,
                    "product_category": " \u203a ".join(product.path),
                    "pricing": product.price_tag,
                    "full_description": product.description,
                    "small_description": list(product.features),
                    "customization_options": {
                        name: [{"value": value} for value in values] for name, values in product.options
                    },
                    "attributes": list(product.attributes),
                }
            )
    return entries


if __name__ == "__main__":
    main()
