"""The shop's search: BM25 (Lucene's variant) over title, description, first feature and options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

import numpy as np

from spa.envs.webshop.catalogue import Product

HITS = 50  # products that a search finds at most
K1, B = 0.9, 0.4  # Pyserini's, which WebShop searches with
REMEMBERED = 4096  # searches

_WORD = re.compile(r"[a-z0-9]+")
# Lucene's English stop words.
_STOPPED = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was will
with
"""
_STOP_WORDS = frozenset(_STOPPED.split())


def bm25s() -> ModuleType:
    """The optional package that ranks products; ValueError names what to install where it is missing."""
    try:
        import bm25s as package
    except ImportError:
        raise ValueError("the world 'webshop' needs bm25s for its search: pip install 'spa-agent[webshop]'") from None
    return package  # type: ignore[no-any-return]


def tokens(text: str) -> list[str]:
    """Words in lower case without stop words; plural endings are dropped (Lucene has a whole stemmer)."""
    return [_singular(word) for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ches", "shes", "sses", "xes")) else word[:-1]


class Search:
    """An index of products, built once; the last searches are remembered."""

    def __init__(self, products: Sequence[Product]) -> None:
        # In the order of their ids: of products that score the same the lower id comes first.
        self._order = np.array(sorted(range(len(products)), key=lambda index: products[index].id))
        vocabulary: dict[str, int] = {}
        documents = []
        for index in self._order:
            words = tokens(_document(products[index]))
            documents.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
        self._vocabulary = vocabulary
        self._index = bm25s().BM25(k1=K1, b=B, method="lucene", backend="numpy")
        self._index.index((documents, vocabulary), show_progress=False)
        self._find = lru_cache(REMEMBERED)(self._rank)

    def find(self, query: str) -> tuple[int, ...]:
        """Indices of the best products for the query, at most ``HITS``; only those that hold one of its words."""
        known = (self._vocabulary.get(word) for word in tokens(query))
        return self._find(tuple(word for word in known if word is not None))

    def _rank(self, words: tuple[int, ...]) -> tuple[int, ...]:
        if not words:
            return ()
        # Rounded, so that a last bit, which may differ between machines, decides nothing.
        scores = np.round(self._index.get_scores_from_ids(list(words)), 4)
        hits = np.flatnonzero(scores > 0)
        if len(hits) > HITS:
            hits = hits[scores[hits] >= np.partition(scores[hits], -HITS)[-HITS]]
        best = hits[np.argsort(-scores[hits], kind="stable")][:HITS]
        return tuple(int(index) for index in self._order[best])


def _document(product: Product) -> str:
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    return " ".join([product.title, product.description, *product.features[:1], options])
