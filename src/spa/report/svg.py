"""Line and bar charts as inline SVG: no script, readable on paper and by screen readers; the page's CSS colours the axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from spa.evaluate.bootstrap import Interval

Series = list[tuple[float, float]]

WIDTH, HEIGHT = 480, 260  # user units; the page scales the drawing to its column
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 10, 38
_DASHES = {"solid": "", "dash": "6 4", "dot": "2 3"}
_MOST_MARKERS = 60  # points up to which each has a marker with its value


@dataclass(frozen=True)
class Line:
    """A curve; ``band`` holds (x, low, high) of its interval. Lines that are not ``named`` are left out of the legend."""

    name: str
    points: Series
    color: str
    dash: str = "solid"
    band: Sequence[tuple[float, float, float]] = ()
    named: bool = True


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

    def __post_init__(self) -> None:
        self.root = Element("svg", {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "class": "plot"})

    def x(self, value: float) -> float:
        low, high = (math.log(v) if self.axes.log else v for v in self.x_range)
        at = math.log(value) if self.axes.log else value
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (at - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    def add(self, tag: str, attributes: Mapping[str, object], text: str = "", parent: Element | None = None) -> Element:
        values = {k: f"{v:.1f}" if isinstance(v, float) else str(v) for k, v in attributes.items()}
        element = SubElement(self.root if parent is None else parent, tag, values)
        element.text = _xml_text(text) or None
        return element

    def tooltip(self, shape: Element, text: str) -> None:
        self.add("title", {}, text, shape)

    def label(self, x: float, y: float, text: str, anchor: str = "middle", **more: object) -> None:
        self.add("text", {"x": x, "y": y, "text-anchor": anchor, **more}, text)

    def draw_y_axis(self) -> None:
        for tick in ticks(*self.y_range):
            self.add(
                "line", {"x1": _LEFT, "x2": WIDTH - _RIGHT, "y1": self.y(tick), "y2": self.y(tick), "class": "grid"}
            )
            self.label(_LEFT - 6, self.y(tick) + 4, self.text(tick), "end")
        middle = (_TOP + HEIGHT - _BOTTOM) / 2
        self.label(12, middle, self.axes.y, transform=f"rotate(-90 12 {middle:.1f})")

    def text(self, value: float) -> str:
        """A y value as shown on the axis."""
        return f"{100 * value:.3g}%" if self.axes.share else f"{value:.3g}"

    def finish(self, description: str) -> Markup:
        self.root.set("aria-label", _xml_text(description))
        return Markup(tostring(self.root, encoding="unicode"))  # ElementTree escapes text and attributes


def line_chart(lines: Sequence[Line], axes: Axes) -> Markup:
    """The curves, each with at least one point; markers carry their values as tooltips."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [y for line in lines for _, *ends in line.band for y in ends]
    plane = _Plane(axes, _widened(min(xs), max(xs)), _y_range(ys, axes.share))
    plane.draw_y_axis()
    marks = sorted(set(xs)) if axes.log else ticks(*plane.x_range)
    for tick in marks:
        plane.label(plane.x(tick), HEIGHT - _BOTTOM + 16, f"{tick:g}")
    plane.label((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, axes.x)
    for line in lines:
        _draw(plane, line)
    ends = [f"{line.name} ends at {plane.text(line.points[-1][1])}" for line in lines if line.named]
    return plane.finish(f"{axes.y} by {axes.x}: {'; '.join(ends)}")


def _draw(plane: _Plane, line: Line) -> None:
    if line.band:
        edge = [(x, high) for x, _, high in line.band] + [(x, low) for x, low, _ in reversed(line.band)]
        plane.add("polygon", {"points": _path(plane, edge), "fill": line.color, "fill-opacity": 0.14})
    style = {"fill": "none", "stroke": line.color, "stroke-width": 2, "stroke-dasharray": _DASHES[line.dash]}
    plane.add("polyline", {"points": _path(plane, line.points), **style})
    if len(line.points) <= _MOST_MARKERS:
        for x, y in line.points:
            marker = plane.add("circle", {"cx": plane.x(x), "cy": plane.y(y), "r": 3, "fill": line.color})
            plane.tooltip(marker, f"{line.name}, {plane.axes.x} {x:g}: {plane.text(y)}")


def bar_chart(bars: Mapping[str, Mapping[str, Interval]], colors: Mapping[str, str], y: str) -> Markup:
    """Grouped bars with intervals: ``bars[name][group]``, shares; a group for each label that occurs."""
    groups = list(dict.fromkeys(group for values in bars.values() for group in values))
    every = [end for values in bars.values() for interval in values.values() for end in (0.0, interval.high)]
    plane = _Plane(Axes("", y), (0, len(groups)), _y_range(every, True))
    plane.draw_y_axis()
    width = 0.8 / len(bars)
    for number, group in enumerate(groups):
        plane.label(plane.x(number + 0.5), HEIGHT - _BOTTOM + 16, group)
        for place, (name, values) in enumerate(bars.items()):
            if group in values:
                left = plane.x(number + 0.1 + width * place)
                _bar(plane, left, plane.x(width) - _LEFT, values[group], colors[name], f"{name}, {group}")
    heights = [f"{name} {plane.text(next(iter(values.values())).mean)}" for name, values in bars.items()]
    return plane.finish(f"{groups[0]}: {', '.join(heights)}")


def _bar(plane: _Plane, left: float, width: float, value: Interval, color: str, name: str) -> None:
    top, middle = plane.y(value.mean), left + width / 2
    box = {"x": left, "y": top, "width": 0.9 * width, "height": max(0.0, plane.y(0) - top), "fill": color}
    text = f"{name}: {plane.text(value.mean)} [{plane.text(value.low)}, {plane.text(value.high)}]"
    plane.tooltip(plane.add("rect", box), text)
    plane.add(
        "line", {"x1": middle, "x2": middle, "y1": plane.y(value.low), "y2": plane.y(value.high), "class": "error"}
    )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most ``most`` round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``."""
    exponent = math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20, 50):
        step = factor * 10.0**exponent
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [round(i * step, 12) for i in range(first, last + 1)]
    raise AssertionError("no step is wide enough")


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range of positive length."""
    return (low, high) if high > low else (low - 0.5, high + 0.5) if low != 1 else (0.5, 2.0)


def _y_range(values: Sequence[float], share: bool) -> tuple[float, float]:
    """From 0 for shares; otherwise a little beyond the values, so that no curve lies on the border."""
    low, high = min(values), max(values)
    if share:
        return min(0.0, low), high if high > 0 else 1.0
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _path(plane: _Plane, points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{plane.x(x):.1f},{plane.y(y):.1f}" for x, y in points)


def _xml_text(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c for c in text if c.isprintable() or c in "\t\n")
