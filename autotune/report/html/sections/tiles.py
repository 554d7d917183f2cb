"""Tiles of the first screen: speed, memory, loss, training, failures and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.model.trial import FailureKind
from autotune.report.html.markup import Markup, html, tag
from autotune.report.view import summary
from autotune.report.view.answer_view import AnswerView
from autotune.report.view.bottleneck_text import energy_rows
from autotune.report.view.sanitize import clean

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.report.view.study_view import View


def tiles(view: View, answer: Answer) -> Markup:
    """Return a tile for each known figure, with a note."""
    study = view.study
    shown = AnswerView.of(answer)
    mine = shown.picks["best"]
    speed: object = shown.own_rate
    memory: object = shown.own_memory
    memory_note = "your script's peak"
    total = study.memory_bytes
    of_all = f"; there are {summary.bytes_text(total)}" if total else ""
    if answer.is_better:
        speed = _change(shown.own_rate.partition(" ")[0], mine.rate)
        memory = _change(shown.own_memory, mine.memory)
        memory_note = f"{f'{shown.memory_ratio} yours ' if shown.memory_ratio else ''}at peak{of_all}"
    elif of_all:
        memory_note += of_all
    rows: list[tuple[str, object, object]] = [
        ("Throughput", speed, "end to end, data loading included"),
        ("Peak memory", memory, memory_note),
    ]
    if answer.is_better:
        words = {"pass": "holds", "fail": "worse", "unclear": "not shown to hold"}
        loss = html(words[mine.loss_verdict], tag("small", clean(study, mine.loss_sentence)))
        kept = "effective batch and learning rate are unchanged"
        rows += [("Loss", loss, ""), ("Training", mine.training, kept)]
        if mine.pays_back:
            once, _, after = mine.pays_back.partition("; ")
            rows.append(("Compiling", once, after))
    count = summary.failed_count(study)
    kinds = ", ".join(f"{n} {FailureKind.named(kind).words}" for kind, n in answer.failures.items())
    what_failed = f"{summary.plural(count, 'trial')}, survived" if count else "nothing"
    rows.append(("What failed", what_failed, kinds))
    spent = f"of {summary.duration_text(study.spec.budget.seconds)} allowed"
    trials = summary.plural(len(study.finished()), "trial")
    rows.append(("Cost of the search", summary.duration_text(study.elapsed_s), f"{trials}, {spent}"))
    rows += [(name.capitalize(), text, "") for name, text in energy_rows(study, answer)]
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else ""), class_="tile")
            for name, value, note in rows
        ),
        class_="tiles",
    )


def _change(before: str, after: str) -> Markup:
    return html(
        tag("span", before, class_="nowrap"),
        tag("span", " → ", class_="arrow"),
        tag("span", after, class_="nowrap"),
    )
