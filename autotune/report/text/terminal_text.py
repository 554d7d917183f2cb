"""What a person reads in the terminal: a line per trial while it runs, one screen at the end."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from autotune.compare.disturbances import baseline_is_steady, busy_notes
from autotune.model.config import config_text
from autotune.model.study import SCALE
from autotune.report.text.answer_screen import INDENT
from autotune.report.view.answer_view import rate_text
from autotune.report.view.summary import best_other, changes_training, duration_text, speedup_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial


def failure_counts(study: Study) -> dict[str, int]:
    """Return failure in words -> number of trials that ended so, commonest first."""
    counts: dict[str, int] = {}
    for trial in study.told():
        if trial.failure is not None:
            counts[trial.failure.kind.words] = counts.get(trial.failure.kind.words, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


_COLUMN: Final = 40
"""Characters of a table's column; a longer text, such as a failure's message, moves its row instead."""

UNSTEADY: Final = "baseline unsteady"
"""In place of a ratio while the script's own rate is not known well enough for one."""


def result_text(study: Study, trial: Trial, *, shows_ratio: bool = True) -> str:
    """One trial's result in a few words: ratio and rate, or how it failed.

    Args:
        study: As of now.
        trial: Of it.
        shows_ratio: False while the script's own rate is not known well enough for one.
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
    """The line for one ended trial where there is no terminal."""
    left = f"{duration_text(study.spec.budget.seconds - study.elapsed_s)} left"
    if study.spec.purpose == SCALE:
        # Numbers of processes do not compete: their rates are the answer.
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
        text: Of `answer_screen`.
        columns: Of the terminal; 0 changes nothing.
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
    """Return the screen of a search that ended before it could answer.

    Args:
        study: As far as it came.
        reason: A whole sentence.
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
    """Return a line per trial: number, stage, result, configuration; what may be long is last."""
    chosen = study.trials if trials is None else trials
    rows = [(str(t.number), t.stage.value, result_text(study, t), config_text(t.config)) for t in chosen]
    widths = [max((len(row[i]) for row in rows if len(row[i]) <= _COLUMN), default=0) for i in range(3)]
    return "\n".join(
        f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}" for row in rows
    )
