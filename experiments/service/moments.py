"""Cancels or preempts searches at random moments of their lives.

A case is five searches on one service. A cancelled search must leave no process; a preempted one must resume
and lose nothing. Moments follow from the name of the case.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from stand import FINAL, Stand, until

NAME = "moments"
TITLE = "cancel and preempt at random moments"
EACH = 50
PER_CASE = 5
LATEST_S = {"cancel": 8.0, "preempt": 6.0}
"""From the submission on: before the start, in it, during trials and at the end of a fake search."""
GONE_S = 10.0


def cases() -> list[str]:
    """Return kind/number."""
    return [f"{kind}/{n}" for kind in LATEST_S for n in range(EACH // PER_CASE)]


def sample() -> list[str]:
    """Return what CI runs."""
    return ["cancel/0", "preempt/0"]


def run(case: str, folder: Path) -> dict[str, Any]:
    """Run one case; returns what was counted."""
    kind = case.split("/", maxsplit=1)[0]
    draw = random.Random(case)
    faults: list[str] = []
    count = {"searches": 0, "trials": 0, "resumed": 0, "left": 0}
    with Stand(folder, run_s=0.2) as stand:
        for n in range(PER_CASE):
            moment_s = draw.uniform(0.0, LATEST_S[kind])
            search = stand.submit(key=f"{case}-search-{n}", preemptible=True, priority=10).id
            time.sleep(moment_s)
            found = (
                _cancelled(stand, search) if kind == "cancel" else _preempted(stand, search, f"{case}-{n}")
            )
            ended = stand.state(search)
            count["searches"] += 1
            count["trials"] += len(stand.trials(search))
            count["resumed"] += ended["epoch"] > 1
            count["left"] += len(stand.processes(search))
            faults += [f"search {n}, {moment_s:.2f} s: {fault}" for fault in (*found, *stand.check(search))]
    return {"faults": faults, **count}


def _cancelled(stand: Stand, search: str) -> list[str]:
    answer = stand.client.raw("POST", f"/api/v1/searches/{search}/cancel", allow=(409,))
    ended = stand.reach(search, *FINAL)
    until(lambda: not stand.processes(search), "a process is left", wait_s=GONE_S)
    if answer.status_code != 409 and ended["state"] not in ("cancelled", "succeeded"):
        return [f"it is {ended['state']}: {ended['reason']}"]
    return []


def _preempted(stand: Stand, search: str, name: str) -> list[str]:
    other = stand.submit(key=f"{name}-higher", priority=90, trials=3).id
    stand.reach(other, *FINAL)
    ended = stand.reach(search, *FINAL)
    return [] if ended["state"] == "succeeded" else [f"it is {ended['state']}: {ended['reason']}"]
