"""Loss of the picks beside the script's, over samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from autotune.model.config import Config
from autotune.report.html import figures, svg
from autotune.report.html.markup import Markup, bullets, heading, html, tag
from autotune.report.view import summary
from autotune.report.view.picks import shown_picks
from autotune.report.view.sanitize import clean
from autotune.report.view.study_view import traces

if TYPE_CHECKING:
    from autotune.report.view.study_view import View

_TRACE_POINTS: Final = 160
_TRACES_EACH: Final = 3
_BASE: Final = Config()


def loss_section(view: View) -> Markup:
    """Return the curves with the verdicts, or that no loss was observed; empty without a measurement."""
    study, answer = view.study, view.answer
    if answer is None:
        return Markup()
    chosen = [("script", _BASE), *((n, p.config) for n, p in shown_picks(answer).items())]
    lines: list[figures.LossCurve] = []
    used: list[str] = []
    for name, config in chosen:
        for number, trace in traces(study, config, _TRACES_EACH):
            points = [(float(p.samples), p.loss) for p in trace if math.isfinite(p.loss)]
            thin = points[:: max(1, math.ceil(len(points) / _TRACE_POINTS))]
            if len(thin) < 3:
                continue
            used.append(name)
            lines.append(
                figures.LossCurve(class_=name, points=figures.smoothed(thin), label=f"t{number:02d}")
            )
            if sum(1 for n in used if n == name) == 1:
                lines.append(figures.LossCurve(class_=name, points=thin, is_raw=True))
    if not lines:
        text = (
            "The script showed no loss, so only changes that leave the arithmetic unchanged can be "
            "recommended."
        )
        return html(heading("loss", "Loss"), tag("p", text)) if view.tried else Markup()
    verdicts = [
        html(
            tag("span", name, class_=f"tag {name}"),
            f" {clean(study, summary.loss_sentence(pick))}",
        )
        for name, pick in shown_picks(answer).items()
    ]
    chart = svg.responsive(
        "losses",
        lambda width, name: figures.curves(
            lines,
            width,
            name,
            title="Training loss of your script and of the picks over the samples seen",
            text=clean(
                study, " ".join(f"{n}: {summary.loss_sentence(p)}" for n, p in shown_picks(answer).items())
            )
            or "Your script alone.",
            x_title="samples seen",
            y_title="loss",
        ),
    )
    key = svg.legend(
        *(("line", name, "your script" if name == "script" else name) for name in dict.fromkeys(used))
    )
    lead = (
        "Over the samples of short runs, smoothed; the thin line is one run without smoothing. A short "
        "run cannot "
        "show the final accuracy."
    )
    return html(heading("loss", "Loss beside your script's", lead), chart, key, bullets(verdicts))
