"""500 hostile replies through parser, world and report: no exception, none is slow, none becomes markup."""

from __future__ import annotations

import random
import time

import pytest

from spa.agent.episode import Episode
from spa.agent.play import Play
from spa.agent.worlds import World
from spa.data.ground_truth import rejection, rows_of
from spa.report.data import ReportData, VariantReport
from spa.report.html import render_report
from tests.report.test_report import EVIL, Page
from tests.scripted import lake_task

PIECES = [f"<{slash}{tag}>" for tag in ("think", "answer", "observation", "prediction") for slash in ("", "/")]
PIECES += [*EVIL, "<svg onload=alert(1)>", "javascript:alert(1)", "<!--", "]]>", "{% raw %}", "\\u003c", "&lt;b&gt;"]
PIECES += ["Up", "||", " ", "\n", "\x00", "\x1b[2J", "\u202e", "\u0130", "\U0001f600", "\ufffd", "a" * 5000, "<" * 5000]
PIECES += ["<think>" * 2000, "\n" * 5000, "9" * 5000, "<|im_end|>", "(" * 3000, "√#_P\n" * 1000]
WORLD = World(1, "content")


def reply(number: int) -> str:
    draw = random.Random(number)
    text = "".join(draw.choices(PIECES, k=draw.randint(1, 12)))
    if draw.random() < 0.5:  # in the right form
        parts = [f"<observation>{text}</observation><prediction>{text[::-1]}</prediction>", text]
        text = f"<think>{draw.choice(parts)}</think><answer>{text if draw.random() < 0.5 else 'Up || Down'}</answer>"
    return text


@pytest.fixture(scope="module")
def played() -> list[Episode]:
    task, episodes = lake_task(), []
    for number in range(500):
        play, text = Play.start(task, WORLD, number, 0), reply(number)
        play.open_turn(0, "user")
        spent = []
        for _ in range(2):  # the machine may be busy once
            started = time.process_time()
            play.choose(text, "stop")
            rejection(text)
            spent.append(time.process_time() - started)
        assert min(spent) < 0.05
        play.answer(text, "stop")
        assert play.episode.status != "error"
        rows_of(play.episode, system=None, window=0)
        episodes.append(Episode.from_json(play.episode.to_json()))
        assert episodes[-1] == play.episode
    return episodes


def test_none_becomes_markup(played: list[Episode]) -> None:
    for first in range(0, 500, 100):
        tags = Page(page(played[first : first + 100])).tags
        assert [tag for tag, _ in tags].count("script") == 2  # the theatre's data and the page's script
        assert not {tag for tag, _ in tags} & {"img", "iframe", "object"}
        assert not any(name.startswith("on") for _, attrs in tags for name in attrs)
        assert not any((value or "").startswith("javascript:") for _, attrs in tags for value in attrs.values())


def page(episodes: list[Episode]) -> str:
    data = ReportData("run", variants={"spa": VariantReport((), None, episodes)}, episodes_per_variant=100)
    return render_report(data)
