"""`autotune serve` that kills itself once at a named point: ``python crashing_serve.py POINT serve ...``.

``before_submit``: a search is recorded as starting and no job exists. ``before_record``: the job exists and
nothing more is recorded. ``before_end``: the job has ended and that is not recorded.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from autotune.cli.main import main
from autotune.service import jobs, reconcile

POINT = sys.argv.pop(1)


def die() -> None:
    """End at once, as by the kernel."""
    os.kill(os.getpid(), signal.SIGKILL)


def _patched(cls: type) -> None:
    start = cls.start

    def started(self: Any, job: Any) -> None:
        if POINT == "before_submit":
            die()
        start(self, job)
        if POINT == "before_record":
            die()

    cls.start = started  # type: ignore[attr-defined]


for one in (jobs.ProcessJobs, jobs.RayJobs):
    _patched(one)

if POINT == "before_end":
    reconcile.Reconciler._ended = lambda *_: die()  # type: ignore[method-assign]  # noqa: SLF001

if __name__ == "__main__":
    main()
