"""Makes the catalogue that comes with the world WebShop: invented products of invented brands, in WebShop's public format.

    python scripts/make_webshop_catalogue.py            # writes src/spa/envs/webshop/catalogue.jsonl.gz
    python scripts/make_webshop_catalogue.py --print    # one JSON object a line, to standard output

The same on every machine: all choices come from SHA-256 of a text that names them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

TARGET = Path(__file__).parents[1] / "src" / "spa" / "envs" / "webshop" / "catalogue.jsonl.gz"
PER_KIND = 9
LEVEL = " \u203a "  # between the levels of a category

# The first half of a brand and the second: every product has a brand of its own.
STARTS = "Nor Til Bras Quil Os Fen Lum Pel Var Hex Cor Mis Zeph Dun Gal Kes Or Wil Thor Mar"
ENDS = "vane loway skip lonby termoor nick arra grove nado wyn wind trand rine marsh weye trel banto rick naby dale"

OPTIONS = {
    "color": "black, white, navy, red, green, yellow, purple, pink, teal, beige, orange, brown, gray",
    "size": "xs, s, m, l, xl",
    "shoe size": "6, 7, 8, 9, 10, 11, 12",
    "pack": "single, twin pack, family box, bulk carton",
    "scent": "citrus, pine, jasmine, vanilla, unscented, eucalyptus, almond",
    "flavor": "lemon, ginger, cinnamon, honey, sea salt, berry, maple, garlic",
    "length": "3 feet, 6 feet, 10 feet, 25 feet",
    "style": "plain, striped, dotted, floral, checked, quilted",
    "finish": "matte, glossy, brushed, textured",
}
# Those with a star may stand in a title. They bring at most one word that names a thing, so that titles of two kinds of
# products never count as the same kind.
ATTRIBUTES = {
    "wear": "*machine washable, *quick drying, moisture wicking, *long lasting, *tumble dry, *wrinkle resistant, elastic waist",
    "shoes": "*non slip, memory foam, arch support, *water resistant, lace up closure, rubber sole, ankle strap",
    "skin": "*cruelty free, *paraben free, dermatologist tested, plant based, travel size, *oil free, hyaluronic acid",
    "sound": "noise cancelling, water proof, *hands free, battery included, *easy to install, usb powered, long range",
    "power": "*fast charging, *heavy duty, travel size, short circuit proof, *easy to carry, braided cord, two ports",
    "light": "*dimmable, energy saving, *easy to install, usb powered, night mode, motion sensor, *heavy duty",
    "wood": "*solid wood, space saving, *easy to assemble, *scratch resistant, *eco friendly, wall mounted, *heavy duty",
    "steel": "*stainless steel, rust proof, *dishwasher safe, *easy to clean, *lead free, *heat resistant, double walled",
    "cloth": "*machine washable, *fade resistant, *easy to clean, hand woven, *eco friendly, water proof, double stitched",
    "food": "*gluten free, *sugar free, *non gmo, *high protein, low sodium, *certified organic, *dairy free",
}

# query | noun of the titles | department, aisle, shelf | attributes | options | price from, to | what for
KINDS = """
men's t-shirts | T-Shirt for Men | fashion, Men's Shirts, T-Shirts | wear | color, size | 12, 45 | hot afternoons
women's blouses | Blouse for Women | fashion, Women's Tops, Blouses | wear | color, size | 18, 70 | office meetings
hiking pants | Hiking Pants | fashion, Outdoor, Pants | wear | color, size | 25, 90 | mountain walks
yoga leggings | Yoga Leggings | fashion, Sports, Leggings | wear | color, size | 15, 60 | studio classes
rain jackets | Rain Jacket | fashion, Coats, Jackets | wear | color, size | 35, 140 | wet weather
pajama sets | Pajama Set | fashion, Sleepwear, Pajamas | wear | color, size | 20, 65 | quiet nights
running shoes | Running Shoe | fashion, Sports Footwear, Running | shoes | color, shoe size | 40, 150 | road races
women's sandals | Sandal for Women | fashion, Summer Footwear, Sandals | shoes | color, shoe size | 20, 80 | beach trips
winter boots | Winter Boot | fashion, Winter Footwear, Boots | shoes | color, shoe size | 50, 180 | snow and ice
house slippers | House Slipper | fashion, Indoor Footwear, Slippers | shoes | color, shoe size | 12, 40 | sofa evenings
face moisturizer | Face Moisturizer | beauty, Face, Moisturizers | skin | scent, pack | 8, 50 | morning routines
body lotion | Body Lotion | beauty, Body, Lotions | skin | scent, pack | 6, 35 | rough elbows
shampoo | Hair Shampoo | beauty, Hair, Shampoos | skin | scent, pack | 7, 30 | curly heads
hand soap | Hand Soap | beauty, Hands, Soaps | skin | scent, pack | 4, 20 | kitchen sinks
lip balm | Lip Balm | beauty, Lips, Balms | skin | scent, pack | 3, 15 | cold wind
bath bombs | Bath Bomb | beauty, Bath, Bombs | skin | scent, pack | 5, 28 | lazy sundays
shaving cream | Shaving Cream | beauty, Shaving, Creams | skin | scent, pack | 5, 25 | close shaves
sunscreen | Sunscreen Tube | beauty, Sun, Sunscreens | skin | scent, pack | 9, 40 | outdoor sports
wireless earbuds | Wireless Earbuds | electronics, Headphones, Earbuds | sound | color, finish | 20, 160 | train rides
bluetooth speakers | Bluetooth Speaker | electronics, Audio, Speakers | sound | color, finish | 18, 200 | garden parties
security cameras | Security Camera | electronics, Safety, Cameras | light | color, finish | 25, 220 | front doors
desk lamps | Desk Lamp | electronics, Lighting, Lamps | light | color, finish | 15, 85 | late reading
charging cables | Charging Cable | electronics, Cables, Charging | power | color, length | 6, 30 | phone owners
power banks | Power Bank | electronics, Batteries, Power Banks | power | color, finish | 15, 90 | camping weekends
extension cords | Extension Cord | electronics, Cords, Extensions | power | color, length | 8, 45 | workshop tools
video doorbells | Video Doorbell | electronics, Entry, Doorbells | light | color, finish | 40, 190 | parcel deliveries
bookshelves | Bookshelf | garden, Study, Bookshelves | wood | color, finish | 40, 260 | paperback collectors
bar stools | Bar Stool | garden, Counter, Stools | wood | color, finish | 45, 210 | breakfast nooks
coffee tables | Coffee Table | garden, Lounge, Tables | wood | color, finish | 60, 320 | guest visits
shoe racks | Shoe Rack | garden, Hallway, Racks | wood | color, finish | 18, 80 | crowded entrances
frying pans | Frying Pan | garden, Stove, Pans | steel | color, finish | 15, 95 | pancake chefs
water bottles | Water Bottle | garden, Drinkware, Bottles | steel | color, finish | 10, 45 | school bags
mixing bowls | Mixing Bowl | garden, Baking, Bowls | steel | color, finish | 9, 55 | cake batter
shower curtains | Shower Curtain | garden, Bathroom, Curtains | cloth | color, style | 10, 48 | splashy kids
throw pillows | Throw Pillow | garden, Bedding, Pillows | cloth | color, style | 8, 42 | afternoon naps
table runners | Table Runner | garden, Dining, Runners | cloth | color, style | 9, 38 | holiday dinners
granola bars | Granola Bar | grocery, Snack Bars, Granola | food | flavor, pack | 5, 30 | rucksack pockets
herbal tea | Herbal Tea | grocery, Hot Drinks, Tea | food | flavor, pack | 4, 26 | calm bedtimes
roasted nuts | Roasted Nuts | grocery, Nut Snacks, Roasted | food | flavor, pack | 6, 36 | poker friends
popcorn | Popcorn Bag | grocery, Film Snacks, Popcorn | food | flavor, pack | 3, 22 | cinema fans
pasta sauce | Pasta Sauce | grocery, Pantry, Sauces | food | flavor, pack | 4, 24 | weekday suppers
breakfast cereal | Breakfast Cereal | grocery, Cereals, Crunchy | food | flavor, pack | 4, 28 | early risers
crackers | Cracker Box | grocery, Crackers, Thin | food | flavor, pack | 3, 20 | cheese boards
protein powder | Protein Powder | grocery, Nutrition, Powders | food | flavor, pack | 18, 75 | gym goers
"""


class Kind(NamedTuple):
    """A kind of product: its words, where it stands in the shop, and what its products may have."""

    query: str
    noun: str
    path: list[str]
    attributes: list[str]
    options: dict[str, list[str]]
    prices: list[int]
    use: str


def kinds() -> list[Kind]:
    rows = []
    for line in KINDS.strip().splitlines():
        query, noun, path, pool, names, prices, use = line.split(" | ")
        options = {name.removeprefix("shoe "): OPTIONS[name].split(", ") for name in names.split(", ")}
        amounts = [int(amount) for amount in prices.split(", ")]
        rows.append(Kind(query, noun, path.split(", "), ATTRIBUTES[pool].split(", "), options, amounts, use))
    return rows


SENTENCES = (
    "{Attribute}: made for {use}.",
    "You asked for it, so here it is: {attribute}.",
    "{Attribute}, tested over and over.",
    "Its strong point: {attribute}.",
)
PRAISE = ("Does what it says", "Better than my old one", "Good for {use}", "A fair price", "I bought a second one")
BLAME = ("Arrived late", "Not my taste", "Smaller than it looked", "Fine, no more")


def draw(key: str, count: int) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % count


def some(values: Sequence[str], count: int, key: str) -> list[str]:
    """``count`` of the values, in their order."""
    chosen = sorted(values, key=lambda value: hashlib.sha256(f"{key} {value}".encode()).digest())[:count]
    return [value for value in values if value in chosen]


def make_product(kind: Kind, number: int, identity: str, brand: str) -> dict[str, Any]:
    key = f"{kind.query} {number}"
    chosen = some(kind.attributes, 3 + draw(key + " attributes", 3), key)
    starred = [f", {name[1:].title()}" for name in chosen if name[0] == "*"] or [""]
    attributes = [name.removeprefix("*") for name in chosen]
    title = f"{brand} {kind.noun}{starred[draw(key + ' title', len(starred))]}, for {kind.use.title()}"
    low, high = kind.prices
    dollars = low + draw(key + " price", high - low) + (0.0, 0.49, 0.95, 0.99)[draw(key + " cents", 4)]
    features = []
    for attribute in attributes:
        sentence = SENTENCES[draw(f"{key} {attribute}", len(SENTENCES))]
        features.append(sentence.format(attribute=attribute, Attribute=attribute.capitalize(), use=kind.use))
    options = {}
    for name, values in kind.options.items():
        count = min(len(values), 2 + draw(f"{key} {name}", 4))
        options[name] = [{"value": value} for value in some(values, count, f"{key} {name}")]
    good = PRAISE[draw(key + " good", len(PRAISE))].format(use=kind.use)
    reviews = [
        {"score": 4 + draw(key + " stars", 2), "title": good, "body": f"I use this {kind.noun.lower()} for {kind.use}."}
    ]
    if draw(key + " more", 2):
        bad = BLAME[draw(key + " bad", len(BLAME))]
        reviews.append({"score": 1 + draw(key + " less", 3), "title": bad, "body": "I expected something else."})
    return {
        "asin": identity,
        "name": title,
        "category": kind.path[0],
        "query": kind.query,
        "product_category": LEVEL.join(kind.path),
        "pricing": f"${dollars:.2f}",
        "full_description": f"The {kind.noun.lower()} by {brand}, for {kind.use}. It is known as "
        f"{', '.join(attributes[:-1])} and {attributes[-1]}.",
        "small_description": features,
        "customization_options": options,
        "attributes": attributes,
        "average_rating": (30 + draw(key + " rating", 21)) / 10,
        "reviews": reviews,
    }


def make_catalogue() -> list[dict[str, Any]]:
    """All products, the kinds mixed, with ids that say nothing."""
    made: dict[str, dict[str, Any]] = {}
    starts, ends = STARTS.split(), ENDS.split()
    for place, kind in enumerate(kinds()):
        for number in range(PER_KIND):
            row, column = divmod(PER_KIND * place + number, len(starts))
            brand = starts[column] + ends[(row + column) % len(ends)]
            identity = "S" + hashlib.sha256(f"id {kind.query} {number}".encode()).hexdigest()[:9].upper()
            assert identity not in made
            made[identity] = make_product(kind, number, identity, brand)
    return [made[identity] for identity in sorted(made)]


def main() -> None:
    text = "".join(json.dumps(product, ensure_ascii=False) + "\n" for product in make_catalogue())
    if "--print" in sys.argv[1:]:
        sys.stdout.write(text)
        return
    TARGET.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{TARGET}: {text.count(chr(10))} products, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
