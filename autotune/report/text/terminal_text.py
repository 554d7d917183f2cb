"""Text in the terminal: a line per trial during the search, one screen at the end."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from autotune.compare.break_even import is_late
from autotune.compare.disturbances import baseline_is_steady, busy_notes
from autotune.model.config import config_text
from autotune.model.study import SCALE
from autotune.report.text.answer_screen import INDENT
from autotune.report.view.answer_view import rate_text
from autotune.report.view.summary import (
    best_other,
    changes_training,
    duration_text,
    speedup_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial


def failure_counts(study: Study) -> dict[str, int]:
    """Return the number of trials by kind of failure, commonest first."""
    counts: dict[str, int] = {}
    for trial in study.finished():
        if trial.failure is not None:
            counts[trial.failure.kind.words] = counts.get(trial.failure.kind.words, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


_COLUMN: Final = 40
"""Characters of a table's column; a longer text, such as a failure's message, shifts its row."""

UNSTEADY: Final = "baseline unsteady"
"""Text in place of a ratio until the script's own rate is known well enough."""


def result_text(study: Study, trial: Trial, *, shows_ratio: bool = True) -> str:
    """Return one trial's result in a few words: ratio and rate, or the failure.

    Args:
        study: Current study.
        trial: Trial of the study.
        shows_ratio: False if the script's own rate is not known well enough for one.
    """
    if trial.failure is not None:
        lines = trial.failure.message.splitlines()
        return f"failed: {trial.failure.kind.words}" + (f" ({lines[0]})" if lines else "")
    if trial.measurement is None:
        return trial.state.value
    ratio = speedup_of(study, trial) if shows_ratio else None
    shown = f"{ratio.value:.2f}x  " if ratio is not None and not trial.config.is_baseline else ""
    return shown + rate_text(trial.measurement.throughput)


def progress_line(study: Study, trial: Trial) -> str:
    """Return the line for one ended trial without a live view."""
    left = f"{duration_text(study.spec.budget.seconds - study.elapsed_s)} left"
    if study.spec.purpose == SCALE:
        # Numbers of processes do not compete: their rates are the result.
        result = result_text(study, trial, shows_ratio=False)
        return " | ".join((f"round {trial.group}", config_text(trial.config), result, left))
    is_steady = baseline_is_steady(study)
    parts = [
        f"[{trial.stage.value}] trial {trial.number}",
        config_text(trial.config),
        result_text(study, trial, shows_ratio=is_steady or bool(trial.group)),
    ]
    if changes_training(study, trial):
        parts.append("changes the training")
    if is_late(study, trial.config):
        parts.append("your run does not pay back its compile")
    best = best_other(study)
    if best is not None and not is_steady:
        parts.append(UNSTEADY)
    elif best is not None:
        is_faster = best[0] > 1.0
        parts.append(f"best {best[0]:.2f}x (trial {best[1].number})" if is_faster else "nothing faster yet")
    failed = failure_counts(study)
    if failed:
        kinds = ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in failed.items())
        parts.append(f"{sum(failed.values())} failed ({kinds})")
    parts.append(left)
    return " | ".join(parts)


def wrapped(text: str, columns: int) -> str:
    """Wrap a screen to the columns of a terminal; continuations are indented, commands stay whole.

    Args:
        text: Text of `answer_screen`.
        columns: Columns of the terminal; 0 changes nothing.
    """
    if columns <= 2 * INDENT:
        return text
    lines: list[str] = []
    for line in text.splitlines():
        if len(line) <= columns or line[INDENT:].startswith("autotune "):
            lines.append(line)
            continue
        below = " " * INDENT
        lines += textwrap.wrap(
            line, columns, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines) + "\n"


def stopped_screen(study: Study, *, reason: str) -> str:
    """Return the screen of a search that ended without an answer.

    Args:
        study: Ended study.
        reason: A complete sentence.
    """
    rows: list[tuple[str, str]] = []
    best = best_other(study)
    if best is not None:
        read = f"{best[0]:.2f}x in one run, not confirmed (trial {best[1].number})"
        rows.append(("best", f"{config_text(best[1].config)}: {read}"))
    rows += [("note", text) for text in busy_notes(study)]
    rows.append(("continue", f"autotune resume {study.spec.label}"))
    lines = [f"No answer: {reason}.", *(f"  {name:<{INDENT - 2}}{text}" for name, text in rows)]
    return "\n".join(lines) + "\n"


def trials_table(study: Study, trials: Sequence[Trial] | None = None) -> str:
    """Return a line per trial: number, stage, result, configuration; long parts come last."""
    chosen = study.trials if trials is None else trials
    rows = [(str(t.number), t.stage.value, result_text(study, t), config_text(t.config)) for t in chosen]
    widths = [max((len(row[i]) for row in rows if len(row[i]) <= _COLUMN), default=0) for i in range(3)]
    return "\n".join(
        f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}" for row in rows
    )
