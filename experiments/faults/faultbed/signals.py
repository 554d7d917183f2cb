"""Signals to a driver with a trial running: best so far written, all journaled, nothing left."""

import signal
import sys
import time
from pathlib import Path
from typing import Any

from autotune.launch.guard import process_tree
from autotune.launch.process import LocalRunner
from autotune.model import wire
from faultbed.common import TRIALS, Case, Child, Count, dice, end_all, gone_after
from faultbed.search import LIFE_S, WORLD, begin, entries, lived, losses, running

NAME = "signals"
TITLE = "signals to the driver"
PROMISE_S = 15.0
"""From the signal to the end of the driver: five seconds of grace are among them."""

SIGNALS = {"SIGINT": 130, "SIGTERM": 75, "SIGUSR1": 75, "SIGHUP": 75}
OTHERS = {"SIGTERM again and again": "SIGTERM", "SIGHUP under nohup": "SIGHUP"}
"""A scheduler that insists; and a logout that the user has taken care of."""

WHOLE = {
    "SIGTERM to the whole job": "SIGTERM",
    "SIGUSR1 to the whole job": "SIGUSR1",
    "SIGINT to the whole job": "SIGINT",
    "SIGTERM to the whole job, the trial first": "SIGTERM",
    "SIGUSR1 to the whole job, the trial first": "SIGUSR1",
}
"""As `systemctl stop`, a logout and `srun` send it: to every process of a group, in any order."""

FIRST_S = 0.2
AGAIN_S = 0.05
STAYS_S = 2.0
ROUNDS = 10


def cases() -> list[Case]:
    """Every signal ten times, in different trials and moments."""
    return [
        {"key": f"{name}/{turn}", "signal": name, "hangs_from": 1 + turn % 3}
        for turn in range(ROUNDS)
        for name in (*SIGNALS, *OTHERS, *WHOLE)
    ]


def sample() -> list[Case]:
    """Every signal once."""
    return [{"key": name, "signal": name, "hangs_from": 1} for name in (*SIGNALS, *OTHERS, *WHOLE)]


def run(case: Case, folder: Path, *, patches: tuple[Any, ...] = (), promise_s: float = PROMISE_S) -> Count:
    """One search with real processes, one signal."""
    what, hangs_from = str(case["signal"]), int(case["hangs_from"])
    name = OTHERS.get(what) or WHOLE.get(what, what)
    home = begin(folder, budget_s=600.0)
    root = Path(__file__).resolve().parents[3]
    command = (
        sys.executable,
        "-S",
        str(TRIALS / "reported.py"),
        str(root),
        wire.dumps(WORLD),
        str(hangs_from),
    )

    def runner(*_: Any) -> LocalRunner:
        return LocalRunner(
            study_dir=home, isolation="redirect", command=lambda _: command, space_floor_bytes=1
        )

    def life() -> dict[str, Any]:
        if what == "SIGHUP under nohup":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return lived(home, runner=runner, patches=patches)

    count = Count(injected=1)
    with Child(life, folder / "driver.log") as driver:
        uid = running(home, hangs_from, LIFE_S)
        if not uid:
            count.notes.append("the trial did not start: " + (folder / "driver.log").read_text()[-300:])
            return count
        try:
            time.sleep(dice(NAME, case["key"]).random() * 0.5)
            begun = time.monotonic()
            if what in WHOLE:
                process_tree.send(process_tree.descendants(driver.pid), signal.Signals[name])
                time.sleep(FIRST_S if "first" in what else 0.0)
            driver.kill(signal.Signals[name])
            if what == "SIGHUP under nohup":
                if driver.wait(STAYS_S):
                    count.notes.append("it ended although it was to ignore this signal")
                begun = time.monotonic()
                driver.kill(signal.SIGTERM)
            while what == "SIGTERM again and again" and entries(home)[-1].kind != "stopped":
                driver.kill(signal.SIGTERM)
                if driver.wait(AGAIN_S) or time.monotonic() - begun > promise_s:
                    break
            in_time = driver.wait(promise_s)
            count.seconds = time.monotonic() - begun
            count.survivors = len(gone_after(uid, max(2.0, promise_s - count.seconds))[1])
        finally:
            end_all(uid)
    if not in_time:
        count.notes.append("the driver did not end")
    found = driver.answer or {}
    if found.get("exit") != SIGNALS[name]:
        count.notes.append(f"it ended with {found!r}, signal {driver.signal}")
    if not (home / "best.yaml").exists():
        count.notes.append("there is no best.yaml")
    seen = entries(home)
    reported = sorted(int(e.data["number"]) for e in seen if e.kind == "finished")
    if reported != list(range(hangs_from)):
        count.notes.append(f"told were {reported}")
    if seen[-1].kind != "stopped":
        count.notes.append(f"the journal ends with {seen[-1].kind}")
    count.lost, count.duplicated = losses(home)
    count.survived = int(not (count.notes or count.lost or count.duplicated or count.survivors))
    return count
