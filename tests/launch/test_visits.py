# ruff: noqa: E501 (scripts as lines)
"""A process that goes on: what its parts say, and that nothing of it touches the trial's own figures."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.launch.runner import Ended
from autotune.model.config import Config
from autotune.model.live import Visit
from autotune.model.measurement import Measurement
from autotune.model.wire import dumps, loads

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.model.trial import Assignment

pytestmark = pytest.mark.thorough

ONE, TWO = Config({"threads": 1}), Config({"threads": 2})
VISIT = Visit(configs=(ONE, TWO), window_s=1.0, limit_s=20.0)
MINE = f"a1-{os.getpid() % 2**24:06x}"

STEPS = """
at = now()
def rows(period_ms, count=60):
    global at
    begin, period = at, int(period_ms * 1e6)
    writer.write(Steps(rows=tuple(StepRow(t_ns=begin + i * period, wait_ns=0, samples=4) for i in range(1, count + 1))))
    at = begin + count * period
    return begin
def told(begin, **more):
    writer.write(Closed(trial=0, begin_ns=begin, end_ns=at, ended="limit", steady="steady", first_step_ns=begin,
                        compile_s=0.0, sent_ns=at, **more))
begin = rows(50)
writer.write(Seen(facts=RunFacts(samples_source="loader")))
told(begin)
"""
MEASURED = "writer.write(Done(why='measured', steps=3)); os._exit(0)\n"
PARTS = STEPS + "told(rows(40), part=1)\ntold(rows(62.5), part=2)\n"


def ended(runner: Any, assignment: Assignment, visit: Visit | None = VISIT) -> Ended:
    (found,) = runner().run(replace(assignment, visit=visit))
    # As it crosses the border of an actor.
    assert loads(Ended, dumps(found)) == found
    return found


def test_a_segment_counts_as_a_ratio_to_its_own_process(runner: Any, assignment: Any) -> None:
    text = PARTS + "told(rows(50), part=3)\n" + MEASURED
    found = ended(runner, assignment(text))
    plain = ended(runner, assignment(STEPS + MEASURED, uid=f"t0001-{MINE}"), None)
    assert isinstance(found.outcome, Measurement)
    assert isinstance(plain.outcome, Measurement)
    assert found.outcome.throughput == plain.outcome.throughput
    assert (found.outcome.steps, found.outcome.window_s) == (plain.outcome.steps, plain.outcome.window_s)
    assert plain.visited is None
    assert found.visited is not None
    ratios = {o.config: o.ratio.value for o in found.visited.observations if o.ratio is not None}
    assert ratios == {ONE: pytest.approx(1.25), TWO: pytest.approx(0.8)}
    assert found.visited.anchors == pytest.approx((80.0, 80.0))
    assert [o.seconds for o in found.visited.observations] == pytest.approx([2.4, 3.75])
    assert found.visited.seconds == pytest.approx(2.4 + 3.75 + 3.0)


ENDINGS = {
    "crash_exit": "writer.write(Broke(kind='crash_exit', error='E', message='no', tail='', phase='window')); os._exit(1)",
    "crash_signal": "os.kill(os.getpid(), 11)",
    "oom_cuda": "writer.write(Broke(kind='oom_cuda', error='E', message='no', tail='', phase='window')); os._exit(1)",
    "timeout_progress": "time.sleep(60)",
}


@pytest.mark.parametrize(("kind", "text"), ENDINGS.items())
def test_a_failure_charges_the_segment_that_was_open_and_nothing_else(
    runner: Any, assignment: Any, kind: str, text: str
) -> None:
    (found,) = runner(progress_floor_s=0.4).run(
        replace(assignment(STEPS + "told(rows(40), part=1)\n" + text), visit=VISIT)
    )
    assert isinstance(found.outcome, Measurement), found.outcome
    assert found.visited is not None
    good, bad = found.visited.observations
    assert good.ratio is not None
    assert good.ratio.value == pytest.approx(1.25)
    assert (good.failure, bad.failure, bad.config, bad.ratio) == ("", kind, TWO, None)
    assert found.visited.failed


def test_a_setting_that_was_refused_fails_its_segment(runner: Any, assignment: Any) -> None:
    reading = "Reading(knob='threads', wanted=1, found=4, status='refused', reason='Asked for 1, found 4.')"
    found = ended(runner, assignment(STEPS + f"told(rows(40), part=1, readings=({reading},))\n" + MEASURED))
    assert isinstance(found.outcome, Measurement), found.outcome
    assert found.visited is not None
    assert [(o.config, o.failure) for o in found.visited.observations] == [(ONE, "config_rejected")]


@pytest.mark.parametrize("why", ["script_end", "measured"])
def test_an_end_of_its_own_fails_nothing(runner: Any, assignment: Any, why: str) -> None:
    text = (
        STEPS + f"told(rows(40), part=1)\nrows(50, 5)\nwriter.write(Done(why='{why}', steps=3)); os._exit(0)"
    )
    found = ended(runner, assignment(text))
    assert isinstance(found.outcome, Measurement), found.outcome
    assert found.visited is not None
    assert [(o.config, o.failure) for o in found.visited.observations] == [(ONE, "")]
    # Nothing follows the segment, so its process may have drifted since.
    assert found.visited.observations[0].log_sd > 0.009


def test_what_a_visit_takes_is_no_memory_of_the_trial(runner: Any, assignment: Any, tmp_path: Path) -> None:
    real = STEPS.replace("sent_ns=at", "sent_ns=now()").replace("at = now()", "at = now() - 4 * 10**9")
    text = (
        "time.sleep(0.4)\n"
        + real
        + "time.sleep(0.3)\nheld = bytearray(os.urandom(1)) * (300 << 20)\ntime.sleep(0.6)\n"
    )
    found = ended(runner, assignment(text + MEASURED))
    assert isinstance(found.outcome, Measurement), found.outcome
    assert found.outcome.memory.pss is not None
    assert found.outcome.memory.pss < 200 << 20
    result = tmp_path / "study" / "trials" / f"t0000-{MINE}" / "result.json"
    assert json.loads(result.read_text())["peak_bytes"] > 300 << 20
