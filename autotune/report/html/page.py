"""The report: one self-contained HTML file for reading, printing and sharing.

The first screen shows the configuration, its speedup and interval, the reason, memory and loss, the apply
command, and failures. Everything below is evidence. The figures are those of
`autotune.report.view.report_data`, which the page also contains as JSON (``id="autotune-report"``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.report.html.markup import html, tag
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
from autotune.report.html.template import Section, render
from autotune.report.view import sanitize, summary
from autotune.report.view.environment import wall_text
from autotune.report.view.report_data import report_data
from autotune.report.view.sanitize import clean
from autotune.report.view.study_view import View, headline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.answer.answer import Answer
    from autotune.model.study import Study
    from autotune.report.view.reselection import Repicked


def report_html(
    study: Study,
    answer: Answer | None,
    *,
    repicked: Repicked | None = None,
    yaml: str = "",
    links: Mapping[str, str] | None = None,
) -> str:
    """Return the page.

    Args:
        study: Study, running or ended.
        answer: Answer of the study; None if the unchanged script was never measured.
        repicked: Picks selected under other criteria; they replace the answer.
        yaml: File with these picks; empty if none was written.
        links: Addresses of MLflow's pages by name, if a server shows them.
    """
    view = View.of(study, answer, repicked=repicked, yaml=yaml)
    sections = [
        Section("picks", "Picks", picks_section(view)),
        Section("front", "Speed and memory", front_section(view)),
        Section("knobs", "Knobs", knobs_section(view)),
        Section("pairs", "Confirmation", pairs_section(view), is_folded=True),
        Section("bottleneck", "Bottleneck", bottleneck_section(view), is_folded=True),
        Section("advice", "Your code", advice_section(view)),
        Section("runs", "Steadiness", runs_section(view), is_folded=True),
        Section("loss", "Loss", loss_section(view), is_folded=True),
        Section("failures", "Failures", failures_section(view), is_folded=True),
        Section("time", "Time", time_section(view), is_folded=True),
        Section("trials", "Trials", trials_section(view), is_folded=True),
        Section("environment", "Environment", environment_section(view), is_folded=True),
        Section("commands", "Commands", commands_section(view), is_folded=True),
    ]
    return render(
        f"{sanitize.script_name(view.study)}: {headline(view)}",
        hero(view),
        [section for section in sections if section.body],
        f"Made by autotune {view.study.spec.version} from the study's journal alone. "
        "The page contains the figures as JSON, in the element autotune-report.",
        "autotune-report",
        report_data(view),
        top=_top(view, links or {}),
    )


def _top(view: View, links: Mapping[str, str]) -> list[object]:
    study = view.study
    spent = f"{summary.plural(len(study.finished()), 'trial')} in {summary.duration_text(study.elapsed_s)}"
    parts: list[object] = [
        tag("strong", sanitize.script_name(study)),
        clean(study, study.spec.label),
        wall_text(study.created),
        spent,
    ]
    if links:
        named = (html(" ", tag("a", name, href=address)) for name, address in links.items())
        parts.append(html("MLflow:", *named))
    return parts
