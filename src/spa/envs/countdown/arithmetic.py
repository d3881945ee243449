"""Reading arithmetic that a model wrote: Python's grammar, exact fractions, with bounds; nothing is ever evaluated as code."""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction
from typing import NamedTuple

MAX_LENGTH = 200  # characters of an expression
MAX_DEPTH = 40  # nested parentheses, or signs

_SIGNS = str.maketrans("×✕⋅·÷\u2215\u2044−–", "****///--")
_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()])")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Expression(NamedTuple):
    """An expression that was read."""

    text: str  # as it is always written: one space around every operator between two parts
    numbers: tuple[int, ...]  # in the order of the text
    value: Fraction | None  # None: a division by zero


def parse_expression(text: str) -> Expression | None:
    """Reads whole numbers, ``+ - * /`` (also ``× ÷ −``), minus signs and parentheses; None for anything else.

    The usual precedence, from left to right, with exact fractions. At most ``MAX_LENGTH`` characters, as given and as always
    written, and ``MAX_DEPTH`` levels.
    """
    if len(text) > MAX_LENGTH:
        return None
    text = text.translate(_SIGNS).strip()
    if _TOKEN.sub("", text):
        return None
    written, before, numbers, depth = "", "", [], 0
    for token in _TOKEN.findall(text):
        after_part = before == ")" or before.isdigit()
        if token.isdigit():
            numbers.append(int(token))
            token = str(int(token))  # Python has no leading zeros
        depth += (token == "(") - (token == ")")
        if depth > MAX_DEPTH or (after_part and (token == "(" or token.isdigit())):
            return None
        written += f" {token} " if after_part and token != ")" else token
        before = token
    if len(written) > MAX_LENGTH:  # it must be read again from the state
        return None
    try:
        value = _value(ast.parse(written, mode="eval").body, 0)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return Expression(written, tuple(numbers), value)


def _value(node: ast.expr, signs: int) -> Fraction | None:
    """None: a division by zero. The whole tree is read, so that nothing after one goes unseen."""
    match node:
        case ast.Constant(int(number)):
            return Fraction(number)
        case ast.UnaryOp(ast.USub(), operand) if signs < MAX_DEPTH:
            value = _value(operand, signs + 1)
            return None if value is None else -value
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            one, other = _value(left, 0), _value(right, 0)
            if one is None or other is None or (isinstance(sign, ast.Div) and other == 0):
                return None
            result: Fraction = _OPERATORS[type(sign)](one, other)
            return result
    raise ValueError("no such arithmetic")
