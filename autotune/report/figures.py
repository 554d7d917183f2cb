"""Charts as inline SVG: no library, no network, colours from the page's stylesheet.

A chart knows figures and words, not studies. Each is drawn twice, for a wide and for a narrow page, so that
its letters stay legible on a phone; what is not shown is hidden from everybody.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.report.markup import Markup, html, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WIDE: Final = 760.0
NARROW: Final = 340.0
_LETTER: Final = 6.3
"""Mean width of a letter at 12 px; wide enough for bold ones."""


def responsive(name: str, draw: Callable[[float, str], Markup], *, caption: object = "") -> Markup:
    """A figure, drawn for a wide and for a narrow page.

    Args:
        name: Unique on the page; names of titles are made from it.
        draw: Makes the chart from a width and such a name.
        caption: What stands below; text or markup.
    """
    below = tag("figcaption", caption) if caption else Markup()
    return tag(
        "figure",
        tag("div", draw(WIDE, f"{name}-w"), class_="wide"),
        tag("div", draw(NARROW, f"{name}-s"), class_="slim"),
        below,
    )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values inside a range, at most about so many."""
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
    """``0.5``, ``12``, ``1500``, ``12k``: for axes."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        share = (value - self.low) / span
        return self.start + (self.end - self.start) * min(1.2, max(-0.2, share))

    def holds(self, value: float) -> bool:
        """The value lies on the axis."""
        return self.low <= value <= self.high

    def clipped(self, value: float) -> float:
        """The pixel of a value that is not let out of the axis."""
        return self(min(self.high, max(self.low, value)))


class Svg:
    """One chart as it is drawn.

    Args:
        width, height: Pixels at scale 1.
        name: Unique on the page.
        title: What it is, for people who do not see it.
        text: What it shows, in a sentence.
    """

    def __init__(self, width: float, height: float, *, name: str, title: str, text: str) -> None:
        self.width, self.height = width, height
        self._name = name
        self._head = html(tag("title", title, id=f"{name}-t"), tag("desc", text, id=f"{name}-d"))
        self._parts: list[Markup] = []

    def add(self, *parts: Markup) -> None:
        """Put something on top."""
        self._parts.extend(parts)

    def line(self, x1: float, y1: float, x2: float, y2: float, class_: str) -> None:
        self.add(Markup(f'<path class="{class_}" d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"/>'))

    def path(self, points: Iterable[tuple[float, float]], class_: str, *, steps: bool = False) -> None:
        """A line through points; with `steps` along the axes."""
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
        """A ``circle``, ``square``, ``diamond`` or ``cross``."""
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
        """Text that runs upwards, its middle here."""
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
        """Grid, ticks and title of a horizontal axis.

        Args:
            scale: Of the axis.
            y: Where it lies.
            top: Where its grid begins.
            title: Below it.
            suffix: Behind each number.
            bands: The grid is drawn between these heights alone, so that it leaves letters free.
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
        """Grid, ticks and title of a vertical axis."""
        most = max(2, int(abs(scale.start - scale.end) / 40))
        for value in ticks(scale.low, scale.high, most):
            y = scale(value)
            self.line(x, y, right, y, "grid")
            self.text(x - 8, y + 4, plain(value) + suffix, anchor="end")
        if title:
            self.turned(13, (scale.start + scale.end) / 2, title)

    def inner(self) -> Markup:
        """What was drawn, without the element around it."""
        return html(*self._parts)

    def done(self) -> Markup:
        """The element."""
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
    """A sign of the legend; hidden from readers, the word beside it says all."""
    svg = Svg(16, 14, name="", title="", text="")
    if shape == "line":
        svg.line(1, 7, 15, 7, f"{class_} whisker")
    elif shape == "bar":
        svg.rect(1, 2, 14, 10, class_)
    else:
        svg.mark(shape, 8, 7, class_, size=4.4)
    return html(Markup('<svg viewBox="0 0 16 14" aria-hidden="true">'), svg.inner(), Markup("</svg>"))


def legend(*entries: tuple[str, str, str]) -> Markup:
    """A list of (shape, class, words)."""
    return tag("ul", *(tag("li", swatch(s, c), words) for s, c, words in entries), class_="legend")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A row of a chart of ratios.

    Args:
        label: In front of the row.
        low, high: Ends of the interval; None where there is none.
        class_: Whose colour.
        shape: Of the mark.
        note: Behind the row.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    class_: str = "best"
    shape: str = "circle"
    is_hollow: bool = False
    note: str = ""


def ratios(rows: Sequence[Ratio], width: float, name: str, *, title: str, text: str, axis: str) -> Markup:
    """Ratios with their intervals, and the line at 1.00 that they have to clear."""
    rows = [r for r in rows if math.isfinite(r.value)]
    is_narrow = width < WIDE
    row_h = 42.0 if is_narrow else 34.0
    longest = max((len(r.label) for r in rows), default=4)
    left = 10.0 if is_narrow else min(300.0, 20.0 + _LETTER * longest)
    notes = max((len(r.note) for r in rows), default=0)
    right = 14.0 if is_narrow else min(210.0, 18.0 + _LETTER * notes)
    top, bottom = 8.0, 44.0 if axis else 26.0
    height = top + row_h * len(rows) + bottom
    svg = Svg(width, height, name=name, title=title, text=text)
    ends = [v for r in rows for v in (r.low, r.high, r.value) if v is not None and math.isfinite(v)]
    values = [r.value for r in rows] or [1.0]
    # One run that cannot give a narrow interval must not press all others together.
    cap = 2.2 * max(max(values) - 1.0, 1.0 - min(values), 0.1)
    low = max(min([*ends, 1.0]), 1.0 - cap, 0.0)
    high = min(max([*ends, 1.0]), max(values) + cap)
    pad = 0.05 * (high - low or 0.1)
    scale = Scale(max(0.0, low - pad), high + pad, left, width - right)
    base = top + row_h * len(rows)
    places = [top + row_h * (index + (0.7 if is_narrow else 0.5)) for index in range(len(rows))]
    # Where labels stand above their rows, no line runs through their letters.
    bands = [(y - 9, y + 9) for y in places] if is_narrow else [(top, base)]
    svg.x_axis(scale, base, top, axis, suffix="x", bands=bands)
    for upper, lower in bands:
        svg.line(scale(1.0), upper, scale(1.0), lower, "one")
    for y, row in zip(places, rows, strict=True):
        if is_narrow:
            svg.text(left, y - 14, cut(row.label, width - left - _LETTER * len(row.note) - 16), "ink halo")
            svg.text(width - 4, y - 14, row.note, "halo", anchor="end")
        else:
            svg.text(left - 12, y + 4, cut(row.label, left - 14), "ink", anchor="end")
            svg.text(width - right + 12, y + 4, row.note)
        guess = " guess" if row.is_hollow else ""
        if row.low is not None and row.high is not None and row.low <= row.high:
            a, b = scale.clipped(row.low), scale.clipped(row.high)
            svg.line(a, y, b, y, f"{row.class_} whisker{guess}")
            for x, is_inside in ((a, scale.holds(row.low)), (b, scale.holds(row.high))):
                if is_inside:
                    svg.line(x, y - 5, x, y + 5, f"{row.class_} whisker{guess}")
        tip = f"{row.label}: {row.value:.2f}x" + (
            f" [{row.low:.2f}, {row.high:.2f}]" if row.low is not None and row.high is not None else ""
        )
        look = f"{row.class_} hollow" if row.is_hollow else row.class_
        svg.mark(row.shape, scale.clipped(row.value), y, look, size=5, tip=tip)
    return svg.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A point of a scatter chart.

    Args:
        tip: Said where the pointer rests.
        label: Written beside it; empty for most.
        rank: Those with a larger one lie on top.
    """

    x: float
    y: float
    class_: str = "other"
    shape: str = "circle"
    tip: str = ""
    label: str = ""
    rank: int = 0
    size: float = 4.0


def scatter(
    dots: Sequence[Dot],
    front: Sequence[tuple[float, float]],
    width: float,
    name: str,
    *,
    title: str,
    text: str,
    x_title: str,
    y_title: str,
    bound: float | None = None,
) -> Markup:
    """Points, the front as a stair, labels that keep off each other.

    Args:
        dots: To be drawn.
        front: Its members, in the order of x.
        width: Of the chart.
        name: Unique on the page.
        title: What it is.
        text: What it shows.
        x_title: Of the axis.
        y_title: Of the axis.
        bound: A limit on x, drawn where it lies within.
    """
    is_narrow = width < WIDE
    height = 320.0 if is_narrow else 420.0
    left, right, top, bottom = (50.0, 12.0, 14.0, 50.0) if is_narrow else (66.0, 24.0, 16.0, 50.0)
    svg = Svg(width, height, name=name, title=title, text=text)
    xs, ys = _padded([d.x for d in dots]), _padded([d.y for d in dots])
    x_scale = Scale(*xs, left, width - right)
    y_scale = Scale(*ys, height - bottom, top)
    svg.y_axis(y_scale, left, width - right, y_title)
    svg.x_axis(x_scale, height - bottom, top, x_title)
    if bound is not None and x_scale.holds(bound):
        svg.line(x_scale(bound), top, x_scale(bound), height - bottom, "bad whisker faint")
        svg.text(x_scale(bound) - 5, top + 12, "allowed", "bad halo", anchor="end")
    svg.path(((x_scale(x), y_scale(y)) for x, y in front), "front", steps=True)
    taken: list[tuple[float, float, float, float]] = []
    placed = [(x_scale(d.x), y_scale(d.y), d) for d in sorted(dots, key=lambda d: d.rank)]
    for x, y, dot in placed:
        svg.mark(dot.shape, x, y, dot.class_, size=dot.size, tip=dot.tip)
        if dot.label:
            taken.append((x - 8, y - 8, x + 8, y + 8))
    for x, y, dot in reversed(placed):
        if dot.label:
            bounds = (left, top, width - 2, height - bottom)
            at_x, at_y, anchor, box = _free_place(x, y, len(dot.label) * _LETTER, bounds, taken)
            taken.append(box)
            svg.text(at_x, at_y, dot.label, f"{dot.class_.split()[0]} halo", anchor=anchor)
    return svg.done()


def _free_place(
    x: float,
    y: float,
    length: float,
    bounds: tuple[float, float, float, float],
    taken: Sequence[tuple[float, float, float, float]],
) -> tuple[float, float, str, tuple[float, float, float, float]]:
    """Where a label beside a point covers nothing that is labelled."""
    tries = [(11.0, 4.0, "start"), (-11.0, 4.0, "end"), (9.0, -9.0, "start"), (-9.0, -9.0, "end")]
    tries += [(9.0, 18.0, "start"), (-9.0, 18.0, "end"), (9.0, -22.0, "start"), (-9.0, 30.0, "end")]
    best: tuple[float, tuple[float, float, str, tuple[float, float, float, float]]] | None = None
    for dx, dy, anchor in tries:
        a = x + dx if anchor == "start" else x + dx - length
        box = (a, y + dy - 11, a + length, y + dy + 3)
        out = max(0.0, bounds[0] - box[0]) + max(0.0, box[2] - bounds[2]) + max(0.0, bounds[1] - box[1])
        cost = 3 * out + sum(_overlap(box, other) for other in taken)
        if best is None or cost < best[0] - 1e-9:
            best = (cost, (x + dx, y + dy, anchor, box))
        if cost <= 0.0:
            break
    assert best is not None
    return best[1]


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    tall = min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, wide) * max(0.0, tall)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a config: its figure, and the interval within the run."""

    value: float
    low: float
    high: float
    is_fresh_pair: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that belong together."""

    label: str
    class_: str
    runs: Sequence[Run]
    note: str = ""


def strips(groups: Sequence[Group], width: float, name: str, *, title: str, text: str, axis: str) -> Markup:
    """Every run of a few configs on one axis, each in a line of its own, their mean as a bar."""
    is_narrow = width < WIDE
    lane, gap, head = 9.0, 18.0, 20.0
    left, right, top, bottom = 12.0, 14.0, 4.0, 46.0
    heights = [head + lane * max(1, len(g.runs)) + gap for g in groups]
    svg = Svg(width, top + sum(heights) + bottom, name=name, title=title, text=text)
    everything = [v for g in groups for r in g.runs for v in (r.low, r.value, r.high) if math.isfinite(v)]
    scale = Scale(*_padded(everything), left, width - right)
    svg.x_axis(scale, top + sum(heights), top, axis)
    y = top
    for group, height in zip(groups, heights, strict=True):
        label = cut(group.label, width - 40 - _LETTER * len(group.note))
        svg.text(left, y + 13, label, f"{group.class_} halo")
        svg.text(width - right, y + 13, group.note, "halo", anchor="end")
        for index, run in enumerate(group.runs):
            at = y + head + lane * (index + 0.5)
            svg.line(scale.clipped(run.low), at, scale.clipped(run.high), at, f"{group.class_} whisker faint")
            look = group.class_ if run.is_fresh_pair else f"{group.class_} hollow"
            svg.mark("circle", scale(run.value), at, look, size=3.2 if is_narrow else 3.6, tip=run.tip)
        if group.runs:
            mean = sum(r.value for r in group.runs) / len(group.runs)
            svg.line(scale(mean), y + head - 2, scale(mean), y + height - gap + 2, f"{group.class_} whisker")
        y += height
    return svg.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Five quantiles (5, 25, 50, 75, 95 %) of something."""

    label: str
    class_: str
    quantiles: tuple[float, float, float, float, float]


def boxes(rows: Sequence[Box], width: float, name: str, *, title: str, text: str, axis: str) -> Markup:
    """Box plots in rows: the middle half as a bar, 5 to 95 % as a line."""
    row_h, left, right, top, bottom = 50.0, 12.0, 16.0, 4.0, 46.0
    svg = Svg(width, top + row_h * len(rows) + bottom, name=name, title=title, text=text)
    ends = [q for r in rows for q in r.quantiles]
    scale = Scale(0.0, 1.04 * max(ends, default=1.0), left, width - right)
    svg.x_axis(scale, top + row_h * len(rows), top, axis)
    for index, row in enumerate(rows):
        y = top + row_h * index
        q05, q25, q50, q75, q95 = row.quantiles
        svg.text(left, y + 13, cut(row.label, width - 130), f"{row.class_} halo")
        svg.text(width - right, y + 13, f"median {plain(q50)}", "halo", anchor="end")
        middle = y + 31
        svg.line(scale(q05), middle, scale(q95), middle, f"{row.class_} whisker faint")
        tip = f"5 to 95 %: {plain(q05)} to {plain(q95)}; middle half: {plain(q25)} to {plain(q75)}"
        svg.rect(scale(q25), middle - 8, scale(q75) - scale(q25), 16, f"{row.class_} wash", tip)
        svg.rect(scale(q25), middle - 8, max(1.0, scale(q75) - scale(q25)), 16, f"{row.class_} stroke", tip)
        svg.line(scale(q50), middle - 8, scale(q50), middle + 8, f"{row.class_} whisker")
    return svg.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs next to each other."""

    label: str
    base: float
    ours: float
    ratio: float


def pairs(
    rows: Sequence[Pair], class_: str, width: float, name: str, *, title: str, text: str, axis: str
) -> Markup:
    """Each pair as two dots on one line; the ratio stands behind it."""
    row_h, left, right, top, bottom = 26.0, 62.0, 66.0, 6.0, 46.0
    svg = Svg(width, top + row_h * len(rows) + bottom, name=name, title=title, text=text)
    scale = Scale(*_padded([v for r in rows for v in (r.base, r.ours)]), left, width - right)
    svg.x_axis(scale, top + row_h * len(rows), top, axis)
    for index, row in enumerate(rows):
        y = top + row_h * (index + 0.5)
        svg.text(left - 10, y + 4, row.label, anchor="end")
        svg.line(scale(row.base), y, scale(row.ours), y, "link")
        svg.mark("square", scale(row.base), y, "script", size=4.2, tip=f"your script {plain(row.base)}")
        svg.mark("circle", scale(row.ours), y, class_, size=5.2, tip=f"this config {plain(row.ours)}")
        svg.text(width - right + 12, y + 4, f"{row.ratio:.2f}x", "strong")
    return svg.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A bar that is made of shares of one whole."""

    label: str
    parts: tuple[tuple[str, str, float], ...]
    note: str = ""


def shares(rows: Sequence[Share], width: float, name: str, *, title: str, text: str) -> Markup:
    """Bars of equal length, cut into (class, words, share of 1)."""
    row_h, left, right, top = 58.0, 2.0, 2.0, 4.0
    svg = Svg(width, top + row_h * len(rows), name=name, title=title, text=text)
    for index, row in enumerate(rows):
        y, x = top + row_h * index, left
        svg.text(left, y + 13, cut(row.label, width - _LETTER * len(row.note) - 20), "strong")
        svg.text(width - right, y + 13, row.note, anchor="end")
        for class_, words, share in row.parts:
            length = share * (width - left - right)
            svg.rect(x, y + 20, length, 22, class_, f"{words}: {100 * share:.0f} %")
            x += length
    return svg.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line of a chart, smoothed beforehand or not."""

    class_: str
    points: Sequence[tuple[float, float]]
    is_raw: bool = False
    label: str = ""


def curves(
    lines: Sequence[Curve], width: float, name: str, *, title: str, text: str, x_title: str, y_title: str
) -> Markup:
    """Lines over one axis; those that are raw stand back."""
    is_narrow = width < WIDE
    height = 260.0 if is_narrow else 340.0
    left, right, top, bottom = (50.0, 12.0, 10.0, 48.0) if is_narrow else (66.0, 20.0, 12.0, 48.0)
    svg = Svg(width, height, name=name, title=title, text=text)
    smooth = [line for line in lines if not line.is_raw] or list(lines)
    xs = [x for line in lines for x, _ in line.points]
    ys = sorted(y for line in smooth for _, y in line.points if math.isfinite(y))
    x_scale = Scale(min(xs, default=0.0), max(xs, default=1.0), left, width - right)
    y_scale = Scale(*_padded(ys), height - bottom, top)
    svg.y_axis(y_scale, left, width - right, y_title)
    svg.x_axis(x_scale, height - bottom, top, x_title)
    for line in sorted(lines, key=lambda line: not line.is_raw):
        points = [(x_scale(x), y_scale.clipped(y)) for x, y in line.points if math.isfinite(y)]
        svg.path(points, f"{line.class_} thin" if line.is_raw else f"{line.class_} stroke")
    return svg.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of time."""

    begin: float
    end: float
    class_: str
    tip: str
    is_failed: bool = False


def timeline(
    spans: Sequence[Span],
    best: Sequence[tuple[float, float]],
    budget: float,
    width: float,
    name: str,
    *,
    title: str,
    text: str,
) -> Markup:
    """What ran when, in as many lanes as ran at once, below the best ratio seen by then.

    Args:
        spans: In seconds from the start, in the order of their beginnings.
        best: (second, largest single-run ratio so far).
        budget: Seconds that were allowed.
        width: Of the chart.
        name: Unique on the page.
        title: What it is.
        text: What it shows.
    """
    is_narrow = width < WIDE
    lanes: list[float] = []
    rows: list[int] = []
    for span in spans:
        lane = next((i for i, free in enumerate(lanes) if free <= span.begin + 1e-6), len(lanes))
        if lane == len(lanes):
            lanes.append(0.0)
        lanes[lane] = span.end
        rows.append(lane)
    bar = 26.0 if len(lanes) < 4 else 14.0
    left, right, top, bottom = (42.0, 12.0, 10.0, 46.0) if is_narrow else (52.0, 20.0, 12.0, 46.0)
    curve_h = 110.0 if best else 0.0
    lane_top = top + curve_h + (16.0 if best else 0.0)
    floor = lane_top + bar * max(1, len(lanes)) + 4
    svg = Svg(width, floor + bottom, name=name, title=title, text=text)
    end = max([budget, *(s.end for s in spans)])
    minutes = end >= 180
    unit = 60.0 if minutes else 1.0
    scale = Scale(0.0, end / unit, left, width - right)
    svg.x_axis(scale, floor, top, "minutes" if minutes else "seconds")
    if best:
        ratios_seen = [v for _, v in best]
        y_scale = Scale(*_padded([1.0, *ratios_seen]), top + curve_h, top)
        svg.y_axis(y_scale, left, width - right, "", suffix="x")
        points = [(scale(t / unit), y_scale(v)) for t, v in best]
        points.append((scale(end / unit), points[-1][1]))
        svg.path(points, "best stroke", steps=True)
    for span, lane in zip(spans, rows, strict=True):
        x, y = scale(span.begin / unit), lane_top + bar * lane
        room = scale(span.end / unit) - x
        length = max(0.8, room - min(1.2, 0.25 * room))
        svg.rect(x, y, length, bar - 3, span.class_, span.tip)
        if span.is_failed:
            svg.rect(x, y, length, 4, "bad")
    return svg.done()


def smoothed(points: Sequence[tuple[float, float]], share: float = 0.06) -> list[tuple[float, float]]:
    """A moving mean over this share of the points; the ends lean on fewer."""
    half = max(1, round(share * len(points) / 2))
    found: list[tuple[float, float]] = []
    for index, (x, _) in enumerate(points):
        near = points[max(0, index - half) : index + half + 1]
        found.append((x, sum(y for _, y in near) / len(near)))
    return found


def cut(text: str, width: float) -> str:
    """As much of a text as has room, with a sign where something is missing."""
    most = max(4, int(width / _LETTER))
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _padded(values: Sequence[float], share: float = 0.07) -> tuple[float, float]:
    """A range around the values; from zero where they reach down to a third of their largest."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    pad = share * (high - low) or 0.05 * abs(high) or 1.0
    if 0 <= low < high / 3:
        return 0.0, high + pad
    return low - pad, high + pad


def staircase(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points in the order of x without those that lie below one to their left: what a front's stair joins."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not kept or y > kept[-1][1]:
            kept.append((x, y))
    return kept


def steps_up(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """(time, value) -> the largest value so far, where it grows."""
    ordered = list(points)
    best = itertools.accumulate((v for _, v in ordered), max)
    kept: list[tuple[float, float]] = []
    for (t, _), value in zip(ordered, best, strict=True):
        if not kept or value > kept[-1][1]:
            kept.append((t, value))
    return kept


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _closed(name: str, tip: str) -> str:
    return html(Markup("><title>"), tip, Markup(f"</title></{name}>")) if tip else "/>"
