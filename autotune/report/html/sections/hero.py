"""The first screen: the configuration, its speedup, the reason, its cost, the apply command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.answer.answer import SearchOutcome
from autotune.answer.contributions import contributions
from autotune.model.config import in_order
from autotune.report.html.markup import Column, Markup, bullets, command, html, table, tag
from autotune.report.html.sections.claim import claim, claims_figure
from autotune.report.html.sections.failures import tail
from autotune.report.html.sections.tiles import tiles
from autotune.report.view import contribution_text, sanitize, summary
from autotune.report.view.bottleneck_text import reasons
from autotune.report.view.next_commands import commands
from autotune.report.view.sanitize import clean
from autotune.report.view.study_view import headline
from autotune.text.redact import redact

if TYPE_CHECKING:
    from autotune.answer.answer import Answer, Recommendation
    from autotune.model.study import Study
    from autotune.report.view.reselection import Repicked
    from autotune.report.view.study_view import View


def hero(view: View) -> Markup:
    """Return the answer, or why there is none."""
    study, answer = view.study, view.answer
    state = summary.status(study, answer)
    if answer is None or summary.failed_baseline(study) is not None:
        return _hero_without_answer(view, state)
    kind = "found" if answer.is_better else "none"
    repicked, best = view.repicked, answer.best
    wishes = (
        tag("div", *paragraphs_of(repicked.notes), _estimates_table(repicked), class_="note")
        if repicked is not None
        else Markup()
    )
    chart = claims_figure(view, answer)
    named = best if answer.is_better else answer.likely if repicked is None else None
    body = html(
        tag("div", tag("div", claim(view, answer)), chart, class_="verdict" if chart else None),
        wishes,
        _chips(view, named) if named is not None else Markup(),
        _why(view, answer),
        _apply(view, answer),
        tiles(view, answer),
        _caveats(view, answer),
    )
    return tag("div", body, class_=f"hero {kind}", id="answer", tabindex="-1")


def _why(view: View, answer: Answer) -> Markup:
    """Return the reasons, without loss and memory, which the tiles show."""
    texts = [_sentence(view.study, text) for text in reasons(view.study, answer)]
    if not texts:
        return Markup()
    return html(tag("p", "Why", class_="lead"), bullets(texts, class_="why"))


def paragraphs_of(texts: tuple[str, ...]) -> list[Markup]:
    """Return each text as a paragraph."""
    return [tag("p", redact(text, free=True)) for text in texts]


def _hero_without_answer(view: View, state: str) -> Markup:
    study = view.study
    broken = summary.failed_baseline(study)
    parts = [tag("h1", headline(view, interval=False))]
    if broken is not None and broken.failure is not None:
        parts += [tag("p", clean(study, broken.failure.message)), tail(view, broken, is_open=True)]
    elif state == "running":
        parts.append(tag("p", "The search is running; the answer appears here when it has ended."))
    else:
        parts.append(tag("p", f"It ended by: {study.stopped}."))
    given = commands(study, None, None, "")
    for name in ("go on", "search again"):
        if name in given:
            parts += [tag("p", f"{name.capitalize()}:", class_="lead"), command(given[name])]
            break
    kind = "broken" if broken is not None else "none"
    return tag("div", *parts, class_=f"hero {kind}", id="answer", tabindex="-1")


def _chips(view: View, best: Recommendation) -> Markup:
    """Return the changes one by one: old value, new value, contribution."""
    own, found = summary.own_values(view.study), contributions(view.study, best)
    items: list[Markup] = []
    for knob, value in in_order(best.config):
        was = sanitize.value_text(own.get(knob))
        part = found.of(knob)
        items.append(
            html(
                tag("span", knob, class_="knob"),
                tag("span", f"{was} → ", class_="was") if was else Markup(),
                tag("span", sanitize.value_text(value), class_="to"),
                tag("span", contribution_text.knob_text(found, knob), class_="gain")
                if len(best.config) > 1 and (part is None or part.knobs[0] == knob)
                else Markup(),
            )
        )
    return bullets(items, class_="chips")


def _apply(view: View, answer: Answer) -> Markup:
    given = commands(view.study, answer, view.repicked, view.yaml)
    if "apply" not in given:
        if "apply fastest" in given:
            lead = "Your script stays unchanged, unless its training may change:"
            return html(tag("p", lead, class_="lead"), command(given["apply fastest"]))
        if answer.outcome is SearchOutcome.INCONCLUSIVE and view.repicked is None:
            return _continue(given)
        text = "Keep your script unchanged: there is nothing to apply."
        if view.repicked is not None:
            text = "There is nothing to apply: what is not confirmed is not recommended."
            return tag("p", text, class_="lead")
        return html(tag("p", text, class_="lead"), _further(view.study))
    first = (
        html(
            tag("p", "Write these picks to a file, then train with it:", class_="lead"),
            command(given["write the file"]),
        )
        if "write the file" in given
        else tag("p", "Train with it; your script stays unchanged:", class_="lead")
    )
    return html(first, command(given["apply"]))


def _further(study: Study) -> Markup:
    """Return suggestions for a search without a gain."""
    steps = [
        html(
            "Measure more configurations, to find smaller gains: ",
            tag("code", f"autotune resume {redact(study.spec.label)} --budget 30m"),
        ),
        html("Permit knobs that change the training: ", tag("code", "autotune search --allow KNOB")),
        "Change the code: the section on your code names lines that cost time.",
    ]
    return html(tag("p", "What you can do next:", class_="lead"), bullets(steps))


def _continue(given: dict[str, str]) -> Markup:
    """Return how to continue an inconclusive search, and how to try its likely candidate."""
    parts: list[Markup] = []
    if "go on" in given:
        parts += [tag("p", "Continue the search:", class_="lead"), command(given["go on"])]
    if "apply likely" in given:
        parts += [tag("p", "Or try what is likely, not confirmed:", class_="lead")]
        parts += [command(given["apply likely"])]
    return html(*parts)


def _caveats(view: View, answer: Answer) -> Markup:
    if not answer.caveats:
        return Markup()
    texts = (_sentence(view.study, c) for c in answer.caveats)
    title = "What weakens the claim" if answer.is_better else "What else was seen"
    return tag("div", tag("p", tag("strong", title)), bullets(texts), class_="note")


def _sentence(study: Study, text: str) -> str:
    """Return the text with a full stop, as it appears alone."""
    shown_text = clean(study, text).strip()
    return shown_text if shown_text.endswith((".", "!", "?")) else shown_text + "."


def _estimates_table(repicked: Repicked) -> Markup:
    if not repicked.estimates:
        return Markup()
    rows = [
        (
            f"t{e.trial:02d}",
            sanitize.config_text(e.config),
            f"{e.ratio:.2f}x",
            summary.plural(e.runs, "single run"),
            summary.bytes_text(e.peak_bytes),
        )
        for e in repicked.estimates
    ]
    columns = (
        Column(title="Trial"),
        Column(title="Configuration", is_wide=True),
        Column(title="Estimated", is_number=True),
        Column(title="Rests on", is_number=True),
        Column(title="Peak memory", is_number=True),
    )
    return table(columns, rows, caption="Estimated, not confirmed")
