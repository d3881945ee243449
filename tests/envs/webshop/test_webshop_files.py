"""Files in the public format, goals and their split."""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from tests.envs.webshop.goods import HUMAN, SHOE, SOCK, webshop_task

from spa.agent.worlds import WorldSource
from spa.envs import make_env
from spa.envs.webshop import WebShop
from spa.envs.webshop.catalogue import Product, load_products, plain
from spa.envs.webshop.goals import Goal, permuted, split_of, split_sizes


def test_plain_text():
    assert plain("Caf\u00e9 \u201cA\u201d \u2013 [2\u00d73]\n\u0000 \u3042x\u00a0y") == 'Cafe "A" - (2x3) x y'


def test_products_of_the_public_format(files):
    shoe, sock, lamp = load_products(Path(files["products"]), Path(files["attributes"]))
    assert (shoe.id, shoe.title) == ("B000SHOE01", "Trail Runner (2022) Shoe - fur Laufer")
    assert (shoe.query, shoe.path) == ("running shoes", ("Clothing", "Men", "Shoes"))
    assert (shoe.price, shoe.price_tag) == (1049.5, "$1049.50")
    assert shoe.options == (("color", ("red", "navy | white")), ("size", ("9", "10")))
    assert (shoe.description, shoe.features) == ("A light shoe. Made for trails.", ("Non slip sole", "Breathable mesh"))
    assert shoe.attributes == ("non slip", "breathable")
    assert (sock.price, sock.price_tag, sock.features, sock.rating) == (10.0, "$8.00 to $12.00", ("Warm",), "N.A.")
    assert (lamp.price, lamp.price_tag, lamp.attributes, lamp.options) == (100.0, "$100.0", (), ())
    assert len(load_products(Path(files["products"]), limit=1)) == 1


@pytest.mark.parametrize("form", ["json", "json.gz", "jsonl", "jsonl.gz"])
def test_forms_of_a_file(tmp_path, form):
    lines = "\n".join(map(json.dumps, [SHOE, SOCK])) if "jsonl" in form else json.dumps([SHOE, SOCK], indent=1)
    path = tmp_path / f"items.{form}"
    path.write_bytes(gzip.compress(lines.encode()) if form.endswith("gz") else lines.encode())
    assert [product.id for product in load_products(path)] == ["B000SHOE01", "B000SOCK01"]


X = '"asin": "A", "name": "x"'
BAD_PRODUCTS = [
    ('[{"asin": "A"},\n 7]', "row 1 (A): 'name' is missing"),
    ("[\n\n 7]", "row 1: must be a JSON object, not int"),
    ('[{"asin": 3}]', "row 1: 'asin' must be a text, not int"),
    ('[{"asin": "A", "name": " "}]', "row 1 (A): 'name' is empty"),
    (f"[{{{X}}}\n {{", "line 2 cannot be read as JSON"),
    (f"[{{{X}}}", "line 1 cannot be read as JSON"),
    (f'{{{X}}}\n{{"asin": \n', "line 2 cannot be read as JSON"),
    ("[]", "holds no products"),
    ("", "holds no products"),
    (f'{{{X}}}\n{{"asin": "B", "name": "y", "pricing": "cheap"}}', "line 2 (B): 'pricing' must be"),
    (f'[{{{X}, "pricing": 5}}]', "row 1 (A): 'pricing' must be a price such as '$12.99', not 5"),
    (f'[{{{X}, "category": []}}]', "row 1 (A): 'category' must be a text, not list"),
    (f'[{{{X}, "small_description": {{"a": 1}}}}]', "'small_description' must be a text or a list of texts"),
    (f'[{{{X}, "small_description": [1]}}]', "'small_description' must be a text or a list of texts"),
    (f'[{{{X}, "customization_options": [1]}}]', "'customization_options' must be a JSON object, not list"),
    (f'[{{{X}, "customization_options": {{"size": "9"}}}}]', "option 'size' must be a list, not str"),
    (f'[{{{X}, "customization_options": {{"size": [9]}}}}]', "option 'size' must hold objects with a 'value'"),
    (f'[{{{X}, "reviews": [9]}}]', "'reviews' must be a list of JSON objects"),
    (f'[{{{X}, "attributes": "soft"}}]', "'attributes' must be a list of texts, not str"),
]


@pytest.mark.parametrize("text, reason", BAD_PRODUCTS)
def test_malformed_product_files(tmp_path, text, reason):
    path = tmp_path / "items.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(reason)) as error:
        load_products(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    "which, content, reason",
    [
        ("attributes", "{\n\n oops", "attributes.json, line 3 cannot be read as JSON"),
        ("attributes", "[]", "attributes.json: must be a JSON object by product id, not list"),
        ("attributes", '{"B000SHOE01": 3}', "attributes.json, product B000SHOE01: must be a JSON object, not int"),
        ("attributes", '{"B000SHOE01": {"attributes": 3}}', "product B000SHOE01: 'attributes' must be a list"),
        ("human_goals", "nothing", "human_goals.json, line 1 cannot be read as JSON"),
        ("human_goals", '{"B000SHOE01": {}}', "human_goals.json, product B000SHOE01: must be a list of goals"),
        ("human_goals", '{"B000SHOE01": [{}]}', "human_goals.json, product B000SHOE01, goal 1: must be a JSON object"),
        ("human_goals", '{"B": []}', "human_goals.json: holds no goal for any of the 3 products"),
        (
            "human_goals",
            '{"B000SHOE01": [{"instruction": "x", "instruction_attributes": 7}]}',
            "goal 1: 'instruction_attributes' must be a list of texts, not int",
        ),
        ("human_goals", b"\xff", "is not UTF-8 text: invalid start byte at byte 0"),
        ("human_goals", b"\x1f\x8bxx", "cannot be read"),
    ],
)
def test_malformed_attribute_and_goal_files(files, which, content, reason):
    Path(files[which]).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=re.escape(reason)):
        WebShop(**files)


def test_settings_that_are_wrong(files, monkeypatch):
    with pytest.raises(ValueError, match=r"there is no file .*nowhere\.json"):
        WebShop(products="/tmp/nowhere.json")
    with pytest.raises(ValueError, match="must be given by its path, not 5"):
        WebShop(products=5)
    with pytest.raises(ValueError, match="needs human_goals,"):
        WebShop(goals="human")
    with pytest.raises(ValueError, match="Did you mean 'synthetic'"):
        WebShop(goals="syntetic")
    with pytest.raises(ValueError, match="num_products must be an integer of at least 1"):
        WebShop(num_products=0)
    with pytest.raises(ValueError, match="no product has attributes"):
        WebShop(products=files["products"])
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ValueError, match=r"pip install 'spa-agent\[webshop\]'"):
        make_env("webshop")


def test_a_file_that_changed_is_read_again(files):
    before = WebShop(**files).num_goals
    Path(files["human_goals"]).write_text(json.dumps({"B000SHOE01": HUMAN["B000SHOE01"][:1]}), encoding="utf-8")
    assert (before, WebShop(**files).num_goals) == (2, 1)


def test_human_goals(shop):
    goal = shop.goal
    assert goal.attributes == ("non slip", "breathable") and goal.options == (("", "red"), ("", "9"))
    # Above 990 dollars there is no limit, as in the original.
    assert (goal.text, goal.price_upper) == ("i need red trail shoes in size 9", None)
    named = next(goal for goal in shop._shop.goals if goal.text == "any shoe")
    assert named.options == (("color", "red"),) and shop.num_goals == 2


def test_synthetic_goals(files):
    goals = WebShop(files["products"], files["attributes"])._shop.goals
    shoes = {goal.text: goal for goal in goals if goal.target.id == "B000SHOE01"}
    assert set(shoes) == {
        f"Find me non slip running shoes with color: {color}, and size: {size}"
        for color in ("red", "navy | white")
        for size in ("9", "10")
    }
    assert all(goal.attributes == ("non slip",) for goal in shoes.values())
    socks = [goal for goal in goals if goal.target.id == "B000SOCK01"]
    pairs = {(("size", size), ("width", width)) for size in ("9", "one") for width in ("9", "buy now")}
    assert {goal.options for goal in socks} == pairs
    for goal in socks:  # of $20, 30, 40 and 50 the higher of two
        assert goal.price_upper in (30, 40, 50)
        assert re.fullmatch(r"[a-z ]+ wool blend socks with .*, and price lower than [345]0\.00 dollars", goal.text)
    assert not [goal for goal in goals if goal.target.id == "B000LAMP01"]  # has no attributes


def test_a_products_options_are_spread_over_its_goals():
    goals = WebShop()._shop.goals
    for identity, count in Counter(goal.target.id for goal in goals).items():
        own = [goal for goal in goals if goal.target.id == identity]
        ways = math.prod(len(values) for _, values in own[0].target.options)
        assert count == min(8, ways) == len({goal.options for goal in own})
    assert {len(goal.attributes) for goal in goals} == {1, 2, 3}


def test_sizes_of_the_splits():
    assert split_sizes(12087) == split_sizes(6000) == (500, 1000)
    assert split_sizes(2964) == (247, 494)
    assert (split_sizes(2), split_sizes(3), split_sizes(30)) == ((0, 0), (1, 1), (2, 5))
    numbers = [split_of(number, 6910) for number in range(6910)]
    assert numbers[:500] == ["test"] * 500 and numbers[500:1500] == ["val"] * 1000 and set(numbers[1500:]) == {"train"}


def test_the_permutation():
    target = Product("A", "a", "", "", (), 1.0, "$1")
    goals = [Goal(target, f"goal {number}", (), (), None) for number in range(10)]
    order = [goals.index(goal) for goal in permuted([*goals, goals[3]])]
    # Frozen: another order would mix training and test goals of earlier runs.
    assert "".join(map(str, order)) == "1528904637"
    many = [Goal(target, str(number), (), (), None) for number in range(3000)]
    assert sorted(permuted(many), key=lambda goal: int(goal.text)) == many
    assert 200 < sum(int(goal.text) < 1500 for goal in permuted(many)[:500]) < 300


def test_splits_keep_their_goals_apart():
    env = webshop_task().make_env()
    seen: dict[str, set[str]] = {}
    for split in ("train", "val", "test", "selfplay"):
        worlds = WorldSource(webshop_task(), split, 0).take(200)
        infos = [env.reset(seed=world.seed)[1] for world in worlds]
        assert {info["split"] for info in infos} == {split if split in ("val", "test") else "train"}
        seen[split] = {info["content"] for info in infos}
    assert not any(seen[one] & seen[other] for one, other in combinations(seen, 2))


def test_the_goal_of_a_reset():
    env = WebShop()
    splits = [env.reset(seed=0, options={"goal": number})[1]["split"] for number in (0, 246, 247, 740, 741, 2963)]
    assert splits == ["test", "test", "val", "val", "train", "train"]
    text, info = env.reset(seed=5, options={"goal": 7})
    assert (text, info) == env.reset(seed=6, options={"goal": 7, "noise_seed": 3})
    assert text.startswith(f"Instruction: {env.goal.text}\n") and env.goal == env._shop.goals[7]
    for wrong in (-1, 2964, "7", 1.5, True):
        with pytest.raises(ValueError, match="goal must be"):
            env.reset(seed=0, options={"goal": wrong})
    with pytest.raises(ValueError, match="Did you mean 'goal'"):
        env.reset(options={"goals": 1})
