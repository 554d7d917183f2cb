"""The report on scaling: one self-contained HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.report.html.markup import Column, Markup, bullets, heading, html, table, tag
from autotune.report.html.svg import NARROW, Scale, Svg, responsive
from autotune.report.html.template import Section, render
from autotune.report.view.sanitize import clean
from autotune.report.view.scaling_view import COLUMNS, as_object, figure, rows, sentences

if TYPE_CHECKING:
    from autotune.compare.scaling import Scaling
    from autotune.model.study import Study


def scaling_html(study: Study, found: Scaling, command: str) -> str:
    """Return the page.

    Args:
        study: Study of `autotune scale`.
        found: Scaling figures.
        command: Measured command.
    """
    cells = [Column(title=name, is_number=name != "communication") for name in COLUMNS]
    title = f"Scaling of {clean(study, study.spec.title)}"
    first = html(
        tag("h1", title),
        tag("p", tag("code", clean(study, command))),
        bullets([clean(study, text) for text in sentences(found)]),
    )
    plot = html(
        heading("plot", "Throughput", f"In {found.unit}, with 95 % intervals; the line is ideal."),
        responsive("scaling", lambda width, name: _plot(found, width, name)),
    )
    figures = html(
        heading("table", "Figures", "Each with its 95 % interval over fresh interleaved runs."),
        table(cells, rows(found), caption="Figures by number of processes"),
    )
    return render(
        title,
        first,
        [Section("plot", "Throughput", plot), Section("table", "Figures", figures)],
        f"Made by autotune {study.spec.version} from the study's journal.",
        "autotune-scaling",
        as_object(found),
    )


def _plot(found: Scaling, width: float, name: str) -> Markup:
    """Draw throughput over the number of processes, with the linear line from the fewest."""
    measured = [(p.processes, p.throughput) for p in found.points if p.throughput is not None]
    height, left, right, bottom = (240.0, 52.0, 14.0, 48.0) if width <= NARROW else (340.0, 70.0, 20.0, 48.0)
    text = "; ".join(f"{count}: {figure(rate)}" for count, rate in measured)
    svg = Svg(width, height, name=name, title="Throughput by number of processes", text=text)
    if not measured:
        return svg.done()
    fewest, base = measured[0]
    most = measured[-1][0]
    ideal = [(count, base.value * count / fewest) for count in (fewest, most)]
    top = 1.05 * max(ideal[-1][1], *(rate.value for _, rate in measured))
    x = Scale(0.0, float(most) * 1.05, left, width - right)
    y = Scale(0.0, top, height - bottom, 12.0)
    svg.y_axis(y, left, width - right, found.unit)
    svg.x_axis(x, height - bottom, 12.0, "processes")
    svg.path([(x(count), y(rate)) for count, rate in ideal], "script stroke")
    svg.path([(x(count), y(rate.value)) for count, rate in measured], "best stroke")
    for count, rate in measured:
        svg.line(x(count), y.clipped(rate.low), x(count), y.clipped(rate.high), "best whisker")
        shape = "diamond" if count == found.knee else "circle"
        svg.mark(shape, x(count), y(rate.value), "best", tip=f"{count} processes: {figure(rate)}")
    return svg.done()
