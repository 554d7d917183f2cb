"""Use of time: trials over time, and the best single run so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.model.trial import Family, Stage
from autotune.report.html import figures, svg
from autotune.report.html.markup import Markup, heading, html
from autotune.report.view import sanitize, summary

if TYPE_CHECKING:
    from autotune.report.view.study_view import View

_STAGES: Final = {
    "baseline": "your unchanged script",
    "initial": "initial design",
    "refine": "exploring",
    "drift": "your script again",
    "confirm": "confirming, in pairs",
    "ablate": "ablation of the winner",
    "diagnose": "finding what limits it",
}
_STAGE_CLASS: Final = {"drift": "baseline", "diagnose": "other"}


def time_section(view: View) -> Markup:
    """Return the chart of time; empty before a trial ended."""
    study = view.study
    # A probe is no measurement, but it used time.
    trials = [t for t in (*study.finished(), *study.finished(Stage.DIAGNOSE)) if t.finished_s > 0]
    if not trials:
        return Markup()
    spans = sorted(
        (
            figures.Span(
                begin=max(0.0, t.finished_s - t.seconds),
                end=t.finished_s,
                class_=_STAGE_CLASS.get(t.stage.value, t.stage.value),
                tip=f"t{t.number:02d} {_STAGES[t.stage.value]}: {sanitize.config_text(t.config)}, "
                f"{t.seconds:.0f} s, {summary.status_word(t)}",
                is_failed=t.failure is not None and t.failure.kind.family is not Family.CANCELLED,
            )
            for t in trials
        ),
        key=lambda s: s.begin,
    )
    seen = sorted(
        (t.finished_s, ratio.value)
        for t in trials
        if t.stage in (Stage.BASELINE, Stage.INITIAL, Stage.REFINE)
        and (ratio := summary.speedup_of(study, t)) is not None
    )
    best = figures.steps_up(seen)
    spent: dict[str, float] = {}
    for t in trials:
        spent[t.stage.value] = spent.get(t.stage.value, 0.0) + t.seconds
    words = ", ".join(f"{_STAGES[stage]} {summary.duration_text(s)}" for stage, s in spent.items())
    chart = svg.responsive(
        "time",
        lambda width, name: figures.timeline(
            spans,
            best,
            study.spec.budget.seconds,
            width,
            name,
            title="What ran when, and the best single run so far",
            text=f"Processes ran for: {words}.",
        ),
    )
    stages = [s.value for s in Stage if s.value in spent and s.value != "drift"]
    key = svg.legend(
        ("line", "best", "best single run so far, not confirmed"),
        *(("bar", _STAGE_CLASS.get(stage, stage), _STAGES[stage]) for stage in stages),
        ("bar", "bad", "failed"),
    )
    lead = (
        f"{summary.duration_text(study.elapsed_s)} of {summary.duration_text(study.spec.budget.seconds)} "
        f"were spent; processes ran for: {words}."
    )
    return html(heading("time", "Where the time went", lead), chart, key)
