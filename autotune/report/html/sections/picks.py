"""Every pick beside the script, with what there is no pick of, and how it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.model.trial import Stage
from autotune.report.html.markup import Column, Markup, bullets, heading, html, paragraphs, table, tag
from autotune.report.view import sanitize, summary
from autotune.report.view.bottleneck_text import pays_back_text
from autotune.report.view.picks import effect_word, picks
from autotune.report.view.sanitize import clean

if TYPE_CHECKING:
    from autotune.answer.answer import Answer, Recommendation
    from autotune.model.study import Study
    from autotune.report.view.study_view import View


def picks_section(view: View) -> Markup:
    """The table of picks; nothing without an answer."""
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
    base = answer.baseline_throughput
    named = picks(answer)
    chosen = {n: p for n, p in named.items() if not p.config.is_baseline}
    compiles = any(pays_back_text(pick) for pick in chosen.values())
    rows: list[tuple[object, ...]] = [
        (
            tag("span", "your script", class_="tag script"),
            "unchanged",
            "1.00x",
            f"{summary.number_text(base.value)} {base.unit}",
            summary.bytes_text(answer.baseline_peak_bytes),
            "",
            *([""] if compiles else []),
        )
    ]
    rows += [
        (
            tag("span", name, class_="tag unclear" if name == "likely" else f"tag {name}"),
            sanitize.config_text(pick.config),
            _speedup(name, pick),
            f"{summary.number_text(pick.throughput.value)} {pick.throughput.unit}",
            summary.bytes_text(pick.peak_bytes),
            html(_verdict_tag(pick.loss.verdict), " ", effect_word(pick)),
            *([pays_back_text(pick)] if compiles else []),
        )
        for name, pick in chosen.items()
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


def _speedup(name: str, pick: Recommendation) -> Markup | str:
    if name == "likely":
        return summary.likely_text(pick)
    return html(
        tag("strong", summary.ratio_text(pick.speedup), class_="nowrap"),
        " ",
        tag("span", summary.plural(pick.speedup.n, "pair"), class_="soft nowrap"),
    )


def _missing(answer: Answer) -> dict[str, str]:
    """Picks that there are none of, with what that means."""
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
    if not study.told(Stage.CONFIRM):
        return paragraphs("Nothing was confirmed in pairs, so nothing is claimed.", class_="small soft")
    claim = f" Its interval is one of {100 * answer.best.speedup.confidence:.4g} %"
    share = claim if answer.is_better else ""
    said = (
        "A speed-up is measured in pairs of fresh processes after the search, the unchanged script and "
        "the configuration in alternation; runs that selected a configuration are not included."
        + (f"{share}, adjusted for the number of finalists and interim analyses." if share else "")
    )
    return paragraphs(said, class_="small soft")


def _verdict_tag(verdict: str) -> Markup:
    return tag("span", summary.LOSS_WORDS.get(verdict, verdict), class_=f"tag {verdict}")
