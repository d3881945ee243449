"""Every page and button, and what the text of a page says."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tests.envs.webshop.goods import SHOE

from spa.envs.webshop import WebShop, pages

HEAD = "Instruction: i need red trail shoes in size 9\n"
SEARCH_PAGE = HEAD + "Page: search\nActions: search[<words>]"
RESULTS = (
    HEAD + 'Page: results 1 of 1 for "shoe" (1 products)\n'
    "[B000SHOE01] Trail Runner (2022) Shoe - fur Laufer, $1049.50\n"
    "Actions: click[back to search], click[<id>]"
)
ITEM = (
    HEAD + 'Page: item of B000SHOE01, from results 1 for "shoe"\n'
    "Trail Runner (2022) Shoe - fur Laufer\nPrice: $1049.50, rating: N.A.\n"
    "color: [red] [navy | white]\nsize: [9] [10]\nChosen: nothing\n"
    "Actions: click[back to search], click[< prev], click[description], click[features], click[reviews], click[buy now], "
    "click[<option>]"
)
SUB = (
    HEAD + 'Page: {} of B000SHOE01, from results 1 for "shoe"\nChosen: {}\n{}\n'
    "Actions: click[back to search], click[< prev]"
)
BOUGHT = (
    HEAD + "Page: bought B000SHOE01\nTrail Runner (2022) Shoe - fur Laufer\nPrice: $1049.50, rating: N.A.\n"
    "Chosen: {}\nScore: {}"
)


def test_every_page(shop):
    def act(action: str) -> str:
        state, earned, terminated, _, info = shop.step(action)
        assert (earned, terminated, info["valid"], info["effective"]) == (0, False, True, True), action
        return state

    def chosen(what: str) -> str:
        return ITEM.replace("Chosen: nothing", f"Chosen: {what}")

    assert shop.render() == SEARCH_PAGE
    assert act(" SEARCH[ Shoe  ] ") == RESULTS
    assert act("click[b000shoe01]") == ITEM
    assert act("Click[Description]") == SUB.format("description", "nothing", "A light shoe. Made for trails.")
    assert act("click[< prev]") == ITEM
    assert act("click[features]") == SUB.format("features", "nothing", "- Non slip sole\n- Breathable mesh")
    assert act("click[< Prev]") == ITEM
    assert act("click[reviews]") == SUB.format("reviews", "nothing", "Rating: N.A.")
    assert act("click[back to search]") == SEARCH_PAGE
    act("search[shoe]")
    act("click[B000SHOE01]")
    assert act("click[10]") == chosen("size: 10")
    assert act("click[red]") == chosen("color: red; size: 10")  # in the product's order
    assert act("click[features]").split("\n")[2] == "Chosen: color: red; size: 10"
    assert act("click[< prev]") == chosen("color: red; size: 10")
    assert act("click[< prev]") == RESULTS
    assert act("click[B000SHOE01]") == ITEM  # choices are forgotten
    assert act("click[red]") == chosen("color: red")
    state, _, _, _, info = shop.step("click[red]")
    assert (state, info["valid"], info["effective"]) == (chosen("color: red"), True, False)
    state, earned, terminated, truncated, info = shop.step("click[buy now]")
    assert state == BOUGHT.format("color: red", "0.80")
    assert earned == pytest.approx(4 / 5) and terminated and not truncated and not info["success"]


def test_buying_what_was_asked_for(shop):
    for action in ("search[trail]", "click[B000SHOE01]", "click[red]", "click[9]"):
        assert not shop.step(action)[4]["success"]
    state, earned, terminated, _, info = shop.step("click[buy now]")
    assert state == BOUGHT.format("color: red; size: 9", "1.00")
    assert (earned, terminated, info["success"]) == (1.0, True, True)


def test_pages_of_results():
    env = WebShop()
    env.reset(seed=0)
    state = env.step("search[machine washable]")[0]
    seen = []
    for number in range(1, 6):
        shown = re.findall(r"^\[(\w+)\] ", state, re.MULTILINE)
        assert len(shown) == 10 and f'Page: results {number} of 5 for "machine washable" (50 products)' in state
        assert ("click[< prev]" in state) == (number > 1) and ("click[next >]" in state) == (number < 5)
        seen += shown
        state, _, _, _, info = env.step("click[next >]")
        assert info["valid"] == (number < 5)
    assert len(set(seen)) == 50
    assert not env.step(f"click[{seen[0]}]")[4]["valid"]  # on another page
    assert "results 4 of 5" in env.step("click[< prev]")[0]
    assert "from results 4" in env.step(f"click[{seen[35]}]")[0]
    assert "results 4 of 5" in env.step("click[< prev]")[0]


def test_a_search_that_finds_nothing(shop):
    state, _, _, _, info = shop.step("search[zebra]")
    assert info["valid"] and info["effective"]
    assert state == HEAD + 'Page: results 1 of 1 for "zebra" (0 products)\nActions: click[back to search]'


FIND, LOOK = "search[shoe]", "click[B000SHOE01]"


@pytest.mark.parametrize(
    "before, action",
    [
        ([], "click[back to search]"),
        ([], "click[search]"),
        ([], "search[]"),
        ([], "search[ \n ]"),
        ([], "search[\u3042]"),  # nothing is left of it
        ([], "search[shoe"),
        ([], "shoe"),
        ([], "find[shoe]"),
        ([], "click[<id>]"),
        ([], "search[" + "x" * 301 + "]"),
        ([], "search[" + "x " * 100_000 + "]"),
        ([FIND], FIND),  # there is no search bar
        ([FIND], "click[B000SOCK01]"),
        ([FIND], "click[next >]"),
        ([FIND], "click[buy now]"),
        ([FIND, LOOK], "click[purple]"),
        ([FIND, LOOK], "click[attributes]"),
        ([FIND, LOOK], LOOK),
        ([FIND, LOOK, "click[features]"], "click[buy now]"),
        ([FIND, LOOK, "click[features]"], "click[reviews]"),
    ],
)
def test_actions_that_a_page_does_not_have(shop, before, action):
    for earlier in before:
        assert shop.step(earlier)[4]["valid"]
    state = shop.render()
    after, earned, terminated, truncated, info = shop.step(action)
    assert (after, earned, terminated, truncated) == (state, 0.0, False, False)
    assert not info["valid"] and not info["effective"]


def test_options_that_share_a_value_or_the_name_of_a_button(shop):
    shop.step("search[sock]")
    state = shop.step("click[B000SOCK01]")[0]
    assert "\nsize: [size: 9] [one]\nwidth: [width: 9] [width: buy now]\n" in state
    assert not shop.step("click[9]")[4]["valid"]
    assert "Chosen: width: buy now\n" in shop.step("click[width: buy now]")[0]
    assert "Chosen: size: 9; width: buy now\n" in shop.step("click[size: 9]")[0]
    assert "Chosen: size: one; width: buy now\n" in shop.step("click[one]")[0]


def test_a_page_of_attributes_where_it_is_asked_for(files):
    env = WebShop(**files, show_attributes=True)
    env.reset(seed=0)
    env.step(FIND)
    assert "click[reviews], click[attributes], click[buy now]" in env.step(LOOK)[0]
    assert "\nnon slip, breathable\n" in env.step("click[attributes]")[0]


def test_long_texts_are_cut(tmp_path):
    long = {**SHOE, "name": "Lamp " * 100, "full_description": "word " * 5000, "attributes": ["soft"]}
    long["small_description"] = ["bullet " * 900] * 9
    long["customization_options"] = {"size": [{"value": f"value {number} " * 20} for number in range(200)]}
    path = tmp_path / "items.json"
    path.write_text(json.dumps([long]), encoding="utf-8")
    env = WebShop(str(path))
    env.reset(seed=0)
    for action in ("search[lamp]", LOOK, "click[description]", "click[< prev]", "click[features]"):
        state, _, _, _, info = env.step(action)
        assert info["valid"] and state in env.observation_space
        body = [line for line in state.split("\n")[2:] if not line.startswith("size: ")]
        assert max(map(len, body)) <= 2000 and len("\n".join(body)) < 2400
    assert state.split("\n")[-2].endswith("...")


def walk(env: WebShop, rng: np.random.Generator, steps: int):
    """States of a random session: buttons that the page shows, now and then the blind policy."""
    for _ in range(steps):
        state = env.render()
        shown = re.findall(r"(?<!click)\[([^\]<]+)\]|click\[([^<][^\]]*|< prev)\]", state.partition("\n")[2])
        actions = [f"click[{one or other}]" for one, other in shown] * 2 + [env.sample_action(rng)]
        action = actions[int(rng.integers(len(actions)))]
        outcome = env.step(action)
        yield state, action, outcome
        if outcome[2]:
            return


@pytest.mark.parametrize("attributes", [False, True])
def test_a_state_says_all_that_the_next_one_depends_on(attributes):
    env, other = WebShop(show_attributes=attributes), WebShop(show_attributes=attributes)
    rng = np.random.default_rng(1)
    kinds = set()
    for seed in range(30):
        first, began = env.reset(seed=seed)
        for state, action, outcome in walk(env, rng, 12):
            assert other.legal(state) and other.legal(state, first)
            restored, info = other.reset(seed=99, options={"state": state})
            assert (restored, info["content"], info["split"]) == (state, began["content"], began["split"])
            assert other.step(action) == outcome
            kinds.add(other.place.kind)
        assert other.legal(env.render())
    assert kinds == {"search", "results", "item", "bought", *pages.SUB_PAGES[: 3 + attributes]}


WRONG = [
    "",
    "Instruction: i need red trail shoes in size 9",
    SEARCH_PAGE.replace("red", "blue"),
    RESULTS.replace("$1049.50", "$1049.51"),
    RESULTS.replace("results 1 of 1", "results 2 of 2"),
    RESULTS.replace("results 1", "results 0"),
    RESULTS + ", click[next >]",
    ITEM.replace("Chosen: nothing", "Chosen: color: green"),
    ITEM.replace("Chosen: nothing", "Chosen: size: 9; color: red"),
    ITEM.replace("B000SHOE01", "B000SHOE02"),
    ITEM.replace("Page: item", "Page: party"),
    ITEM.replace("Page: item", "Page: bought"),
    ITEM.replace("Page: item", "Page: attributes"),
    SUB.format("description", "nothing", "A heavy shoe."),
    BOUGHT.format("nothing", "1.00"),
    "x" * 100_000,
    "\x00√\ud800",
]


def test_states_that_can_be_and_that_cannot(shop):
    can = [SEARCH_PAGE, SEARCH_PAGE + "\n", RESULTS, ITEM, BOUGHT.format("nothing", "0.60")]
    assert all(shop.legal(text) and shop.legal(text, SEARCH_PAGE) for text in can)
    assert not [text for text in WRONG if shop.legal(text) is not False]
    another = SEARCH_PAGE.replace("i need red trail shoes in size 9", "any shoe")
    assert shop.legal(another) and not shop.legal(another, SEARCH_PAGE)
    assert shop.render() == SEARCH_PAGE  # nothing has changed


def test_a_reset_to_a_state(shop):
    state, info = shop.reset(options={"state": ITEM})
    assert (state, info["valid"], info["success"]) == (ITEM, True, False)
    assert shop.step("click[red]")[4]["effective"]
    with pytest.raises(ValueError, match=r"line 3 must be '\[B000SHOE01\]"):
        shop.reset(options={"state": RESULTS.replace("Trail", "Tail")})
    with pytest.raises(ValueError, match="line 5 must be removed"):
        shop.reset(options={"state": RESULTS + "\n\nand more"})
    with pytest.raises(ValueError, match="text of one of the goals"):
        shop.reset(options={"state": "Instruction: steal a car"})
    with pytest.raises(ValueError, match="must be text"):
        shop.reset(options={"state": 5})
    with pytest.raises(ValueError, match="not both"):
        shop.reset(options={"state": RESULTS, "goal": 0})
