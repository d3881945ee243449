"""Makes the word problems that come with the package, from templates, in the form of the public data.

    python scripts/make_word_problems.py           writes src/spa/envs/metamathqa/problems.jsonl.gz
    python scripts/make_word_problems.py --print   shows them

Each has a working whose lines end in ``a * b = c`` and then ``The answer is:``.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np

TARGET = Path(__file__).parents[1] / "src" / "spa" / "envs" / "metamathqa" / "problems.jsonl.gz"
COUNT = 2000
_SEED = 20_251_015  # of the whole collection
_NAMES = [
    "Ada",
    "Ben",
    "Chen",
    "Dina",
    "Emil",
    "Fatima",
    "Goran",
    "Hana",
    "Ivo",
    "Jola",
    "Kofi",
    "Lena",
    "Mateo",
    "Nina",
    "Omar",
    "Priya",
    "Quinn",
    "Rosa",
    "Sami",
    "Tara",
]
_THINGS = ["pencils", "marbles", "stickers", "apples", "buttons", "shells", "stamps", "beads", "postcards", "walnuts"]


class WordProblem(NamedTuple):
    """A question, the steps of its working, its answer."""

    question: str
    steps: tuple[str, ...]
    answer: str


class Draw:
    """Random choices for a template."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def _below(self, count: int) -> int:
        return int(self.rng.random() * count)

    def int(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return low + self._below(high - low + 1)

    def of(self, words: list[str]) -> str:
        return words[self._below(len(words))]

    def names(self) -> tuple[str, str]:
        """Two different names."""
        first = self._below(len(_NAMES))
        second = (first + 1 + self._below(len(_NAMES) - 1)) % len(_NAMES)
        return _NAMES[first], _NAMES[second]


def _boxes(d: Draw) -> WordProblem:
    who, thing, each, boxes = d.names()[0], d.of(_THINGS), d.int(4, 24), d.int(3, 15)
    return WordProblem(
        f"{who} packs {each} {thing} into every box and fills {boxes} boxes. How many {thing} does {who} pack?",
        (f"Every box holds the same, so {each} * {boxes} = {each * boxes}",),
        str(each * boxes),
    )


def _given_away(d: Draw) -> WordProblem:
    (who, friend), thing, had, more, gave = d.names(), d.of(_THINGS), d.int(20, 80), d.int(5, 40), d.int(3, 18)
    return WordProblem(
        f"{who} has {had} {thing}, finds {more} more and then gives {gave} of them to {friend}. "
        f"How many {thing} does {who} have left?",
        (
            f"With those found: {had} + {more} = {had + more}",
            f"After the gift: {had + more} - {gave} = {had + more - gave}",
        ),
        str(had + more - gave),
    )


def _shared(d: Draw) -> WordProblem:
    who, thing, children, each, rest = d.names()[0], d.of(_THINGS), d.int(3, 9), d.int(4, 20), d.int(1, 2)
    total = children * each + rest
    return WordProblem(
        f"{who} shares {total} {thing} equally among {children} children, as many as can be shared, "
        f"and keeps what is left over: {rest}. How many {thing} does each child get?",
        (
            f"Shared out are {total} - {rest} = {children * each}",
            f"For each child {children * each} / {children} = {each}",
        ),
        str(each),
    )


def _change(d: Draw) -> WordProblem:
    who, count, price = d.names()[0], d.int(2, 6), d.int(11, 30)
    note = 100 if count * price < 100 else 200
    return WordProblem(
        f"At the market {who} buys {count} baskets for ${price} each and pays with ${note}. "
        f"How much change does {who} get, in dollars?",
        (
            f"The baskets cost {count} * {price} = {count * price}",
            f"The change is {note} - {count * price} = {note - count * price}",
        ),
        f"${note - count * price}",
    )


def _cents(d: Draw) -> WordProblem:
    who, count, cents = d.names()[0], d.int(3, 9), d.int(21, 95)
    total = count * cents
    return WordProblem(
        f"One roll costs {cents} cents. {who} buys {count} rolls. How many dollars does {who} pay?",
        (f"In cents that is {count} * {cents} = {total}", f"In dollars {total} / 100 = {total / 100:.2f}"),
        f"{total / 100:.2f}",
    )


def _distance(d: Draw) -> WordProblem:
    who, speed, hours, more = d.names()[0], 5 * d.int(3, 18), d.int(2, 7), d.int(5, 40)
    return WordProblem(
        f"{who} drives {hours} hours at {speed} kilometers per hour and then another {more} kilometers. "
        "How many kilometers is that in all?",
        (
            f"The first part is {hours} * {speed} = {hours * speed}",
            f"Together {hours * speed} + {more} = {hours * speed + more}",
        ),
        f"{hours * speed + more} kilometers",
    )


def _speed(d: Draw) -> WordProblem:
    who, speed, hours = d.names()[0], d.int(12, 90), d.int(2, 9)
    return WordProblem(
        f"A train with {who} on board covers {speed * hours} kilometers in {hours} hours without changing its speed. "
        "How many kilometers does it cover in one hour?",
        (f"In one hour it covers {speed * hours} / {hours} = {speed}",),
        str(speed),
    )


def _percent_of(d: Draw) -> WordProblem:
    percent, people = 5 * d.int(1, 19), 20 * d.int(2, 30)
    return WordProblem(
        f"Of the {people} people in a hall, {percent} percent came by bus. How many people came by bus?",
        (
            f"One percent is {people} / 100 = {_decimal(Fraction(people, 100))}",
            f"So {people} * {percent} / 100 = {people * percent // 100}",
        ),
        str(people * percent // 100),
    )


def _discount(d: Draw) -> WordProblem:
    who, percent, price = d.names()[0], 10 * d.int(1, 7), 10 * d.int(3, 40)
    off = price * percent // 100
    return WordProblem(
        f"A coat costs ${price}. {who} gets a discount of {percent}%. How many dollars does {who} pay?",
        (f"The discount is {price} * {percent} / 100 = {off}", f"The price is {price} - {off} = {price - off}"),
        str(price - off),
    )


def _which_percent(d: Draw) -> WordProblem:
    who, games, percent = d.names()[0], 20 * d.int(1, 12), 5 * d.int(1, 19)
    won = games * percent // 100
    return WordProblem(
        f"{who} plays {games} games and wins {won} of them. What percentage of the games does {who} win?",
        (f"As a percentage that is {won} * 100 / {games} = {percent}",),
        f"{percent}%",
    )


def _fraction_left(d: Draw) -> WordProblem:
    who, slices = d.names()[0], d.int(5, 16)
    eaten = d.int(1, slices - 1)
    left = Fraction(slices - eaten, slices)
    return WordProblem(
        f"A cake is cut into {slices} equal slices, and {who} serves {eaten} of them. What fraction of the cake is left?",
        (
            f"Slices left: {slices} - {eaten} = {slices - eaten}",
            f"Of the whole cake {slices - eaten} / {slices} = {left}",
        ),
        f"\\frac{{{left.numerator}}}{{{left.denominator}}}",
    )


def _fraction_of(d: Draw) -> WordProblem:
    (who, friend), under, times = d.names(), d.int(3, 9), d.int(3, 15)
    over = d.int(1, under - 1)
    pages = under * times
    return WordProblem(
        f"{who}'s book has {pages} pages. On Monday {who} reads {over}/{under} of it and tells {friend} about it. "
        "How many pages are not read yet?",
        (
            f"Read are {pages} * {over} / {under} = {times * over}",
            f"Left are {pages} - {times * over} = {pages - times * over}",
        ),
        str(pages - times * over),
    )


def _average(d: Draw) -> WordProblem:
    who, first, second, third = d.names()[0], d.int(40, 99), d.int(40, 99), d.int(40, 99)
    third += -(first + second + third) % 3
    total = first + second + third
    return WordProblem(
        f"In three tests {who} scores {first}, {second} and {third} points. What is the average of the three scores?",
        (f"The sum is {first} + {second} + {third} = {total}", f"The average is {total} / 3 = {total // 3}"),
        str(total // 3),
    )


def _fence(d: Draw) -> WordProblem:
    who, length, width = d.names()[0], d.int(6, 60), d.int(3, 40)
    around = 2 * (length + width)
    return WordProblem(
        f"{who} puts a fence around a rectangular garden that is {length} meters long and {width} meters wide. "
        "How many meters of fence are needed?",
        (
            f"One long and one short side: {length} + {width} = {length + width}",
            f"All around: 2 * {length + width} = {around}",
        ),
        f"{around} meters",
    )


def _tiles(d: Draw) -> WordProblem:
    who, rows, columns, broken = d.names()[0], d.int(6, 25), d.int(5, 20), d.int(2, 12)
    return WordProblem(
        f"{who} lays a floor of {rows} rows with {columns} tiles each. On top of those laid, {broken} tiles break. "
        "How many tiles are used in all?",
        (
            f"Laid are {rows} * {columns} = {rows * columns}",
            f"With those broken {rows * columns} + {broken} = {rows * columns + broken}",
        ),
        str(rows * columns + broken),
    )


def _ages(d: Draw) -> WordProblem:
    (who, friend), age, older, years = d.names(), d.int(6, 40), d.int(2, 15), d.int(2, 12)
    return WordProblem(
        f"{who} is {age} years old, and {friend} is {older} years older. How old will {friend} be in {years} years?",
        (
            f"Now {friend} is {age} + {older} = {age + older}",
            f"Then it will be {age + older} + {years} = {age + older + years}",
        ),
        str(age + older + years),
    )


def _sum_and_difference(d: Draw) -> WordProblem:
    (who, friend), thing, less, more = d.names(), d.of(_THINGS), d.int(5, 40), d.int(2, 30)
    total = 2 * less + more
    return WordProblem(
        f"{who} and {friend} have {total} {thing} together, and {who} has {more} more than {friend}. "
        f"How many {thing} does {friend} have?",
        (f"Without those more: {total} - {more} = {total - more}", f"Half of them: {total - more} / 2 = {less}"),
        str(less),
    )


def _savings(d: Draw) -> WordProblem:
    who, week, weeks, had = d.names()[0], d.int(4, 25), d.int(3, 20), d.int(10, 90)
    goal = had + week * weeks
    return WordProblem(
        f"{who} wants a bicycle for ${goal}, has ${had} already and saves ${week} a week. "
        "After how many weeks is there enough money?",
        (f"Missing are {goal} - {had} = {goal - had}", f"That takes {goal - had} / {week} = {weeks}"),
        f"{weeks} weeks",
    )


def _factory(d: Draw) -> WordProblem:
    thing, minute, hours = d.of(_THINGS), d.int(6, 60), d.int(2, 8)
    total = minute * 60 * hours
    return WordProblem(
        f"A machine makes {minute} {thing} a minute. How many {thing} does it make in {hours} hours?",
        (f"In an hour it makes {minute} * 60 = {minute * 60}", f"In all {minute * 60} * {hours} = {total}"),
        f"{total:,}",
    )


def _recipe(d: Draw) -> WordProblem:
    who, people, times, grams = d.names()[0], d.int(2, 6), d.int(2, 6), 25 * d.int(3, 20)
    return WordProblem(
        f"A soup for {people} people takes {grams} grams of lentils. How many grams does {who} need for {people * times} people?",
        (f"That is {people * times} / {people} = {times} times as many", f"So {times} * {grams} = {times * grams}"),
        f"{times * grams} grams",
    )


def _half_hours(d: Draw) -> WordProblem:
    who, days, minutes = d.names()[0], d.int(3, 9), 15 * d.int(1, 7)
    total = Fraction(days * minutes, 60)
    return WordProblem(
        f"{who} practises the violin {minutes} minutes a day. How many hours is that in {days} days?",
        (f"In minutes: {days} * {minutes} = {days * minutes}", f"In hours: {days * minutes} / 60 = {_decimal(total)}"),
        _decimal(total),
    )


_TEMPLATES: tuple[Callable[[Draw], WordProblem], ...] = (
    _boxes,
    _given_away,
    _shared,
    _change,
    _cents,
    _distance,
    _speed,
    _percent_of,
    _discount,
    _which_percent,
    _fraction_left,
    _fraction_of,
    _average,
    _fence,
    _tiles,
    _ages,
    _sum_and_difference,
    _savings,
    _factory,
    _recipe,
    _half_hours,
)


def _decimal(value: Fraction) -> str:
    """A fraction with few digits as a decimal number: ``"2.25"``, ``"3"``."""
    return f"{float(value):.2f}".rstrip("0").rstrip(".")


def word_problems() -> list[dict[str, str]]:
    """``COUNT`` different problems, the same ones everywhere, with the fields ``query`` and ``response`` of the public data."""
    draw = Draw(np.random.Generator(np.random.PCG64(np.random.SeedSequence(_SEED))))
    made: dict[str, str] = {}
    number = 0
    while len(made) < COUNT:
        problem = _TEMPLATES[number % len(_TEMPLATES)](draw)
        number += 1
        working = "".join(f"{step}.\n" for step in problem.steps)
        made.setdefault(problem.question, f"{working}The answer is: {problem.answer}")
    return [{"query": query, "response": response} for query, response in made.items()]


def main() -> None:
    text = "".join(json.dumps(problem) + "\n" for problem in word_problems())
    if "--print" in sys.argv[1:]:
        sys.stdout.write(text)
        return
    TARGET.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{TARGET}: {COUNT} problems, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
