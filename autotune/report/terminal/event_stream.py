"""Events of a search for programs: one JSON object per line, ``autotune.event/v1``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TextIO

from autotune.model.trial import StartMode
from autotune.model.wire import to_wire
from autotune.report.listener import Listener
from autotune.report.terminal.async_writer import END_S, AsyncWriter
from autotune.report.view.summary import speedup_of
from autotune.text.redact import redact_data

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial

EVENT_SCHEMA = "autotune.event/v1"


class EventLines(Listener):
    """Writes an event to a stream once it is in the journal; fields are only ever added.

    Never raises and never blocks: a closed pipe ends the output, not the search, and a stalled reader delays
    nothing. The end of the study waits for the reader, within `async_writer.END_S`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._outlet = AsyncWriter.of(stream)

    def study_began(self, study: Study) -> None:
        spec = study.spec
        what = {
            "id": spec.study_id,
            "script": spec.script,
            "driver": spec.driver,
            "trials": len(study.finished()),
        }
        self._write(study, "study_began", budget_s=spec.budget.seconds, **what)

    def trial_started(self, study: Study, trial: Trial) -> None:
        self._write(study, "trial_started", **_trial_data(trial))

    def trial_ended(self, study: Study, trial: Trial) -> None:
        self._write(study, "trial_ended", **_trial_data(trial), **_outcome_data(study, trial))

    def note(self, study: Study, text: str) -> None:
        self._write(study, "note", text=text)

    def study_ended(self, study: Study) -> None:
        self._write(study, "study_ended", stopped=study.stopped, trials=len(study.finished()))
        self._outlet.drain(END_S)

    def _write(self, study: Study, event: str, **fields: Any) -> None:
        if not self._outlet.is_open:
            return
        row = {
            "schema": EVENT_SCHEMA,
            "event": event,
            "study": study.spec.label,
            "elapsed_s": round(study.elapsed_s, 3),
            **fields,
        }
        try:
            # Any stream can encode ASCII.
            text = json.dumps(redact_data(to_wire(row)), allow_nan=False)
        except ValueError:
            return
        self._outlet.put(text + "\n")


def _trial_data(trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "attempt": trial.attempt,
        "stage": trial.stage.value,
        "knobs": dict(trial.config),
        "reason": trial.reason,
    }


def _outcome_data(study: Study, trial: Trial) -> dict[str, Any]:
    data: dict[str, Any] = {"seconds": round(trial.seconds, 3)}
    data |= {"start": trial.start.value} if trial.start is not StartMode.COLD else {}
    if trial.failure is not None:
        return {**data, "failure": trial.failure.kind.label, "message": trial.failure.message}
    if trial.measurement is not None:
        rate, ratio = trial.measurement.throughput, speedup_of(study, trial)
        data |= {"throughput": rate.value, "unit": rate.unit}
        data |= {"speedup": ratio.value} if ratio is not None else {}
    return data
