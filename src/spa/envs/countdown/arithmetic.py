"""Reading arithmetic that a model wrote: a parser of its own, exact, with bounds; nothing is ever evaluated as code."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

MAX_LENGTH = 200  # characters of an expression
MAX_DEPTH = 40  # nested parentheses and signs

_OPERATORS = str.maketrans("×✕⋅·÷\u2215\u2044−–", "****///--")
_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()])")


class Expression(NamedTuple):
    """An expression that was read."""

    text: str  # as it is always written: one space around every operator between two parts
    numbers: tuple[int, ...]  # in the order of the text
    value: Fraction | None  # None: a division by zero


def parse_expression(text: str) -> Expression | None:
    """Reads whole numbers, ``+ - * /`` (also ``× ÷ −``), signs and parentheses; None for anything else.

    The usual precedence, from left to right, with exact fractions. At most ``MAX_LENGTH`` characters and ``MAX_DEPTH`` levels.
    """
    if len(text) > MAX_LENGTH:
        return None
    text = text.translate(_OPERATORS).strip()
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match[1])
        position = match.end()
    parser = _Parser(tokens)
    try:
        written, value = parser.sum(0)
    except _NoExpressionError:
        return None
    return Expression(written, tuple(parser.numbers), value) if parser.next is None else None


class _NoExpressionError(Exception):
    pass


_Part = tuple[str, Fraction | None]


class _Parser:
    """Recursive descent: sum = product (+|- product)*, product = factor (*|/ factor)*, factor = number, (sum) or -factor."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.numbers: list[int] = []

    @property
    def next(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self) -> str | None:
        token = self.next
        self.position += 1
        return token

    def sum(self, depth: int) -> _Part:
        text, value = self.product(depth)
        while self.next in ("+", "-"):
            operator = self.take()
            right, other = self.product(depth)
            text = f"{text} {operator} {right}"
            if value is None or other is None:
                value = None
            else:
                value = value + other if operator == "+" else value - other
        return text, value

    def product(self, depth: int) -> _Part:
        text, value = self.factor(depth)
        while self.next in ("*", "/"):
            operator = self.take()
            right, other = self.factor(depth)
            text = f"{text} {operator} {right}"
            if value is None or other is None or (operator == "/" and not other):
                value = None
            else:
                value = value * other if operator == "*" else value / other
        return text, value

    def factor(self, depth: int) -> _Part:
        if depth > MAX_DEPTH:
            raise _NoExpressionError
        token = self.take()
        if token == "-":
            text, value = self.factor(depth + 1)
            return f"-{text}", None if value is None else -value
        if token == "(":
            text, value = self.sum(depth + 1)
            if self.take() != ")":
                raise _NoExpressionError
            return f"({text})", value
        if token is None or not token.isdigit():
            raise _NoExpressionError
        self.numbers.append(int(token))
        return str(int(token)), Fraction(int(token))
