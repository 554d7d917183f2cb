"""The report: one HTML file that needs nothing else, to be read, printed and sent.

The first screen answers: which configuration, how much faster with which interval, why, at what cost in
memory and loss, how to apply it, what failed. Everything below is evidence. The figures are those of
`autotune.report.view.report_data`, which also lie inside the page as JSON (``id="autotune-report"``).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from autotune.report.html.markup import Markup, bullets, html, tag
from autotune.report.html.sections.advice import advice_section
from autotune.report.html.sections.bottleneck import bottleneck_section
from autotune.report.html.sections.commands import commands_section
from autotune.report.html.sections.environment import environment_section
from autotune.report.html.sections.failures import failures_section
from autotune.report.html.sections.front import front_section
from autotune.report.html.sections.hero import hero
from autotune.report.html.sections.knobs import knobs_section
from autotune.report.html.sections.loss import loss_section
from autotune.report.html.sections.pairs import pairs_section
from autotune.report.html.sections.picks import picks_section
from autotune.report.html.sections.runs import runs_section
from autotune.report.html.sections.timeline import time_section
from autotune.report.html.sections.trials import trials_section
from autotune.report.html.style import SCRIPT, stylesheet
from autotune.report.view import sanitize, summary
from autotune.report.view.environment import wall_text
from autotune.report.view.report_data import report_data
from autotune.report.view.sanitize import clean
from autotune.report.view.study_view import View, headline
from autotune.text.printable import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.answer.answer import Answer
    from autotune.model.study import Study
    from autotune.report.view.reselection import Repicked

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Nothing is ever fetched, not even by a text that a script printed."""


def report_html(
    study: Study,
    answer: Answer | None,
    *,
    repicked: Repicked | None = None,
    yaml: str = "",
    links: Mapping[str, str] | None = None,
) -> str:
    """The page.

    Args:
        study: As it is, running or ended.
        answer: Its answer, None where the script was never measured as it is.
        repicked: Picks selected again under other criteria; they replace the answer.
        yaml: The file that holds these picks, where one was written.
        links: Name -> address of MLflow's pages, where a server shows them.
    """
    view = View.of(study, answer, repicked=repicked, yaml=yaml)
    sections = [
        ("picks", "Picks", picks_section(view)),
        ("front", "Speed and memory", front_section(view)),
        ("knobs", "Knobs", knobs_section(view)),
        ("pairs", "Confirmation", pairs_section(view)),
        ("bottleneck", "Bottleneck", bottleneck_section(view)),
        ("advice", "Your code", advice_section(view)),
        ("runs", "Steadiness", runs_section(view)),
        ("loss", "Loss", loss_section(view)),
        ("failures", "Failures", failures_section(view)),
        ("time", "Time", time_section(view)),
        ("trials", "Trials", trials_section(view)),
        ("environment", "Environment", environment_section(view)),
        ("commands", "Commands", commands_section(view)),
    ]
    there = [(name, title, body) for name, title, body in sections if body]
    contents = [
        tag("a", title, href=f"#{name}-h" if name in _FOLDED else f"#{name}") for name, title, _ in there
    ]
    body = html(
        tag("a", "To the answer", href="#answer", class_="skip"),
        tag("div", _top(view, links or {}), class_="wrap"),
        tag("nav", bullets(contents), class_="toc", aria_label="On this page"),
        tag(
            "main",
            hero(view),
            *(_section(name, title, text) for name, title, text in there),
            class_="wrap",
        ),
        tag(
            "footer",
            f"Made by autotune {view.study.spec.version} from the study's journal alone. "
            "The page contains the figures as JSON, in the element autotune-report.",
            class_="wrap",
        ),
    )
    study = view.study
    head = html(
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'),
        tag("title", f"{sanitize.script_name(study)}: {headline(view)}"),
        tag("style", Markup(stylesheet())),
    )
    data = Markup(f'<script type="application/json" id="autotune-report">{_json(view)}</script>')
    script = tag("script", Markup(SCRIPT))
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}{data}{script}</body></html>\n'
    return visible(page)


_FOLDED: Final = frozenset(
    {"pairs", "bottleneck", "runs", "loss", "failures", "time", "trials", "environment", "commands"}
)
"""Sections of evidence, which are closed at first. A link to a heading inside opens it."""


def _section(name: str, title: str, text: Markup) -> Markup:
    if name not in _FOLDED:
        return tag("section", text, id=name, aria_labelledby=f"{name}-h")
    # A heading that is folded away names nothing; the summary always does.
    body = tag("details", tag("summary", title, id=f"{name}-s"), text)
    return tag("section", body, id=name, aria_labelledby=f"{name}-s")


def _top(view: View, links: Mapping[str, str]) -> Markup:
    study = view.study
    spent = f"{summary.plural(len(study.told()), 'trial')} in {summary.duration_text(study.elapsed_s)}"
    parts: list[object] = [
        tag("strong", sanitize.script_name(study)),
        clean(study, study.spec.label),
        wall_text(study.created),
        spent,
    ]
    if links:
        named = (html(" ", tag("a", name, href=address)) for name, address in links.items())
        parts.append(html("MLflow:", *named))
    return tag("header", *(tag("span", part) for part in parts), class_="top")


def _json(view: View) -> str:
    """Strict JSON that cannot end the element it stands in."""
    text = json.dumps(report_data(view), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
