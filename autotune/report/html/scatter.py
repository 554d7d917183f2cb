"""Scatter chart: points, the front as a staircase, and labels that do not overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.report.html.svg import LETTER, WIDE, Scale, Svg, padded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.report.html.markup import Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """Point of a scatter chart.

    Args:
        tip: Text under the pointer.
        label: Text beside the point; usually empty.
        rank: Points with a larger rank are drawn on top.
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
    """Draw points, the front as a staircase, and labels that do not overlap.

    Args:
        dots: Points to draw.
        front: Members of the front, ordered by x.
        width: Width of the chart.
        name: Name that is unique on the page.
        title: Title of the chart.
        text: Description of the chart.
        x_title: Title of the x axis.
        y_title: Title of the y axis.
        bound: Limit on x, drawn if it lies within the axis.
    """
    is_narrow = width < WIDE
    height = 320.0 if is_narrow else 420.0
    left, right, top, bottom = (50.0, 12.0, 14.0, 50.0) if is_narrow else (66.0, 24.0, 16.0, 50.0)
    svg = Svg(width, height, name=name, title=title, text=text)
    xs, ys = padded([d.x for d in dots]), padded([d.y for d in dots])
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
            at_x, at_y, anchor, box = _free_place(x, y, len(dot.label) * LETTER, bounds, taken)
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
    """Return a place for a label beside a point that covers no label."""
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


def staircase(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points ordered by x, without those below one to their left."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not kept or y > kept[-1][1]:
            kept.append((x, y))
    return kept
