"""Products: what they are, and reading them from files in WebShop's public format."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from spa.envs.tables import entries, read_json

SHIPPED = Path(__file__).with_name("catalogue.jsonl.gz")
NO_PRICE = 100.0  # WebShop's price of a product that has none
MAX_ID = 10  # longer ids are no products; WebShop leaves them out, too

_PRICE = re.compile(r"\$\s*([0-9][0-9,]*(?:\.[0-9]+)?)")
LEVEL = "\u203a"  # between the levels of a category
# Typographic dashes, quotation marks and signs that have a plain form, and square brackets, which mark buttons.
_PLAIN = str.maketrans("\u2013\u2014\u2018\u2019\u201c\u201d\u2032\u2033\u00d7[]", "--''\"\"'\"x()")


@dataclass(frozen=True, slots=True)
class Product:
    """One product. All text is printable ASCII on one line, without square brackets: those mark buttons.

    Attributes:
        id: in capitals.
        path: the levels of the product category.
        price: in dollars; of a price range the middle.
        options: names with their values, in lower case.
        attributes: what the reward counts; shown on a page of its own where the world is set to.
    """

    id: str
    title: str
    category: str
    query: str
    path: tuple[str, ...]
    price: float
    price_tag: str
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    attributes: tuple[str, ...] = ()
    description: str = ""
    features: tuple[str, ...] = ()
    rating: str = "N.A."
    reviews: tuple[str, ...] = ()


def plain(text: str) -> str:
    """The text in printable ASCII on one line: accents dropped, square brackets made round, other characters left out."""
    text = text.translate(_PLAIN)
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().translate(_PLAIN)
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def load_products(path: Path, attributes: Path | None = None, limit: int | None = None) -> list[Product]:
    """Reads products in WebShop's public format.

    Args:
        path: a JSON array (``items_shuffle.json``, ``items_shuffle_1000.json``) or a file with one JSON object a line
            (``*.jsonl``); either may be gzipped.
        attributes: the public attribute file (``items_ins_v2.json``), an object by product id. Without it a product's own
            field ``attributes`` counts.
        limit: read the first so many products only.

    Returns:
        The products in the file's order. As in WebShop, entries without an id (``nan``), with an id of more than ten
        characters or with one that came before are left out.

    Raises:
        ValueError: names file, product, line and what is wrong.
    """
    extra = load_by_id(attributes) if attributes else None
    products: dict[str, Product] = {}
    for where, entry in islice(entries(path), limit):
        _expect(isinstance(entry, dict), where, "must be a JSON object", entry)
        identity = plain(_text(entry, "asin", where)).upper()
        where += f" ({identity})"
        if not identity or identity == "NAN" or len(identity) > MAX_ID or identity in products:
            continue
        source, place = entry, where
        if extra is not None:
            source, place = extra.get(identity, {}), f"{attributes}, product {identity}"
            _expect(isinstance(source, dict), place, "must be a JSON object", source)
        products[identity] = _product(identity, entry, text_list(source, "attributes", place), where)
    if not products:
        raise ValueError(f"{path}: holds no products")
    return list(products.values())


def load_by_id(path: Path) -> Mapping[str, Any]:
    """A JSON object whose keys are product ids (here in capitals): the attribute file or the file of human goals."""
    loaded = read_json(path)
    _expect(isinstance(loaded, dict), str(path), "must be a JSON object by product id", loaded)
    return {plain(key).upper(): value for key, value in loaded.items()}


def text_list(entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A list of texts, each in plain lower case; empty where there is none."""
    value = entry.get(key)
    if value is None:
        return ()
    _expect(_is_list_of(str, value), where, f"{key!r} must be a list of texts", value)
    return tuple(dict.fromkeys(name for text in value if (name := plain(text).lower())))


def _product(identity: str, entry: dict[str, Any], attributes: tuple[str, ...], where: str) -> Product:
    bullets = entry.get("small_description") or []
    features = [bullets] if isinstance(bullets, str) else bullets
    fits = _is_list_of((str, type(None)), features)
    _expect(fits, where, "'small_description' must be a text or a list of texts", bullets)
    title = plain(_text(entry, "name", where))
    if not title:
        raise ValueError(f"{where}: 'name' is empty")
    price, tag = _price(entry.get("pricing"), where)
    return Product(
        id=identity,
        title=title,
        category=plain(_text(entry, "category", where, "")),
        query=plain(_text(entry, "query", where, "")).lower(),
        path=tuple(level.strip() for level in _text(entry, "product_category", where, "").split(LEVEL)),
        price=price,
        price_tag=tag,
        options=_options(entry.get("customization_options"), where),
        attributes=attributes,
        description=plain(_text(entry, "full_description", where, "")),
        features=tuple(plain(line) for line in features if line),
        rating=plain(str(entry.get("average_rating") or "N.A.")),
        reviews=_reviews(entry.get("reviews"), where),
    )


def _price(pricing: Any, where: str) -> tuple[float, str]:
    """``(dollars, as shown)`` of ``"$12.99"`` or ``"$10.00 - $20.00"``."""
    if pricing is None or pricing == "":
        return NO_PRICE, f"${NO_PRICE}"
    amounts = [float(amount.replace(",", "")) for amount in _PRICE.findall(pricing)] if isinstance(pricing, str) else []
    if not amounts:
        raise ValueError(f"{where}: 'pricing' must be a price such as '$12.99', not {pricing!r}")
    if len(amounts) == 1:
        return amounts[0], f"${amounts[0]:.2f}"
    return round((amounts[0] + amounts[1]) / 2, 2), f"${amounts[0]:.2f} to ${amounts[1]:.2f}"


def _options(entry: Any, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not entry:
        return ()
    _expect(isinstance(entry, dict), where, "'customization_options' must be a JSON object", entry)
    options: dict[str, dict[str, None]] = {}
    for name, contents in entry.items():
        if contents is None:
            continue
        _expect(isinstance(contents, list), where, f"option {name!r} must be a list", contents)
        values = options.setdefault(plain(name).lower(), {})
        for content in contents:
            value = content.get("value") if isinstance(content, dict) else None
            if not isinstance(value, str):
                raise ValueError(f"{where}: option {name!r} must hold objects with a 'value', not {content!r}"[:300])
            if shown := plain(value.replace("/", " | ")).lower():
                values[shown] = None
    return tuple((name, tuple(values)) for name, values in options.items() if name and values)


def _reviews(entries: Any, where: str) -> tuple[str, ...]:
    if not entries:
        return ()
    _expect(_is_list_of(dict, entries), where, "'reviews' must be a list of JSON objects", entries)
    parts = ([review.get("score", review.get("stars")), review.get("title"), review.get("body")] for review in entries)
    return tuple(" - ".join(plain(str(part)) for part in review if part is not None) for review in parts)


def _text(entry: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = entry.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise ValueError(f"{where}: {key!r} is missing")
    _expect(isinstance(value, str), where, f"{key!r} must be a text", value)
    return str(value)


def _is_list_of(kind: type | tuple[type, ...], value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)


def _expect(fits: bool, where: str, rule: str, value: Any) -> None:
    if not fits:
        raise ValueError(f"{where}: {rule}, not {type(value).__name__}")
