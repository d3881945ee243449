"""MetamathQA: what counts as the same answer, our own problems against their working, rewards, data."""

from __future__ import annotations

import gzip
import json
import re
import runpy
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.envs import MetamathQA, make_env
from spa.envs.metamathqa.answers import is_number, same_answer, tidy
from spa.envs.metamathqa.world import PROBLEMS, gold_answer


@pytest.mark.parametrize(
    "one, other",
    [
        ("1,000", "1000"),
        ("1000.0", "1000"),
        ("1{,}000", "1000"),
        ("1/2", "0.5"),
        ("\\frac{1}{2}", ".5"),
        ("\\dfrac12", "1 / 2"),
        ("-\\frac{3}{4}", "-0.75"),
        ("\\frac{-3}{4}", "-3/4"),
        ("1\\frac{1}{2}", "1 1/2"),
        ("2½", "2.5"),
        ("50%", "50"),
        ("50\\%", "0.5"),
        ("50 percent", "50%"),
        ("$5", "5"),
        ("\\$5.00", "$5"),
        ("-$5", "$-5"),
        ("5 dollars", "$5"),
        ("€3", "3 euros"),
        ("12 apples", "12"),
        ("12 apples", "12 red apples"),
        ("60 mph", "60"),
        ("5cm", "5 cm"),
        ("3 hours", "3 hrs"),
        ("25\\text{ cm}^2", "25"),
        ("90^\\circ", "90°"),
        ("2 million", "2,000,000"),
        ("\\boxed{12}", "12"),
        ("so $\\boxed{\\frac{1}{3}}$ it is", "1/3"),
        ("The answer is: 12.", "12"),
        ("12 * 3 = 36. the answer is 36", "36"),
        ("$12$", "12"),
        ("\\(12\\)", "12"),
        ("**12**", "12"),
        ("x = 5", "5"),
        (" 7. ", "7"),
        ("−7", "-7"),
        ("Friday", "friday."),
        ("\\text{Friday}", "Friday"),
        ("x^2 + 1", "x^{2}+1"),
        ("8\\text{ cm}^{2}", "8 cm^2"),
        ("2\\pi", "2π"),
        ("\\sqrt{2}", "√2"),
        ("\\frac{x}{y}", "x/y"),
        ("(1, 2)", "(1.0,2)"),
        ("\\left[0, \\frac12\\right)", "[0, 0.5)"),
        ("(-\\infty, 3)", "( -∞ , 3 )"),
    ],
)
def test_the_same(one: str, other: str) -> None:
    assert same_answer(one, other) and same_answer(other, one)


@pytest.mark.parametrize(
    "one, other",
    [
        ("5", "-5"),
        ("5", "50"),
        ("1,00", "100"),
        ("1.000", "1,000"),
        ("5 hours", "5 minutes"),
        ("$5", "£5"),
        ("5 miles per hour", "5 kilometers per hour"),
        ("5x", "5"),
        ("5x^2", "5"),
        ("3y2", "3"),
        ("1e3", "1"),
        ("5 n", "5"),
        ("2 pi", "2"),
        ("50%", "5"),
        ("50%", "0.5%"),
        ("0.5", "50"),
        ("3:30", "3"),
        ("5 or 6", "5"),
        ("5^2", "5"),
        ("2*3", "6"),  # an answer is a result
        ("6 times 3", "6"),
        ("7 minus 3", "7"),
        ("\\frac{1}{23}", "\\frac{12}{3}"),
        ("1/0", "0"),
        ("(1, 2)", "(2, 1)"),
        ("(1, 2)", "[1, 2]"),
        ("(1, 2, 3)", "(1, 2)"),
        ("x^{12}", "x^{1}2"),
        ("Friday", "Monday"),
        ("", ""),
        (".", ""),
        ("a" * 201, "a" * 201),
        ("__import__('os')", "0"),
        ("١٢", "12"),
    ],
)
def test_not_the_same(one: str, other: str) -> None:
    assert not same_answer(one, other) and not same_answer(other, one)


NUMBERS = st.fractions(-5000, 5000, max_denominator=40)


def spellings(value: Fraction) -> list[str]:
    top, under = value.numerator, value.denominator
    minus = "-" if value < 0 else ""
    written = [
        f"{top}/{under}",
        f"\\frac{{{top}}}{{{under}}}",
        f"{minus}\\dfrac{{{abs(top)}}}{{{under}}}",
        f"${top} / {under}$",
    ]
    whole, rest = divmod(abs(value), 1)
    if rest:
        written.append(f"{minus}{whole} {rest.numerator}/{rest.denominator}")
    if not (value * 1000) % 1:
        decimal = abs(int(value * 1000))
        written += [
            f"{minus}{decimal // 1000}.{decimal % 1000:03}",
            f"{minus}{decimal // 1000:,}.{decimal % 1000:03}0",
        ]
    if under == 1:
        written += [f"{top:,}", f"{top} apples", f"\\boxed{{{top}}}.", f"The answer is: {top}.00"]
    return written


@pytest.mark.slow
@settings(max_examples=200)
@given(NUMBERS, NUMBERS)
def test_numbers_are_the_same_exactly_if_their_values_are(one: Fraction, other: Fraction) -> None:
    for text in spellings(one):
        assert is_number(text)
        assert all(same_answer(text, again) for again in spellings(one)), text
        assert all(same_answer(text, third) == (one == other) for third in spellings(other)), text


LATEX = [
    "\\boxed{",
    "}",
    "{",
    "$",
    "\\(",
    "\\)",
    "\\frac",
    "\\text{",
    "The answer is: ",
    "1",
    "0",
    "2/3",
    "%",
    ".",
    ",",
    " ",
    "(",
    "[",
    ")",
    "x",
    "=",
]


@settings(max_examples=400)
@given(*[st.one_of(st.text(max_size=30), st.lists(st.sampled_from(LATEX), max_size=12).map("".join))] * 2)
def test_any_text_can_be_compared(one: str, other: str) -> None:
    assert same_answer(one, other) is same_answer(other, one)
    answer = tidy(one)
    if answer is None:
        assert same_answer(one, one) is False
    else:
        assert same_answer(one, one) and same_answer(one, answer)
        assert tidy(answer) == answer and "\n" not in answer and len(answer) <= 200


@pytest.mark.parametrize(
    "text",
    ["(" * 10**6, "\\boxed{" * 10**5, "$" * 3999, "\\boxed{" * 500, "(,[" * 60, "1 " * 90, "1," * 90, " " * 3999],
)
def test_long_and_nested_texts_are_answered(text: str) -> None:
    assert same_answer(text, "1") is False


@cache
def word_problems() -> list[dict[str, str]]:
    return [json.loads(line) for line in gzip.decompress(PROBLEMS.read_bytes()).decode().splitlines()]


def test_the_script_makes_our_own_problems() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_word_problems.py"))
    assert script["word_problems"]() == word_problems()


def test_our_own_problems_are_many_and_distinct() -> None:
    problems = word_problems()
    assert len({problem["query"] for problem in problems}) == len(problems) == 2000
    assert all(problem["query"].isascii() and problem["query"].endswith("?") for problem in problems)


def test_the_working_of_our_own_problems_is_right() -> None:
    """Every line is true by Python's own arithmetic, and the answer is the result of the last one."""
    for problem in word_problems():
        *steps, last = problem["response"].split("\n")
        results = []
        for step in steps:
            sides = re.search(r"([0-9][0-9 +*/-]*) = ([0-9./]+)(?: |\.$)", step)
            assert sides, step
            left, right = (
                eval(re.sub(r"(\d+)", r"Fraction(\1)", sides[1]), {"Fraction": Fraction}),
                Fraction(sides[2].rstrip(".")),
            )
            assert left == right, step
            results.append(right)
        assert last.startswith("The answer is: ")
        answer = gold_answer(problem["response"])
        assert answer is not None and is_number(answer)
        assert same_answer(answer, f"{results[-1].numerator}/{results[-1].denominator}"), problem
        assert results[-1] >= 0
        numbers = set(re.findall(r"[0-9]+", problem["query"]))
        assert len(numbers & set(re.findall(r"[0-9]+", steps[0]))) >= 1  # what is asked is what is worked out


@pytest.fixture
def data(tmp_path) -> str:
    rows = [
        {"query": "What is 6 * 7?\nShow it.", "response": "It is 42.\nThe answer is: 42", "type": "a"},
        {
            "query": "Which day follows Monday?",
            "response": "The answer is: no. The answer is: \\text{Tuesday}",
            "type": "b",
        },
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def asked(data: str, question: str, **settings: object) -> MetamathQA:
    env = MetamathQA(data=data, **settings)  # type: ignore[arg-type]
    env.reset(seed=0, options={"state": question})
    return env


def test_rewards_halve_with_every_try(data: str) -> None:
    question = "What is 6 * 7?\nShow it."
    for wrong in range(4):
        env = asked(data, question, max_tries=4)
        for number in range(wrong):
            state, reward, terminated, truncated, info = env.step(f"{number} apples")
            assert (reward, terminated, truncated, info["success"], info["effective"]) == (
                0.0,
                False,
                False,
                False,
                True,
            )
            assert state.endswith(f"\nTry {number + 1}: {number} apples (wrong)")
        state, reward, terminated, _, info = env.step("It is \\boxed{42.0}.")
        assert (reward, terminated, info["success"]) == (1 / 2**wrong, True, True)
        assert state.startswith(question) and state.endswith(f"\nTry {wrong + 1}: 42.0 (right)")


def test_the_last_try_ends_the_episode(data: str) -> None:
    env = asked(data, "What is 6 * 7?\nShow it.")
    state, reward, terminated, truncated, info = env.step("41")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert "42" not in state  # the solution is never told


def test_what_is_no_answer_costs_no_try(data: str) -> None:
    env = asked(data, "What is 6 * 7?\nShow it.")
    for answer in ("", "   ", ".", "forty-two", "6 * 7", "42 or 43", "4" * 201, "\\boxed{", "\x00", "x" * 10**6):
        state, reward, terminated, _, info = env.step(answer)
        assert (state, reward, terminated, info["valid"], info["effective"]) == (env.render(), 0.0, False, False, False)
    assert env.step("42")[1] == 1.0
    words = asked(data, "Which day follows Monday?")
    assert words.step("it's \n  tuesday?")[4]["valid"] is True  # where words are asked for, words are answers
    assert asked(data, "Which day follows Monday?").step("tuesday")[1] == 1.0


def test_legality(data: str) -> None:
    env = asked(data, "Which day follows Monday?", max_tries=2)
    before = env.render()
    tried = f"{before}\nTry 1: Friday (wrong)"
    assert env.legal(tried, before) is True
    assert env.legal(f"{tried}\nTry 2: Tuesday (right)", tried) is True
    assert env.legal(before, tried) is False
    assert env.legal(tried.replace("wrong", "right")) is False
    assert env.legal(tried.replace("Friday", "Tuesday")) is False
    assert env.legal("What is 6 * 7?\nShow it.", before) is False  # another question
    assert env.legal("What is 6 * 8?") is False
    assert env.render() == before


def test_the_example_of_the_prompt_is_what_the_world_does(tmp_path) -> None:
    state, _, after, action, _ = MetamathQA.example
    path = tmp_path / "example.json"
    path.write_text(json.dumps([{"query": state, "response": "The answer is: 42"}]), encoding="utf-8")
    env = MetamathQA(data=str(path))
    assert env.reset(seed=0)[0] == state and env.step(action)[0] == after
    countdown = make_env("countdown")
    state, _, after, action, _ = countdown.example
    assert countdown.reset(options={"state": state})[0] == state and countdown.step(action)[0] == after


def test_variants_of_a_question_share_its_content(tmp_path) -> None:
    rows = [
        {"query": "Twice 3 is?", "response": "The answer is: 6", "original_question": "What is 2 * 3?"},
        {"query": "What is 2 * 3?", "response": "The answer is: 6", "original_question": "What is 2 * 3?"},
        {"query": "What is 2 * 4?", "response": "The answer is: 8", "original_question": None},
    ]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    env = MetamathQA(data=str(path))
    played = {env.reset(seed=seed)[0]: env.reset(seed=seed)[1]["content"] for seed in range(40)}
    assert played == {
        "Twice 3 is?": "MetamathQA What is 2 * 3?",
        "What is 2 * 3?": "MetamathQA What is 2 * 3?",
        "What is 2 * 4?": "MetamathQA What is 2 * 4?",
    }


@pytest.mark.parametrize(
    "row, message",
    [
        (
            {"query": "a?", "response": "It is 3."},
            "line 2: response must end in 'The answer is:' and an answer .*skip_bad_rows=true",
        ),
        ({"query": "a?", "response": "The answer is: "}, "line 2: response must end"),
        ({"query": "a?", "response": None}, "line 2: response must end"),
        ({"query": " ", "response": "The answer is: 3"}, "line 2: query must be text"),
        ({"query": "\ud800?", "response": "The answer is: 3"}, "line 2: query contains a lone surrogate"),
        ({"question": "a?", "response": "The answer is: 3"}, "line 2: there is no column 'query'"),
    ],
)
def test_malformed_rows_are_named(tmp_path, row: dict[str, object], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    good = {"query": "b?", "response": "The answer is: 3"}
    path.write_text(json.dumps(good) + "\n" + json.dumps(row), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        MetamathQA(data=str(path))
    assert str(path) in str(caught.value)
    if "query" in row:
        assert MetamathQA(data=str(path), skip_bad_rows=True).reset(seed=0)[0] == "b?"
        path.write_text(json.dumps(row), encoding="utf-8")
        with pytest.raises(ValueError, match=r"has no problems; .*line 1"):
            MetamathQA(data=str(path), skip_bad_rows=True)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"data": "no/such/file"}, "there is no data file no/such/file"),
        ({"data": "rows.json"}, "there is no data file rows.json"),
        ({"data": 3}, "data must be a file, the name of a data set or None"),
        ({"max_tries": 0}, "max_tries must be"),
        ({"skip_bad_rows": True}, "skip_bad_rows applies only to data"),
        ({"datta": "x"}, "Did you mean 'data'"),
    ],
)
def test_bad_settings(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env("metamathqa", **change)


def test_a_data_set_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    table = datasets.Dataset.from_list([{"query": "c?", "response": "The answer is: 3", "type": "x"}])
    asked_for: list[tuple[str, str]] = []

    def load(name: str, split: str) -> datasets.Dataset:
        asked_for.append((name, split))
        if name == "our/nothing":
            raise FileNotFoundError("no such\nset")
        return table.rename_column("query", "question") if name == "our/other" else table

    monkeypatch.setattr(datasets, "load_dataset", load)
    env = MetamathQA(data="our/problems")
    assert [env.reset(seed=seed)[0] for seed in range(3)] == ["c?"] * 3
    MetamathQA(data="our/problems")
    assert asked_for == [("our/problems", "train")]  # loaded once
    with pytest.raises(ValueError, match="the data set our/other has no column 'query', only question, response, type"):
        MetamathQA(data="our/other")
    with pytest.raises(ValueError, match="the data set our/nothing cannot be loaded: no such set"):
        MetamathQA(data="our/nothing")


def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs the package datasets: pip install 'spa-agent\[data\]'"):
        MetamathQA(data="our/missing")


def test_random_answers_are_valid() -> None:
    env, rng = MetamathQA(), np.random.default_rng(0)
    env.reset(seed=0)
    assert all(is_number(env.sample_action(rng)) for _ in range(50))
    assert env.step(env.sample_action(rng))[4]["valid"]
