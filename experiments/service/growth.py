"""Counts trials an hour against simulated devices: one search, real Ray actors, trials that only wait.

A case is a Ray node with so many simulated GPUs. The rate is that of screening trials, from the moment at
which every device has ended its first trial: before, actors start, which takes the CPUs of one machine. It is
compared with devices over the seconds of a trial. Driver, actors and Ray share the machine's CPUs, which
limit the rate first.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from ray_nodes import Cluster
from stand import HERE, ROOT, SCRIPT

NAME = "growth"
TITLE = "trials an hour against simulated devices"
DEVICES = (1, 2, 4, 8, 16, 32, 64)
WAVES = 4
RUN_S = 20.0
"""Of a trial: as long as a short real one, so that starts and ends of 64 are spread over it."""
LEAST = {16: 0.9, 64: 0.8}
"""Devices up to which a share of the linear rate is required."""
MOST_S = 1800.0


def cases() -> list[str]:
    """Return the numbers of devices."""
    return [f"devices/{n}" for n in DEVICES]


def sample() -> list[str]:
    """Return what CI runs."""
    return ["devices/2"]


def run(case: str, folder: Path) -> dict[str, Any]:
    """Run one search on a cluster with so many devices; returns its rate."""
    devices = int(case.split("/")[1])
    (folder / "train.py").write_text(SCRIPT)
    cluster = Cluster()
    try:
        cluster.start_head(cpus=0)
        cluster.add_node(cpus=devices, gpus=devices)
        while cluster.alive() < 2:
            time.sleep(0.5)
        words = ["search", "--driver", "ray", "--address", f"127.0.0.1:{cluster.port}", "--quiet"]
        words += ["--concurrency", str(devices), "--trials", str(10 * devices + 60), "--sampler", "random"]
        words += ["--budget", "4h", "--out", str(folder / "best.yaml"), "--", "python", "train.py"]
        env = {**os.environ, "AUTOTUNE_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT),
               "RAY_AUTH_MODE": "disabled", "FAKE_DRIVER": "ray", "FAKE_RUN_S": str(RUN_S),
               "FAKE_PATIENCE_S": "900",
               "AUTOTUNE_TRANSFER": "off"}  # fmt: skip
        with (folder / "log").open("w") as log:
            search = subprocess.Popen(
                [sys.executable, str(HERE / "fake_autotune.py"), *words],
                env=env, cwd=folder, stdout=log, stderr=log,
            )  # fmt: skip
            busy = _driver_cpu(search, lambda: len(_screening(folder / "home")) >= WAVES * devices)
        times = _screening(folder / "home")
    finally:
        cluster.close()
    ended = sorted(end for _, end in times)[: WAVES * devices]
    if len(ended) < 2 * devices:
        return {"faults": [f"{len(ended)} screening trials ended: {(folder / 'log').read_text()[-800:]}"]}
    # Each device has ended one trial at least; from there on all of them are in use.
    steady = ended[devices - 1 :]
    per_hour = 3600 * (len(steady) - 1) / (steady[-1] - steady[0])
    linear = 3600 * devices / RUN_S
    share = per_hour / linear
    least = next(share_of for up_to, share_of in LEAST.items() if devices <= up_to)
    faults = [] if share >= least else [f"{share:.2f} of the linear rate; required is {least}"]
    figures = {"per_hour": round(per_hour), "of_linear": round(share, 3), "driver_cores": round(busy, 2),
               "load_average": round(os.getloadavg()[0], 1)}  # fmt: skip
    return {"faults": faults, "trials": len(times), "figures": figures}


def _driver_cpu(search: subprocess.Popen[bytes], is_enough: Callable[[], bool]) -> float:
    """Wait for enough trials and end the search; returns the mean number of cores that the driver used."""
    process, began, used = psutil.Process(search.pid), time.monotonic(), 0.0
    while search.poll() is None:
        if time.monotonic() - began > MOST_S or is_enough():
            search.terminate()
        with contextlib.suppress(psutil.Error):
            used = sum(process.cpu_times()[:2])
        time.sleep(1.0)
    return used / (time.monotonic() - began)


def _screening(home: Path) -> list[tuple[float, float]]:
    """Return (begin, end) of the trials that are neither baselines nor confirmations, in seconds."""
    stages: dict[int, str] = {}
    begun: dict[int, float] = {}
    found: list[tuple[float, float]] = []
    for journal in home.glob("studies/*/journal.db"):
        with contextlib.closing(
            sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=30)
        ) as connection:
            rows = connection.execute("SELECT kind, wall_s, json FROM events ORDER BY seq").fetchall()
        for kind, wall_s, text in rows:
            data = json.loads(text)
            if kind == "proposed":
                stages[data["trial"]["number"]] = data["trial"]["stage"]
            elif kind == "started":
                begun[data["number"]] = wall_s
            elif kind == "finished" and stages[data["number"]] not in (
                "BASELINE",
                "CONFIRM",
                "DRIFT_CHECK",
                "REFERENCE",
            ):
                found.append((begun[data["number"]], wall_s))
    return found
