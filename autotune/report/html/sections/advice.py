"""Suggested changes of the script's own code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.answer.advice import bound_text
from autotune.report.html.markup import Column, Markup, heading, html, table, tag
from autotune.report.view.report_data import advice

if TYPE_CHECKING:
    from autotune.report.view.study_view import View


def advice_section(view: View) -> Markup:
    """Return lines of the script with the possible gain of changing them; empty without any."""
    hints = advice(view.study)
    if not hints:
        return Markup()
    rows = [
        (
            tag("code", hint.place),
            hint.text,
            "" if hint.part == "search" else bound_text(hint) or "not measured",
        )
        for hint in hints
    ]
    columns = (
        Column(title="Where"),
        Column(title="What could be changed", is_wide=True),
        Column(title="Buys"),
    )
    lead = (
        "Lines that no knob changes, read from the searched script, which is never edited. The "
        "possible gain is a share of a step of your unchanged script."
    )
    return html(
        heading("advice", "In your own code", lead),
        table(columns, rows, caption="Lines of your script that could be changed"),
    )
