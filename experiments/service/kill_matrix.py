"""Kills the service, the driver, the Ray head or a Ray node at every stage of a search.

Each case is one search on a service of its own. Exactly one search must exist afterwards, in the expected
state, and no finished trial may be lost or run twice.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

from ray_nodes import Cluster
from stand import FINAL, Stand, until

NAME = "kills"
TITLE = "kill matrix"
STAGES = ("before_submit", "before_record", "running", "cancelling", "preempting", "before_end")
DOWNTIMES_S = (0, 20)
TRIALS = 12
KEY = "kill-matrix-case"


def cases() -> list[str]:
    """Return victim/stage/downtime; a driver cannot die before it was started, and is replaced at once."""
    found = [f"driver/{stage}/0" for stage in STAGES if not stage.startswith("before_")]
    return found + [
        f"{victim}/{stage}/{down}"
        for down, victim, stage in itertools.product(DOWNTIMES_S, ("service", "head", "node"), STAGES)
    ]


def sample() -> list[str]:
    """Return what CI runs: a kill between the start of a job and its record, and one of a driver."""
    return ["service/before_record/0", "driver/running/0"]


def run(case: str, folder: Path) -> dict[str, Any]:
    """Run one case; returns what was counted."""
    victim, stage, downtime = case.split("/")
    if victim in ("head", "node"):
        cluster = Cluster()
        try:
            cluster.start_head(cpus=0)
            cluster.add_node(cpus=1)
            words = ["--address", cluster.address, "--ray-address", f"127.0.0.1:{cluster.port}"]
            with Stand(folder, *words, on_ray=True) as stand:
                return _on_ray(stand, cluster, victim, stage, float(downtime))
        finally:
            cluster.close()
    with Stand(folder) as stand:
        return _local(stand, victim, stage, float(downtime))


def _local(stand: Stand, victim: str, stage: str, downtime_s: float) -> dict[str, Any]:
    crash = stage if stage.startswith("before_") else ""
    if crash:
        stand.kill()
        stand.start(crash=crash)
    search, other = _submit(stand), ""
    if crash:
        until(lambda: stand.process is not None and stand.process.poll() is not None, "it did not die")
    else:
        other = _at(stand, search, stage)
        if victim == "service":
            stand.kill()
        else:
            for pid in stand.supervisors().values():
                os.kill(pid, signal.SIGKILL)
    if stand.process is not None and stand.process.poll() is not None:
        time.sleep(downtime_s)
        stand.start()
    return _counted(stand, search, stage, other)


def _on_ray(stand: Stand, cluster: Cluster, victim: str, stage: str, downtime_s: float) -> dict[str, Any]:
    def kill() -> None:
        killed = cluster.head if victim == "head" else cluster.nodes[-1]
        assert killed is not None
        cluster.kill(killed)

    search, other = "", ""
    if stage == "before_submit":
        kill()
    search = _submit(stand)
    if stage == "before_record":
        stand.reach(search, "starting", "running")
        kill()
    elif stage == "before_end":
        until(lambda: len(stand.trials(search)) >= TRIALS - 1, "the trials did not end")
        kill()
    elif stage != "before_submit":
        other = _at(stand, search, stage)
        kill()
    time.sleep(downtime_s)
    if victim == "head":
        # The nodes of a head that is gone end by themselves after a minute; these are replaced at once.
        for node in cluster.nodes:
            if node.poll() is None:
                cluster.kill(node)
        cluster.start_head(cpus=0)
    cluster.add_node(cpus=1)
    return _counted(stand, search, stage, other)


def _submit(stand: Stand) -> str:
    return stand.submit(key=KEY, trials=TRIALS, preemptible=True, priority=10).id


def _at(stand: Stand, search: str, stage: str) -> str:
    """Bring a search to a stage; returns the search that preempts it, if one does."""
    until(lambda: len(stand.trials(search)) >= 2, "no trial has ended")
    if stage == "cancelling":
        stand.client.search(search).cancel()
    if stage == "preempting":
        other = stand.submit(key="higher-priority", priority=90, trials=3).id
        stand.reach(search, "preempting", "queued")
        return other
    return ""


def _counted(stand: Stand, search: str, stage: str, other: str) -> dict[str, Any]:
    """Wait for the end, and return what is wrong with it."""
    wanted = ("cancelled", "succeeded") if stage == "cancelling" else ("succeeded",)
    again = _submit(stand)
    ended = stand.reach(search, *FINAL)
    if other:
        stand.reach(other, *FINAL)
    until(lambda: not stand.supervisors(), "a job still runs")
    faults = stand.check(search)
    if again != search:
        faults.append("the same key gave another search")
    if len(stand.client.searches()) != (2 if other else 1):
        faults.append("another number of searches than was submitted")
    if ended["state"] not in wanted:
        faults.append(f"it is {ended['state']}: {ended['reason']}")
    return {"faults": faults, "searches": 1, "trials": len(stand.trials(search)), "lives": ended["epoch"]}
