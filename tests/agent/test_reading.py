"""The forward reading of tags decides as regular expressions with ``.*?`` did, and takes time in proportion to the text."""

from __future__ import annotations

import re
import time
import timeit
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spa.agent.episode import Episode, Turn
from spa.agent.response import Parsed, parse_response, split_actions
from spa.common.tables import side_by_side
from spa.common.text import clean
from spa.data.encode import encode_row, loss_spans, mask_states
from spa.data.ground_truth import Row, body_spans, ground_truth, rejection
from spa.data.maskview import pieces
from spa.envs.states import cell_accuracy
from spa.report.turns import _common, mark_differences, mark_response, view
from spa.rl.auxiliary import true_response
from tests.scripted import CHAT

# What decided before: quadratic and cubic, but plain.

_THINK_ANSWER = re.compile(r"<think>(?P<think>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(?P<answer>.*?)</answer>", re.DOTALL)
_BODY = {
    name: re.compile(f"<{name}>(?P<body>.*?)</{name}>", re.DOTALL | re.IGNORECASE)
    for name in ("observation", "prediction")
}
_TAGS = re.compile(r"<(/?)(observation|prediction|answer|think)>")
_ANY_TAG = re.compile(r"(</?(?:think|answer|observation|prediction)>)", re.IGNORECASE)


def parsed_before(text: str, mode: str, think: bool) -> Parsed:
    spans = {}
    observation = prediction = None
    match = (_THINK_ANSWER if think else _ANSWER).search(text)
    if think:
        start = text.find("<think>")
        if match:
            think_span = (match.start(), match.end("think") + len("</think>"))
        elif start >= 0:
            end = text.find("</think>", start)
            think_span = (start, end + len("</think>") if end >= 0 else len(text))
        else:
            think_span = (0, 0)
        if think_span[1]:
            spans["think"] = think_span
            obs = _BODY["observation"].search(text, *think_span)
            if obs:
                observation, spans["observation"] = obs["body"], obs.span("body")
            pred = _BODY["prediction"].search(text, obs.end() if obs else think_span[0], think_span[1])
            if pred:
                prediction, spans["prediction"] = pred["body"], pred.span("body")
    answer = match or _ANSWER.search(text)
    if answer:
        spans["answer"] = (answer.start("answer") - len("<answer>"), answer.end("answer") + len("</answer>"))
    ok = match is not None
    if ok and think and mode == "world_model":
        ok = observation is not None and prediction is not None
    named = split_actions(match["answer"]) if ok and match else ()
    return Parsed(ok, named[:5], len(named[5:]), observation, prediction, spans)


def rejected_before(response: str) -> str | None:
    text = response.lower()
    think = re.search(r"<think>(.*?)</think>", text, re.DOTALL | re.IGNORECASE)
    answer = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL | re.IGNORECASE)
    if not think or not answer:
        return "no answer" if think else "no think block"
    if answer.start() < think.start():
        return "answer before think"
    observation, prediction = (_BODY[name].search(think[1]) for name in _BODY)
    if not observation or not prediction:
        return "no prediction" if observation else "no observation"
    if prediction.start() < observation.start():
        return "prediction before observation"
    open_tag = ""
    for closing, tag in _TAGS.findall(think[1]):
        if tag in ("answer", "think") or ((tag != open_tag) if closing else open_tag):
            return "crossing tags"
        open_tag = "" if closing else tag
    return "crossing tags" if open_tag else None


def marked_before(text: str) -> list[tuple[str, str]]:
    out, open_tags = [], []
    for part in filter(None, _ANY_TAG.split(text)):
        name = part.strip("</>").lower()
        if not _ANY_TAG.fullmatch(part):
            out.append((part, open_tags[-1] if open_tags else ""))
            continue
        out.append((part, "tag"))
        if not part.startswith("</"):
            open_tags.append(name)
        elif name in open_tags:
            del open_tags[len(open_tags) - 1 - open_tags[::-1].index(name) :]
    return out


_NAMES = ("think", "answer", "observation", "prediction")
_PIECES = [f"<{slash}{name}>" for name in _NAMES for slash in ("", "/")] * 3
_PIECES += [tag.upper() for tag in _PIECES[:8]] + ["<Think>", "</Observation>", "<thinK>", "<observat\u0131on>"]
_PIECES += [
    "</predict\u0130on>",
    "<ob\u017fervation>",
    "\u0130",
    "<",
    "</",
    ">",
    "think>",
    "<answer",
    "||",
    "<|im_end|>",
]
_PIECES += [" ", "\n", "\u00a0", "\u2028", "a", "b", "Up", "</think> \n<answer>", "<think><observation>", ""]
_STATES = "<observation>a</observation>b<prediction>c</prediction>"
_PIECES += [_STATES, f"<think>{_STATES}</think>", "</think><answer>Up</answer>", f"<think>{_STATES}</think><answer>Up"]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(_PIECES), max_size=14).map("".join))
@example("<think></think>a<think></think><answer></answer>")
@example("<think>a</think></think> <answer>Up<answer></answer></answer>")
@example("<think></think><answer>a<think></think><answer>")
@example("<THINK></think><answer>Up</answer>")
@example("\u0130\u0130<think><observation>a</observation><prediction>b</prediction></think><answer>Up</answer>")
@example("<think><observation>a</think></observation><prediction>b</prediction></think><answer>Up</answer>")
@example("<think></think>\u2028<answer>Up</answer>")
@example("<think><observat\u0131on>a</observation></think><answer>Up</answer>")
@example(
    f"<think>{_STATES}</think><answer>Up</answer><observation><prediction>a</observation>b<prediction>c</prediction>"
)
@example(f"<think>{_STATES}</think><answer>Up<observation></answer>")
def test_the_decisions_are_those_of_the_regular_expressions(text: str) -> None:
    for mode in ("base", "world_model"):
        for think in (True, False):
            assert parse_response(text, mode, think=think) == parsed_before(text, mode, think)
    for name, pattern in _BODY.items():
        bodies = [found["body"] for found in pattern.finditer(text)]
        assert [text[a:b] for a, b in body_spans(text, name)] == [body.strip() or body for body in bodies]
    assert mark_response(text) == marked_before(text)
    # Beyond what the think block says, a state with a tag in it is a reason now wherever it stands, and so are a state's tag in
    # the answer and an unread answer.
    answer = re.search("<answer>(.*?)</answer>", text, re.DOTALL | re.IGNORECASE)
    stated = answer is not None and re.search("<(observation|prediction)>", answer[1]) is not None
    tangled = stated or any(
        _ANY_TAG.search(found["body"]) for pattern in _BODY.values() for found in pattern.finditer(text)
    )
    unread = None if parsed_before(text, "world_model", True).format_ok else "wrong format"
    assert rejection(text) == (rejected_before(text) or ("crossing tags" if tangled else unread))


# Time

Kind = tuple[str, str, str]
"""What a text begins with, and what its first and its second half repeat."""

KINDS: dict[str, Kind] = {
    **{repr(piece): ("", piece, piece) for piece in [*_PIECES[:8], "<OBSERVATION>", "</think>\n", "<|", "<|a", "||"]},
    **{
        repr(piece): ("", piece, piece)
        for piece in [" ", "\n", "x", "x\n", "a b ", "a ||", "<", "</", "\u0130", "| a "]
    },
    "answers to come": ("", "<think></think><answer>", "<think></think><answer>"),
    "answers after spaces": ("", "<think></think>    <answer>", "<think></think>    <answer>"),
    "spaces after think": ("<think></think>", " ", " "),
    "spaces after each": ("<think>", "</think>" + " " * 50, " "),
    "observations to come": ("", "<think><observation>", "<think><observation>"),
    "observations": ("<think>", "<observation>a</observation>", "<observation>a</observation>"),
    "empty states": ("<think>", "<observation></observation>", "<prediction></prediction>"),
    "crossing states": ("<think>", "<observation><prediction></observation>", "</prediction>"),
    "never closed": (f"<think>{_STATES}</think><answer>Up</answer>", "<observation>", "<prediction>"),
    "all open, then others closed": ("", "<think>", "</answer>"),
    "all open, then closed": ("", "<observation>", "</observation>"),
    "a whole response": (f"<think>{_STATES}", "a ", "</think><answer>"),
    "a long answer": ("<think></think><answer>", "Up||", "</answer>"),
    "words in lines": ("Player (P) is at\n", "a b a c\n", "b a c\n"),
    "words in long lines": ("Player (P) is at\n", "a b " * 450 + "\n", "b " * 950 + "\n"),
}


def text_of(kind: Kind, length: int) -> str:
    begin, first, second = kind
    half = (length - len(begin)) // 2
    return begin + (first * (half // len(first) + 1))[:half] + (second * (half // len(second) + 1))[:half]


def seconds(do: Callable[[str], object], text: str, enough: float) -> float:
    """Processor time, the least of five tries or the first that is small enough, or hopeless."""
    timer = timeit.Timer(lambda: do(text), timer=time.process_time)
    best = float("inf")
    for _ in range(5):
        best = min(best, timer.timeit(1))
        if best <= enough or best > 10 * max(enough, 0.05):
            break
    return best


def slowness() -> float:
    """By what factor this machine is slower just now than an idle one."""
    return max(1.0, seconds(lambda _: sum(i * i for i in range(100_000)), "", 0.0) / 0.006)


def check_linear(do: Callable[[str], object], kind: Kind, lengths: tuple[int, ...] = (3_000, 50_000, 100_000)) -> None:
    """From short to long, so that what takes the cube fails soon. The limits are five times what an idle machine needs, and what
    comes near them must not take much more than twice the time for twice the text."""
    for length in lengths:
        limit = 0.05 + 0.2 * length / lengths[-1]
        spent = seconds(do, text_of(kind, length), limit / 2)
        if spent > limit / 2:
            spent /= slowness()
        assert spent < limit, f"{length} characters take {spent:.2f} s"
    if spent > limit / 2:
        half, whole = (seconds(do, text_of(kind, n), 0.0) for n in lengths[-2:])
        assert whole <= 3 * half, f"twice the text takes {whole / half:.1f} times as long"


def turn(text: str, truth: str = "ab\ncd") -> Turn:
    half = len(text) // 2
    return Turn(0, truth, "user", text, truth, observation=text[:half], prediction=text[half:])


READERS: dict[str, Callable[[str], object]] = {
    "parse": lambda text: [parse_response(text, mode) for mode in ("base", "world_model")],
    "parse the answer": lambda text: parse_response(text, think=False),
    "split actions": split_actions,
    "ground truth": lambda text: ground_truth(turn(text)),
    "rejection": rejection,
    "bodies": lambda text: [body_spans(text, name) for name in _BODY],
    "loss spans": lambda text: [loss_spans(text, loss) for loss in ("think_answer", "state", "masked")],
    "mask": mask_states,
    "auxiliary": lambda text: [
        true_response(turn(text)),
        true_response(turn(f"<think>{text}</think><answer>a</answer>")),
    ],
    "cells": lambda text: cell_accuracy(text, "ab\ncd"),
    "clean": clean,
    "mark tags": mark_response,
    "report": lambda text: view(Episode("Tag", 0, 0, turns=[turn(text, f"ab\n{text[1 : len(text) // 4]}")])),
}


@pytest.mark.parametrize("reader", READERS)
def test_the_time_grows_with_the_length_alone(reader: str) -> None:
    for name, kind in KINDS.items():
        try:
            check_linear(READERS[reader], kind)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize("loss", ["think_answer", "state", "masked"])
def test_so_does_that_of_masks(loss: str) -> None:
    def read(text: str) -> None:
        row = Row("Tag", [{"role": "user", "content": "user"}], text)
        encode_row(row, CHAT, loss=loss)

    check_linear(read, KINDS["observations"], (2_000, 10_000, 20_000))


def test_so_does_that_of_the_picture_of_a_mask() -> None:
    row = Row("Tag", [{"role": "user", "content": "user"}], text_of(KINDS["observations"], 10_000))
    assert seconds(lambda _: pieces(row, CHAT, loss="state"), "", 0.1) < 1.0


@pytest.mark.parametrize("line", ["a " * 300, "a b " * 150])
def test_a_line_of_equal_words_is_compared_at_once(line: str) -> None:
    sentence = "x\nPlayer (P) is at\n"
    mark = lambda text: mark_differences(sentence + text, sentence + "b " * 300)  # noqa: E731
    assert seconds(mark, line, 0.05) < 0.25 * slowness()


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_as_few_words_as_possible_are_marked(words: list[str], others: list[str]) -> None:
    longest = [[0] * (len(others) + 1) for _ in range(len(words) + 1)]
    for i, word in enumerate(words):
        for j, other in enumerate(others):
            longest[i + 1][j + 1] = longest[i][j] + 1 if word == other else max(longest[i][j + 1], longest[i + 1][j])
    kept = _common(words, others)
    assert len(kept) == longest[-1][-1]
    rest = iter(others)
    assert all(words[place] in rest for place in sorted(kept))


def test_columns_wrap_long_lines_and_show_control_characters() -> None:
    sentence = "You are in the hall; the blue key is in the kitchen, on shelf 2; the door is locked"
    (title, *lines) = side_by_side([("before", sentence), ("came", "a\x1b[2Jb\n  c")])
    assert title.split() == ["before", "came"] and max(map(len, lines)) <= 2 + 60 + 3 + 60
    width = title.index("came")
    assert "".join(line[2:width].rstrip() + " " for line in lines).split() == sentence.split()
    assert [line[width:] for line in lines] == ["a\ufffd[2Jb", "  c"]
