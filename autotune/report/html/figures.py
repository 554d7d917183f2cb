"""Charts from figures and texts; `autotune.report.html.svg` draws them.

A chart does not depend on studies and takes its colours from the page's stylesheet.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.report.html.svg import LETTER, WIDE, Scale, Svg, cut, padded, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.report.html.markup import Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Row of a chart of ratios.

    Args:
        label: Text in front of the row.
        low, high: Ends of the interval; None without one.
        class_: CSS class of the colour.
        shape: Shape of the mark.
        note: Text behind the row.
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
    """Draw ratios with their intervals, and the reference line at 1.00; an arrow marks a cut interval."""
    rows = [r for r in rows if math.isfinite(r.value)]
    is_narrow = width < WIDE
    row_h = 42.0 if is_narrow else 34.0
    longest = max((len(r.label) for r in rows), default=4)
    left = 10.0 if is_narrow else min(300.0, 20.0 + LETTER * longest)
    notes = max((len(r.note) for r in rows), default=0)
    right = 14.0 if is_narrow else min(210.0, 18.0 + LETTER * notes)
    top, bottom = 8.0, 44.0 if axis else 26.0
    height = top + row_h * len(rows) + bottom
    svg = Svg(width, height, name=name, title=title, text=text)
    ends = [v for r in rows for v in (r.low, r.high, r.value) if v is not None and math.isfinite(v)]
    values = [r.value for r in rows] or [1.0]
    # One run with a wide interval must not compress the scale of all others.
    cap = 2.2 * max(max(values) - 1.0, 1.0 - min(values), 0.1)
    low = max(min([*ends, 1.0]), 1.0 - cap, 0.0)
    high = min(max([*ends, 1.0]), max(values) + cap)
    pad = 0.05 * (high - low or 0.1)
    scale = Scale(max(0.0, low - pad), high + pad, left, width - right)
    base = top + row_h * len(rows)
    places = [top + row_h * (index + (0.7 if is_narrow else 0.5)) for index in range(len(rows))]
    # No line crosses the letters of labels above their rows.
    bands = [(y - 9, y + 9) for y in places] if is_narrow else [(top, base)]
    svg.x_axis(scale, base, top, axis, suffix="x", bands=bands)
    for upper, lower in bands:
        svg.line(scale(1.0), upper, scale(1.0), lower, "one")
    for y, row in zip(places, rows, strict=True):
        if is_narrow:
            svg.text(left, y - 14, cut(row.label, width - left - LETTER * len(row.note) - 16), "ink halo")
            svg.text(width - 4, y - 14, row.note, "halo", anchor="end")
        else:
            svg.text(left - 12, y + 4, cut(row.label, left - 14), "ink", anchor="end")
            svg.text(width - right + 12, y + 4, row.note)
        guess = " guess" if row.is_hollow else ""
        if row.low is not None and row.high is not None and row.low <= row.high:
            a, b = scale.clipped(row.low), scale.clipped(row.high)
            svg.line(a, y, b, y, f"{row.class_} whisker{guess}")
            for x, end, inwards in ((a, row.low, 6.0), (b, row.high, -6.0)):
                # A bar ends the interval; an arrow marks one that extends beyond the axis.
                tails = [x, x] if scale.holds(end) else [x + inwards, x]
                svg.line(tails[0], y - 5, tails[1], y, f"{row.class_} whisker{guess}")
                svg.line(tails[1], y, tails[0], y + 5, f"{row.class_} whisker{guess}")
        tip = f"{row.label}: {row.value:.2f}x" + (
            f" [{row.low:.2f}, {row.high:.2f}]" if row.low is not None and row.high is not None else ""
        )
        look = f"{row.class_} hollow" if row.is_hollow else row.class_
        svg.mark(row.shape, scale.clipped(row.value), y, look, size=5, tip=tip)
    return svg.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPoint:
    """One run of a config: its figure, and the interval within the run."""

    value: float
    low: float
    high: float
    is_fresh_pair: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs of one config."""

    label: str
    class_: str
    runs: Sequence[RunPoint]
    note: str = ""


def strips(groups: Sequence[Group], width: float, name: str, *, title: str, text: str, axis: str) -> Markup:
    """Draw every run of a few configs on one axis, a line per config, with the mean as a bar."""
    is_narrow = width < WIDE
    lane, gap, head = 9.0, 18.0, 20.0
    left, right, top, bottom = 12.0, 14.0, 4.0, 46.0
    heights = [head + lane * max(1, len(g.runs)) + gap for g in groups]
    svg = Svg(width, top + sum(heights) + bottom, name=name, title=title, text=text)
    everything = [v for g in groups for r in g.runs for v in (r.low, r.value, r.high) if math.isfinite(v)]
    scale = Scale(*padded(everything), left, width - right)
    svg.x_axis(scale, top + sum(heights), top, axis)
    y = top
    for group, height in zip(groups, heights, strict=True):
        label = cut(group.label, width - 40 - LETTER * len(group.note))
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
    """Five quantiles (5, 25, 50, 75, 95 %) of a sample."""

    label: str
    class_: str
    quantiles: tuple[float, float, float, float, float]


def boxes(rows: Sequence[Box], width: float, name: str, *, title: str, text: str, axis: str) -> Markup:
    """Draw box plots in rows: the middle half as a bar, 5 to 95 % as a line."""
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
class PairPoint:
    """Two adjacent runs."""

    label: str
    base: float
    ours: float
    ratio: float


def pairs(
    rows: Sequence[PairPoint], class_: str, width: float, name: str, *, title: str, text: str, axis: str
) -> Markup:
    """Draw each pair as two dots on one line, followed by its ratio."""
    row_h, left, right, top, bottom = 26.0, 62.0, 66.0, 6.0, 46.0
    svg = Svg(width, top + row_h * len(rows) + bottom, name=name, title=title, text=text)
    scale = Scale(*padded([v for r in rows for v in (r.base, r.ours)]), left, width - right)
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
    """Bar that consists of shares of one whole."""

    label: str
    parts: tuple[tuple[str, str, float], ...]
    note: str = ""


def shares(rows: Sequence[Share], width: float, name: str, *, title: str, text: str) -> Markup:
    """Draw bars of equal length, divided into (class, words, share of 1)."""
    row_h, left, right, top = 58.0, 2.0, 2.0, 4.0
    svg = Svg(width, top + row_h * len(rows), name=name, title=title, text=text)
    for index, row in enumerate(rows):
        y, x = top + row_h * index, left
        svg.text(left, y + 13, cut(row.label, width - LETTER * len(row.note) - 20), "strong")
        svg.text(width - right, y + 13, row.note, anchor="end")
        for class_, words, share in row.parts:
            length = share * (width - left - right)
            svg.rect(x, y + 20, length, 22, class_, f"{words}: {100 * share:.0f} %")
            x += length
    return svg.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """Line of a chart, raw or smoothed."""

    class_: str
    points: Sequence[tuple[float, float]]
    is_raw: bool = False
    label: str = ""


def curves(
    lines: Sequence[LossCurve], width: float, name: str, *, title: str, text: str, x_title: str, y_title: str
) -> Markup:
    """Draw lines over one axis; raw lines are faint."""
    is_narrow = width < WIDE
    height = 260.0 if is_narrow else 340.0
    left, right, top, bottom = (50.0, 12.0, 10.0, 48.0) if is_narrow else (66.0, 20.0, 12.0, 48.0)
    svg = Svg(width, height, name=name, title=title, text=text)
    smooth = [line for line in lines if not line.is_raw] or list(lines)
    xs = [x for line in lines for x, _ in line.points]
    ys = sorted(y for line in smooth for _, y in line.points if math.isfinite(y))
    x_scale = Scale(min(xs, default=0.0), max(xs, default=1.0), left, width - right)
    y_scale = Scale(*padded(ys), height - bottom, top)
    svg.y_axis(y_scale, left, width - right, y_title)
    svg.x_axis(x_scale, height - bottom, top, x_title)
    for line in sorted(lines, key=lambda line: not line.is_raw):
        points = [(x_scale(x), y_scale.clipped(y)) for x, y in line.points if math.isfinite(y)]
        svg.path(points, f"{line.class_} thin" if line.is_raw else f"{line.class_} stroke")
    return svg.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Interval of time."""

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
    """Draw the trials over time, in as many lanes as ran at once, below the best ratio so far.

    Args:
        spans: Intervals in seconds from the start, ordered by start.
        best: (second, largest single-run ratio so far).
        budget: Budget in seconds.
        width: Width of the chart.
        name: Name that is unique on the page.
        title: Title of the chart.
        text: Description of the chart.
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
        y_scale = Scale(*padded([1.0, *ratios_seen]), top + curve_h, top)
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
    """Return a moving mean over this share of the points; fewer points at the ends."""
    half = max(1, round(share * len(points) / 2))
    found: list[tuple[float, float]] = []
    for index, (x, _) in enumerate(points):
        near = points[max(0, index - half) : index + half + 1]
        found.append((x, sum(y for _, y in near) / len(near)))
    return found


def steps_up(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the running maximum of (time, value), at the times where it grows."""
    ordered = list(points)
    best = itertools.accumulate((v for _, v in ordered), max)
    kept: list[tuple[float, float]] = []
    for (t, _), value in zip(ordered, best, strict=True):
        if not kept or value > kept[-1][1]:
            kept.append((t, value))
    return kept
