"""Table of the picks beside the script, missing picks, and the method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.model.trial import Stage
from autotune.report.html.markup import Column, Markup, bullets, heading, html, paragraphs, table, tag
from autotune.report.view import sanitize, summary
from autotune.report.view.answer_view import AnswerView
from autotune.report.view.picks import picks
from autotune.report.view.sanitize import clean

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.model.study import Study
    from autotune.report.view.answer_view import PickView
    from autotune.report.view.study_view import View


def picks_section(view: View) -> Markup:
    """Return the table of picks; empty without an answer."""
    study, answer = view.study, view.answer
    if answer is None:
        return Markup()
    missing = [f"{name}: {text}" for name, text in _missing(answer).items()]
    advised = answer.fastest.advice if answer.fastest is not None else ""
    advice = [f"fastest: {clean(study, advised)}"] if advised else []
    lead = (
        "safe leaves the arithmetic unchanged, best may differ by rounding, fastest may change the training "
        "and is named only where it reaches the same loss sooner."
    )
    control = (
        f"Control, your script against itself in the same pairs: {summary.control_text(answer.identical)}."
        if answer.identical is not None
        else ""
    )
    return html(
        heading("picks", "Picks", lead),
        _picks_table(answer),
        bullets([*missing, *advice]),
        paragraphs(control),
        _method(study, answer),
    )


def _picks_table(answer: Answer) -> Markup:
    view = AnswerView.of(answer)
    chosen = {n: p for n, p in picks(answer).items() if not p.config.is_baseline}
    shown = {name: view.picks[name] for name in chosen}
    compiles = any(pick.pays_back for pick in shown.values())
    rows: list[tuple[object, ...]] = [
        (
            tag("span", "your script", class_="tag script"),
            "unchanged",
            "1.00x",
            view.own_rate,
            view.own_memory,
            "",
            *([""] if compiles else []),
        )
    ]
    rows += [
        (
            tag("span", name, class_="tag unclear" if name == "likely" else f"tag {name}"),
            sanitize.config_text(chosen[name].config),
            _speedup(pick),
            pick.rate,
            pick.memory,
            html(tag("span", pick.loss, class_=f"tag {pick.loss_verdict}"), " ", pick.training),
            *([pick.pays_back] if compiles else []),
        )
        for name, pick in shown.items()
    ]
    columns = (
        Column(title="Pick"),
        Column(title="Configuration", is_wide=True),
        Column(title="Speed-up"),
        Column(title="Throughput", is_number=True),
        Column(title="Peak memory", is_number=True),
        Column(title="Loss and training"),
        *([Column(title="Compiling")] if compiles else []),
    )
    return table(columns, rows, caption="Every pick beside your script")


def _speedup(pick: PickView) -> Markup | str:
    if not pick.pairs:
        return pick.speedup
    pairs = tag("span", pick.pairs, class_="soft nowrap")
    return html(tag("strong", pick.speedup, class_="nowrap"), " ", pairs)


def _missing(answer: Answer) -> dict[str, str]:
    """Return the missing picks with an explanation."""
    found: dict[str, str] = {}
    if not answer.is_better:
        found["best"] = "nothing that keeps the training was confirmed to be faster."
    elif answer.safe.config.is_baseline:
        found["safe"] = "nothing that leaves the training unchanged was confirmed to be faster."
    if answer.fastest is None:
        than = " than best" if answer.is_better else ""
        text = f"nothing that changes the training was shown to reach the same loss sooner{than}."
        found["fastest"] = text
    return found


def _method(study: Study, answer: Answer) -> Markup:
    if not study.finished(Stage.CONFIRM):
        return paragraphs("Nothing was confirmed in pairs, so nothing is claimed.", class_="small soft")
    claim = f" Its interval is one of {100 * answer.best.speedup.confidence:.4g} %"
    share = claim if answer.is_better else ""
    text = (
        "A speed-up is measured in pairs of fresh processes after the search, the unchanged script and "
        "the configuration in alternation; runs that selected a configuration are not included."
        + (f"{share}, adjusted for the number of finalists and interim analyses." if share else "")
    )
    return paragraphs(text, class_="small soft")
