"""The answer of a search as one screen of text: at most 15 lines after a search, every figure in `show`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.answer.answer import SearchOutcome
from autotune.answer.closest import closest
from autotune.compare.control import weakness
from autotune.compare.disturbances import is_crowded
from autotune.compare.transfer import beliefs
from autotune.model.config import config_text
from autotune.model.effect import Effect
from autotune.model.trial import FailureKind
from autotune.report.view.answer_view import AnswerView
from autotune.report.view.bottleneck_text import energy_rows, why_lines
from autotune.report.view.contribution_text import gains_text
from autotune.report.view.summary import (
    apply_command,
    bytes_text,
    changes_text,
    control_text,
    duration_text,
    further_reasons,
    likely_text,
    other_configs,
    plural,
    ratio_text,
    space_text,
    waits_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.answer.answer import Answer, Recommendation
    from autotune.model.study import Study

Row = tuple[str, str]
"""Name and text; the name is empty if the line continues the row above."""

INDENT: Final = 12
"""Columns before the text of a row."""
MOST_LINES: Final = 15
"""Lines of the screen after a search; `autotune show` has every note and reason."""
_FIRST_TO_GO: Final = ("search", "note", "memory", "speed")
"""Rows that a too long screen leaves out, the least important one first."""
TRAINING: Final = {
    Effect.EXACT: "training unchanged",
    Effect.NUMERIC: "training differs by rounding only",
    Effect.TRAINING: "training changed",
}


def answer_screen(
    study: Study,
    answer: Answer,
    *,
    out: str = "",
    folder: str = "",
    links: Mapping[str, str] | None = None,
    unsent: int = 0,
    seconds: float | None = None,
    advice: Sequence[str] = (),
    details: bool = False,
) -> str:
    """Return the answer as text: the outcome, what changes, what it costs, and the next command.

    Args:
        study: Ended study.
        answer: Its answer.
        out: Path of best.yaml as the user would type it; empty if none was written.
        folder: Folder for the commands; empty for the current one.
        links: Addresses of the report and of MLflow by name.
        unsent: Records that MLflow has not received.
        seconds: Wall time of the search in seconds; None for that of the study.
        advice: Suggested changes of the code, a line each.
        details: Add every pick, reason, control figure, refused knob and advice: the text of `autotune show`.
    """
    head, *found = [*_outcome(study, answer, details=details), *_costs(study, answer, details=details)]
    why = _why(study, answer)
    below = _picks(study, answer, details=details)
    if details or answer.is_better:
        below = [*energy_rows(study, answer, always=details), *below]
    below.append(("search", _search(study, answer, study.elapsed_s if seconds is None else seconds)))
    end = _details(study, answer, advice) if details else []
    end += _commands(study, answer, out=out, folder=folder, details=details)
    end += _more(study, links or {}, unsent, details=details)
    room = MOST_LINES - 1 - len(found) - len(below) - len(end)
    why = why if details else why[: min(2, max(1, room - bool(answer.caveats)))]
    notes = _notes(study, answer, most=len(answer.caveats) if details else max(1, room - len(why)))
    rest = [*found, *_named("why", why), *below, *notes, *end]
    for name in () if details else _FIRST_TO_GO:
        if len(rest) >= MOST_LINES:
            rest = [row for row in rest if row[0] != name]
    lines = [f"{head[0]}: {head[1]}", *(f"  {name:<{INDENT - 2}}{text}".rstrip() for name, text in rest)]
    return "\n".join(lines) + "\n"


def _named(name: str, lines: Sequence[str]) -> list[Row]:
    """Return the lines as one row and its continuations."""
    return [(name if i == 0 else "", line) for i, line in enumerate(lines)]


def _outcome(study: Study, answer: Answer, *, details: bool) -> list[Row]:
    """Return the sentence with the result of the search, and the changes of the named configuration."""
    tried = plural(other_configs(study), "other configuration")
    if answer.is_better:
        best = answer.best
        marks = [TRAINING[best.effect]]
        marks += ["measured beside other processes"] if is_crowded(study, best.config) else []
        marks += [weak] if (weak := weakness(study, best.speedup)) else []
        confirmed = f"{ratio_text(best.speedup)} in {plural(best.speedup.n, 'pair')} of fresh runs"
        return [
            ("Faster", f"{confirmed}; {'; '.join(marks)}."),
            ("changes", changes_text(study, best.config)),
        ]
    if answer.outcome is SearchOutcome.NOTHING_FASTER:
        kept = " that keeps the training" if answer.fastest is not None else ""
        rows = [
            ("Nothing is faster", f"{tried}{kept} measured, none is faster than your script."),
            ("", answer.sentence),
        ]
        return [*rows, *_closest(study)]
    rows = [("Inconclusive", f"{tried} measured; a gain is neither confirmed nor excluded.")]
    rows += _named("open", answer.unsettled if details else answer.unsettled[:2])
    likely = answer.likely
    if likely is not None:
        beside = ", measured beside other processes" if is_crowded(study, likely.config) else ""
        rows.append(("likely", f"{likely_text(likely)}{beside}; {TRAINING[likely.effect]}"))
        rows.append(("changes", changes_text(study, likely.config)))
    return rows


def _closest(study: Study) -> list[Row]:
    near = closest(study)
    if near is None:
        return []
    known = ratio_text(near.ratio) if near.is_paired else f"{near.ratio.value:.2f}x"
    return [("closest", f"{config_text(near.config)}: {known} {near.rests_on} (trial {near.trial})")]


def _costs(study: Study, answer: Answer, *, details: bool) -> list[Row]:
    """Return speed, memory and loss of the named configuration beside the script's own."""
    named = answer.best if answer.is_better else answer.likely
    view = AnswerView.of(answer)
    total = f" (of {bytes_text(study.memory_bytes)})" if study.memory_bytes else ""
    if named is None:
        return [("speed", f"{view.own_rate}, your script"), ("memory", f"{view.own_memory} at peak{total}")]
    shown = view.picks["best" if answer.is_better else "likely"]
    rows = [
        ("speed", f"{shown.rate}; your script {view.own_rate}"),
        ("memory", f"{shown.memory} at peak{total}; your script {view.own_memory}"),
    ]
    if details or named.loss.level > 0 or not named.loss.passed:
        rows.append(("loss", shown.loss_sentence))
    if shown.pays_back:
        rows.append(("compile", shown.pays_back))
    return rows


def _why(study: Study, answer: Answer) -> list[str]:
    """Return the contribution of each change and the limit of the script; one line each."""
    limits = why_lines(study, answer)
    if not answer.is_better:
        return limits
    # The time a script waits for data is part of the limit, if the limit is known.
    gains = [gains_text(study, answer.best), "" if limits else waits_text(study, answer.best)]
    return [*(line for line in gains if line), *limits, *further_reasons(answer.best)]


def _picks(study: Study, answer: Answer, *, details: bool) -> list[Row]:
    """Return the picks other than the one named first."""
    rows: list[Row] = []
    safe, fastest = answer.safe, answer.fastest
    if answer.is_better:
        if safe.config == answer.best.config:
            rows += [("safe", "the same configuration")] if details else []
        elif not safe.config.is_baseline:
            rows.append(("safe", _pick_text(safe)))
        elif details:
            rows.append(("safe", "none: no configuration that leaves the training unchanged was confirmed"))
    if fastest is not None:
        rows.append(("fastest", f"{_pick_text(fastest)}; same loss sooner, {TRAINING[fastest.effect]}"))
        rows += [("", fastest.advice)] if fastest.advice else []
    elif details and answer.is_better:
        rows.append(("fastest", _no_fastest(study)))
    return rows


def _pick_text(pick: Recommendation) -> str:
    return f"{ratio_text(pick.speedup)} in {plural(pick.speedup.n, 'pair')}: {config_text(pick.config)}"


def _no_fastest(study: Study) -> str:
    if study.spec.space.allowed:
        return "none: no change of the training was shown to reach the same loss sooner"
    if study.spec.effective_batch == "keep":
        return "none: other effective batches were not tried (--effective-batch keep)"
    return "none: no other effective batch was shown to reach the same loss sooner"


def _search(study: Study, answer: Answer, seconds: float) -> str:
    """Return the cost of the search and its failures."""
    failed = sum(answer.failures.values())
    kinds = ", ".join(f"{FailureKind.named(kind).words} {count}" for kind, count in answer.failures.items())
    survived = f"{failed} failed ({kinds})" if failed else "none failed"
    took = f"{duration_text(seconds)} of {duration_text(study.spec.budget.seconds)}"
    return f"{took}, {plural(len(study.finished()), 'trial')}, {survived}"


def _notes(study: Study, answer: Answer, *, most: int) -> list[Row]:
    """Return at most `most` lines of notes, the last of which counts the omitted ones."""
    caveats = answer.caveats
    if len(caveats) <= most:
        return [("note", caveat) for caveat in caveats]
    shown = caveats[: most - 1]
    counted = plural(len(caveats) - len(shown), "more note" if shown else "note")
    left = f"{counted}: autotune show {study.spec.label}"
    return [*(("note", caveat) for caveat in shown), ("" if shown else "note", left)]


def _details(study: Study, answer: Answer, advice: Sequence[str]) -> list[Row]:
    rows: list[Row] = [("", study.because)] if study.because else []
    if answer.identical is not None:
        rows.append(("control", f"your script against itself: {control_text(answer.identical)}"))
    if space := space_text(study):
        rows.append(("space", space))
    rows += [("earlier", text) for text in beliefs(study).notes]
    rows += _named("not used", [f"{knob}: {reason}" for knob, reason in study.refusals.items()])
    return rows + _named("advice", list(advice))


def _commands(study: Study, answer: Answer, *, out: str, folder: str, details: bool) -> list[Row]:
    """Return the next commands."""
    rows: list[Row] = []
    if folder and out and (answer.is_better or answer.fastest is not None or answer.likely is not None):
        rows.append(("in", folder))
    if not answer.is_better and answer.resume:
        rows.append(("continue", answer.resume))
    if not out:
        return rows
    if answer.is_better:
        applied = _apply_line(study, out)
        rows.append(("apply", applied))
        if details:
            rows.append(("verify", applied.replace("autotune apply", "autotune verify", 1)))
        return rows
    named = [pick.pick for pick in (answer.likely, answer.fastest) if pick is not None]
    rows += [("apply", _apply_line(study, out, pick)) for pick in named]
    if details or not named:
        rows.append(("file", f"{out} holds your script unchanged" + (", and these picks" if named else "")))
    return rows


def _apply_line(study: Study, out: str, pick: str = "best") -> str:
    return apply_command(replace(study, spec=replace(study.spec, out=str(Path(out).absolute()))), pick)


def _more(study: Study, links: Mapping[str, str], unsent: int, *, details: bool) -> list[Row]:
    rows: list[Row] = list(links.items())
    if not details:
        # MLflow's answer is the first link; `autotune ui` opens the report.
        rows = [row for i, row in enumerate(rows) if not i or row[0] == "report"]
        if (opened := links.get("answer", "")).startswith("autotune ") and "report" in links:
            rows = [("report", f"{opened}, or the file {links['report']}")]
        rows.append(("details", f"autotune show {study.spec.label}"))
    if unsent:
        waiting = f"{plural(unsent, 'record')} not in MLflow yet; the result is stored"
        rows.append(("unsent", f"{waiting}. Send with: autotune sync {study.spec.label}"))
    return rows
