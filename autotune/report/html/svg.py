"""Drawing of charts: axes, marks, lines and letters as inline SVG.

Every chart is drawn twice, for a wide and for a narrow page, so that its letters stay legible on a phone. The
unused one is hidden, also from screen readers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.report.html.markup import Markup, html, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WIDE: Final = 760.0
NARROW: Final = 340.0
LETTER: Final = 6.3
"""Mean width of a letter at 12 px, in pixels; enough for bold letters."""


def responsive(name: str, draw: Callable[[float, str], Markup], *, caption: object = "") -> Markup:
    """Return a figure, drawn for a wide and for a narrow page.

    Args:
        name: Name that is unique on the page; ids of titles derive from it.
        draw: Function that returns the chart for a width and such a name.
        caption: Text or markup below the chart.
    """
    below = tag("figcaption", caption) if caption else Markup()
    return tag(
        "figure",
        tag("div", draw(WIDE, f"{name}-w"), class_="wide"),
        tag("div", draw(NARROW, f"{name}-s"), class_="slim"),
        below,
    )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values inside a range, at most about `most`."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / max(1, most)))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0):
        if span / (step * factor) <= most:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def plain(value: float) -> str:
    """Format an axis value: ``0.5``, ``12``, ``1500``, ``12k``."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"


def padded(values: Sequence[float], share: float = 0.07) -> tuple[float, float]:
    """Return a range around the values, from zero if the smallest is under a third of the largest."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    pad = share * (high - low) or 0.05 * abs(high) or 1.0
    if 0 <= low < high / 3:
        return 0.0, high + pad
    return low - pad, high + pad


@dataclass(frozen=True, slots=True)
class Scale:
    """Map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        share = (value - self.low) / span
        return self.start + (self.end - self.start) * min(1.2, max(-0.2, share))

    def holds(self, value: float) -> bool:
        """Return whether the value lies on the axis."""
        return self.low <= value <= self.high

    def clipped(self, value: float) -> float:
        """Return the pixel of a value, limited to the axis."""
        return self(min(self.high, max(self.low, value)))


class Svg:
    """One chart.

    Args:
        width, height: Pixels at scale 1.
        name: Name that is unique on the page.
        title: Title for screen readers.
        text: Description, as a sentence.
    """

    def __init__(self, width: float, height: float, *, name: str, title: str, text: str) -> None:
        self.width, self.height = width, height
        self._name = name
        self._head = html(tag("title", title, id=f"{name}-t"), tag("desc", text, id=f"{name}-d"))
        self._parts: list[Markup] = []

    def add(self, *parts: Markup) -> None:
        """Add elements on top."""
        self._parts.extend(parts)

    def line(self, x1: float, y1: float, x2: float, y2: float, class_: str) -> None:
        self.add(Markup(f'<path class="{class_}" d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"/>'))

    def path(self, points: Iterable[tuple[float, float]], class_: str, *, steps: bool = False) -> None:
        """Draw a line through points; with `steps`, along the axes."""
        words: list[str] = []
        for index, (x, y) in enumerate(points):
            if index == 0:
                words.append(f"M{_n(x)} {_n(y)}")
            else:
                words.append(f"H{_n(x)}V{_n(y)}" if steps else f"L{_n(x)} {_n(y)}")
        if len(words) > 1:
            self.add(Markup(f'<path class="{class_}" d="{"".join(words)}"/>'))

    def rect(self, x: float, y: float, width: float, height: float, class_: str, tip: str = "") -> None:
        size = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(0.0, width))}" height="{_n(height)}"'
        self.add(Markup(f'<rect class="{class_}" {size}{_closed("rect", tip)}'))

    def mark(self, shape: str, x: float, y: float, class_: str, *, size: float = 4.5, tip: str = "") -> None:
        """Draw a ``circle``, ``square``, ``diamond`` or ``cross``."""
        if shape == "circle":
            where = f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(size)}"'
            self.add(Markup(f'<circle class="{class_}" {where}{_closed("circle", tip)}'))
            return
        s = size
        d = {
            "square": f"M{_n(x - s)} {_n(y - s)}h{_n(2 * s)}v{_n(2 * s)}h{_n(-2 * s)}z",
            "diamond": f"M{_n(x)} {_n(y - 1.3 * s)}l{_n(1.3 * s)} {_n(1.3 * s)}l{_n(-1.3 * s)} {_n(1.3 * s)}"
            f"l{_n(-1.3 * s)} {_n(-1.3 * s)}z",
            "cross": f"M{_n(x - s)} {_n(y - s)}l{_n(2 * s)} {_n(2 * s)}"
            f"m0 {_n(-2 * s)}l{_n(-2 * s)} {_n(2 * s)}",
        }[shape]
        name = f"{class_} stroke" if shape == "cross" else class_
        self.add(Markup(f'<path class="{name}" d="{d}"{_closed("path", tip)}'))

    def text(self, x: float, y: float, text: str, class_: str = "", *, anchor: str = "start") -> None:
        where = f'x="{_n(x)}" y="{_n(y)}"' + ("" if anchor == "start" else f' text-anchor="{anchor}"')
        name = f' class="{class_}"' if class_ else ""
        self.add(html(Markup(f"<text {where}{name}>"), text, Markup("</text>")))

    def turned(self, x: float, y: float, text: str) -> None:
        """Draw text that runs upwards, centred here."""
        where = f'transform="translate({_n(x)} {_n(y)}) rotate(-90)" text-anchor="middle"'
        self.add(html(Markup(f"<text {where}>"), text, Markup("</text>")))

    def x_axis(
        self,
        scale: Scale,
        y: float,
        top: float,
        title: str,
        *,
        suffix: str = "",
        bands: Sequence[tuple[float, float]] | None = None,
    ) -> None:
        """Draw grid, ticks and title of a horizontal axis.

        Args:
            scale: Scale of the axis.
            y: Height of the axis.
            top: Upper end of the grid.
            title: Text below the axis.
            suffix: Text after each number.
            bands: Heights between which the grid is drawn, so that labels stay free.
        """
        most = max(2, int((scale.end - scale.start) / 62))
        for value in ticks(scale.low, scale.high, most):
            x = scale(value)
            for upper, lower in bands if bands is not None else [(top, y)]:
                self.line(x, upper, x, lower, "grid")
            self.text(x, y + 17, plain(value) + suffix, anchor="middle")
        self.line(scale.start, y, scale.end, y, "axis")
        if title:
            self.text((scale.start + scale.end) / 2, y + 36, title, anchor="middle")

    def y_axis(self, scale: Scale, x: float, right: float, title: str, *, suffix: str = "") -> None:
        """Draw grid, ticks and title of a vertical axis."""
        most = max(2, int(abs(scale.start - scale.end) / 40))
        for value in ticks(scale.low, scale.high, most):
            y = scale(value)
            self.line(x, y, right, y, "grid")
            self.text(x - 8, y + 4, plain(value) + suffix, anchor="end")
        if title:
            self.turned(13, (scale.start + scale.end) / 2, title)

    def inner(self) -> Markup:
        """Return the content without the enclosing element."""
        return html(*self._parts)

    def done(self) -> Markup:
        """Return the element."""
        return html(
            Markup(
                f'<svg viewBox="0 0 {_n(self.width)} {_n(self.height)}" role="img" '
                f'aria-labelledby="{self._name}-t {self._name}-d">'
            ),
            self._head,
            *self._parts,
            Markup("</svg>"),
        )


def swatch(shape: str, class_: str) -> Markup:
    """Return a symbol of the legend; hidden from screen readers, which read the word beside it."""
    svg = Svg(16, 14, name="", title="", text="")
    if shape == "line":
        svg.line(1, 7, 15, 7, f"{class_} whisker")
    elif shape == "bar":
        svg.rect(1, 2, 14, 10, class_)
    else:
        svg.mark(shape, 8, 7, class_, size=4.4)
    return html(Markup('<svg viewBox="0 0 16 14" aria-hidden="true">'), svg.inner(), Markup("</svg>"))


def legend(*entries: tuple[str, str, str]) -> Markup:
    """Return a list of (shape, class, words)."""
    return tag("ul", *(tag("li", swatch(s, c), words) for s, c, words in entries), class_="legend")


def cut(text: str, width: float) -> str:
    """Return the text, shortened to the width with an ellipsis."""
    most = max(4, int(width / LETTER))
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _closed(name: str, tip: str) -> str:
    return html(Markup("><title>"), tip, Markup(f"</title></{name}>")) if tip else "/>"
