"""The next commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.report.html.markup import Markup, command, heading, html, tag
from autotune.report.view.next_commands import commands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.report.view.study_view import View


def commands_section(view: View) -> Markup:
    """Return the commands with their descriptions."""
    words: Mapping[str, str] = {
        "write the file": "Write these picks to a file",
        "apply": "Train with best",
        "apply safe": "Train with safe",
        "apply fastest": "Train with fastest, which changes the training",
        "apply likely": "Train with likely, which is not confirmed",
        "verify": "Measure it again, here and now, in fresh pairs",
        "search again": "Search again as this search was begun",
        "go on": "Continue this search",
        "look": "Every trial in the terminal",
        "open in MLflow": "The same in the MLflow UI",
    }
    given = commands(view.study, view.answer, view.repicked, view.yaml)
    parts = [html(tag("h3", words[name]), command(text)) for name, text in given.items()]
    return html(heading("commands", "Commands"), *parts)
