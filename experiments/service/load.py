"""Submits 500 searches, keeps 200 queued and 20 running, and follows 50 of them while others read and write.

Latencies are those of the client: they hold for the machine and its other work, which the totals name. What
must hold anywhere: no status of 500 or above, no event lost or repeated, memory that does not grow.
"""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from stand import Stand, until

from autotune.errors import AutotuneError
from autotune.service.client import Client

NAME = "load"
TITLE = "500 submissions, 200 queued, 20 running, 50 followers"
SUBMITTED, QUEUED, RUNNING, FOLLOWERS = 500, 200, 20, 50
SECONDS = (120, 600)
MOST_GROWTH_MIB = 40.0
"""Caches of the interpreter and the database grow at first."""
MIB = 2**20


def cases() -> list[str]:
    """Return how long it lasts, in seconds."""
    return [f"seconds/{n}" for n in SECONDS]


def sample() -> list[str]:
    """Return a short one of the same kind."""
    return ["seconds/10"]


def run(case: str, folder: Path) -> dict[str, Any]:
    """Put the service under load; the sample has a tenth of everything."""
    seconds = float(case.split("/")[1])
    part = 1 if seconds >= 60 else 10
    with Stand(folder, "--slots", str(RUNNING // part), run_s=10.0) as stand:
        found = _loaded(stand, seconds, part)
        for row in stand.client.searches(limit=500):
            stand.client.raw("POST", f"/api/v1/searches/{row['id']}/cancel", allow=(409,))
        until(lambda: not stand.supervisors(), "jobs still run")
    return found


def _loaded(stand: Stand, seconds: float, part: int) -> dict[str, Any]:
    faults: list[str] = []
    times: dict[str, list[float]] = {"GET": [], "POST": []}
    lock, over = threading.Lock(), threading.Event()
    token = (stand.data / "token").read_text().strip()

    def timed(method: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return call()
        except AutotuneError as error:
            faults.append(f"{method}: {error}")
            return None
        finally:
            with lock:
                times[method].append(time.perf_counter() - began)

    ids = [
        timed("POST", lambda n=n: stand.submit(key=f"load-{n:05d}", trials=400)).id
        for n in range(SUBMITTED // part)
    ]
    for one in ids[(QUEUED + RUNNING) // part :]:
        timed("POST", stand.client.search(one).cancel)
    followed = ids[: FOLLOWERS // part]
    seen: dict[str, list[int]] = {one: [] for one in followed}

    def follow(one: str) -> None:
        client = Client(stand.url, token)
        while not over.is_set():
            try:
                for seq, kind, _ in client.stream(f"/api/v1/searches/{one}/events", max([0, *seen[one]])):
                    if kind not in ("", "end"):
                        seen[one].append(seq)
                    if over.is_set():
                        return
            except AutotuneError as error:
                if not over.is_set():
                    faults.append(f"follower: {error}")
                return

    def use(number: int) -> None:
        client = Client(stand.url, token)
        while not over.wait(0.2):
            one = ids[(number * 7 + len(times["GET"])) % len(ids)]
            for path in (f"/api/v1/searches/{one}", "/", f"/searches/{one}", f"/api/v1/searches/{one}/log"):
                timed("GET", lambda path=path: client.raw("GET", path))
            timed("POST", lambda: client.request("POST", "/api/v1/estimate", json={"budget_s": 600}))

    threads = [threading.Thread(target=follow, args=(one,), daemon=True) for one in followed]
    threads += [threading.Thread(target=use, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    assert stand.process is not None
    service = psutil.Process(stand.process.pid)
    time.sleep(min(30.0, seconds / 4))
    before_mib = service.memory_info().rss / MIB
    time.sleep(seconds)
    after_mib = service.memory_info().rss / MIB
    states = [row["state"] for row in stand.client.searches(limit=500)]
    last = {one: _events(stand, one) for one in followed}
    until(lambda: all(set(last[one]) <= set(seen[one]) for one in followed), "events are missing", wait_s=30)
    over.set()
    for thread in threads:
        thread.join(20.0)
    faults += [f"{one}: an event came twice" for one in followed if len(seen[one]) != len(set(seen[one]))]
    if after_mib - before_mib > MOST_GROWTH_MIB:
        faults.append(f"memory grew by {after_mib - before_mib:.0f} MiB")
    figures = {
        "seconds": seconds, "queued": states.count("queued"), "running": states.count("running"),
        "followers": len(followed), "memory_mib": [round(before_mib), round(after_mib)],
        **{f"{name.lower()}_p99_ms": round(1000 * statistics.quantiles(found, n=100)[98])
           for name, found in times.items()},
    }  # fmt: skip
    return {
        "faults": faults, "searches": len(ids), "requests": sum(map(len, times.values())),
        "events": sum(map(len, seen.values())), "figures": figures,
    }  # fmt: skip


def _events(stand: Stand, one: str) -> list[int]:
    """Return the numbers of the events that the service has of a search by now."""
    path = stand.data / "service.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
        rows = connection.execute("SELECT seq FROM events WHERE search_id = ?", (one,)).fetchall()
    return [seq for (seq,) in rows]
