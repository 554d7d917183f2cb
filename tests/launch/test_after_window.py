"""A process that counts steps once its segment was sent: what it does then is none of the run's."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.model.measurement import Measurement
from autotune.model.trial import AFTER_WINDOW_S, CEILINGS

pytestmark = pytest.mark.thorough

SENT = """
from autotune.protocol.events import Probed
time.sleep(0.4)
at = now() - 4 * 10**9
rows = tuple(StepRow(t_ns=at + i * 50_000_000, wait_ns=0, samples=4) for i in range(61))
writer.write(Steps(rows=rows))
writer.write(Seen(facts=RunFacts(samples_source="loader")))
writer.write(Closed(trial=0, begin_ns=at, end_ns=rows[-1].t_ns, ended="limit", steady="steady",
                    first_step_ns=at, compile_s=0.0, sent_ns=now()))
"""
FOUND = f"writer.write(Probed(figures={{'ceiling_reduced_s': 0.01, '{AFTER_WINDOW_S}': 0.5}}))\n"
MEASURED = "writer.write(Done(why='measured', steps=61)); os._exit(0)\n"


def outcome(runner: Any, assignment: Any, text: str, **more: Any) -> Measurement:
    (found,) = runner(**more).run(assignment(SENT + text, probe=CEILINGS))
    assert isinstance(found.outcome, Measurement), found.outcome
    return found.outcome


def test_its_figures_are_kept_and_its_memory_is_not(runner: Any, assignment: Any) -> None:
    holds = "time.sleep(0.3)\nheld = bytearray(os.urandom(1)) * (300 << 20)\ntime.sleep(0.6)\n"
    found = outcome(runner, assignment, holds + FOUND + MEASURED)
    assert found.extra["ceiling_reduced_s"] == 0.01
    assert found.extra[AFTER_WINDOW_S] == 0.5
    assert found.memory.pss is not None
    assert found.memory.pss < 200 << 20


BREAKS = "writer.write(Broke(kind='crash_exit', error='E', message='no', tail='', phase='window'))"
ENDINGS = {
    "crash": f"{BREAKS}; os._exit(1)",
    "signal": "os.kill(os.getpid(), 11)",
    "hang": "time.sleep(60)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_end_without_figures_leaves_the_measurement(runner: Any, assignment: Any, ending: str) -> None:
    found = outcome(runner, assignment, ENDINGS[ending], progress_floor_s=0.4)
    assert found.throughput.value == pytest.approx(80.0)
    assert AFTER_WINDOW_S not in found.extra
