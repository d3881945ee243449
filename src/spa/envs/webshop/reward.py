"""WebShop's reward for a purchase (Yao et al. 2022, section 3.2 and appendix), without spaCy and thefuzz."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from spa.envs.webshop.catalogue import Product
from spa.envs.webshop.goals import Goal

MATCH = 85  # two texts of a higher token-set ratio are the same attribute or option

_NO_WORD = re.compile(r"\W+")
_LETTERS = re.compile(r"[a-z]+")
# Names of colours, in the order in which they are looked for: one of them in an option's value stands for the whole.
_COLOURS = """
amber aqua beige black blue bronze brown burgundy charcoal copper coral cream crimson cyan fuchsia gold gray green grey
indigo ivory khaki lavender lilac lime magenta maroon mauve mint mustard navy olive orange peach pink plum purple red rose
rust sage salmon sand scarlet silver tan taupe teal turquoise violet white yellow
"""
COLOURS = dict.fromkeys(_COLOURS.split())
# Words that name no thing.
_OTHER_WORDS = """
a about above after all an and any are as at back be been before below between both but by can compatible do down each else
extra for from full free great has have high his her if in inch into is it its less like long low made make many mini more
most much my natural new no non nor not of off old on one only or other our out over own per plus portable premium pro
professional real short slim small so soft super than that the their them then there these they this those to too under up
use used very via was wide will with within without you your large medium light big multi ultra best good fresh organic
classic modern vintage casual solid two three four five six x s m l xl quick fast easy heavy ready double certified resistant
safe dry
"""
NO_NAMES = frozenset(_OTHER_WORDS.split()) | frozenset(COLOURS)
_ADJECTIVE = ("able", "ible", "ful", "less", "ous", "ive", "est", "ly")


class Reward(NamedTuple):
    """What a purchase earns, and of what."""

    type: float  # 1, 0.5, 0.1 or 0: is it the kind of product that was asked for?
    attributes: int  # wanted attributes that it has
    options: int  # wanted options that were chosen
    price: bool  # it costs no more than the limit
    total: float  # type * (attributes + options + price) / (all attributes + all options + 1)


def reward(goal: Goal, product: Product, chosen: Iterable[str]) -> Reward:
    """The reward for buying ``product`` with the ``chosen`` values of its options.

    With attributes Y_att, options Y_opt and price y_price of the purchase and those of the goal U::

        r = r_type * (|U_att & Y_att| + |U_opt & Y_opt| + [y_price <= u_price]) / (|U_att| + |U_opt| + 1)

    It is 1 exactly if everything fits.
    """
    kind = type_factor(goal.target, product)
    attributes = sum(_has(product, attribute) for attribute in goal.attributes)
    values = list(chosen)
    options = sum(any(same_option(value, option) for value in values) for _, option in goal.options)
    price = goal.price_upper is None or product.price <= goal.price_upper
    total = kind * (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1)
    return Reward(kind, attributes, options, price, total)


def type_factor(wanted: Product, bought: Product) -> float:
    """How far the kind of product is right, from the words of the titles, the search query and the categories.

    0 where the titles share no word that names a thing, 0.1 below a share of 0.1. Above it 1 if more than 0.2 are shared, or
    the products come from the same query, or from two common levels of the category; otherwise 0.5.
    """
    shared = title_score(wanted.title, bought.title)
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    same_path = len(set(wanted.path) & set(bought.path)) >= 2
    return 1.0 if wanted.query == bought.query or same_path or shared > 0.2 else 0.5


def title_score(wanted: str, bought: str) -> float:
    """Share of the naming words of ``wanted`` that ``bought`` has; 0.2 where it has none (WebShop's value)."""
    names = naming_words(wanted)
    return len(names & naming_words(bought)) / len(names) if names else 0.2


@lru_cache(4096)
def naming_words(title: str) -> frozenset[str]:
    """The words of a title that may name a thing: what is left without numbers, colours, function words and words that
    their ending or a list gives away as adjectives. (WebShop asks spaCy for nouns.)"""
    words = _LETTERS.findall(title.lower().replace("'s", ""))
    return frozenset(
        word
        for word in words
        if len(word) > 1 and word not in NO_NAMES and not (len(word) > 5 and word.endswith(_ADJECTIVE))
    )


def normal_colour(value: str) -> str:
    """The first colour that occurs as a word in an option's value, or else the value."""
    words = set(_LETTERS.findall(value))
    return next((colour for colour in COLOURS if colour in words), value)


def same_option(one: str, other: str) -> bool:
    """Whether two values of options are the same, as they stand or by their colour (WebShop: by the colour alone, so that
    "navy" is not "navy blue", whose first colour is blue)."""
    return same(one, other) or same(normal_colour(one), normal_colour(other))


def same(one: str, other: str) -> bool:
    """Whether two texts are the same attribute or option."""
    return token_set_ratio(one, other) > MATCH


@lru_cache(16384)
def token_set_ratio(one: str, other: str) -> int:
    """thefuzz's ``token_set_ratio``: how alike two texts are as sets of words, from 0 to 100.

    With the common words and the rest of each side sorted and joined, the best of the ratios between "common", "common +
    rest of one" and "common + rest of the other", where ratio(a, b) = 200 * LCS(a, b) / (len(a) + len(b)). It is
    100 if one set holds the other.
    """
    first, second = (set(_NO_WORD.sub(" ", text.lower()).split()) for text in (one, other))
    if not first or not second:
        return 0
    common = sorted(first & second)
    rests = (sorted(first - second), sorted(second - first))
    if common and not (rests[0] and rests[1]):
        return 100
    base, left, right = (" ".join(words) for words in (common, common + rests[0], common + rests[1]))
    pairs = [(left, right)] + ([(base, left), (base, right)] if base else [])
    return round(max(200 * _lcs(a, b) / (len(a) + len(b)) for a, b in pairs))


def _lcs(one: str, other: str) -> int:
    """Length of the longest common subsequence, a row of the usual table at a time as the bits of one number."""
    places: dict[str, int] = {}
    for position, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << position
    everything = row = (1 << len(one)) - 1
    for character in other:
        hit = row & places.get(character, 0)
        row = ((row + hit) | (row - hit)) & everything
    return len(one) - row.bit_count()


def _has(product: Product, attribute: str) -> bool:
    if any(same(known, attribute) for known in product.attributes):
        return True
    text = "\n".join([product.title, *product.features, product.description]).lower()
    return attribute in text
