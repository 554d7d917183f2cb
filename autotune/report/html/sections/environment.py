"""Environment of the figures: machine, versions, script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.report.html.markup import Markup, heading, html, tag
from autotune.report.view.environment import environment

if TYPE_CHECKING:
    from autotune.report.view.study_view import View


def environment_section(view: View) -> Markup:
    """Return the environment as a list."""
    rows = [
        part for name, text in environment(view.study).items() for part in (tag("dt", name), tag("dd", text))
    ]
    lead = (
        "The figures hold for this environment. On another machine, or after an upgrade, verify them again."
    )
    return html(heading("environment", "Environment", lead), tag("dl", *rows, class_="env"))
