"""Kills the service 20 times while searches are submitted, run and cancelled.

Every submission that was answered must exist once; every finished trial must be reported once.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

from stand import FINAL, Stand, until

from autotune.service.client import Handle, ServiceError

NAME = "restarts"
TITLE = "kills of the service under load"
KILLS = 20
SEARCHES = 20


def cases() -> list[str]:
    """Return the one case."""
    return [f"kills/{KILLS}"]


def sample() -> list[str]:
    """Return what CI runs."""
    return ["kills/2"]


def run(case: str, folder: Path) -> dict[str, Any]:
    """Kill and start the service; submissions are repeated with their keys until they are answered."""
    kills = int(case.split("/")[1])
    draw, faults = random.Random(case), []
    found: dict[str, set[str]] = {}
    with Stand(folder, "--slots", "2", run_s=0.1) as stand:
        for n in range(kills):
            begun = max(1, SEARCHES * (n + 1) // KILLS)
            for number in range(begun):
                key = f"{case}-{number}"
                with contextlib.suppress(ServiceError):
                    found.setdefault(key, set()).add(stand.submit(key=key, trials=6).id)
            time.sleep(draw.uniform(0.0, 4.0))
            stand.kill()
            stand.start()
        for key, ids in found.items():
            if len(ids) != 1:
                faults.append(f"{key} gave {len(ids)} searches")
        everything = {one for ids in found.values() for one in ids}
        until(
            lambda: all(stand.state(one)["state"] in FINAL for one in everything), "not all ended", wait_s=900
        )
        listed = {row["id"] for row in stand.client.searches(limit=500)}
        if listed != everything:
            faults.append(f"{len(listed)} searches exist, {len(everything)} were answered")
        trials = 0
        for one in sorted(everything):
            ended = Handle(stand.client, one).status()
            if ended["state"] != "succeeded":
                faults.append(f"{one} is {ended['state']}: {ended['reason']}")
            faults += [f"{one}: {fault}" for fault in stand.check(one)]
            trials += len(stand.trials(one))
    return {"faults": faults, "kills": kills, "searches": len(everything), "trials": trials}
