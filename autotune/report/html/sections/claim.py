"""The claim: the speedup, its pairs, and a chart of every claim on one axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compare.control import weakness
from autotune.report.html import figures, svg
from autotune.report.html.markup import Markup, html, tag
from autotune.report.view import sanitize, summary
from autotune.report.view.picks import shown_picks
from autotune.report.view.study_view import headline

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.model.measurement import Estimate
    from autotune.report.view.study_view import View


def claim(view: View, answer: Answer) -> Markup:
    """Return the speedup with its interval and evidence, or a statement that there is none."""
    study, best = view.study, answer.best
    if not answer.is_better and answer.likely is not None and view.repicked is None:
        reads = f"The likely configuration reads {summary.likely_text(answer.likely)}."
        text = f"A gain is neither confirmed nor excluded. {reads}"
        return html(tag("h1", "Inconclusive"), tag("p", text, class_="interval"))
    if not answer.is_better:
        return tag("h1", headline(view, interval=False))
    speedup = best.speedup
    heading = tag("h1", Markup(f"{speedup.value:.2f}x"), tag("span", Markup("&nbsp;faster"), class_="unit"))
    interval = (
        html(
            "between ",
            tag("b", f"{speedup.low:.2f}x"),
            " and ",
            tag("b", f"{speedup.high:.2f}x"),
            f" ({100 * speedup.confidence:.4g} % interval), in {summary.plural(speedup.n, 'pair')} of fresh "
            f"runs next to the unchanged {sanitize.script_name(study)}",
        )
        if speedup.is_bounded
        else html(f"in {summary.plural(speedup.n, 'pair')} of runs")
    )
    early = " The search was stopped early." if summary.is_early(study) else ""
    weak = weakness(study, speedup)
    heading = html(heading, tag("p", weak, class_="interval")) if weak else heading
    return html(heading, tag("p", interval, ".", early, class_="interval"))


def claims_figure(view: View, answer: Answer) -> Markup:
    """Draw every claim with its interval on one axis, and the script against itself."""
    rows = [
        _ratio_row(
            name,
            pick.speedup,
            class_="other" if name == "likely" else name,
            note=summary.likely_text(pick) if name == "likely" else _interval_text(pick.speedup),
        )
        for name, pick in shown_picks(answer).items()
    ]
    if not rows:
        # Without a gain, the closest configurations are the most useful.
        closest = sorted(view.compared.values(), key=lambda c: (-c.wins, -c.speedup.value))[:3]
        rows = [
            _ratio_row(
                sanitize.config_text(c.config), c.speedup, class_="other", note=_interval_text(c.speedup)
            )
            for c in closest
        ]
    if answer.identical is not None and rows:
        label = "your script against itself"
        row = _ratio_row(label, answer.identical, class_="script", note=_interval_text(answer.identical))
        rows.append(row)
    if not rows:
        return Markup()
    text = "; ".join(f"{row.label} {row.value:.2f}x" for row in rows)
    names = ("Speed-up of each pick with its interval", f"{text}. 1.00x is your unchanged script.")

    def draw(width: float, name: str) -> Markup:
        # The chart has half of a wide page.
        room = 0.58 * width if width >= svg.WIDE else width
        return figures.ratios(rows, room, name, title=names[0], text=names[1], axis="")

    return svg.responsive("claims", draw)


def _ratio_row(label: str, estimate: Estimate, *, class_: str, note: str = "") -> figures.Ratio:
    # An interval from two pairs is too wide to be useful.
    is_known = estimate.n >= summary.FEWEST_PAIRS and estimate.is_bounded
    return figures.Ratio(
        label=label,
        value=estimate.value,
        low=estimate.low if is_known else None,
        high=estimate.high if is_known else None,
        class_=class_,
        shape="square" if class_ == "script" else "circle",
        note=note,
    )


def _interval_text(estimate: Estimate) -> str:
    return summary.control_text(estimate).split(",")[0] if estimate.n < 3 else summary.ratio_text(estimate)
