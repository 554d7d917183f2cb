"""Ray dies in parts while a trial runs: the search goes on or ends with its answer, and nothing is left."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.driver.backends.local_ray import CLAIM, FOLDER, temporary
from autotune.launch.guard import process_tree
from autotune.launch.process import LocalRunner
from autotune.model import wire
from faultbed.common import TRIALS, Case, Child, Count, end_all, gone_after, until
from faultbed.search import WORLD, begin, entries, lived, losses, running

NAME = "rays"
TITLE = "Ray killed in parts"
VICTIMS = ("worker", "raylet", "head", "driver")
ROUNDS = 5
HANGS_FROM = 2
TRIALS_IN_ALL = 5
"""At most; how many of them are worth running is the planner's to say, but none may be missing."""

GOES_ON = ("worker",)
"""After the others the search has to be resumed."""

END_S = 150.0
"""A Ray without its head is noticed after a minute by Ray itself."""

HEADLESS_S = 55.0
"""A driver that was ended by Ray, and not by itself, is ended later than that."""

AWAY_S = 5.0
"""So long a lost node stays away; its trial waits for it."""

GONE_S = 30.0
KEPT_S = 8.0
"""Ray's own agents take 10 to 108 s to end after a killed driver; the keeper of a Ray of ours ends them."""

WRAPPER = """#!/bin/sh
[ -n "$AUTOTUNE_PLAN" ] && exec {python} -S {reported} {root} '{world}' "$(cat {hangs})"
exec {python} "$@"
"""


def cases() -> list[Case]:
    """Every part five times."""
    victims = (*VICTIMS, "node", "cluster")
    return [{"key": f"{victim}/{n}", "victim": victim} for n in range(ROUNDS) for victim in victims]


def sample() -> list[Case]:
    """What is replaced at once; of the rest Ray itself takes its minute."""
    return [{"key": "worker", "victim": "worker"}]


def run(case: Case, folder: Path, *, end_s: float = END_S) -> Count:
    """One search under a Ray of its own, one kill while a trial runs, then to its end."""
    victim = str(case["victim"])
    if victim == "node":
        return _node(folder)
    if victim == "cluster":
        return _lost_cluster(folder)
    hangs = folder / "hangs"
    home = begin(folder, budget_s=600.0, trials=TRIALS_IN_ALL, driver="ray", python=_python(folder, hangs))
    count = Count(injected=1)
    found: dict[str, Any] = {}
    with Child(lambda: _life(home), folder / "driver.log") as driver:
        uid = running(home, HANGS_FROM, 180.0)
        if not uid:
            count.notes.append("the trial did not start: " + (folder / "driver.log").read_text()[-300:])
            return count
        theirs = {pid: process_tree.start_ticks(pid) for pid in process_tree.descendants(driver.pid)}
        target = driver.pid if victim == "driver" else _part(victim, driver.pid)
        try:
            hangs.write_text(str(10**9))
            begun = time.monotonic()
            process_tree.send([target] if target > 1 else [], signal.SIGKILL)
            in_time = driver.wait(end_s)
            count.seconds = time.monotonic() - begun
            count.survivors = len(gone_after(uid, GONE_S)[1])
            if victim == "driver":
                until(lambda: not _alive(theirs) and not _folders(home), KEPT_S)
                count.survivors += len(_alive(theirs))
                if _folders(home):
                    count.notes.append("a folder of its Ray stays")
                with Child(lambda: _life(home), folder / "driver.log") as second:
                    second.wait(END_S)
                    found = second.answer or {}
            until(lambda: not _alive(theirs), GONE_S)
            left = _alive(theirs)
            count.survivors += len(left)
            if left:
                count.notes.append("left: " + ", ".join(_command(pid)[:60] for pid in left))
        finally:
            end_all(uid)
            process_tree.send(_alive(theirs), signal.SIGKILL)
    found = found or driver.answer or {}
    count.facts = {"ended": found.get("error") or found.get("stopped") or f"signal {driver.signal}"}
    if not target:
        count.notes.append(f"there was no {victim}")
    if not in_time:
        count.notes.append("the driver did not end")
    if victim not in ("driver", *GOES_ON) and not (found.get("message") and (home / "best.yaml").exists()):
        count.notes.append(f"it ended with {found!r}, signal {driver.signal}, and an answer was not written")
    if victim not in (*GOES_ON, "driver"):
        with Child(lambda: _life(home), folder / "driver.log") as driver:
            driver.wait(END_S)
            found = driver.answer or {}
    if "picks" not in found:
        count.notes.append(f"in the end it ended with {found!r}")
    numbers = sorted(int(e.data["number"]) for e in entries(home) if e.kind == "finished")
    if numbers != list(range(max(HANGS_FROM + 1, len(numbers)))):
        count.notes.append(f"told were {numbers}")
    count.lost, count.duplicated = losses(home)
    count.survived = int(not (count.notes or count.lost or count.duplicated or count.survivors))
    return count


def _python(folder: Path, hangs: Path) -> str:
    """An interpreter whose trials are made up and hang from the one on that the file names."""
    folder.mkdir(parents=True, exist_ok=True)
    hangs.write_text(str(HANGS_FROM))
    root = Path(__file__).resolve().parents[3]
    python = folder / "python"
    python.write_text(
        WRAPPER.format(
            python=sys.executable,
            reported=TRIALS / "reported.py",
            root=root,
            world=wire.dumps(WORLD),
            hangs=hangs,
        )
    )
    python.chmod(0o755)
    return str(python)


def _node(folder: Path) -> Count:
    """A cluster that is not ours: the node of a trial is lost and comes back; the trial is run again."""
    hangs, message = folder / "hangs", folder / "cluster"
    message.mkdir(parents=True)
    python = _python(folder, hangs)
    count = Count(injected=1)
    # Sockets lie below it, and their paths are limited.
    scratch = tempfile.mkdtemp(prefix="rf-")
    cluster = Child(lambda: _cluster(message, scratch), folder / "cluster.log")
    try:
        if not until((message / "address").exists, 120.0):
            count.notes.append("no cluster: " + (folder / "cluster.log").read_text()[-300:])
            return count
        home = begin(
            folder,
            budget_s=600.0,
            trials=TRIALS_IN_ALL,
            driver="ray",
            python=python,
            address=(message / "address").read_text(),
        )
        with Child(lambda: _life(home), folder / "driver.log") as driver:
            uid = running(home, HANGS_FROM, 180.0)
            if not uid:
                count.notes.append("the trial did not start: " + (folder / "driver.log").read_text()[-300:])
                return count
            try:
                hangs.write_text(str(10**9))
                begun = time.monotonic()
                (message / "lose").touch()
                count.survivors = len(gone_after(uid, GONE_S)[1])
                in_time = driver.wait(END_S)
                count.seconds = time.monotonic() - begun
            finally:
                end_all(uid)
            found = driver.answer or {}
        count.facts = {"ended": found.get("error") or found.get("stopped") or f"signal {driver.signal}"}
        if not in_time or "picks" not in found:
            count.notes.append(f"it ended with {found!r}, in time: {in_time}")
        if not (message / "back").exists():
            count.notes.append("the node did not come back")
        if not cluster.poll() and found:
            # What is somebody else's goes on without us.
            (message / "end").touch()
        elif cluster.poll():
            count.notes.append("the cluster ended with the search")
        cluster.wait(60.0)
    finally:
        theirs = process_tree.descendants(cluster.pid)
        cluster.close()
        process_tree.send(theirs, signal.SIGKILL)
        shutil.rmtree(scratch, ignore_errors=True)
    numbers = sorted(int(e.data["number"]) for e in entries(home) if e.kind == "finished")
    if numbers != list(range(max(HANGS_FROM + 1, len(numbers)))):
        count.notes.append(f"told were {numbers}")
    count.lost, count.duplicated = losses(home)
    count.survived = int(not (count.notes or count.lost or count.duplicated or count.survivors))
    return count


def _lost_cluster(folder: Path) -> Count:
    """A cluster that is not ours loses its head: the search ends with its answer, which names the cluster.

    Ray would end the driver a minute after that: by then a message and the best so far are there.
    """
    hangs, message = folder / "hangs", folder / "cluster"
    message.mkdir(parents=True)
    python = _python(folder, hangs)
    count = Count(injected=1)
    scratch = tempfile.mkdtemp(prefix="rf-")
    cluster = Child(lambda: _cluster(message, scratch), folder / "cluster.log")
    home, seen = folder, dict[int, int]()
    try:
        if not until((message / "address").exists, 120.0):
            count.notes.append("no cluster: " + (folder / "cluster.log").read_text()[-300:])
            return count
        address = (message / "address").read_text()
        home = begin(
            folder, budget_s=600.0, trials=TRIALS_IN_ALL, driver="ray", python=python, address=address
        )
        with Child(lambda: _life(home), folder / "driver.log") as driver:
            uid = running(home, HANGS_FROM, 180.0)
            if not uid:
                count.notes.append("the trial did not start: " + (folder / "driver.log").read_text()[-300:])
                return count
            seen = {pid: process_tree.start_ticks(pid) for pid in process_tree.descendants(cluster.pid)}
            try:
                hangs.write_text(str(10**9))
                begun = time.monotonic()
                head = _part("head", cluster.pid)
                process_tree.send([head] if head > 1 else [], signal.SIGKILL)
                in_time = driver.wait(HEADLESS_S)
                count.seconds = time.monotonic() - begun
            finally:
                # Raylet and workers wait for their head as long as Ray does, and are somebody else's.
                process_tree.send(_alive(seen), signal.SIGKILL)
                count.survivors = len(gone_after(uid, GONE_S)[1])
                end_all(uid)
            found = driver.answer or {}
        count.facts = {"ended": found.get("error") or found.get("stopped") or f"signal {driver.signal}"}
        if not head:
            count.notes.append("there was no head")
        reported_so = "no longer answers" in str(found.get("message"))
        if not (in_time and reported_so and (home / "best.yaml").exists()):
            count.notes.append(f"it ended with {found!r}, signal {driver.signal}, in time: {in_time}")
    finally:
        theirs = process_tree.descendants(cluster.pid)
        cluster.close()
        process_tree.send([*theirs, *_alive(seen)], signal.SIGKILL)
        shutil.rmtree(scratch, ignore_errors=True)
    count.lost, count.duplicated = losses(home)
    count.survived = int(not (count.notes or count.lost or count.duplicated or count.survivors))
    return count


def _cluster(message: Path, scratch: str) -> None:
    """Somebody's cluster: a head that runs nothing, and one node for trials, lost and then added again."""
    for name in [name for name in os.environ if name.startswith(("RAY_", "TUNE_"))]:
        del os.environ[name]
    os.environ.update(RAY_TMPDIR=scratch, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    draft = message / "address.part"
    draft.write_text(cluster.address)
    draft.rename(message / "address")
    if until((message / "lose").exists, 600.0):
        cluster.remove_node(node, allow_graceful=False)
        time.sleep(AWAY_S)
        cluster.add_node(num_cpus=1)
        (message / "back").touch()
        until((message / "end").exists, 600.0)
    cluster.shutdown()


def _life(home: Path) -> dict[str, Any]:
    for name in [name for name in os.environ if name.startswith(("RAY_", "TUNE_"))]:
        del os.environ[name]
    # Trials run in Ray's own processes; none is made here.
    return lived(home, runner=lambda *_: LocalRunner(study_dir=home))


def _folders(home: Path) -> list[Path]:
    """Temporary folders of the Rays of this study."""
    claims = Path(temporary()).glob(f"{FOLDER}*/{CLAIM}")
    return [claim.parent for claim in claims if claim.read_bytes() == os.fsencode(home.resolve())]


def _part(victim: str, driver: int) -> int:
    """The process that is meant, 0 where there is none."""
    words = {"worker": "ray::", "raylet": "raylet/raylet", "head": "gcs_server"}[victim]
    found = [pid for pid in process_tree.descendants(driver) if words in _command(pid)]
    if victim == "worker":
        # The one that supervises the trial has the guard below it.
        found = [p for p in found if any("guard.py" in _command(c) for c in process_tree.descendants(p))]
    return found[0] if found else 0


def _alive(seen: dict[int, int]) -> list[int]:
    return [
        p
        for p, ticks in seen.items()
        if process_tree.start_ticks(p) == ticks and not process_tree.is_zombie(p)
    ]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
