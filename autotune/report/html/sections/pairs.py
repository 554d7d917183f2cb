"""Confirmation by pairs: the script and a pick in adjacent fresh processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.model.effect import Effect
from autotune.report.html import figures, svg
from autotune.report.html.markup import Markup, heading, html, tag
from autotune.report.view import sanitize, summary
from autotune.report.view.picks import shown_picks

if TYPE_CHECKING:
    from autotune.model.config import Config
    from autotune.report.view.study_view import PairedRuns, View

_MOST_PAIRS: Final = 24
_COLOURED: Final = ("script", "best", "safe", "fastest")
"""Names with a colour of their own."""


def pairs_section(view: View) -> Markup:
    """Return a chart of pairs for each pick, or for the closest configs; empty without pairs."""
    answer = view.answer
    if answer is None:
        return Markup()
    chosen = [(name, pick.config) for name, pick in shown_picks(answer).items()]
    if not chosen and view.compared:
        top = max(view.compared.values(), key=lambda c: c.speedup.value)
        chosen = [("closest", top.config)]
    parts: list[Markup] = []
    for name, config in chosen:
        rows = view.pairs(config)[:_MOST_PAIRS]
        if rows:
            parts.append(_pairs_figure(view, name, config, rows))
    if not parts:
        return Markup()
    lead = (
        "Two fresh processes in succession, in alternating order: your script (square) and the "
        "configuration (circle). A slow phase of the machine affects both. The ratio of each pair is on "
        "its right."
    )
    return html(heading("pairs", "Confirmation, pair by pair", lead), *parts)


def _pairs_figure(view: View, name: str, config: Config, rows: list[PairedRuns]) -> Markup:
    unit = view.answer.baseline_throughput.unit if view.answer is not None else "samples/s"
    points = [
        figures.PairPoint(label=f"pair {r.cycle}", base=r.base, ours=r.ours, ratio=r.ratio) for r in rows
    ]
    compared = view.compared[config]
    class_ = name if name in _COLOURED else "other"
    text = ", ".join(f"{r.ratio:.2f}x" for r in rows)
    chart = svg.responsive(
        f"pairs-{name}",
        lambda width, id_: figures.pairs(
            points,
            class_,
            width,
            id_,
            title=f"Pairs of {name}",
            text=f"Ratios by pair: {text}.",
            axis=f"throughput, {unit}",
        ),
        caption="It changes the training: its ratio is of the time to equal loss, the points are throughput."
        if compared.effect is Effect.TRAINING
        else "",
    )
    badge = tag("span", name, class_=f"tag {class_ if class_ != 'other' else 'plain'}")
    return html(
        tag("h3", badge, f" {summary.ratio_text(compared.speedup)}: {sanitize.config_text(config)}"),
        chart,
    )
