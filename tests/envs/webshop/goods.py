"""A small shop in the public format, and who shops there."""

from __future__ import annotations

from typing import Any

from spa.agent.task import Task
from spa.config.load import load_config
from spa.config.schema import AgentConfig
from spa.envs.webshop.goals import Goal

SHOE = {
    "asin": "B000SHOE01",
    "name": "Trail Runner [2022] Shoe – für Läufer",
    "category": "fashion",
    "query": "Running Shoes ",
    "product_category": "Clothing \u203a Men \u203a Shoes",
    "pricing": "$1,049.50",
    "full_description": "A light shoe.\nMade for trails.",
    "small_description": ["Non slip sole", "Breathable mesh"],
    "customization_options": {
        "Color": [{"value": "Red", "image": "x.jpg"}, {"value": "navy/white"}],
        "size": [{"value": "9"}, {"value": "10"}],
        "fit": None,
    },
    "images": ["x.jpg"],
}
SOCK = {
    "asin": "B000SOCK01",
    "name": "Wool Sock",
    "category": "fashion",
    "query": "socks",
    "product_category": "Clothing \u203a Men \u203a Socks",
    "pricing": "$8.00$12.00",
    "full_description": None,
    "small_description": "Warm",
    "customization_options": {
        "size": [{"value": "9"}, {"value": "one"}],
        "width": [{"value": "9"}, {"value": "buy now"}],
    },
}
LAMP = {"asin": "B000LAMP01", "name": "Lamp", "category": "garden", "query": "lamps", "product_category": "Home"}
SKIPPED = [{"asin": "nan", "name": "x"}, {"asin": "TOOLONGASIN1"}, {**SHOE, "name": "the same again"}]
ATTRIBUTES = {
    "B000SHOE01": {
        "attributes": ["non slip", "breathable"],
        "instruction": "Find me non slip running shoes",
        "instruction_attributes": ["non slip"],
    },
    "B000SOCK01": {"attributes": ["wool blend"], "instruction": None},
}
HUMAN = {
    "B000SHOE01": [
        {
            "instruction": "i need red trail shoes in size 9.",
            "instruction_attributes": ["non slip", "Breathable"],
            "instruction_options": ["red", "9"],
            "worker_id": "W",
        },
        {"instruction": "no attributes", "instruction_attributes": [], "instruction_options": []},
        {"instruction": "any shoe", "instruction_attributes": ["non slip"], "instruction_options": {"Color": "Red"}},
    ],
    "B000OTHER1": [{"instruction": "another catalogue's"}],
}


def shopper(goal: Goal) -> list[str]:
    """What someone does who knows the product: search its title, click it, choose, buy."""
    chosen = [f"click[{value}]" for _, value in goal.options]
    return [f"search[{goal.target.title}]", f"click[{goal.target.id}]", *chosen, "click[buy now]"]


def webshop_task(prompt: str = "base", style: str = "terse", **env: Any) -> Task:
    config = load_config("webshop").env
    for key, value in env.items():
        setattr(config, key, value)
    return Task(config, AgentConfig(style=style, prompt=prompt, window=1))
