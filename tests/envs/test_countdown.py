"""Countdown: the parser against Python's own, instances that have a solution, rewards, states, data files."""

from __future__ import annotations

import ast
import json
import operator
from fractions import Fraction
from itertools import permutations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spa.envs import Countdown, make_env
from spa.envs.countdown.arithmetic import MAX_DEPTH, MAX_LENGTH, parse_expression

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def by_ast(node: ast.AST) -> Fraction | None:
    """The value by Python's grammar, in fractions; None for a division by zero."""
    match node:
        case ast.Expression(body):
            return by_ast(body)
        case ast.Constant(value):
            return Fraction(value)
        case ast.UnaryOp(ast.USub(), operand):
            value = by_ast(operand)
            return None if value is None else -value
        case ast.BinOp(left, op, right):
            a, b = by_ast(left), by_ast(right)
            if a is None or b is None or (isinstance(op, ast.Div) and b == 0):
                return None
            return OPERATIONS[type(op)](a, b)
    raise AssertionError(ast.dump(node))


SPACE = st.sampled_from(["", " ", "  "])
EXPRESSIONS = st.recursive(
    st.integers(0, 40).map(str),
    lambda part: st.one_of(
        st.tuples(part, SPACE, st.sampled_from("+-*/"), SPACE, part).map("".join),
        st.tuples(SPACE, part, SPACE).map(lambda three: f"({''.join(three)})"),
        part.map(lambda text: f"-{text}"),
    ),
    max_leaves=12,
)


@settings(max_examples=400)
@given(EXPRESSIONS)
def test_values_are_those_of_pythons_grammar(text: str) -> None:
    if len(text) > MAX_LENGTH:
        assert parse_expression(text) is None
        return
    read = parse_expression(text)
    assert read is not None
    assert read.value == by_ast(ast.parse(text.strip(), mode="eval"))
    assert list(read.numbers) == [int(word) for word in "".join(c if c.isdigit() else " " for c in text).split()]
    assert len(read.text) > MAX_LENGTH or parse_expression(read.text) == read  # what is shown means the same


@settings(max_examples=300)
@given(st.text("0123456789+-*/() ", max_size=14))
@example("0/0/+0")  # a sign that is none, after a division by zero
def test_what_is_read_is_what_python_reads(text: str) -> None:
    """No text of these characters is understood unless Python's grammar has it, and as nothing else."""
    read = parse_expression(text)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:  # 007 is none for Python, but a number for a person
        tree = None
    kinds = (ast.Expression, ast.BinOp, ast.Constant, ast.UnaryOp, ast.USub, *OPERATIONS)
    if tree is not None and all(isinstance(node, kinds) for node in ast.walk(tree)):
        assert read is not None and read.value == by_ast(tree)
    elif tree is not None or not any(
        word[0] == "0" for word in "".join(c if c.isdigit() else " " for c in text).split()
    ):
        assert read is None


@pytest.mark.parametrize(
    "text, value, shown",
    [
        ("2 × 3 ÷ 4 − 1", Fraction(1, 2), "2 * 3 / 4 - 1"),
        ("((2)) - -3", 5, "((2)) - -3"),
        ("007", 7, "7"),
        ("8/4/2", 1, "8 / 4 / 2"),
        ("1/(2-2)", None, "1 / (2 - 2)"),
        ("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH, 1, "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH),
    ],
)
def test_spellings(text: str, value: object, shown: str) -> None:
    read = parse_expression(text)
    assert read is not None
    assert (read.value, read.text) == (value, shown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "()",
        "1 +",
        "* 2",
        "2 ** 3",
        "7 // 2",
        "2 3",
        "2(3)",
        "1.5",
        "+1",
        "a",
        "x",
        "1,2",
        "(1",
        "1)",
        "٣ + 1",
        "²",
        "1e3",
        "__import__('os')",
        "(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1),
        "-" * (MAX_DEPTH + 1) + "1",
        "1+" * MAX_LENGTH + "1",
        "(" * 100_000,
        "9" * 10**6,
    ],
)
def test_what_is_no_expression(text: str) -> None:
    assert parse_expression(text) is None


def reachable(values: tuple[Fraction, ...]) -> set[Fraction]:
    """All values of expressions that use each number once, by brute force."""
    if len(values) == 1:
        return set(values)
    found: set[Fraction] = set()
    for a, b, *rest in permutations(values):
        results = {a + b, a - b, a * b} | ({a / b} if b else set())
        for result in results:
            found |= reachable((result, *rest))
    return found


@pytest.mark.slow
def test_instances_have_a_solution_and_keep_to_the_settings() -> None:
    env = Countdown(numbers=[2, 4], number_range=[1, 12], target_range=[20, 40])
    lengths = set()
    for seed in range(60):
        env.reset(seed=seed)
        lengths.add(len(env.nums))
        assert 20 <= env.target <= 40
        assert all(1 <= number <= 12 for number in env.nums)
        assert env.target in reachable(tuple(map(Fraction, env.nums)))
    assert lengths == {2, 3, 4}


@pytest.mark.slow
def test_the_default_instances_have_a_solution() -> None:
    env = Countdown()
    for seed in range(25):
        env.reset(seed=seed)
        assert 3 <= len(env.nums) <= 4 and 10 <= env.target <= 100 and all(1 <= n <= 99 for n in env.nums)
        assert env.target in reachable(tuple(map(Fraction, env.nums)))


QUESTION = "Target: 9, nums: [1, 2, 3]"


def asked(question: str = QUESTION, **settings: object) -> Countdown:
    env = Countdown(**settings)  # type: ignore[arg-type]
    env.reset(seed=0, options={"state": question})
    return env


@pytest.mark.parametrize(
    "answer, reward, line",
    [
        ("(1+2)*3", 1.0, "(1 + 2) * 3 = 9 (right)"),
        (" 3 × ( 2 + 1 ) = 9 ", 1.0, "3 * (2 + 1) = 9 (right)"),
        ("(1+2)*3 = 8", 1.0, "(1 + 2) * 3 = 9 (right)"),  # what is claimed is not looked at
        ("1 + 2 / 3", 0.1, "1 + 2 / 3 = 5/3 (wrong value)"),
        ("1 - 2 * 3", 0.1, "1 - 2 * 3 = -5 (wrong value)"),
        ("3 * 3", 0.0, "3 * 3 = 9 (wrong numbers)"),  # used twice
        ("9", 0.0, "9 = 9 (wrong numbers)"),
        ("1 + 2 + 3 + 3", 0.0, "1 + 2 + 3 + 3 = 9 (wrong numbers)"),
        ("(12 - 3)", 0.0, "(12 - 3) = 9 (wrong numbers)"),  # digits are not numbers
    ],
)
def test_rewards_of_one_try(answer: str, reward: float, line: str) -> None:
    env = asked()
    state, got, terminated, truncated, info = env.step(answer)
    assert (state, got, terminated, truncated) == (f"{QUESTION}\nTry 1: {line}", reward, True, False)
    assert (info["success"], info["valid"], info["effective"]) == (reward == 1.0, True, True)


@pytest.mark.parametrize(
    "answer",
    ["1 + 2 / (3 - 3)", "1 + 2 + 3 = x", "9 = 9 = 9", "=", "1 + 2 + 3 =", "six", "{1}+2+3", "1+2+3; 9", "= " * 10**5],
)
def test_what_is_no_answer_costs_no_try(answer: str) -> None:
    env = asked()
    state, reward, terminated, _, info = env.step(answer)
    assert (state, reward, terminated, info["valid"], info["effective"]) == (QUESTION, 0.0, False, False, False)
    assert env.step("(1+2)*3")[1] == 1.0


def test_several_tries_return_what_the_best_is_worth() -> None:
    env = asked(max_tries=4, score=2, format_score=0.5)
    rewards = [env.step(answer)[1] for answer in ("1 + 2", "1 + 2 + 3", "3 - 2 - 1", "(1 + 2) * 3")]
    assert rewards == [0.0, 0.5, 0.0, 1.5]
    env = asked(max_tries=2)
    assert env.step("1 + 2 + 3")[2:4] == (False, False)
    state, reward, terminated, truncated, info = env.step("1 + 2 - 3")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert state == f"{QUESTION}\nTry 1: 1 + 2 + 3 = 6 (wrong value)\nTry 2: 1 + 2 - 3 = 0 (wrong value)"


def test_content_is_target_and_numbers_in_any_order() -> None:
    env = Countdown()
    one = env.reset(options={"state": "Target: 9, nums: [3, 1, 2]"})[1]["content"]
    assert one == env.reset(options={"state": QUESTION})[1]["content"] == "Countdown 9 from 1 2 3"
    assert one != env.reset(options={"state": "Target: 8, nums: [1, 2, 3]"})[1]["content"]


TRIED = f"{QUESTION}\nTry 1: 1 + 2 + 3 = 6 (wrong value)"


@pytest.mark.parametrize(
    "state, before, legal",
    [
        (QUESTION, None, True),
        (TRIED, QUESTION, True),
        (f"{TRIED}\nTry 2: (1 + 2) * 3 = 9 (right)", TRIED, True),
        (QUESTION, TRIED, False),  # a try is not taken back
        (TRIED, QUESTION.replace("9", "8"), False),
        (TRIED.replace("= 6", "= 7"), QUESTION, False),  # not the value
        (TRIED.replace("wrong value", "right"), QUESTION, False),
        (TRIED.replace("wrong value", "wrong numbers"), QUESTION, False),
        (TRIED.replace("Try 1", "Try 2"), QUESTION, False),
        (f"{QUESTION}\nTry 1: 3 * (1 + 2) = 9 (right)\nTry 2: (1 + 2) * 3 = 9 (right)", None, False),  # it was over
        (
            TRIED + TRIED.removeprefix(QUESTION).replace("1:", "2:") + TRIED.removeprefix(QUESTION).replace("1:", "3:"),
            None,
            False,
        ),
        ("Target: 9", None, False),
    ],
)
def test_legality(state: str, before: str | None, legal: bool) -> None:
    env = Countdown(max_tries=2)
    env.reset(seed=1)
    assert env.legal(state, before) is legal


@pytest.mark.parametrize(
    "change, message",
    [
        ({"numbers": [1, 3]}, "numbers must be two integers, least and greatest, from 2 to 6"),
        ({"data": 5}, "data must be a file or None, got 5"),
        ({"numbers": 3}, "numbers must be two integers"),
        ({"number_range": [9, 1]}, "number_range must be"),
        ({"target_range": "10"}, "target_range must be"),
        ({"number_range": [1, 1], "target_range": [500, 600]}, "no target in target_range .* widen one of them"),
        ({"score": -1}, "score must be a number of at least 0"),
        ({"score": float("nan")}, "score must be"),
        ({"format_score": 2}, "format_score must be at most score"),
        ({"max_tries": 0}, "max_tries must be an integer of at least 1"),
        ({"data": "nowhere.parquet"}, "there is no data file nowhere.parquet"),
        ({"data": __file__}, "must end in .parquet, .jsonl, .json"),
    ],
)
def test_bad_settings(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env("countdown", **change)


@pytest.mark.parametrize(
    "state", ["", "Target: 9, nums: []", "Target: 9, nums: [1]", "Target: 9999999, nums: [1, 2]", f"{QUESTION}\nmore"]
)
def test_bad_states(state: str) -> None:
    with pytest.raises(ValueError, match=r"a state must begin like|is not an instance"):
        Countdown().reset(options={"state": state})


ROWS = [{"target": 9, "nums": [3, 1, 2]}, {"target": 24, "nums": [4, 6, 8, 2]}, {"target": 98, "nums": [44, 19, 35]}]


def test_data_in_every_form(tmp_path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n\n", encoding="utf-8")
    (tmp_path / "rows.json").write_text(json.dumps(ROWS), encoding="utf-8")
    played = {}
    for name in ("rows.parquet", "rows.jsonl", "rows.json"):
        env = Countdown(data=str(tmp_path / name))
        played[name] = [env.reset(seed=seed)[0] for seed in range(30)]
    assert played["rows.parquet"] == played["rows.jsonl"] == played["rows.json"]
    assert set(played["rows.json"]) == {f"Target: {row['target']}, nums: {row['nums']}" for row in ROWS}
    (tmp_path / "rows.json").write_text(json.dumps(ROWS[:1]), encoding="utf-8")
    assert Countdown(data=str(tmp_path / "rows.json")).reset(seed=0)[0] == "Target: 9, nums: [3, 1, 2]"  # read again
    with pytest.raises(ValueError, match="numbers applies to generated instances"):
        Countdown(data=str(tmp_path / "rows.json"), numbers=[3, 3])


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"target": 9, "nums": [1, 2]}\n{"target": 9}', "line 2: there is no column 'nums'"),
        ('{"targt": 9, "nums": [1, 2]}', "line 1: there is no column 'target'. Did you mean 'targt'"),
        ('\n{"target": 9, "nums": [1, 2]', "line 2 cannot be read as JSON"),
        ('{"target": "9", "nums": [1, 2]}', "line 1: target must be a whole number from 0 to 1000000, not '9'"),
        ('{"target": 9.5, "nums": [1, 2]}', "line 1: target must be"),
        ('{"target": 9, "nums": 12}', "line 1: nums must be a list of 2 to 10 numbers, not 12"),
        ('{"target": 9, "nums": [1, -2]}', "line 1: nums must hold whole numbers from 0 to 1000000, not -2"),
        ('{"target": 9, "nums": [1, true]}', "not True"),
        ("[1, 2]", "row 1: a row must be a JSON object, not int"),
        ("", "has no rows"),
    ],
)
def test_malformed_rows_are_named(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        Countdown(data=str(path))
    assert str(path) in str(caught.value)


def test_malformed_parquet(tmp_path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 nothing of the kind PAR1")
    with pytest.raises(ValueError, match=r"rows\.parquet cannot be read as Parquet"):
        Countdown(data=str(path))
    pq.write_table(pa.table({"target": [1], "numbers": [[1, 2]]}), path)
    with pytest.raises(ValueError, match=r"rows\.parquet: there is no column 'nums'. Did you mean 'numbers'"):
        Countdown(data=str(path))
    pq.write_table(pa.table({"target": [1, None], "nums": [[1, 2], [1, 2]]}), path)
    with pytest.raises(ValueError, match=r"rows\.parquet, row 2: target must be .* not None"):
        Countdown(data=str(path))


def test_random_actions_use_the_numbers_of_the_world() -> None:
    env, rng = Countdown(max_tries=1000), np.random.default_rng(0)
    env.reset(seed=3)
    rewards = []
    for _ in range(50):
        read = parse_expression(env.sample_action(rng))
        assert read is not None and sorted(read.numbers) == sorted(env.nums)
    for seed in range(300):
        env.reset(seed=seed)
        rewards.append(env.step(env.sample_action(rng))[1])
    assert {0.1, 1.0} <= set(rewards)  # luck solves some
    counts = {len(parse_expression(Countdown().sample_action(rng)).numbers) for _ in range(40)}
    assert counts == {3, 4}
