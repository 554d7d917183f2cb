"""Events for programs: a line each, strict JSON, and never an exception into the search."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from study_fakes import study

from autotune.report.terminal.event_stream import EventLines


def reported(call: Any) -> list[dict[str, Any]]:
    stream = io.StringIO()
    call(EventLines(stream))
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_event_names_schema_study_and_time() -> None:
    done = study()

    def all_of_them(lines: EventLines) -> None:
        lines.study_began(done)
        lines.trial_started(done, done.trials[3])
        lines.trial_ended(done, done.trials[3])
        lines.note(done, "a stage began")
        lines.study_ended(done)

    rows = reported(all_of_them)
    assert [row["event"] for row in rows] == [
        "study_began", "trial_started", "trial_ended", "note", "study_ended",
    ]  # fmt: skip
    assert {row["schema"] for row in rows} == {"autotune.event/v1"}
    assert {row["study"] for row in rows} == {"train-1121-1002"}
    assert rows[0]["budget_s"] == 600.0
    assert rows[1]["knobs"]["precision"] == "bf16"
    assert rows[-1]["stopped"] == "finished"


def test_a_trial_reports_its_figure_or_its_failure() -> None:
    done = study()
    good, bad = reported(lambda lines: [lines.trial_ended(done, done.trials[n]) for n in (3, 4)])
    assert (good["throughput"], good["unit"]) == (200.0, "samples/s")
    assert good["speedup"] == pytest.approx(2.0)
    assert (bad["failure"], bad["message"]) == ("oom_host", "4.2 GiB were requested")
    assert "throughput" not in bad


def test_a_reader_that_goes_away_receives_nothing_more() -> None:
    class Closed(io.StringIO):
        tries = 0

        def write(self, text: str) -> int:
            self.tries += 1
            raise BrokenPipeError

    stream = Closed()
    lines = EventLines(stream)
    lines.study_began(study())
    lines.study_ended(study())
    assert stream.tries == 1
