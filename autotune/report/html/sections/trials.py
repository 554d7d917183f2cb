"""Table of every trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.report.html.markup import Column, Markup, Sorted, heading, html, table, tag
from autotune.report.view import sanitize, summary

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial
    from autotune.report.view.study_view import View


def trials_section(view: View) -> Markup:
    """Return the table of trials; empty before one ended."""
    study = view.study
    trials = study.finished()
    if not trials:
        return Markup()
    marks = summary.picks_of(view.answer)
    rows = [
        (
            Sorted(f"t{t.number:02d}", t.number),
            t.stage.value,
            html(
                sanitize.config_text(t.config),
                *(html(" ", tag("span", n, class_=f"tag {n}")) for n in marks.get(t.number, ())),
            ),
            *_trial_cells(study, t),
            Sorted(f"{t.seconds:.0f} s", round(t.seconds, 1)),
        )
        for t in trials
    ]
    columns = (
        Column(title="Trial"),
        Column(title="Stage"),
        Column(title="Configuration", is_wide=True),
        Column(title="Single run", is_number=True),
        Column(title="Throughput", is_number=True),
        Column(title="Peak memory", is_number=True),
        Column(title="Result"),
        Column(title="Took", is_number=True),
    )
    listed = table(columns, rows, caption="Every trial, in order of proposal", sorts=True, cards=False)
    lead = "Ratios here are of single runs against your script; claims are based on pairs only."
    title = f"All {len(rows)} trials"
    return html(heading("trials", "Trials", lead), tag("details", tag("summary", title), listed))


def _trial_cells(study: Study, trial: Trial) -> tuple[Sorted, Sorted, Sorted, str]:
    if trial.measurement is None:
        outcome = trial.failure.kind.words if trial.failure is not None else "open"
        return Sorted("", ""), Sorted("", ""), Sorted("", ""), outcome
    ratio, peak = summary.speedup_of(study, trial), trial.measurement.memory.peak_bytes
    rate = trial.measurement.throughput.value
    return (
        Sorted(
            "" if ratio is None else f"{ratio.value:.2f}x", "" if ratio is None else round(ratio.value, 4)
        ),
        Sorted(summary.number_text(rate), round(rate, 4)),
        Sorted("" if peak is None else summary.bytes_text(peak), peak or ""),
        "ok",
    )
