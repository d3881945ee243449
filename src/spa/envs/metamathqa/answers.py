"""Whether two written answers to a mathematical question mean the same. Nothing is evaluated: text is read and compared."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_ANSWER = 200  # characters of an answer, after what stands around it was taken off
_MAX_TEXT = 4_000

_SIGNS = str.maketrans("−–×\u2044\u2215\u00a0\u202f\u2009", "--*//   ")
_WORDS = {"²": "^2", "³": "^3", "½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4", "π": "\\pi ", "°": ""}
_LATEX = str.maketrans(_WORDS | {"∞": "\\infty "})
_MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_UNITS = {"%": "percent", "hr": "hour", "min": "minute", "sec": "second", "usd": "dollar"}
_UNITS |= {"metre": "meter", "kilometre": "kilometer"}
_SINGLE_LETTERS = frozenset(["m", "g", "s", "h", "l"])  # units; any other single letter is a variable
_NO_UNITS = frozenset(["pi", "sqrt", "or", "and", "to", "i", "e", "x"])

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<currency>[$€£¥]?)\s*(?P<sign2>[+-]?)\s*"
    rf"(?:(?:(?P<whole>{_WHOLE})\s+)?(?P<over>{_WHOLE})\s*/\s*(?P<under>{_WHOLE})"
    rf"|(?P<decimal>{_WHOLE}(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?P<rest>.*)"
)
_UNIT = re.compile(r"%|[A-Za-z%](?:[A-Za-z./ -]*[A-Za-z%.])?(?:\^?[23])?")
_EXPONENT = re.compile(r"\^?[23]$")
_ASSIGNMENT = re.compile(r"[A-Za-z]\s*=\s*(?=[^=]*$)")
_WRAPPED = re.compile(r"\\(?:text|mbox|mathrm|textbf|mathbf|textit)\s*\{([^{}]*)\}")
_SIMPLE_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*([+-]?[0-9,]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9,]+)\s*\}|([0-9]))")
_FRACTION = re.compile(r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_ANNOUNCED = re.compile(r"the answer is:?", re.IGNORECASE)
_SPACING = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,;: ]|~")


def tidy(text: str) -> str | None:
    """The answer alone, in one line: what follows ``The answer is:``, the content of ``\\boxed{}``, no ``$...$``, no period.

    None where nothing or too much is left. What it returns it leaves as it is when it is given it again.
    """
    if len(text) > _MAX_TEXT:
        return None
    for _ in range(8):
        before, text = text, _peel(" ".join(text.split()))
        if text == before:
            break
    else:
        return None
    return text if 0 < len(text) <= MAX_ANSWER and text.isprintable() else None


def _peel(text: str) -> str:
    announced = _ANNOUNCED.split(text)
    if len(announced) > 1:
        return announced[-1].strip()
    boxed = _boxed(text)
    if boxed is not None:
        return boxed.strip()
    for left, right in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`")):
        inner = text[len(left) : len(text) - len(right)]
        if len(text) > len(left + right) and text.startswith(left) and text.endswith(right) and left not in inner:
            return inner.strip()
    return text.removesuffix(".").strip()


def _boxed(text: str) -> str | None:
    """The content of the last ``\\boxed{...}``, braces inside it counted."""
    _, mark, rest = text.rpartition("\\boxed{")
    depth = 1
    for position, sign in enumerate(rest if mark else ""):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth == 0:
            return rest[:position]
    return None


def same_answer(one: str, other: str) -> bool:
    """Whether two answers are the same.

    Numbers are compared by value: ``1,000 = 1000.0``, ``1/2 = 0.5 = \\frac{1}{2}``, ``$5 = 5 dollars = 5``. A unit counts where
    both have one, and the words of one must be among those of the other. ``50% = 50`` and ``50% = 0.5``, since questions ask for
    either. Everything else is compared as text, without case and spaces; tuples and intervals part by part.
    """
    first, second = tidy(one), tidy(other)
    return first is not None and second is not None and _same(_plain(first), _plain(second))


def is_number(text: str) -> bool:
    """Whether an answer can be read as a number, with or without a unit."""
    answer = tidy(text)
    return answer is not None and _number(_plain(answer)) is not None


def _same(one: str, other: str) -> bool:
    first, second = _number(one), _number(other)
    if first and second:
        return _same_number(*first, *second)
    if first or second:
        return False
    parts, others = _parts(one), _parts(other)
    if parts and others and len(parts) == len(others) and (one[0], one[-1]) == (other[0], other[-1]):
        return all(_same(a, b) for a, b in zip(parts, others, strict=True))
    return _squeezed(one) == _squeezed(other)


def _same_number(value: Fraction, unit: frozenset[str], other: Fraction, other_unit: frozenset[str]) -> bool:
    if unit and other_unit:
        return value == other and (unit <= other_unit or other_unit <= unit)
    share = value / 100 if unit == {"percent"} else value
    other_share = other / 100 if other_unit == {"percent"} else other
    return value == other or share == other_share


def _plain(text: str) -> str:
    """Without what only LaTeX or a keyboard made different."""
    text = text.translate(_SIGNS).translate(_LATEX).replace("{,}", ",").replace("\\$", "$").replace("\\%", "%")
    text = re.sub(r"\^\s*\{?\\circ\}?", "", text)
    text = re.sub(r"\\(?:cdot|times)(?![A-Za-z])", "*", _SPACING.sub(" ", text))
    text = re.sub(r"\s*\^(?:\{([0-9])\})?", r"^\1", _WRAPPED.sub(r" \1 ", text))
    text = _SIMPLE_FRACTION.sub(lambda m: f" {m[1] or m[2]}/{m[3] or m[4]}", text)
    text = _FRACTION.sub(lambda m: f"{_grouped(m[1])}/{_grouped(m[2])}", text)
    text = re.sub(r"(\\sqrt|√)\s*([0-9]+)", r"\\sqrt{\2}", text)
    text = _ASSIGNMENT.sub("", text.strip(), count=1) if _ASSIGNMENT.match(text.strip()) else text
    return " ".join(text.split()).strip("$ ") if text.count("$") > 1 else " ".join(text.split())


def _grouped(part: str) -> str:
    part = part.strip()
    return part if part.isalnum() else f"({part})"


def _squeezed(text: str) -> str:
    return re.sub(r"\{([A-Za-z0-9])\}", r"\1", re.sub(r"\s+", "", text)).casefold()


def _number(text: str) -> tuple[Fraction, frozenset[str]] | None:
    """Value and unit words of a number, or None."""
    match = _NUMBER.fullmatch(text)
    if match is None or (match["sign"] and match["sign2"]):
        return None
    if match["decimal"]:
        value = Fraction(match["decimal"].replace(",", "").rstrip(".") or "0")
    else:
        under = int(match["under"].replace(",", ""))
        if not under:
            return None
        value = Fraction(int(match["over"].replace(",", "")), under) + int((match["whole"] or "0").replace(",", ""))
    unit = _unit(match["rest"])
    if unit is None:
        return None
    times, words = unit
    if match["currency"]:
        words |= {_CURRENCIES[match["currency"]]}
    return (-value if "-" in (match["sign"], match["sign2"]) else value) * times, words


def _unit(rest: str) -> tuple[int, frozenset[str]] | None:
    """What a number is multiplied by (``million``) and its unit's words; None where the rest is more than a unit."""
    text = rest.strip()
    if text and not _UNIT.fullmatch(text):
        return None
    words = [word.strip(".-") for word in re.split(r"[ /]+", text.lower().replace("%", " % "))]
    words = [_UNITS.get(short := word.removesuffix("s") or word, short) for word in words if word]
    bare = [_EXPONENT.sub("", word) for word in words]
    if any(word in _NO_UNITS or (word.isalpha() and len(word) == 1 and word not in _SINGLE_LETTERS) for word in bare):
        return None
    times = _MULTIPLES[words.pop(0)] if words and words[0] in _MULTIPLES else 1
    return times, frozenset(words)


def _parts(text: str) -> list[str]:
    """The parts of ``(a, b)`` or ``[a, b)`` between the outermost commas; none for other text."""
    if len(text) < 2 or text[0] not in "([" or text[-1] not in ")]":
        return []
    parts, depth = [""], 0
    for sign in text[1:-1]:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts] if len(parts) > 1 else []
