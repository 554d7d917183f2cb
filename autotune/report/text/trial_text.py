"""One trial as text: configuration, measurement, and failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compare.disturbances import MARKS, is_disturbed
from autotune.model.config import config_text, value_text
from autotune.report.text.answer_screen import INDENT
from autotune.report.view.answer_view import rate_text
from autotune.report.view.study_view import log_tail
from autotune.report.view.summary import bytes_text, number_text, speedup_of

if TYPE_CHECKING:
    from autotune.model.measurement import Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial


def trial_text(study: Study, trial: Trial, *, logs: str = "") -> str:
    """Return a trial as text, a row per figure.

    Args:
        study: Study of the trial.
        trial: Trial to show.
        logs: Command that prints its logs; empty without logs.
    """
    rows = [
        ("stage", trial.stage.value + (f", attempt {trial.attempt}" if trial.attempt > 1 else "")),
        ("config", config_text(trial.config)),
        ("reason", trial.reason),
        ("node", trial.node),
    ]
    measured = trial.measurement
    if measured is not None:
        ratio = speedup_of(study, trial)
        times = (
            f", {ratio.value:.2f}x your script" if ratio is not None and not trial.config.is_baseline else ""
        )
        low, high = measured.throughput.low, measured.throughput.high
        interval = f" [{number_text(low)}, {number_text(high)}] within the run"
        rows.append(("speed", f"{rate_text(measured.throughput)}{interval}{times}"))
        rows += _measured(measured)
        if is_disturbed(study, trial):
            rows.append(("disturbed", "other processes used the machine; the reading is not compared"))
    if trial.failure is not None:
        rows.append(("failed", f"{trial.failure.kind.words}: {trial.failure.message}"))
        rows += [("" if i else "output", line) for i, line in enumerate(log_tail(study, trial).splitlines())]
    rows.append(("took", f"{trial.seconds:.1f} s" if trial.seconds else trial.state.value))
    if logs:
        rows.append(("logs", logs))
    lines = [f"  {name:<{INDENT - 2}}{text}".rstrip() for name, text in rows if text]
    return "\n".join([f"trial {trial.number} of {study.spec.label}", *lines]) + "\n"


def _measured(measured: Measurement) -> list[tuple[str, str]]:
    memory, waits = measured.memory, 100 * measured.data_wait_frac
    rows = [
        (
            "step",
            f"{1000 * measured.step_time_s.value:.4g} ms, {waits:.0f} % waiting for data",
        ),
        ("memory", f"{bytes_text(memory.peak_bytes)} at peak"),
        ("time", f"start-up {measured.startup_s:.1f} s, compile {measured.all_compile_s:.1f} s"),
        (
            "window",
            f"{measured.window_s:.1f} s of {measured.steps} steps, warm-up {measured.warmup_s:.1f} s",
        ),
    ]
    if measured.loss:
        first, last = measured.loss[0], measured.loss[-1]
        rows.append(
            ("loss", f"{first.loss:.4g} at {first.samples} samples, {last.loss:.4g} at {last.samples}")
        )
    if measured.contamination.flags:
        rows.append(("flags", ", ".join(MARKS.get(flag, flag) for flag in measured.contamination.flags)))
    requested = [reading for reading in measured.readings if reading.wanted is not None]
    rows += [
        (
            "" if i else "knobs",
            f"{r.knob}: {value_text(r.found) or 'not read'}, {r.status}"
            + (f" ({r.reason})" if r.reason else ""),
        )
        for i, r in enumerate(requested)
    ]
    return rows
