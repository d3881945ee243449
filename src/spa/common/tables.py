"""Formats tables of strings for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from textwrap import TextWrapper

from spa.common.text import clean

_WRAPPER = TextWrapper(60, drop_whitespace=False, replace_whitespace=False, expand_tabs=False)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with a rule below the header; the first column is left-aligned, the others are right-aligned."""
    widths = _widths(header, rows)

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        aligned = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        return "  ".join([first.ljust(widths[0]), *aligned])

    return [line(header), "  ".join("-" * width for width in widths), *map(line, rows)]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table with aligned source. A cell stays one, whatever is in it."""
    header, *rows = [[cell.replace("|", r"\|").replace("\n", " ") for cell in cells] for cells in (header, *rows)]
    widths = _widths(header, rows)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(header), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)]


def side_by_side(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Texts of several lines next to each other, each below its title; longer lines are wrapped."""
    parts = [
        [title, *(part for line in text.splitlines() for part in _WRAPPER.wrap(clean(line)) or [""])]
        for title, text in columns
    ]
    widths = [max(map(len, part)) for part in parts]
    rows = zip_longest(*parts, fillvalue="")
    return [
        "  " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(header, *rows, strict=True)]
