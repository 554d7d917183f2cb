"""Kills the service or the driver at every stage of a search and counts searches, lost and doubled trials.

    python experiments/service/kill_matrix.py [--repeats N] [--out FILE]

Each cell is one search on a service of its own. Rows are appended to the results file; a run that was stopped
goes on behind its last cell.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from stand import FINAL, Stand, record, recorded, until

RESULTS = Path(__file__).parent / "results" / "kill_matrix.jsonl"
VICTIMS = ("service", "driver")
STAGES = ("before_submit", "before_record", "running", "cancelling", "preempting", "before_end")
DOWNTIMES_S = (0, 20)


def cells(repeats: int = 1) -> list[tuple[str, str, int, int]]:
    """Return (victim, stage, downtime in seconds, repeat); a driver cannot die before it was started."""
    return [
        cell
        for cell in itertools.product(VICTIMS, STAGES, DOWNTIMES_S, range(repeats))
        if not (cell[0] == "driver" and (cell[1].startswith("before_") or cell[2]))
    ]


def run(stand: Stand, victim: str, stage: str, downtime_s: float) -> dict[str, object]:
    """Run one cell; returns what was counted."""
    wanted = {"cancelling": ("cancelled", "succeeded")}.get(stage, ("succeeded",))
    crash = stage if stage.startswith("before_") else ""
    if crash:
        stand.kill()
        stand.start(crash=crash)
    search = stand.submit(key="kill-matrix-cell", preemptible=True, priority=10).id
    if crash:
        until(lambda: stand.process is not None and stand.process.poll() is not None, "it did not die")
    else:
        until(lambda: len(stand.trials(search)) >= 2, "no trial has ended")
        if stage == "cancelling":
            stand.client.search(search).cancel()
        if stage == "preempting":
            other = stand.submit(key="higher-priority", priority=90, trials=3).id
            stand.reach(search, "preempting", "queued")
        if victim == "service":
            stand.kill()
        else:
            for pid in stand.supervisors().values():
                os.kill(pid, signal.SIGKILL)
    if stand.process is not None and stand.process.poll() is not None:
        time.sleep(downtime_s)
        stand.start()
    again = stand.submit(key="kill-matrix-cell", preemptible=True, priority=10).id
    ended = stand.reach(search, *FINAL)
    if stage == "preempting":
        stand.reach(other, *FINAL)
    until(lambda: not stand.supervisors(), "a job still runs")
    faults = stand.check(search)
    if again != search:
        faults.append("the same key gave another search")
    if len(stand.client.searches()) != (2 if stage == "preempting" else 1):
        faults.append("another number of searches than was submitted")
    if ended["state"] not in wanted:
        faults.append(f"it is {ended['state']}: {ended['reason']}")
    return {
        "faults": faults,
        "state": ended["state"],
        "lives": ended["epoch"],
        "trials": len(stand.trials(search)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    done = recorded(given.out)
    for victim, stage, downtime_s, repeat in cells(given.repeats):
        name = f"{victim}/{stage}/{downtime_s}s/{repeat}"
        if name in done:
            continue
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Stand(Path(folder)) as stand:
            record(given.out, name, **run(stand, victim, stage, downtime_s))
    rows = recorded(given.out).values()
    faults = [(row["cell"], row["faults"]) for row in rows if row["faults"]]
    print(f"{len(rows)} cells, {len(faults)} with a fault: {faults}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
