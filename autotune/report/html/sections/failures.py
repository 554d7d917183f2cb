"""Failures by kind and configuration, with their last lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.report.html.markup import Column, Markup, Sorted, heading, html, table, tag
from autotune.report.view import sanitize, summary
from autotune.report.view.sanitize import clean
from autotune.report.view.study_view import failed, log_tail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.model.trial import Trial
    from autotune.report.view.study_view import View

_MOST_TAILS: Final = 30


def failures_section(view: View) -> Markup:
    """Return the failed trials, or that none failed; empty without failures and answer."""
    study = view.study
    rows_of = failed(study)
    if not rows_of:
        if view.answer is None:
            return Markup()
        return html(heading("failures", "Failures"), tag("p", "No trial failed."))
    kinds: dict[str, list[Trial]] = {}
    for trial in rows_of:
        if trial.failure is not None:
            kinds.setdefault(trial.failure.kind.words, []).append(trial)
    rows: list[tuple[object, ...]] = []
    for label, trials in sorted(kinds.items(), key=lambda item: -len(item[1])):
        rows += [
            (
                Sorted(f"t{t.number:02d}", t.number),
                label,
                sanitize.config_text(t.config),
                clean(study, t.failure.message.splitlines()[0] if t.failure and t.failure.message else ""),
                t.stage.value,
            )
            for t in trials
        ]
    columns = (
        Column(title="Trial"),
        Column(title="Kind"),
        Column(title="Configuration", is_wide=True),
        Column(title="What happened"),
        Column(title="Stage"),
    )
    counted = ", ".join(f"{len(trials)} {label}" for label, trials in kinds.items())
    many = summary.plural(len(rows_of), "trial")
    lead = f"{many} failed; the only cost to the search was their time: {counted}."
    listed = table(columns, rows, caption="Failed trials", sorts=True)
    if len(rows) > 12:
        listed = tag("details", tag("summary", f"All {len(rows)} of them"), listed)
    return html(heading("failures", "Failures, by kind and configuration", lead), listed, _tails(view, kinds))


def _tails(view: View, kinds: Mapping[str, list[Trial]]) -> Markup:
    """Return the last lines of some failures of every kind, without duplicates."""
    parts: list[Markup] = []
    seen: set[str] = set()
    left_out = 0
    for trials in kinds.values():
        for trial in trials:
            text = log_tail(view.study, trial)
            if not text or text in seen:
                continue
            if len(parts) >= _MOST_TAILS:
                left_out += 1
                continue
            seen.add(text)
            parts.append(tail(view, trial))
    if left_out:
        rest = f"{left_out} more are kept in the study: autotune show {view.study.spec.label}"
        parts.append(tag("p", rest, class_="small soft"))
    return html(tag("h3", "Last lines"), *parts) if parts else Markup()


def tail(view: View, trial: Trial, *, is_open: bool = False) -> Markup:
    """Return the last lines of a failed trial, to be unfolded; empty if it wrote none."""
    text = log_tail(view.study, trial)
    if not text or trial.failure is None:
        return Markup()
    title = f"t{trial.number:02d} {trial.failure.kind.words}: {sanitize.config_text(trial.config)}"
    return tag("details", tag("summary", title), tag("pre", text, tabindex="0"), open=is_open)
