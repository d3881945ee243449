"""Line charts and intervals as inline SVG: no script, readable on paper and by screen readers; the page's CSS colours the axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement, tostring  # it writes, and parses nothing # nosec B405

from markupsafe import Markup

from spa.evaluate.bootstrap import Interval

Series = list[tuple[float, float]]

WIDTH, HEIGHT = 480, 260  # user units; the page scales the drawing to its column
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 22, 10, 38  # room for half of the last tick's label
DASHES = {"solid": "", "dash": "6 4", "dot": "2 3"}
_ROW, _LONGEST_NAME = 20, 26  # height of a row of intervals; characters of its name
_MOST_MARKERS = 60  # points up to which each has a marker with its value


@dataclass(frozen=True)
class Line:
    """A curve; ``band`` holds (x, low, high) of its interval, ``seeds`` the curves whose mean it is, drawn as thin lines behind it.
    Lines that are not ``named`` are left out of the legend."""

    name: str
    points: Series
    color: str
    dash: str = "solid"
    band: Sequence[tuple[float, float, float]] = ()
    named: bool = True
    seeds: Sequence[Series] = ()


@dataclass(frozen=True)
class Axes:
    """Labels of the axes; ``share`` shows y in percent from 0, ``log`` spaces x logarithmically."""

    x: str
    y: str
    share: bool = True
    log: bool = False


@dataclass
class _Plane:
    """Maps values to user units."""

    axes: Axes
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    root: Element = field(init=False)
    digits: int = field(init=False)  # that tell the ticks of y apart

    def __post_init__(self) -> None:
        marks = ticks(*self.y_range)
        apart, largest = marks[-1] - marks[0], max(map(abs, self.y_range))
        self.digits = max(3, math.ceil(math.log10(largest / apart)) + 2) if apart else 3
        self.root = Element("svg", {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "class": "plot"})

    def x(self, value: float) -> float:
        low, high = (math.log(v) if self.axes.log else v for v in self.x_range)
        at = math.log(value) if self.axes.log else value
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (at - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    def draw_y_axis(self) -> None:
        for tick in ticks(*self.y_range):
            y = self.y(tick)
            _add(self.root, "line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y).set("class", "grid")
            _label(self.root, _LEFT - 6, y + 4, self.text(tick), "end")
        middle = (_TOP + HEIGHT - _BOTTOM) / 2
        _label(self.root, 12, middle, self.axes.y, transform=f"rotate(-90 12 {middle:.1f})")

    def text(self, value: float) -> str:
        """A y value as shown on the axis."""
        return f"{100 * value:.{self.digits}g}%" if self.axes.share else f"{value:.{self.digits}g}"


def line_chart(lines: Sequence[Line], axes: Axes) -> Markup:
    """The curves, each with at least one point; markers carry their values as tooltips."""
    points = [point for line in lines for curve in (line.points, *line.seeds) for point in curve]
    xs = [x for x, _ in points]
    ys = [y for _, y in points] + [y for line in lines for _, *ends in line.band for y in ends]
    plane = _Plane(axes, _widened(min(xs), max(xs)), _y_range(ys, axes.share))
    plane.draw_y_axis()
    marks = sorted(set(xs)) if axes.log else ticks(*plane.x_range, whole=all(x == int(x) for x in xs))
    for tick in marks:
        _label(plane.root, plane.x(tick), HEIGHT - _BOTTOM + 16, f"{tick:g}")
    _label(plane.root, (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, axes.x)
    for line in lines:
        _draw(plane, line)
    ends = [f"{line.name} ends at {plane.text(line.points[-1][1])}" for line in lines if line.named]
    return _finish(plane.root, f"{axes.y} by {axes.x}: {'; '.join(ends)}")


def _draw(plane: _Plane, line: Line) -> None:
    if line.band:
        edge = [(x, high) for x, _, high in line.band] + [(x, low) for x, low, _ in reversed(line.band)]
        _add(plane.root, "polygon", points=_path(plane, edge), fill=line.color, fill_opacity="0.14")
    for seed in line.seeds:
        _add(plane.root, "polyline", points=_path(plane, seed), fill="none", stroke=line.color).set("class", "seed")
    curve = _add(
        plane.root, "polyline", points=_path(plane, line.points), fill="none", stroke=line.color, stroke_width=2
    )
    curve.set("stroke-dasharray", DASHES[line.dash])
    if len(line.points) <= _MOST_MARKERS:
        for x, y in line.points:
            marker = _add(plane.root, "circle", cx=plane.x(x), cy=plane.y(y), r=3, fill=line.color)
            _add(marker, "title", f"{line.name}, {plane.axes.x} {x:g}: {plane.text(y)}")


def interval_chart(rows: Mapping[str, Mapping[str, Interval]], colors: Mapping[str, str], x: str) -> Markup:
    """A row for each name with the means and intervals of its groups, shares: the first group filled, others hollow and below."""
    groups = list(dict.fromkeys(group for values in rows.values() for group in values))
    height = _ROW * len(rows) * len(groups) + _TOP + _BOTTOM
    left = 8.0 * min(_LONGEST_NAME, max(map(len, rows))) + 16
    root = Element("svg", {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "class": "plot"})

    def place(share: float) -> float:
        return left + (WIDTH - _RIGHT - left) * share

    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        _add(root, "line", x1=place(tick), x2=place(tick), y1=_TOP, y2=height - _BOTTOM).set("class", "grid")
        _label(root, place(tick), height - _BOTTOM + 16, f"{tick:.0%}")
    _label(root, (left + WIDTH) / 2, height - 6, x)
    at = _TOP
    for name, values in rows.items():
        shown = name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"  # paths differ at their end
        _label(root, left - 8, at + _ROW * len(groups) / 2 + 4, shown, "end")
        for group in groups:
            at += _ROW
            if value := values.get(group):
                y, color, filled = at - _ROW / 2, colors[name], group == groups[0]
                _add(root, "line", x1=place(value.low), x2=place(value.high), y1=y, y2=y, stroke=color, stroke_width=2)
                dot = _add(root, "circle", cx=place(value.mean), cy=y, r=4, stroke=color, stroke_width=2)
                dot.set("fill", color if filled else "none")
                _add(dot, "title", f"{name}, {group}: {value.mean:.1%} [{value.low:.1%}, {value.high:.1%}]")
    means = [f"{name} {values[groups[0]].mean:.1%}" for name, values in rows.items() if groups[0] in values]
    return _finish(root, f"{groups[0]}: {', '.join(means)}")


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """At most ``most`` round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``, or ``whole`` ones."""
    exponent = math.floor(math.log10((high - low) / most))
    exponent = max(0, exponent) if whole else exponent
    for factor in (1, 2, 5, 10, 20, 50):
        step = factor * 10.0**exponent
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [float(f"{i * step:.12g}") for i in range(first, last + 1)]
    raise AssertionError("no step is wide enough")


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range of positive length."""
    return (low, high) if high - low > 1e-300 else (low - 0.5, high + 0.5) if low != 1 else (0.5, 2.0)


def _y_range(values: Sequence[float], share: bool) -> tuple[float, float]:
    """From 0 for shares; otherwise a little beyond the values, so that no curve lies on the border."""
    low, high = min(values), max(values)
    if share:
        return min(0.0, low), high if high > 1e-300 else 1.0
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _path(plane: _Plane, points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{plane.x(x):.1f},{plane.y(y):.1f}" for x, y in points)


def _add(parent: Element, tag: str, text: str = "", **attributes: object) -> Element:
    """A child with the attributes, ``_`` in a name standing for ``-``."""
    values = {k.replace("_", "-"): f"{v:.1f}" if isinstance(v, float) else str(v) for k, v in attributes.items()}
    element = SubElement(parent, tag, values)
    element.text = _xml_text(text) or None
    return element


def _label(parent: Element, x: float, y: float, text: str, anchor: str = "middle", **more: object) -> None:
    _add(parent, "text", text, x=x, y=y, text_anchor=anchor, **more)


def _finish(root: Element, description: str) -> Markup:
    root.set("aria-label", _xml_text(description))
    return Markup(tostring(root, encoding="unicode"))  # ElementTree escapes text and attributes


def _xml_text(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c for c in text if c.isprintable() or c in "\t\n")
