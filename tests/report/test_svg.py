"""The charts: values land where the axes say, text is escaped, odd data are drawn."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spa.evaluate.bootstrap import Interval
from spa.report.charts import mean, variant_colors
from spa.report.svg import HEIGHT, WIDTH, Axes, Line, interval_chart, line_chart, ticks

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def points(svg: str) -> list[tuple[float, float]]:
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in parsed(svg).iter("circle")]


def test_points_are_placed_by_the_axes() -> None:
    svg = line_chart([Line("a", [(0, 0.0), (5, 0.5), (10, 1.0)], "#123456")], Axes("step", "success"))
    (x0, y0), (x1, y1), (x2, y2) = points(svg)
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1) and y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert x0 < x2 and y0 > y2
    labels = {text.text: (float(text.attrib["x"]), float(text.attrib["y"])) for text in parsed(svg).iter("text")}
    assert labels["0%"][1] - 4 == pytest.approx(y0, abs=0.1)
    assert labels["100%"][1] - 4 == pytest.approx(y2, abs=0.1)
    assert labels["10"][0] == pytest.approx(x2, abs=0.1)
    assert "a, step 5: 50%" in [title.text for title in parsed(svg).iter("title")]
    assert parsed(svg).attrib["aria-label"] == "success by step: a ends at 100%"


def test_log_axis_spaces_by_ratio() -> None:
    xs = [
        x
        for x, _ in points(
            line_chart([Line("a", [(1, 0.1), (8, 0.2), (64, 0.3)], "#000000")], Axes("k", "y", log=True))
        )
    ]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.1)


def test_intervals_are_placed_by_their_values() -> None:
    rows = {
        "a": {"Pass@1": Interval(0.5, 0.4, 0.6)},
        "<b>": {"Pass@1": Interval(0.25, 0.2, 0.3), "Pass@8": Interval(1, 1, 1)},
    }
    svg = interval_chart(rows, {"a": "#000000", "<b>": "#111111"}, "success")
    (a, a_y), (b, b_y), (b8, b8_y) = points(svg)
    assert b8 - a == pytest.approx(2 * (a - b), abs=0.2)
    assert a_y < b_y < b8_y
    lines = [line for line in parsed(svg).iter("line") if line.get("stroke") == "#000000"]
    assert a - float(lines[0].attrib["x1"]) == pytest.approx(float(lines[0].attrib["x2"]) - a, abs=0.2)
    assert "<b>, Pass@8: 100.0% [100.0%, 100.0%]" in [title.text for title in parsed(svg).iter("title")]
    assert "<b>" in [text.text for text in parsed(svg).iter("text")]


def test_long_names_keep_the_end_in_which_paths_differ() -> None:
    names = [f"/home/someone/experiments/lakes/{name}" for name in ("first", "second")]
    svg = interval_chart({n: {"Pass@1": Interval(0.5, 0.4, 0.6)} for n in names}, dict.fromkeys(names, "#000000"), "")
    shown = [text.text for text in parsed(svg).iter("text") if text.text and text.text.startswith("…")]
    assert [len(text) for text in shown] == [26, 26] and shown[0].endswith("/first") and shown[1].endswith("/second")


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img onerror=x>', "a\x00b\x1b[31m", "‮right"])
def test_names_stay_text(name: str) -> None:
    root = parsed(line_chart([Line(name, [(1, 1.0)], "#000000")], Axes("x", "y")))
    assert {element.tag for element in root.iter()} <= {"svg", "line", "text", "polyline", "circle", "title"}


def test_seeds_are_thin_lines_behind_their_mean_and_inside_the_axes() -> None:
    seeds = [[(0.0, 0.0), (1.0, 0.4)], [(0.0, 0.2), (1.0, 0.8)]]
    root = parsed(line_chart([Line("spa", mean(seeds), "#d1495b", seeds=seeds)], Axes("x", "y")))
    lines = list(root.iter("polyline"))
    assert [line.get("class") for line in lines] == ["seed", "seed", None]
    heights = [float(pair.split(",")[1]) for line in lines for pair in line.attrib["points"].split()]
    assert min(heights) >= 0 and max(heights) <= HEIGHT
    assert mean(seeds) == [(0.0, 0.1), (1.0, pytest.approx(0.6))]
    assert len(list(root.iter("circle"))) == 2, "markers belong to the mean"


numbers = st.floats(-1e12, 1e12, allow_nan=False)


@example([(0.0, 0.0), (5e-324, 0.0)], False)
@example([(0.0, 5e-324)], True)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=80), st.booleans())
def test_everything_stays_inside(values: list[tuple[float, float]], share: bool) -> None:
    series = sorted(dict(values).items())
    band = [(x, y - abs(y), y + abs(y)) for x, y in series]
    root = parsed(line_chart([Line("a", series, "#000000", band=band)], Axes("x", "y", share=share)))
    for shape in [*root.iter("polyline"), *root.iter("polygon")]:
        for pair in shape.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT


@given(numbers, st.floats(1e-5, 1e12))
def test_ticks_are_few_round_and_inside(low: float, length: float) -> None:
    high = low + length
    if not high - low > 1e-6 * max(abs(low), abs(high)):
        return
    marks = ticks(low, high)
    assert 1 <= len(marks) <= 6
    assert all(low - 1e-6 * length <= mark <= high + 1e-6 * length for mark in marks)
    steps = [b - a for a, b in pairwise(marks)]
    assert not steps or max(steps) - min(steps) <= 1e-6 * max(abs(low), abs(high), length)
    assert all(math.isfinite(mark) for mark in marks)


@pytest.mark.parametrize(
    "values",
    [[2.001, 2.002, 2.004], [0.6929, 0.6932], [1001, 1003, 1005], [1e-50, 2e-50], [-1e6, -1e6 - 3], [0.25, 0.5]],
)
@pytest.mark.parametrize("share", [True, False])
def test_the_ticks_of_an_axis_are_told_apart(values: list[float], share: bool) -> None:
    root = parsed(line_chart([Line("a", list(enumerate(values)), "#000000")], Axes("step", "y", share=share)))
    labels = [(each.attrib.get("text-anchor"), each.text) for each in root.iter("text")]
    y_labels = [text for anchor, text in labels if anchor == "end"]
    assert len(set(y_labels)) == len(y_labels)
    x_labels = {text for anchor, text in labels if anchor != "end" and text not in ("step", "y")}
    assert x_labels == {str(step) for step in range(len(values))}


def test_a_planner_has_the_colour_of_the_variant_it_plays_with_and_variants_differ() -> None:
    names = ["base", "vanilla", *(f"own{i}" for i in range(9)), "own3+lookahead", "spa+beam"]
    colors = variant_colors(names)
    assert colors["own3+lookahead"] == colors["own3"]
    trained = [colors[name] for name in names if "+" not in name]
    assert len(set(trained)) == len(trained)
